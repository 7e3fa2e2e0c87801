//! Takes what a reader finds: changes go on to whoever asked for them, the rest is kept.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use engine::analysis::Place;
use engine::analysis::suspects::{Findings, Suspects};
use engine::cache::{CacheSettings, PoolSums, Segment};
use engine::change::{Change, How, Turn};
use engine::ids::{DeviceId, Pid};
use engine::stack::Stacks;
use engine::units::Moment;
use engine::verdict::Judgement;

use super::{Refused, Sink, Warning};

/// Different warnings that are kept; a file that has more is told to have more.
const WARNINGS: usize = 100;

/// Failed requests that are kept.
const REFUSED: usize = 100_000;

/// What a file tells besides its changes.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The call stacks.
    pub stacks: Stacks,
    /// Names of processes (hostile text).
    pub processes: BTreeMap<Pid, String>,
    /// Names of devices (hostile text), and how much memory they have.
    pub devices: BTreeMap<DeviceId, (String, Option<u64>)>,
    /// A moment, and the wall clock at it in nanoseconds since 1970, UTC.
    pub clock: Option<(Moment, i64)>,
    /// What caches hold at the end.
    pub segments: Vec<Segment>,
    /// How those caches are set up.
    pub settings: CacheSettings,
    /// Sums of pools at the end.
    pub pools: Vec<PoolSums>,
    /// Requests that failed for want of memory; the first ones where there are very many.
    pub refused: Vec<Refused>,
    /// Verdicts on sites that made objects or tensors, leaks first.
    pub judged: Vec<Judgement>,
    /// Verdicts on memory and anomalies of a recording.
    pub findings: Option<Findings>,
    /// What the reader could not use.
    pub warnings: Vec<Warning>,
    /// The moments of the first and last change.
    pub span: Option<(Moment, Moment)>,
    /// Whose changes there are, where only a part of them is wanted.
    pub seen: Seen,
}

/// Processes and devices that a file tells changes of, wanted or not.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Processes.
    pub processes: BTreeSet<Pid>,
    /// Devices.
    pub devices: BTreeSet<DeviceId>,
}

impl Facts {
    /// Whether every figure is what happened.
    #[must_use]
    pub fn exact(&self) -> bool {
        !self.warnings.iter().any(|warning| warning.inexact)
    }

    /// Verdicts on memory and anomalies: the recording's own, else those on the changes of the file.
    #[must_use]
    pub fn findings(&self, changes: Suspects) -> Findings {
        self.findings.clone().unwrap_or_else(|| changes.finish())
    }

    /// The moment that times are told from: that of the wall clock, else the first change.
    #[must_use]
    pub fn origin(&self) -> Moment {
        let first = self.span.map_or(Moment(0), |(first, _)| first);
        self.clock.map_or(first, |(moment, _)| moment)
    }
}

/// Which changes are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Only {
    /// Those of one process.
    pub pid: Option<Pid>,
    /// Those on one device.
    pub device: Option<DeviceId>,
}

impl Only {
    /// A change as far as it is wanted: what moves to a wanted device begins there, what moves away
    /// ends.
    fn wanted(&self, change: &Change) -> Option<Change> {
        if self.pid.is_some_and(|pid| pid != change.pid) {
            return None;
        }
        let Some(device) = self.device else { return Some(*change) };
        let now = change.device == Some(device);
        let Turn::Learned { began, before } = change.what else {
            return now.then_some(*change);
        };
        match (before.device == Some(device), now) {
            (true, true) => Some(*change),
            (false, true) => Some(Change { what: Turn::Began, ..*change }),
            (true, false) => Some(Change {
                what: Turn::Ended { began, how: How::Replaced },
                device: before.device,
                pool: before.pool,
                bytes: before.bytes,
                ..*change
            }),
            (false, false) => None,
        }
    }
}

/// A sink that passes changes on.
pub struct Gather<'a> {
    /// What is kept.
    pub facts: Facts,
    /// Where in the facts a pool is.
    pools: HashMap<(Pid, Option<DeviceId>, u64), usize>,
    only: Only,
    each: &'a mut dyn FnMut(&Change, &Facts),
    progress: &'a mut dyn FnMut(u64, u64),
}

impl<'a> Gather<'a> {
    /// Passes the wanted changes on to `each`, with what is known so far; and to `progress`, how far
    /// the reader is.
    pub fn new(
        only: Only,
        each: &'a mut dyn FnMut(&Change, &Facts),
        progress: &'a mut dyn FnMut(u64, u64),
    ) -> Self {
        Self { facts: Facts::default(), pools: HashMap::new(), only, each, progress }
    }
}

impl Sink for Gather<'_> {
    fn stacks(&mut self) -> &mut Stacks {
        &mut self.facts.stacks
    }

    fn change(&mut self, change: &Change) {
        let first = self.facts.span.map_or(change.at, |(first, _)| first);
        self.facts.span = Some((first, change.at));
        if self.only == Only::default() {
            (self.each)(change, &self.facts);
            return;
        }
        self.facts.seen.processes.insert(change.pid);
        self.facts.seen.devices.extend(change.device);
        if let Some(change) = self.only.wanted(change) {
            (self.each)(&change, &self.facts);
        }
    }

    fn process(&mut self, pid: Pid, name: &str) {
        self.facts.processes.insert(pid, name.to_owned());
    }

    fn device(&mut self, device: DeviceId, name: &str, total_bytes: Option<u64>) {
        self.facts.devices.insert(device, (name.to_owned(), total_bytes));
    }

    fn clock(&mut self, moment: Moment, utc_nanos: i64) {
        self.facts.clock.get_or_insert((moment, utc_nanos));
    }

    fn segment(&mut self, segment: Segment) {
        if self.only.device.is_none() || self.only.device == segment.device {
            self.facts.segments.push(segment);
        }
    }

    fn judged(&mut self, judged: Judgement) {
        if self.only.pid.is_none_or(|pid| judged.pid == Some(pid)) {
            self.facts.judged.push(judged);
        }
    }

    fn findings(&mut self, mut findings: Findings) {
        let Only { pid, device } = self.only;
        let wanted = |place: &Place| {
            pid.is_none_or(|pid| pid == place.pid) && (device.is_none() || device == place.device)
        };
        findings.suspects.retain(|one| wanted(&one.place));
        findings.others.retain(|one| wanted(&one.place));
        findings.unusual.retain(|one| wanted(&one.place));
        self.facts.findings = Some(findings);
    }

    fn pool(&mut self, pool: &PoolSums) {
        let Only { pid, device } = self.only;
        if pid.is_some_and(|pid| pid != pool.pid) || device.is_some() && device != pool.device {
            return;
        }
        let pools = &mut self.facts.pools;
        let index = *self.pools.entry((pool.pid, pool.device, pool.pool)).or_insert(pools.len());
        match pools.get_mut(index) {
            Some(known) => *known = *pool,
            None => pools.push(*pool),
        }
    }

    fn cache_settings(&mut self, settings: &CacheSettings) {
        self.facts.settings = settings.clone();
    }

    fn refused(&mut self, refused: &Refused) {
        let Only { pid, device } = self.only;
        let wanted = pid.is_none_or(|pid| pid == refused.pid)
            && (device.is_none() || device == refused.device);
        if wanted && self.facts.refused.len() < REFUSED {
            self.facts.refused.push(*refused);
        }
    }

    fn warn(&mut self, warning: Warning) {
        let warnings = &mut self.facts.warnings;
        let known = warnings.iter_mut().find(|known| known.text == warning.text);
        if let Some(known) = known {
            known.count = known.count.saturating_add(warning.count);
            known.inexact |= warning.inexact;
        } else if warnings.len() < WARNINGS {
            warnings.push(warning);
        } else if let Some(last) = warnings.last_mut() {
            last.text = "other things that the reader could not use".to_owned();
            last.count = last.count.saturating_add(warning.count);
            last.inexact |= warning.inexact;
        }
    }

    fn progress(&mut self, done: u64, total: u64) {
        (self.progress)(done, total);
    }
}

#[cfg(test)]
mod tests {
    use engine::change::Known;
    use engine::ids::{Key, Tid};
    use engine::kind::Kind;

    use super::*;

    fn change(what: Turn, pid: u32, device: Option<u16>) -> Change {
        Change {
            at: Moment(5),
            what,
            pid: Pid(pid),
            tid: Tid(1),
            device: device.map(DeviceId),
            kind: Kind::Device,
            key: Key::address(1),
            bytes: 8,
            pool: None,
            stream: None,
            site: None,
        }
    }

    #[test]
    fn what_moves_to_the_wanted_device_begins_there_and_what_moves_away_ends() {
        let only = Only { pid: Some(Pid(1)), device: Some(DeviceId(0)) };
        let learned = |from: Option<u16>, to| {
            let before = Known { device: from.map(DeviceId), pool: None, bytes: 8 };
            let change = change(Turn::Learned { began: Moment(1), before }, 1, to);
            only.wanted(&change).map(|change| (change.what, change.device))
        };
        let gpu = Some(DeviceId(0));
        assert_eq!(learned(None, Some(0)), Some((Turn::Began, gpu)));
        let ended = Turn::Ended { began: Moment(1), how: How::Replaced };
        assert_eq!(learned(Some(0), Some(1)), Some((ended, gpu)));
        assert_eq!(learned(None, Some(1)), None);
        assert!(only.wanted(&change(Turn::Began, 1, Some(0))).is_some());
        assert!(only.wanted(&change(Turn::Began, 1, None)).is_none());
        assert!(only.wanted(&change(Turn::Began, 2, Some(0))).is_none());
    }

    #[test]
    fn warnings_are_told_once_with_their_count_and_there_is_an_end_to_them() {
        let (mut each, mut progress) = (|_: &Change, _: &Facts| {}, |_, _| {});
        let mut gather = Gather::new(Only::default(), &mut each, &mut progress);
        for number in 0..2 * WARNINGS {
            let text = format!("kind {number} is not known");
            gather.warn(Warning { text, count: 1, inexact: false });
            gather.warn(Warning { text: "rows were moved".into(), count: 2, inexact: true });
        }
        let warnings = &gather.facts.warnings;
        assert_eq!(warnings.len(), WARNINGS);
        assert_eq!((warnings[1].count, gather.facts.exact()), (4 * WARNINGS as u64, false));
        assert_eq!(warnings.iter().map(|warning| warning.count).sum::<u64>(), 600);
    }

    #[test]
    fn the_last_sums_of_each_pool_of_each_wanted_process_are_kept() {
        let kept = |only: Only| {
            let (mut each, mut progress) = (|_: &Change, _: &Facts| {}, |_, _| {});
            let mut gather = Gather::new(only, &mut each, &mut progress);
            let (device, at) = (None, Moment(1));
            let pool = PoolSums { pid: Pid(1), device, pool: 7, reserved: None, used: 1, at };
            gather.pool(&pool);
            gather.pool(&PoolSums { pid: Pid(2), used: 5, ..pool });
            gather.pool(&PoolSums { used: 2, ..pool });
            gather.facts.pools.iter().map(|pool| (pool.pid.0, pool.used)).collect::<Vec<_>>()
        };
        assert_eq!(kept(Only::default()), [(1, 2), (2, 5)]);
        assert_eq!(kept(Only { pid: Some(Pid(2)), device: None }), [(2, 5)]);
    }
}
