//! Recordings: the events are replayed through the ledger, whose change log has the changes.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::Path;

use engine::analysis::is_host;
use engine::analysis::suspects::{FileAnomaly, FileSiteVerdict, SuspectReport};
use engine::ledger::Ledger;
use engine::model::caching_allocator::PoolTotals;
use engine::model::change::{AllocationChange, ChangeKind};
use engine::model::event::{Event, EventKind, FailedCall, OUT_OF_MEMORY, SiteFrames};
use engine::model::ids::{DeviceId, GpuId, SiteId};
use engine::model::stack::{SiteName, site_name};
use engine::model::units::Timestamp;
use engine::snapshot::{ProcessView, SnapshotOptions};
use engine::verdict::{Anomaly, Resource};

use super::{FailedAllocation, ImportError, ImportSink, ImportSummary, SourceFormat, Warning};
use crate::export::{GpuLabel, listed};
use crate::recording::{FunctionLookup, RecordingReader, RecordingRow};

/// Rows between two progress updates.
const PROGRESS_ROWS: u64 = 16_384;

/// Maximum number of pools of ended processes.
const MAX_ENDED_POOLS: usize = 65_536;

/// Reads a recording. `known` finds driver functions in this version's hook table.
pub fn read(
    path: &Path,
    sink: &mut dyn ImportSink,
    known: FunctionLookup,
) -> Result<ImportSummary, ImportError> {
    let mut reader = RecordingReader::open(path, known)?;
    let mut import = RecordingImport {
        sink,
        ledger: Ledger::with_change_log(),
        changes: Vec::new(),
        sites: HashMap::new(),
        names: HashMap::new(),
        gpus: Vec::new(),
        devices: BTreeMap::new(),
        differently_numbered: 0,
        pools: Vec::new(),
        last: Timestamp(0),
        before_trace: 0,
        unknown_context: 0,
        ambiguous_calls: 0,
        events: 0,
        producer: None,
    };
    if path.metadata().is_ok_and(|metadata| metadata.is_file()) {
        import.read_sites(RecordingReader::open(path, known)?.only_sites());
    }
    let mut rows = 0_u64;
    while let Some(row) = reader.next_row()? {
        import.read_row(row);
        rows += 1;
        if rows.is_multiple_of(PROGRESS_ROWS) {
            let (done, total) = reader.progress();
            import.sink.progress(done, total.unwrap_or(done));
        }
    }
    import.finish();
    for warning in reader.warnings() {
        import.sink.warn(warning);
    }
    Ok(ImportSummary {
        source: SourceFormat::Recording,
        events: import.events,
        producer: import.producer,
    })
}

struct RecordingImport<'a> {
    sink: &'a mut dyn ImportSink,
    ledger: Ledger,
    changes: Vec<AllocationChange>,
    /// Sites of the sink by the recording's site ids.
    sites: HashMap<SiteId, SiteId>,
    /// Sites of the sink by the ledger's site names.
    names: HashMap<u64, SiteId>,
    gpus: Vec<GpuLabel>,
    /// GPUs of the devices, by the first process that reported them.
    devices: BTreeMap<DeviceId, GpuId>,
    /// Number of processes that number the GPUs differently.
    differently_numbered: u64,
    pools: Vec<PoolTotals>,
    last: Timestamp,
    before_trace: u64,
    /// Allocations of ended processes that may have been released with a context.
    unknown_context: u64,
    /// Calls of processes that ended that a capture may have recorded.
    ambiguous_calls: u64,
    events: u64,
    producer: Option<String>,
}

impl RecordingImport<'_> {
    /// Reads all sites in advance, because symbolization takes time and sites may follow their
    /// first events. Errors of the file are reported when it is read completely.
    fn read_sites(&mut self, mut reader: RecordingReader<impl Read>) {
        while let Ok(Some(row)) = reader.next_row() {
            if let RecordingRow::Event(Event { kind: EventKind::Site(site_frames), .. }) = row {
                self.add_site(&site_frames);
            }
        }
    }

    fn read_row(&mut self, row: RecordingRow) {
        match row {
            RecordingRow::About { key, value } if &*key == "vramscope" => {
                self.producer = Some(format!("vramscope {value}"));
            }
            RecordingRow::Clock(clock) => self.sink.clock(clock.start(), clock.utc_nanos()),
            RecordingRow::Gpu(gpu) => self.gpus.push(gpu),
            RecordingRow::Event(event) => self.apply(&event),
            RecordingRow::Tick(at) => {
                self.last = self.last.max(at);
                let snapshot = self.ledger.snapshot(at, &VIEW);
                let ended = snapshot.processes.iter().filter(|process| process.ended.is_some());
                for process in ended.clone() {
                    self.unknown_context += process.uncertainty.unknown_context;
                    self.ambiguous_calls += process.uncertainty.ambiguous_calls;
                }
                self.keep_pools(ended, at);
            }
            RecordingRow::End(at) => self.last = self.last.max(at),
            RecordingRow::About { .. } | RecordingRow::Unknown => {}
        }
    }

    fn apply(&mut self, event: &Event) {
        self.events += 1;
        self.last = self.last.max(event.time);
        match &event.kind {
            EventKind::Process(info) => {
                self.before_trace += u64::from(info.before_trace);
                self.sink.process(event.pid, &info.name);
            }
            EventKind::Site(site_frames) => self.add_site(site_frames),
            EventKind::Gpus(gpus) => self.name_devices(gpus),
            _ => {}
        }
        if let EventKind::Failed(FailedCall {
            code: OUT_OF_MEMORY,
            requested: Some((kind, bytes)),
            ..
        }) = event.kind
            && kind.takes_device_memory()
        {
            self.failed_allocation(event, bytes);
        }
        self.ledger.apply(event);
        self.ledger.drain_changes(&mut self.changes);
        for mut change in self.changes.drain(..) {
            // The ledger keeps the recording's site ids, so its verdicts are those of the trace.
            change.site = change.site.and_then(|site| self.sites.get(&site).copied());
            // Host memory has the context of the allocating thread, but no device.
            if is_host(change.kind) {
                change.device = None;
                if let ChangeKind::Updated { before, .. } = &mut change.action {
                    before.device = None;
                }
            }
            self.sink.change(&change);
        }
    }

    fn failed_allocation(&mut self, event: &Event, bytes: u64) {
        let EventKind::Failed(FailedCall { device, site, .. }) = event.kind else { return };
        let (at, pid, site) = (event.time, event.pid, self.site(site));
        self.sink.failed_allocation(&FailedAllocation {
            at,
            pid,
            device,
            bytes,
            free_bytes: None,
            site,
        });
    }

    /// Adds a site; the first definition counts.
    fn add_site(&mut self, site_frames: &SiteFrames) {
        if self.sites.contains_key(&site_frames.site) {
            return;
        }
        let stacks = self.sink.stacks();
        let frames: Vec<_> =
            site_frames.frames.iter().map(|frame| stacks.frame(frame.clone())).collect();
        let site = stacks.site(&frames);
        self.sites.insert(site_frames.site, site);
        self.names.entry(site_name(&site_frames.frames)).or_insert(site);
    }

    fn site(&self, recorded: Option<SiteId>) -> Option<SiteId> {
        self.sites.get(&recorded?).copied()
    }

    /// Returns the sink's site for a site name of the ledger.
    fn named(&self, site: SiteName) -> Option<SiteId> {
        match site {
            SiteName::Resolved(name) => self.names.get(&name).copied(),
            SiteName::Pending(site) => self.site(Some(site)),
            SiteName::Unknown | SiteName::Other => None,
        }
    }

    /// Reports verdicts and anomalies of the whole recording, as in its live report.
    fn report_verdicts(&mut self, anomalies: &[Anomaly]) {
        let (suspects, others) = self.ledger.verdicts(self.last);
        let mut findings = SuspectReport {
            anomalies: anomalies
                .iter()
                .map(|one| FileAnomaly::of(one, self.named(one.site)))
                .collect(),
            ..SuspectReport::default()
        };
        let lists = [(suspects, &mut findings.suspects), (others, &mut findings.others)];
        for (verdicts, list) in lists {
            for one in verdicts {
                if matches!(one.resource, Resource::Memory(_)) {
                    let site = self.named(one.site);
                    list.extend(FileSiteVerdict::of(one, site));
                } else {
                    self.sink.verdict(one);
                }
            }
        }
        self.sink.findings(findings);
    }

    fn name_devices(&mut self, gpus: &[Option<GpuId>]) {
        let mut differs = false;
        for (ordinal, gpu) in gpus.iter().enumerate() {
            let (Ok(ordinal), Some(gpu)) = (u16::try_from(ordinal), *gpu) else { continue };
            let device = DeviceId(ordinal);
            if let Some(known) = self.devices.get(&device) {
                differs |= *known != gpu;
                continue;
            }
            self.devices.insert(device, gpu);
            if let Some(named) = self.gpus.iter().find(|named| named.id == gpu) {
                let total = (named.total_bytes > 0).then_some(named.total_bytes);
                self.sink.device(device, &named.name, total);
            }
        }
        self.differently_numbered += u64::from(differs);
    }

    fn keep_pools<'a>(&mut self, of: impl Iterator<Item = &'a ProcessView>, at: Timestamp) {
        let pools = of.flat_map(|process| process.pools.iter().map(|pool| (process.key.pid, pool)));
        let sums = pools.map(|(pid, pool)| PoolTotals {
            pid,
            device: pool.device,
            pool: pool.pool.map_or(0, |pool| pool.0),
            reserved: pool.reserved.map(|reported| reported.bytes.0),
            used: pool.used.0,
            at,
        });
        self.pools.extend(sums.take(MAX_ENDED_POOLS.saturating_sub(self.pools.len())));
    }

    /// Takes the last snapshot, and reports what makes values inexact.
    fn finish(&mut self) {
        let view = SnapshotOptions { ended_sites: true, ..VIEW };
        let last = self.ledger.snapshot(self.last, &view);
        self.report_verdicts(&last.anomalies);
        self.keep_pools(last.processes.iter(), self.last);
        for pool in &self.pools {
            self.sink.pool(pool);
        }
        for (text, count) in [
            ("events lost (ring buffer full); totals exclude them", last.uncertainty.lost.events()),
            (
                "processes started before the trace; earlier allocations are missing",
                self.before_trace,
            ),
            (
                "allocations are in unknown contexts and may have been released",
                self.unknown_context + listed(&last).unknown_context,
            ),
            (
                "calls may have been recorded by a stream capture or executed",
                self.ambiguous_calls + listed(&last).ambiguous_calls,
            ),
            (
                "processes number the GPUs differently than the first one; device names are those \
                 of the first",
                self.differently_numbered,
            ),
        ] {
            if count > 0 {
                self.sink.warn(Warning { text: text.to_owned(), count, inexact: true });
            }
        }
    }
}

/// Totals only.
const VIEW: SnapshotOptions = SnapshotOptions {
    top: 0,
    min_size: engine::model::units::Bytes(0),
    min_age: engine::model::units::Nanos(0),
    sort: engine::snapshot::SortOrder::Size,
    top_sites: 0,
    ended_sites: false,
};
