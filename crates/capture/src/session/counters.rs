//! The probes' own counters, and what they could not deliver.

use std::collections::HashMap;

use engine::event::{Event, Lost, What};
use engine::ids::{Pid, Tid};
use engine::units::Moment;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::object::Loaded;
use crate::error::Error;
use crate::wire;

/// Counters of the probes, over all CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Records that could not be delivered.
    pub lost: u64,
    /// Records delivered.
    pub records: u64,
    /// Hooked calls seen at return.
    pub calls: u64,
    /// Returns without an entry: the probes came in the middle of the call.
    pub unmatched: u64,
    /// Calls for which no state could be kept.
    pub no_state: u64,
    /// Hits of the self-test.
    pub canary: u64,
}

impl Counters {
    pub(crate) fn read(loaded: &Loaded) -> Result<Self, Error> {
        Self::from_map(&loaded.map("counters")?)
    }

    pub(crate) fn from_map(map: &MapHandle) -> Result<Self, Error> {
        let values = map
            .lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|source| Error::Load { source })?
            .unwrap_or_default();
        let mut sum = Self::default();
        for value in values.iter().filter_map(|value| wire::parse::<wire::Counters>(value)) {
            sum.lost += value.lost;
            sum.records += value.records;
            sum.calls += value.calls;
            sum.unmatched += value.unmatched;
            sum.no_state += value.no_state;
            sum.canary += value.canary;
        }
        Ok(sum)
    }
}

/// Turns the growing per-process counts of lost records into events of what is new.
pub(crate) struct Losses {
    counters: MapHandle,
    by_process: MapHandle,
    seen: HashMap<u32, Lost>,
    total: u64,
}

impl Losses {
    pub(crate) fn new(loaded: &Loaded) -> Result<Self, Error> {
        let by_process = loaded.map("lost_records")?;
        // The place for what no longer fits must be there before the table can be full.
        by_process
            .update(&0_u32.to_ne_bytes(), &[0; size_of::<wire::Lost>()], MapFlags::ANY)
            .map_err(|source| Error::Load { source })?;
        Ok(Self { counters: loaded.map("counters")?, by_process, seen: HashMap::new(), total: 0 })
    }

    /// What was lost since the last call. Cheap while nothing is.
    pub(crate) fn take(&mut self, now: Moment) -> Result<Vec<Event>, Error> {
        let total = Counters::from_map(&self.counters)?.lost;
        if total == self.total {
            return Ok(Vec::new());
        }
        self.total = total;
        let mut events = Vec::new();
        for key in self.by_process.keys() {
            let Some(pid) = wire::parse::<u32>(&key) else { continue };
            let value = self.by_process.lookup(&key, MapFlags::ANY);
            let value = value.map_err(|source| Error::Load { source })?;
            let Some(lost) = value.as_deref().and_then(wire::parse::<wire::Lost>) else { continue };
            let before = self.seen.entry(pid).or_default();
            let new = Lost {
                allocations: lost.allocations.saturating_sub(before.allocations),
                allocated_bytes: lost.allocated_bytes.saturating_sub(before.allocated_bytes),
                frees: lost.frees.saturating_sub(before.frees),
                failures: lost.failures.saturating_sub(before.failures),
                other: lost.other.saturating_sub(before.other),
                launches: lost.launches.saturating_sub(before.launches),
                copies: lost.copies.saturating_sub(before.copies),
                stacks: lost.stacks.saturating_sub(before.stacks),
                objects: lost.objects.saturating_sub(before.objects),
                tensors: lost.tensors.saturating_sub(before.tensors),
            };
            if new == Lost::default() {
                continue;
            }
            *before = Lost {
                allocations: lost.allocations,
                allocated_bytes: lost.allocated_bytes,
                frees: lost.frees,
                failures: lost.failures,
                other: lost.other,
                launches: lost.launches,
                copies: lost.copies,
                stacks: lost.stacks,
                objects: lost.objects,
                tensors: lost.tensors,
            };
            let what = What::Lost(new);
            events.push(Event { pid: Pid(pid), tid: Tid(pid), entered: now, at: now, what });
        }
        Ok(events)
    }

    /// A process ended: its pid may come again, with counts from zero.
    pub(crate) fn forget(&mut self, pid: Pid) {
        if pid.0 != 0 && self.seen.remove(&pid.0).is_some() {
            // Absent is as good as deleted.
            let _ = self.by_process.delete(&pid.0.to_ne_bytes());
        }
    }
}
