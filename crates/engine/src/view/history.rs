//! Used memory of GPUs and processes over the last views, for small charts.

use std::collections::{BTreeMap, VecDeque};

use super::View;
use crate::model::{GpuId, ProcessKey};

/// Maximum number of values of a chart.
const MAX_VALUES: usize = 120;

/// Maximum number of values that are kept of each series: earlier views have charts, too.
const MAX_KEPT: usize = 720;

/// Maximum number of series of processes. Beyond it, those that the newest view does not list are
/// dropped.
const MAX_PROCESSES: usize = 4096;

/// Values, each with the number of the view that it is from.
#[derive(Clone, Debug, Default)]
struct Series {
    levels: VecDeque<(u64, u64)>,
    /// Whether the driver reported them.
    is_reported: bool,
}

impl Series {
    fn add(&mut self, number: u64, value: u64, is_reported: bool) {
        // Traced and driver-reported memory are not one line.
        if self.is_reported != is_reported {
            self.levels.clear();
            self.is_reported = is_reported;
        }
        self.levels.push_back((number, value));
        if self.levels.len() > MAX_KEPT {
            self.levels.pop_front();
        }
    }

    fn last(&self) -> u64 {
        self.levels.back().map_or(0, |(last, _)| *last)
    }
}

/// Used memory of each GPU and process of one host in the last views. Processes that exited are
/// kept for as long as their values would be, so that an earlier view still has its charts.
#[derive(Clone, Debug, Default)]
pub struct UsageHistory {
    gpus: BTreeMap<Option<GpuId>, Series>,
    processes: BTreeMap<ProcessKey, Series>,
}

impl UsageHistory {
    /// Adds a view. `number` must be greater than that of the view before.
    pub fn push(&mut self, view: &View<'_>, number: u64) {
        for gpu in &view.gpus {
            let (value, is_reported) = (gpu.used.unwrap_or(gpu.traced).0, gpu.used.is_some());
            self.gpus.entry(gpu.gpu).or_default().add(number, value, is_reported);
        }
        for row in &view.processes {
            // What it used before it ended stays a line.
            let series = self.processes.entry(row.process.key).or_default();
            let is_reported =
                row.is_reported || (row.process.ended.is_some() && series.is_reported);
            series.add(number, row.used.0, is_reported);
        }
        let oldest = (number + 1).saturating_sub(MAX_KEPT as u64);
        self.gpus.retain(|_, series| series.last() >= oldest);
        self.processes.retain(|_, series| series.last() >= oldest);
        if self.processes.len() > MAX_PROCESSES {
            self.processes.retain(|_, series| series.last() == number);
        }
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

fn values(series: Option<&Series>, until: u64) -> Vec<u64> {
    let Some(Series { levels, .. }) = series else { return Vec::new() };
    let end = levels.partition_point(|(number, _)| *number <= until);
    levels.range(end.saturating_sub(MAX_VALUES)..end).map(|(_, value)| *value).collect()
}
