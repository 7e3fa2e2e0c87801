//! Limits of the settings: crossed once, until it falls below again.

use std::collections::HashSet;

use engine::ids::{GpuId, ProcessKey};
use engine::snapshot::Snapshot;
use engine::units::Bytes;
use formats::export::Names;
use formats::export::incident::Who;

/// What is crossed must fall below this part of the limit before it can be crossed again.
const AGAIN: f64 = 0.98;

/// See the module.
pub(crate) struct Limits {
    used_above: Option<f64>,
    process_above: Option<Bytes>,
    full: HashSet<GpuId>,
    big: HashSet<ProcessKey>,
}

/// A limit that was crossed.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Crossed {
    pub(crate) gpu: Option<GpuId>,
    pub(crate) who: Option<Who>,
    pub(crate) text: String,
}

impl Limits {
    pub(crate) fn new(used_above: Option<f64>, process_above: Option<Bytes>) -> Self {
        Self { used_above, process_above, full: HashSet::new(), big: HashSet::new() }
    }

    /// What was crossed since the last time.
    pub(crate) fn look(&mut self, snapshot: &Snapshot, names: &Names) -> Vec<Crossed> {
        let mut crossed = Vec::new();
        self.gpus(snapshot, names, &mut crossed);
        self.processes(snapshot, &mut crossed);
        crossed
    }

    fn gpus(&mut self, snapshot: &Snapshot, names: &Names, crossed: &mut Vec<Crossed>) {
        let Some(limit) = self.used_above else { return };
        for view in &snapshot.gpus {
            let total = names.gpu(view.gpu).map_or(0, |gpu| gpu.total_bytes);
            if total == 0 {
                continue;
            }
            let used = total.saturating_sub(view.free_bytes.0);
            let part = used as f64 / total as f64;
            if part > limit && self.full.insert(view.gpu) {
                let text = format!("{} of {} used, threshold {limit}", Bytes(used), Bytes(total));
                crossed.push(Crossed { gpu: Some(view.gpu), who: None, text });
            } else if part < limit * AGAIN {
                self.full.remove(&view.gpu);
            }
        }
    }

    fn processes(&mut self, snapshot: &Snapshot, crossed: &mut Vec<Crossed>) {
        let Some(limit) = self.process_above else { return };
        let running = snapshot.processes.iter().filter(|process| process.ended.is_none());
        for process in running {
            let held = process.live_bytes;
            if held > limit && self.big.insert(process.key) {
                let who = Who { pid: process.key.pid, tid: None, name: process.name.clone() };
                let most = process.devices.iter().max_by_key(|view| view.live_bytes);
                let text = format!(
                    "{} (pid {}) holds {held}, threshold {limit}",
                    process.name, process.key.pid
                );
                let gpu = most.and_then(|view| view.gpu);
                crossed.push(Crossed { gpu, who: Some(who), text });
            } else if (held.0 as f64) < limit.0 as f64 * AGAIN {
                self.big.remove(&process.key);
            }
        }
        let runs = |key: &ProcessKey| {
            snapshot.processes.iter().any(|process| process.key == *key && process.ended.is_none())
        };
        self.big.retain(runs);
    }
}

#[cfg(test)]
mod tests {
    use engine::snapshot::GpuView;
    use engine::units::Moment;
    use formats::WallClock;
    use formats::export::GpuName;
    use formats::recording::Functions;

    use super::*;

    #[test]
    fn a_limit_is_crossed_once_until_it_falls_below_again() {
        let gpu =
            GpuName { id: GpuId(1), uuid: String::new(), name: String::new(), total_bytes: 100 };
        let clock = WallClock::fixed(Moment(0), 0);
        let (function, recorded) = (|_| "", Functions::default());
        let names = Names { clock, function, recorded, gpus: vec![gpu] };
        let mut limits = Limits::new(Some(0.9), None);
        let crossed: Vec<usize> = [50, 9, 5, 11, 9, 13, 9, 0]
            .into_iter()
            .map(|free| {
                let gpus = vec![GpuView { gpu: GpuId(1), free_bytes: Bytes(free) }];
                limits.look(&Snapshot { gpus, ..Snapshot::default() }, &names).len()
            })
            .collect();
        assert_eq!(crossed, [0, 1, 0, 0, 0, 0, 1, 0]);
    }
}
