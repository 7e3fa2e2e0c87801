//! Configured thresholds: each fires once, until usage drops below it again.

use std::collections::HashSet;

use engine::ids::{GpuId, ProcessKey};
use engine::snapshot::Snapshot;
use engine::units::Bytes;
use formats::export::Names;
use formats::export::incident::Who;

/// Usage must drop below this ratio of the threshold before it can fire again.
const AGAIN: f64 = 0.98;

/// State of the configured thresholds.
pub(crate) struct Limits {
    used_above: Option<f64>,
    process_above: Option<Bytes>,
    full: HashSet<GpuId>,
    large: HashSet<ProcessKey>,
}

/// A crossed threshold.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Crossed {
    pub(crate) gpu: Option<GpuId>,
    pub(crate) process: Option<Who>,
    pub(crate) text: String,
}

impl Limits {
    pub(crate) fn new(used_above: Option<f64>, process_above: Option<Bytes>) -> Self {
        Self { used_above, process_above, full: HashSet::new(), large: HashSet::new() }
    }

    /// Returns the thresholds crossed since the last call.
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
            let ratio = used as f64 / total as f64;
            if ratio > limit && self.full.insert(view.gpu) {
                let text = format!("{} of {} used, threshold {limit}", Bytes(used), Bytes(total));
                crossed.push(Crossed { gpu: Some(view.gpu), process: None, text });
            } else if ratio < limit * AGAIN {
                self.full.remove(&view.gpu);
            }
        }
    }

    fn processes(&mut self, snapshot: &Snapshot, crossed: &mut Vec<Crossed>) {
        let Some(limit) = self.process_above else { return };
        let running = snapshot.processes.iter().filter(|process| process.ended.is_none());
        for process in running {
            let held = process.live_bytes;
            if held > limit && self.large.insert(process.key) {
                let holder = Who { pid: process.key.pid, tid: None, name: process.name.clone() };
                let largest = process.devices.iter().max_by_key(|view| view.live_bytes);
                let text = format!(
                    "{} (pid {}) holds {held}, threshold {limit}",
                    process.name, process.key.pid
                );
                let gpu = largest.and_then(|view| view.gpu);
                crossed.push(Crossed { gpu, process: Some(holder), text });
            } else if (held.0 as f64) < limit.0 as f64 * AGAIN {
                self.large.remove(&process.key);
            }
        }
        let is_running = |key: &ProcessKey| {
            snapshot.processes.iter().any(|process| process.key == *key && process.ended.is_none())
        };
        self.large.retain(is_running);
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
    fn threshold_fires_once_until_usage_drops() {
        let gpu =
            GpuName { id: GpuId(1), uuid: String::new(), name: String::new(), total_bytes: 100 };
        let clock = WallClock::fixed(Moment(0), 0);
        let (function, recorded) = (|_| "", Functions::default());
        let names = Names { clock, function, recorded, gpus: vec![gpu] };
        let mut thresholds = Limits::new(Some(0.9), None);
        let crossed: Vec<usize> = [50, 9, 5, 11, 9, 13, 9, 0]
            .into_iter()
            .map(|free| {
                let gpus = vec![GpuView { gpu: GpuId(1), free_bytes: Bytes(free) }];
                thresholds.look(&Snapshot { gpus, ..Snapshot::default() }, &names).len()
            })
            .collect();
        assert_eq!(crossed, [0, 1, 0, 0, 0, 0, 1, 0]);
    }
}
