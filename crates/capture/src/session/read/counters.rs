//! Counters of the probes.

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::super::load::bpf_object::{LoadedObject, map_error};
use crate::error::Error;
use crate::wire;

/// Counters of the probes, summed over all CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProbeCounters {
    /// Records that could not be delivered.
    pub lost: u64,
    /// Records delivered.
    pub records: u64,
    /// Hooked calls seen at return.
    pub calls: u64,
    /// Returns without an entry: the probes were attached during the call.
    pub unmatched: u64,
    /// Calls for which no state could be kept.
    pub no_state: u64,
    /// Hits of the self-test.
    pub self_test: u64,
    /// Graph states that ended; captures of theirs may be left in the map.
    pub graphs: u64,
    /// Calls of unknown memory functions.
    pub unknown: u64,
}

impl ProbeCounters {
    pub(crate) fn read(loaded: &LoadedObject) -> Result<Self, Error> {
        Self::from_map(&loaded.map("counters")?)
    }

    pub(crate) fn from_map(map: &MapHandle) -> Result<Self, Error> {
        let values = map
            .lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(map_error("counters"))?
            .unwrap_or_default();
        let mut sum = Self::default();
        for value in values.iter().filter_map(|value| wire::parse::<wire::Counters>(value)) {
            sum.lost += value.lost;
            sum.records += value.records;
            sum.calls += value.calls;
            sum.unmatched += value.unmatched;
            sum.no_state += value.no_state;
            sum.self_test += value.self_test;
            sum.graphs += value.graphs;
            sum.unknown += value.unknown;
        }
        Ok(sum)
    }
}
