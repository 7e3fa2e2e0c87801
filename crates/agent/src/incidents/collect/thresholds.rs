//! Configured thresholds: each fires once, until usage drops below it again.

use std::collections::HashSet;

use engine::model::{Bytes, GpuId, ProcessKey};
use engine::snapshot::Snapshot;
use formats::export::ReportContext;
use formats::report::incident::Requester;

/// Usage must drop below this ratio of the threshold before it can fire again.
const REARM_RATIO: f64 = 0.98;

/// State of the configured thresholds.
pub(crate) struct ThresholdMonitor {
    used_above: Option<f64>,
    process_above: Option<Bytes>,
    full: HashSet<GpuId>,
    large: HashSet<ProcessKey>,
}

/// A crossed threshold.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ThresholdCrossing {
    pub(crate) gpu: Option<GpuId>,
    pub(crate) process: Option<Requester>,
    pub(crate) text: String,
}

impl ThresholdMonitor {
    pub(crate) fn new(used_above: Option<f64>, process_above: Option<Bytes>) -> Self {
        Self { used_above, process_above, full: HashSet::new(), large: HashSet::new() }
    }

    /// Returns the thresholds crossed since the last call.
    pub(crate) fn check(
        &mut self,
        snapshot: &Snapshot,
        context: &ReportContext,
    ) -> Vec<ThresholdCrossing> {
        let mut crossed = Vec::new();
        self.gpus(snapshot, context, &mut crossed);
        self.processes(snapshot, &mut crossed);
        crossed
    }

    fn gpus(
        &mut self,
        snapshot: &Snapshot,
        context: &ReportContext,
        crossed: &mut Vec<ThresholdCrossing>,
    ) {
        let Some(limit) = self.used_above else { return };
        for view in &snapshot.gpus {
            let total = context.gpu(view.gpu).map_or(0, |gpu| gpu.total_bytes);
            if total == 0 {
                continue;
            }
            let used = total.saturating_sub(view.free_bytes.0);
            let ratio = used as f64 / total as f64;
            if ratio > limit && self.full.insert(view.gpu) {
                let text = format!("{} of {} used, threshold {limit}", Bytes(used), Bytes(total));
                crossed.push(ThresholdCrossing { gpu: Some(view.gpu), process: None, text });
            } else if ratio < limit * REARM_RATIO {
                self.full.remove(&view.gpu);
            }
        }
    }

    fn processes(&mut self, snapshot: &Snapshot, crossed: &mut Vec<ThresholdCrossing>) {
        let Some(limit) = self.process_above else { return };
        let running = snapshot.processes.iter().filter(|process| process.ended.is_none());
        for process in running {
            let held = process.live_bytes;
            if held > limit && self.large.insert(process.key) {
                let holder =
                    Requester { pid: process.key.pid, tid: None, name: process.program().into() };
                let largest = process.devices.iter().max_by_key(|view| view.live_bytes);
                let text = format!(
                    "{} (pid {}) holds {held}, threshold {limit}",
                    process.program(),
                    process.key.pid
                );
                let gpu = largest.and_then(|view| view.gpu);
                crossed.push(ThresholdCrossing { gpu, process: Some(holder), text });
            } else if (held.0 as f64) < limit.0 as f64 * REARM_RATIO {
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
    use engine::model::Timestamp;
    use engine::snapshot::GpuView;
    use formats::WallClock;
    use formats::export::GpuLabel;

    use super::*;

    #[test]
    fn threshold_fires_once_until_usage_drops() {
        let gpu =
            GpuLabel { id: GpuId(1), uuid: String::new(), name: String::new(), total_bytes: 100 };
        let clock = WallClock::fixed(Timestamp(0), 0);
        let context = ReportContext { gpus: vec![gpu], ..ReportContext::new(clock) };
        let mut thresholds = ThresholdMonitor::new(Some(0.9), None);
        let crossed: Vec<usize> = [50, 9, 5, 11, 9, 13, 9, 0]
            .into_iter()
            .map(|free| {
                let gpus =
                    vec![GpuView { gpu: GpuId(1), free_bytes: Bytes(free), growth_per_hour: None }];
                thresholds.check(&Snapshot { gpus, ..Snapshot::default() }, &context).len()
            })
            .collect();
        assert_eq!(crossed, [0, 1, 0, 0, 0, 0, 1, 0]);
    }
}
