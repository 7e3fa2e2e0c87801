//! What processes held in the last minutes, and when they last launched something: kept from what is
//! published, a few numbers for each process, for a bounded number of them.

use std::collections::{HashMap, VecDeque};

use engine::ids::{GpuId, ProcessKey};
use engine::snapshot::{ProcessView, Snapshot};
use engine::units::{Moment, Nanos};
use formats::export::incident::Grown;

/// Processes that are kept in mind: those that hold most when there are more.
const PROCESSES: usize = 1024;

/// How far apart two samples are, and how many there are.
const STEP: Nanos = Nanos::from_millis(5000);
const SAMPLES: usize = 60;

/// See the module.
#[derive(Default)]
pub(crate) struct History {
    processes: HashMap<ProcessKey, Course>,
    next: Moment,
}

/// What was held at a moment, by GPU; `None` is every device together.
type Sample = (Moment, Vec<(Option<GpuId>, u64)>);

struct Course {
    name: Box<str>,
    samples: VecDeque<Sample>,
    /// Since when it has launched nothing; none where launches are not counted.
    quiet_since: Option<Moment>,
    seen: Moment,
}

impl History {
    /// Takes note of what is published.
    pub(crate) fn note(&mut self, snapshot: &Snapshot) {
        let at = snapshot.at;
        let sample = at >= self.next;
        if sample {
            self.next = Moment(at.0.saturating_add(STEP.0));
        }
        for process in snapshot.processes.iter().filter(|process| process.ended.is_none()) {
            if !self.processes.contains_key(&process.key) && self.processes.len() >= PROCESSES {
                continue;
            }
            let course = self.processes.entry(process.key).or_insert_with(|| Course {
                name: process.name.clone(),
                samples: beginning(process, at),
                quiet_since: None,
                seen: at,
            });
            course.seen = at;
            if let Some(work) = &process.work {
                let busy = work.recent_launches > 0;
                course.quiet_since = Some(course.quiet_since.filter(|_| !busy).unwrap_or(at));
            }
            if sample || course.samples.len() < 2 {
                course.samples.push_back((at, held(process)));
                if course.samples.len() > SAMPLES {
                    course.samples.pop_front();
                }
            }
        }
        if sample {
            let old = Nanos(STEP.0.saturating_mul(SAMPLES as u64));
            self.processes.retain(|_, course| at - course.seen < old);
        }
    }

    /// How much more processes hold now than some minutes ago, the most first.
    pub(crate) fn grown(&self, snapshot: &Snapshot, gpu: Option<GpuId>) -> Vec<Grown> {
        let mut all: Vec<Grown> = snapshot
            .processes
            .iter()
            .filter_map(|process| self.one(process, snapshot.at, gpu))
            .collect();
        all.retain(|one| one.bytes != 0);
        all.sort_by_key(|one| (std::cmp::Reverse(one.bytes), one.pid));
        all
    }

    fn one(&self, process: &ProcessView, now: Moment, gpu: Option<GpuId>) -> Option<Grown> {
        let of = |held: &[(Option<GpuId>, u64)]| {
            held.iter().find(|(on, _)| *on == gpu).map_or(0, |(_, bytes)| *bytes)
        };
        let course = self.processes.get(&process.key);
        if course.is_none() && (process.before_trace || self.processes.len() >= PROCESSES) {
            return None;
        }
        let oldest = course.and_then(|course| course.samples.front());
        // One that was never seen before began since the last time, which is a second ago.
        let last = Moment(now.0.saturating_sub(1_000_000_000));
        let (since, before) = oldest.map_or((last, 0), |(at, held)| (*at, of(held)));
        let now_held = of(&held(process));
        Some(Grown {
            pid: process.key.pid,
            name: course.map_or_else(|| process.name.clone(), |course| course.name.clone()),
            bytes: i64::try_from(i128::from(now_held) - i128::from(before)).unwrap_or(i64::MAX),
            within: now - since,
        })
    }

    /// Who has launched nothing, and for how long.
    pub(crate) fn all_idle(&self, now: Moment) -> HashMap<ProcessKey, Nanos> {
        let quiet =
            self.processes.iter().filter_map(|(key, course)| Some((*key, course.quiet_since?)));
        quiet.map(|(key, since)| (key, now - since)).collect()
    }

    /// For how long a process has launched nothing, where that is counted.
    pub(crate) fn idle(&self, process: &ProcessView, now: Moment) -> Option<Nanos> {
        let course = self.processes.get(&process.key)?;
        course.quiet_since.map(|since| now - since)
    }
}

/// A process that began under our eyes held nothing a moment before.
fn beginning(process: &ProcessView, at: Moment) -> VecDeque<Sample> {
    let before = Moment(at.0.saturating_sub(1_000_000_000));
    let nothing = (!process.before_trace).then(|| (before, Vec::new()));
    nothing.into_iter().collect()
}

/// What a process holds, on each GPU and altogether.
fn held(process: &ProcessView) -> Vec<(Option<GpuId>, u64)> {
    let mut all = vec![(None, process.live_bytes.0)];
    for view in process.devices.iter().filter(|view| view.gpu.is_some()) {
        match all.iter_mut().find(|(gpu, _)| *gpu == view.gpu) {
            Some((_, bytes)) => *bytes = bytes.saturating_add(view.live_bytes.0),
            None => all.push((view.gpu, view.live_bytes.0)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use engine::event::{Allocate, Event, ProcessFacts, What};
    use engine::ids::{DeviceId, Key, Pid, Tid};
    use engine::kind::Kind;
    use engine::ledger::Ledger;
    use engine::snapshot::View;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn tell(ledger: &mut Ledger, at: u64, pid: u32, what: What) {
        let at = Moment(at * SECOND);
        ledger.apply(&Event { pid: Pid(pid), tid: Tid(pid), entered: at, at, what });
    }

    fn allocate(ledger: &mut Ledger, at: u64, pid: u32, bytes: u64) {
        let what = What::Allocate(Allocate {
            key: Key::address(at << 8),
            kind: Kind::Device,
            bytes,
            context: None,
            device: Some(DeviceId(0)),
            pool: None,
            stream: None,
            site: None,
        });
        tell(ledger, at, pid, what);
    }

    #[test]
    fn growth_is_of_the_last_minutes_and_of_who_began_in_them_all() {
        let (mut ledger, mut history) = (Ledger::new(), History::default());
        for (at, pid, before_trace) in [(1, 1, true), (900, 2, false)] {
            let facts = ProcessFacts { start: 1, uid: 0, name: "p".into(), before_trace };
            tell(&mut ledger, at, pid, What::Process(facts));
            tell(&mut ledger, at, pid, What::Gpus([Some(GpuId(4))].into()));
        }
        allocate(&mut ledger, 2, 1, 1000);
        let mut last = Snapshot::default();
        for at in 3..1000 {
            match at {
                500 => allocate(&mut ledger, at, 1, 5000),
                800 => allocate(&mut ledger, at, 1, 70),
                900 => allocate(&mut ledger, at, 2, 300),
                _ => {}
            }
            last = ledger.snapshot(Moment(at * SECOND), &View::default());
            history.note(&last);
        }
        for gpu in [None, Some(GpuId(4))] {
            let grown = history.grown(&last, gpu);
            let short: Vec<_> = grown.iter().map(|one| (one.pid.0, one.bytes)).collect();
            assert_eq!(short, [(2, 300), (1, 70)], "{gpu:?}");
            assert!(
                grown[1].within <= Nanos(300 * SECOND) && grown[1].within > Nanos(250 * SECOND)
            );
        }
        assert!(history.grown(&last, Some(GpuId(5))).is_empty());
    }
}
