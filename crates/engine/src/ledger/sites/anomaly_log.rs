//! Anomalies of a process: see [`crate::anomaly`].

use crate::anomaly::{
    GrowthAnomaly, GrowthAnomalyDetector, MIN_ANOMALY_BYTES, SiteBaseline, SizeAnomalyDetector,
};
use crate::leak;
use crate::model::{Bytes, DeviceId, MemoryKind, SiteId, SiteName, SiteRegistry, Tid, Timestamp};
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
pub(crate) struct AnomalyLog {
    sizes: SizeAnomalyDetector,
    growths: GrowthAnomalyDetector,
    recorded: Vec<RecordedAnomaly>,
    /// Number of anomalies that were already in a snapshot.
    shown: usize,
}

impl AnomalyLog {
    /// Checks a new allocation; `live` is the device memory before it.
    pub(crate) fn observe(
        &mut self,
        entry: &AllocationEntry,
        tid: Option<Tid>,
        site: Option<SiteBaseline>,
        live: Bytes,
    ) {
        if let Some(grown) = self.growths.observe(entry.returned_at, live.0) {
            self.record_growth(grown);
        }
        // Memory that the program does not own is not compared.
        if leak::resource(entry.kind).is_none() {
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
                tid,
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

    /// The anomaly of an allocation. Few allocations are large enough to be searched for.
    fn of(&self, entry: &AllocationEntry) -> Option<usize> {
        let is_own = |recorded: &RecordedAnomaly| match recorded.details {
            AnomalyKind::Size { key, .. } => key == entry.key() && recorded.at == entry.returned_at,
            AnomalyKind::Growth { .. } => false,
        };
        let is_large = entry.bytes >= MIN_ANOMALY_BYTES;
        is_large.then(|| self.recorded.iter().position(is_own)).flatten()
    }

    /// Records the end of an allocation.
    pub(crate) fn end(&mut self, entry: &AllocationEntry) {
        if let Some(index) = self.of(entry)
            && let AnomalyKind::Size { live, .. } = &mut self.recorded[index].details
        {
            *live = false;
        }
    }

    /// Updates the device of an allocation when it becomes known.
    pub(crate) fn learn_device(&mut self, entry: &AllocationEntry, device: DeviceId) {
        if let Some(index) = self.of(entry) {
            self.recorded[index].device.get_or_insert(device);
        }
    }

    /// Baseline of an allocation that is a size anomaly.
    pub(crate) fn baseline(&self, entry: &AllocationEntry) -> Option<Bytes> {
        match self.recorded[self.of(entry)?].details {
            AnomalyKind::Size { baseline, .. } => Some(baseline),
            AnomalyKind::Growth { .. } => None,
        }
    }

    /// Called after a snapshot.
    pub(crate) fn mark_reported(&mut self) {
        self.shown = self.recorded.len();
    }
}

/// Anomalies of a process for a snapshot: those not reported yet, or all.
pub(crate) fn views(process: &Process, all: bool, registry: &SiteRegistry) -> Vec<Anomaly> {
    let log = &process.anomaly_log;
    let from = if all { 0 } else { log.shown };
    let view = |recorded: &RecordedAnomaly| {
        let site = registry.name(recorded.site);
        let thread = recorded.tid.and_then(|tid| process.threads.name(tid)).unwrap_or_default();
        Anomaly {
            at: recorded.at,
            pid: process.key.pid,
            process: process.program().into(),
            tid: recorded.tid,
            thread: thread.into(),
            site,
            frames: registry.frames_of(site),
            device: recorded.device,
            kind: recorded.kind,
            details: recorded.details,
        }
    };
    log.recorded.iter().skip(from).map(view).collect()
}

/// Updates the names of sites whose stacks have been resolved since.
pub(crate) fn refresh_names(anomalies: &mut [Anomaly], registry: &SiteRegistry) {
    for one in anomalies {
        if let SiteName::Pending(site) = one.site {
            one.site = registry.name(Some(site));
            one.frames = registry.frames_of(one.site);
        }
    }
}
