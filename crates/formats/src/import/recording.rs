//! Recordings: the events are replayed through the ledger, whose change log has the changes.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::Path;

use engine::analysis::is_host;
use engine::ledger::Ledger;
use engine::model::{
    AllocationChange, ChangeKind, DeviceId, Event, EventKind, FailedCall, GpuId, Mark,
    OUT_OF_MEMORY, PoolTotals, SiteFrames, SiteId, Timestamp,
};
use engine::snapshot::{EndedHistory, OutOfMemory, ProcessView, Snapshot, SnapshotOptions};

use super::{
    FailedAllocation, FileState, ImportError, ImportSink, ImportSummary, SourceFormat, Warning,
};
use crate::export::GpuLabel;
use crate::recording::{FunctionLookup, RecordingReader, RecordingRow};

/// Warnings that the notes of the recorded state contain in more detail.
pub(crate) const STATE_WARNINGS: [&str; 5] = [
    "events lost (ring buffer full); totals exclude them",
    "processes started before the trace; earlier allocations are missing",
    "allocations are in unknown contexts and may have been released",
    "calls have an ambiguous effect: recorded by a stream capture or executed, racing with another thread, or interrupted by the end of the process",
    "calls of memory functions that vramscope did not know; what they allocated is not counted",
];

/// Rows between two progress updates.
const PROGRESS_ROWS: u64 = 16_384;

/// Maximum number of out-of-memory errors.
const MAX_OUT_OF_MEMORY: usize = 100;

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
        gpus: Vec::new(),
        devices: BTreeMap::new(),
        differently_numbered: 0,
        pools: Vec::new(),
        last: Timestamp(0),
        ended: EndedHistory::default(),
        out_of_memory: Vec::new(),
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
    gpus: Vec<GpuLabel>,
    /// GPUs of the devices, by the first process that reported them.
    devices: BTreeMap<DeviceId, GpuId>,
    /// Number of processes that number the GPUs differently.
    differently_numbered: u64,
    pools: Vec<PoolTotals>,
    last: Timestamp,
    /// Processes that ended before the last snapshot.
    ended: EndedHistory,
    /// Their allocations that may have been released with a context.
    unknown_context: u64,
    /// Their calls that a capture may have recorded.
    ambiguous_calls: u64,
    /// Out-of-memory errors before the last snapshot.
    out_of_memory: Vec<OutOfMemory>,
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
            RecordingRow::Clock(clock) => {
                self.sink.clock(clock.start(), clock.utc_nanos());
                self.sink.time_zone(clock.zone(), clock.offset());
            }
            RecordingRow::Gpu(gpu) => self.gpus.push(gpu),
            RecordingRow::Event(event) => self.apply(&event),
            RecordingRow::Tick(at) => {
                self.last = self.last.max(at);
                let mut snapshot = self.ledger.snapshot(at, &VIEW);
                self.keep_out_of_memory(&mut snapshot);
                let ended = snapshot.processes.iter().filter(|process| process.ended.is_some());
                for process in ended.clone() {
                    self.unknown_context += process.uncertainty.unknown_context;
                    self.ambiguous_calls += process.uncertainty.ambiguous_calls;
                }
                self.keep_pools(ended, at);
                self.ended.push_snapshot(snapshot);
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
                self.sink.process(event.pid, &info.name);
            }
            EventKind::Identity(identity) => {
                if let Some(program) = &identity.program {
                    self.sink.process(event.pid, program);
                }
                if let Some(user) = &identity.user {
                    self.sink.user(event.pid, user);
                }
            }
            EventKind::Site(site_frames) => self.add_site(site_frames),
            EventKind::Gpus(gpus) => {
                self.sink.device_map(event.pid, gpus);
                self.name_devices(gpus);
            }
            EventKind::Mark { .. } => Mark::of(event).into_iter().for_each(|it| self.sink.mark(it)),
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
    }

    fn site(&self, recorded: Option<SiteId>) -> Option<SiteId> {
        self.sites.get(&recorded?).copied()
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

    /// Keeps the out-of-memory errors since the last snapshot.
    fn keep_out_of_memory(&mut self, snapshot: &mut Snapshot) {
        let room = MAX_OUT_OF_MEMORY.saturating_sub(self.out_of_memory.len());
        self.out_of_memory.extend(snapshot.out_of_memory.drain(..).take(room));
    }

    /// Takes the last snapshot, and reports what makes values inexact.
    fn finish(&mut self) {
        let view = SnapshotOptions { ended_sites: true, ..VIEW };
        let mut last = self.ledger.snapshot(self.last, &view);
        self.keep_out_of_memory(&mut last);
        last.out_of_memory = std::mem::take(&mut self.out_of_memory);
        self.keep_pools(last.processes.iter(), self.last);
        last.other_verdicts = self.ledger.other_verdicts(self.last);
        let listed = last.listed_uncertainty();
        self.ended.merge_into(&mut last);
        // The processes that the state lists: others have no memory.
        let before_trace = last.processes.iter().filter(|process| process.before_trace).count();
        for pool in &self.pools {
            self.sink.pool(pool);
        }
        for (text, count) in [
            (STATE_WARNINGS[0], listed.lost.events()),
            (STATE_WARNINGS[1], before_trace as u64),
            (STATE_WARNINGS[2], self.unknown_context + listed.unknown_context),
            (STATE_WARNINGS[3], self.ambiguous_calls + listed.ambiguous_calls),
            (STATE_WARNINGS[4], listed.unknown_calls),
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
        let gpus = std::mem::take(&mut self.gpus);
        self.sink.state(FileState { snapshot: last, gpus });
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
    lists: engine::snapshot::ListScope::All,
};
