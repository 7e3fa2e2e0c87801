//! Memory by call stack, for tools that draw profiles: folded lines, flame graphs, pprof.
//!
//! Only memory that counts in a file is in them (see [`engine::analysis::Measure`]), so that their sums are those of its
//! reports: layers are never added.

mod flame;
mod folded;
mod live;
mod pprof;
mod proto;

pub use flame::flame_graph;
pub use folded::folded;
pub use live::{Allocated, live_pprof};
pub use pprof::pprof;

use std::collections::BTreeMap;

use engine::analysis::groups::Groups;
use engine::analysis::watermark::Peak;
use engine::analysis::{Amount, Place};
use engine::ids::Pid;
use engine::stack::Stacks;

use crate::plain::plain;

/// What was allocated in one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// The place.
    pub place: Place,
    /// What is in use: never freed, or live at the peak.
    pub in_use: Amount,
    /// All that was ever allocated.
    pub allocated: Amount,
}

/// What a profile is drawn from.
#[derive(Clone, Copy, Debug)]
pub struct Profile<'a> {
    /// The samples.
    pub samples: &'a [Sample],
    /// What their sites look like.
    pub stacks: &'a Stacks,
    /// Names of processes (hostile text).
    pub processes: &'a BTreeMap<Pid, String>,
    /// The file that it is of, as it may be shown.
    pub title: &'a str,
}

/// Which figure of a sample counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// What is in use.
    InUse,
    /// All that was ever allocated.
    Allocated,
}

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Allocations.
    Objects,
}

impl Sample {
    fn figure(&self, value: Value, unit: Unit) -> u64 {
        let amount = match value {
            Value::InUse => self.in_use,
            Value::Allocated => self.allocated,
        };
        match unit {
            Unit::Bytes => amount.bytes,
            Unit::Objects => amount.allocations,
        }
    }
}

/// What was never freed and what was ever allocated, by the sums of a file.
#[must_use]
pub fn at_end(groups: &Groups) -> Vec<Sample> {
    let counted = groups.iter().filter(|group| groups.measure().counts(group.place.kind));
    let sample = counted.map(|group| Sample {
        place: group.place,
        in_use: group.never_freed(),
        allocated: group.began,
    });
    sample.collect()
}

/// The same with what was live at the peak of each device.
#[must_use]
pub fn at_peak(groups: &Groups, peaks: &[Peak]) -> Vec<Sample> {
    let mut samples: BTreeMap<Place, Sample> = at_end(groups)
        .into_iter()
        .map(|sample| (sample.place, Sample { in_use: Amount::default(), ..sample }))
        .collect();
    let wholes = peaks.iter().filter(|peak| peak.pid.is_none());
    for held in wholes.flat_map(|peak| &peak.live) {
        let none = Amount::default();
        let (place, allocated) = (held.place, none);
        let sample = samples.entry(place).or_insert(Sample { place, in_use: none, allocated });
        sample.in_use = sample.in_use.plus(held.amount);
    }
    samples.into_values().collect()
}

impl Profile<'_> {
    /// Whether any sample has something of it.
    #[must_use]
    pub fn has(&self, value: Value) -> bool {
        self.samples.iter().any(|sample| sample.figure(value, Unit::Objects) > 0)
    }

    /// `python3 (4711)`, fit for a terminal.
    fn process(&self, pid: Pid) -> String {
        match self.processes.get(&pid).map(|name| plain(name)) {
            Some(name) if !name.is_empty() => format!("{name} ({pid})"),
            _ => format!("process {pid}"),
        }
    }
}
