//! Anomalies of a process: see [`crate::anomaly`].

use crate::anomaly::{GrowthAnomaly, GrowthAnomalyDetector, SiteBaseline, SizeAnomalyDetector};
use crate::model::ids::{AllocationKey, DeviceId, SiteId, Tid};
use crate::model::memory_kind::{MemoryKind, MemoryLayer};
use crate::model::stack::{SiteName, SiteRegistry};
use crate::model::units::{Bytes, Timestamp};
use crate::verdict::{Anomaly, AnomalyKind};

use super::super::memory::allocation::AllocationEntry;
use super::super::process::Process;

/// Limit of anomalies kept per process.
const MAX_ANOMALIES: usize = 64;

/// An anomaly that is kept.
#[derive(Debug)]
struct RecordedAnomaly {
    at: Timestamp,
    tid: Option<Tid>,
    site: Option<SiteId>,
    device: Option<DeviceId>,
    kind: MemoryKind,
    details: AnomalyKind,
}

/// Detectors and anomalies of one process.
#[derive(Debug, Default)]
pub(in crate::ledger) struct AnomalyLog {
    sizes: SizeAnomalyDetector,
    growths: GrowthAnomalyDetector,
    recorded: Vec<RecordedAnomaly>,
    /// Number of anomalies that were already in a snapshot.
    shown: usize,
}

impl AnomalyLog {
    /// Checks a new allocation; `live` is the device memory before it.
    pub(in crate::ledger) fn observe(
        &mut self,
        entry: &AllocationEntry,
        tid: Tid,
        site: Option<SiteBaseline>,
        live: Bytes,
    ) {
        if let Some(grown) = self.growths.observe(entry.returned_at, live.0) {
            self.record_growth(grown);
        }
        if !is_own(entry.kind) {
            return;
        }
        if let Some(baseline) = self.sizes.add(entry.bytes, site) {
            self.growths.mark_explained(entry.bytes);
            let details = AnomalyKind::Size {
                key: entry.key(),
                bytes: Bytes(entry.bytes),
                baseline: baseline.bytes,
                of: baseline.of,
                of_site: baseline.of_site,
                live: true,
            };
            self.record(RecordedAnomaly {
                at: entry.returned_at,
                tid: Some(tid),
                site: entry.site(),
                device: entry.device(),
                kind: entry.kind,
                details,
            });
        }
    }

    fn record_growth(&mut self, grown: GrowthAnomaly) {
        let GrowthAnomaly { at, bytes, within, baseline } = grown;
        let details = AnomalyKind::Growth { bytes, within, baseline };
        self.record(RecordedAnomaly {
            at,
            tid: None,
            site: None,
            device: None,
            kind: MemoryKind::Device,
            details,
        });
    }

    fn record(&mut self, recorded: RecordedAnomaly) {
        if self.recorded.len() < MAX_ANOMALIES {
            self.recorded.push(recorded);
        }
    }

    /// Baseline of an allocation that is a size anomaly.
    pub(in crate::ledger) fn baseline(&self, entry: &AllocationEntry) -> Option<Bytes> {
        self.recorded.iter().find_map(|recorded| match recorded.details {
            AnomalyKind::Size { key, baseline, .. } if is_entry(entry, key, recorded.at) => {
                Some(baseline)
            }
            _ => None,
        })
    }

    /// Called after a snapshot.
    pub(in crate::ledger) fn mark_reported(&mut self) {
        self.shown = self.recorded.len();
    }
}

/// Whether this is memory of the program itself.
const fn is_own(kind: MemoryKind) -> bool {
    let layer = kind.layer();
    let own = matches!(
        layer,
        MemoryLayer::Physical | MemoryLayer::Used | MemoryLayer::Managed | MemoryLayer::Host
    );
    own && !kind.is_static()
}

fn is_entry(entry: &AllocationEntry, key: AllocationKey, allocated_at: Timestamp) -> bool {
    entry.key() == key && entry.returned_at == allocated_at
}

/// Anomalies of a process for a snapshot: those not reported yet, or all.
pub(in crate::ledger) fn views(
    process: &Process,
    all: bool,
    registry: &SiteRegistry,
) -> Vec<Anomaly> {
    let log = &process.anomaly_log;
    let from = if all { 0 } else { log.shown };
    let view = |recorded: &RecordedAnomaly| {
        let site = registry.name(recorded.site);
        let thread = recorded.tid.and_then(|tid| process.threads.name(tid)).unwrap_or_default();
        Anomaly {
            at: recorded.at,
            pid: process.key.pid,
            process: process.name.clone(),
            tid: recorded.tid,
            thread: thread.into(),
            site,
            frames: registry.frames_of(site),
            device: device(process, recorded),
            kind: recorded.kind,
            details: live(process, recorded),
        }
    };
    log.recorded.iter().skip(from).map(view).collect()
}

/// Device, which may have become known since.
fn device(process: &Process, recorded: &RecordedAnomaly) -> Option<DeviceId> {
    let AnomalyKind::Size { key, .. } = recorded.details else { return recorded.device };
    let found = process.allocations.find(key).map(|slot| &process.allocations.slab[slot]);
    let own = found.filter(|entry| is_entry(entry, key, recorded.at));
    recorded.device.or_else(|| own?.device())
}

/// The anomaly, with its current live state.
fn live(process: &Process, recorded: &RecordedAnomaly) -> AnomalyKind {
    let mut details = recorded.details;
    if let AnomalyKind::Size { key, live, .. } = &mut details {
        let slot = process.allocations.find(*key);
        *live =
            slot.is_some_and(|slot| is_entry(&process.allocations.slab[slot], *key, recorded.at));
    }
    details
}

/// Updates the names of sites whose stacks have been resolved since.
pub(in crate::ledger) fn refresh_names(anomalies: &mut [Anomaly], registry: &SiteRegistry) {
    for one in anomalies {
        if let SiteName::Pending(site) = one.site {
            one.site = registry.name(Some(site));
            one.frames = registry.frames_of(one.site);
        }
    }
}
