//! Used memory of GPUs and processes over the last views, for small charts.

use std::collections::{BTreeMap, VecDeque};

use super::View;
use crate::model::{GpuId, ProcessKey};

/// Maximum number of values of each series.
const MAX_VALUES: usize = 120;

/// A value and the number of the view that it is from.
type Levels = VecDeque<(u64, u64)>;

/// Used memory of each GPU and process of one host in the last views. Bounded by what the newest
/// view lists.
#[derive(Clone, Debug, Default)]
pub struct UsageHistory {
    gpus: BTreeMap<Option<GpuId>, Levels>,
    processes: BTreeMap<ProcessKey, Levels>,
}

impl UsageHistory {
    /// Adds a view. `number` must be greater than that of the view before.
    pub fn push(&mut self, view: &View<'_>, number: u64) {
        let add = |levels: &mut Levels, value: u64| {
            levels.push_back((number, value));
            if levels.len() > MAX_VALUES {
                levels.pop_front();
            }
        };
        for gpu in &view.gpus {
            add(self.gpus.entry(gpu.gpu).or_default(), gpu.used.unwrap_or(gpu.traced).0);
        }
        for row in &view.processes {
            add(self.processes.entry(row.process.key).or_default(), row.used.0);
        }
        let is_current = |levels: &Levels| levels.back().is_some_and(|(last, _)| *last == number);
        self.gpus.retain(|_, levels| is_current(levels));
        self.processes.retain(|_, levels| is_current(levels));
    }

    /// Values of a GPU up to a view, oldest first.
    pub fn gpu(&self, gpu: Option<GpuId>, until: u64) -> Vec<u64> {
        values(self.gpus.get(&gpu), until)
    }

    /// Values of a process up to a view, oldest first.
    pub fn process(&self, key: ProcessKey, until: u64) -> Vec<u64> {
        values(self.processes.get(&key), until)
    }
}

fn values(levels: Option<&Levels>, until: u64) -> Vec<u64> {
    let levels = levels.into_iter().flatten();
    levels.filter(|(number, _)| *number <= until).map(|(_, value)| *value).collect()
}
