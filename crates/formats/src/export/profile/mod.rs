//! Memory by call stack for profile viewers: folded stacks, flame graphs, pprof, speedscope.
//!
//! Only memory that counts in a file is included (see [`engine::analysis::MemoryScope`]), so that
//! sums match the reports of the file: layers are never added.

mod flamegraph;
mod folded;
mod live;
mod pprof;
mod proto;
mod speedscope;

pub use flamegraph::flame_graph;
pub use folded::folded;
pub use live::live_pprof;
pub use pprof::pprof;
pub use speedscope::speedscope;

use std::collections::BTreeMap;

use engine::analysis::groups::GroupTable;
use engine::analysis::peak::Peak;
use engine::analysis::{Amount, GroupKey};
use engine::model::{Pid, StackTable};

use crate::sanitize::sanitize;

/// Amounts of one site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProfileSample {
    /// Process, device, kind and site.
    pub key: GroupKey,
    /// Memory in use: never freed, or live at the peak.
    pub in_use: Amount,
    /// Total allocated memory.
    pub allocated: Amount,
}

/// Input of a profile.
#[derive(Clone, Copy, Debug)]
pub struct Profile<'a> {
    /// The samples.
    pub samples: &'a [ProfileSample],
    /// Stacks of their sites.
    pub stacks: &'a StackTable,
    /// Names of processes, not sanitized.
    pub processes: &'a BTreeMap<Pid, String>,
    /// Name of the file, as shown to the user.
    pub title: &'a str,
}

/// Value of a sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProfileValue {
    /// Memory in use.
    InUse,
    /// Total allocated memory.
    Allocated,
}

/// Unit of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProfileUnit {
    /// Bytes.
    Bytes,
    /// Allocations.
    Objects,
}

impl ProfileSample {
    fn amount(&self, value: ProfileValue, unit: ProfileUnit) -> u64 {
        let amount = match value {
            ProfileValue::InUse => self.in_use,
            ProfileValue::Allocated => self.allocated,
        };
        match unit {
            ProfileUnit::Bytes => amount.bytes,
            ProfileUnit::Objects => amount.allocations,
        }
    }
}

/// Returns samples with the memory that was never freed and the total allocated memory of a file.
pub fn at_end(groups: &GroupTable) -> Vec<ProfileSample> {
    let counted = groups.iter().filter(|group| groups.scope().counts(group.key.kind));
    let sample = counted.map(|group| ProfileSample {
        key: group.key,
        in_use: group.never_freed(),
        allocated: group.allocated,
    });
    sample.collect()
}

/// Returns samples with the memory that was live at the peak of each device.
pub fn at_peak(groups: &GroupTable, peaks: &[Peak]) -> Vec<ProfileSample> {
    let mut samples: BTreeMap<GroupKey, ProfileSample> = at_end(groups)
        .into_iter()
        .map(|sample| (sample.key, ProfileSample { in_use: Amount::default(), ..sample }))
        .collect();
    let device_peaks = peaks.iter().filter(|peak| peak.pid.is_none());
    for group in device_peaks.flat_map(|peak| &peak.live) {
        let none = Amount::default();
        let (key, allocated) = (group.key, none);
        let sample = samples.entry(key).or_insert(ProfileSample { key, in_use: none, allocated });
        sample.in_use = sample.in_use.plus(group.amount);
    }
    samples.into_values().collect()
}

impl Profile<'_> {
    /// Returns whether any sample has a value greater than 0.
    pub fn has(&self, value: ProfileValue) -> bool {
        self.samples.iter().any(|sample| sample.amount(value, ProfileUnit::Objects) > 0)
    }

    /// Returns `python3 (4711)`, sanitized.
    fn process(&self, pid: Pid) -> String {
        match self.processes.get(&pid).map(|name| sanitize(name)) {
            Some(name) if !name.is_empty() => format!("{name} ({pid})"),
            // Files of some tools do not name it.
            _ if pid.0 == 0 => "the program".to_owned(),
            _ => format!("process {pid}"),
        }
    }
}
