//! A recording: its events go through the ledger again, which tells what began and ended.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::Path;

use engine::analysis::is_host;
use engine::analysis::suspects::{Findings, Judged, Odd};
use engine::cache::PoolSums;
use engine::change::{Change, Turn};
use engine::event::{Event, Failed, OUT_OF_MEMORY, SiteFacts, What};
use engine::ids::{DeviceId, GpuId, SiteId};
use engine::ledger::Ledger;
use engine::snapshot::{ProcessView, View};
use engine::stack::{SiteName, site_name};
use engine::units::Moment;
use engine::verdict::{Anomaly, Subject};

use super::{Error, Imported, Refused, Sink, Source, Warning};
use crate::export::{GpuName, listed};
use crate::recording::{Reader, Resolver, Row};

/// Rows between two signs of progress.
const STEP: u64 = 16_384;

/// Pools of ended processes that are kept at most.
const POOLS_KEPT: usize = 65_536;

/// Reads a recording. `known` finds driver functions in this version's hook table.
pub fn read(path: &Path, sink: &mut dyn Sink, known: Resolver) -> Result<Imported, Error> {
    let mut reader = Reader::open(path, known)?;
    let mut import = Import {
        sink,
        ledger: Ledger::observed(),
        changes: Vec::new(),
        sites: HashMap::new(),
        names: HashMap::new(),
        gpus: Vec::new(),
        devices: BTreeMap::new(),
        differing: 0,
        pools: Vec::new(),
        last: Moment(0),
        before_trace: 0,
        unknown_context: 0,
        ambiguous_calls: 0,
        events: 0,
        producer: None,
    };
    if path.metadata().is_ok_and(|facts| facts.is_file()) {
        import.look_ahead(Reader::open(path, known)?.only_sites());
    }
    let mut rows = 0_u64;
    while let Some(row) = reader.next_row()? {
        import.take(row);
        rows += 1;
        if rows.is_multiple_of(STEP) {
            let (done, total) = reader.progress();
            import.sink.progress(done, total.unwrap_or(done));
        }
    }
    import.finish();
    for warning in reader.warnings() {
        import.sink.warn(warning);
    }
    Ok(Imported { source: Source::Recording, events: import.events, producer: import.producer })
}

struct Import<'a> {
    sink: &'a mut dyn Sink,
    ledger: Ledger,
    changes: Vec<Change>,
    /// The recording's numbers of stacks, and those of the sink.
    sites: HashMap<SiteId, SiteId>,
    /// The same by the names of the ledger.
    names: HashMap<u64, SiteId>,
    gpus: Vec<GpuName>,
    /// Which GPUs the devices are, by the first process that told.
    devices: BTreeMap<DeviceId, GpuId>,
    /// Processes that count the GPUs otherwise.
    differing: u64,
    pools: Vec<PoolSums>,
    last: Moment,
    before_trace: u64,
    /// Allocations of processes that ended that may have been released with a context.
    unknown_context: u64,
    /// Calls of processes that ended that a capture may have recorded.
    ambiguous_calls: u64,
    events: u64,
    producer: Option<String>,
}

impl Import<'_> {
    /// Names of frames take time to find, so that sites may be told after their first events: they
    /// are all read before. What is wrong with the file is told when it is read as a whole.
    fn look_ahead(&mut self, mut reader: Reader<impl Read>) {
        while let Ok(Some(row)) = reader.next_row() {
            if let Row::Event(Event { what: What::Site(facts), .. }) = row {
                self.tell(&facts);
            }
        }
    }

    fn take(&mut self, row: Row) {
        match row {
            Row::About { key, value } if &*key == "vramscope" => {
                self.producer = Some(format!("vramscope {value}"));
            }
            Row::Clock(clock) => self.sink.clock(clock.start(), clock.utc_nanos()),
            Row::Gpu(gpu) => self.gpus.push(gpu),
            Row::Event(event) => self.apply(&event),
            Row::Tick(at) => {
                self.last = self.last.max(at);
                let snapshot = self.ledger.snapshot(at, &VIEW);
                let ended = snapshot.processes.iter().filter(|process| process.ended.is_some());
                for process in ended.clone() {
                    self.unknown_context += process.certainty.unknown_context;
                    self.ambiguous_calls += process.certainty.ambiguous_calls;
                }
                self.keep_pools(ended, at);
            }
            Row::End(at) => self.last = self.last.max(at),
            Row::About { .. } | Row::Unknown => {}
        }
    }

    fn apply(&mut self, event: &Event) {
        self.events += 1;
        self.last = self.last.max(event.at);
        match &event.what {
            What::Process(facts) => {
                self.before_trace += u64::from(facts.before_trace);
                self.sink.process(event.pid, &facts.name);
            }
            What::Site(facts) => self.tell(facts),
            What::Gpus(gpus) => self.name_devices(gpus),
            _ => {}
        }
        if let What::Failed(Failed { code: OUT_OF_MEMORY, asked: Some((kind, bytes)), .. }) =
            event.what
            && kind.takes_device_memory()
        {
            self.refused(event, bytes);
        }
        self.ledger.apply(event);
        self.ledger.take_changes(&mut self.changes);
        for mut change in self.changes.drain(..) {
            // The ledger keeps the recording's numbers: its verdicts are those of the trace.
            change.site = change.site.and_then(|site| self.sites.get(&site).copied());
            // Host memory has the context of the thread that took it, and lies on no device.
            if is_host(change.kind) {
                change.device = None;
                if let Turn::Learned { before, .. } = &mut change.what {
                    before.device = None;
                }
            }
            self.sink.change(&change);
        }
    }

    fn refused(&mut self, event: &Event, bytes: u64) {
        let What::Failed(Failed { device, site, .. }) = event.what else { return };
        let (at, pid, site) = (event.at, event.pid, self.site(site));
        self.sink.refused(&Refused { at, pid, device, bytes, free_bytes: None, site });
    }

    /// What was told first of a site stands.
    fn tell(&mut self, facts: &SiteFacts) {
        if self.sites.contains_key(&facts.site) {
            return;
        }
        let stacks = self.sink.stacks();
        let frames: Vec<_> = facts.frames.iter().map(|frame| stacks.frame(frame.clone())).collect();
        let site = stacks.site(&frames);
        self.sites.insert(facts.site, site);
        self.names.entry(site_name(&facts.frames)).or_insert(site);
    }

    fn site(&self, recorded: Option<SiteId>) -> Option<SiteId> {
        self.sites.get(&recorded?).copied()
    }

    /// The sink's stack of a site that the ledger names.
    fn named(&self, site: SiteName) -> Option<SiteId> {
        match site {
            SiteName::Told(name) => self.names.get(&name).copied(),
            SiteName::Pending(site) => self.site(Some(site)),
            SiteName::Unknown | SiteName::Other => None,
        }
    }

    /// Verdicts and anomalies of the whole recording, as its live report has them.
    fn judge(&mut self, anomalies: &[Anomaly]) {
        let (suspects, others) = self.ledger.verdicts(self.last);
        let mut findings = Findings {
            unusual: anomalies.iter().map(|one| Odd::of(one, self.named(one.site))).collect(),
            ..Findings::default()
        };
        for (judged, into) in [(suspects, &mut findings.suspects), (others, &mut findings.others)] {
            for one in judged {
                if matches!(one.subject, Subject::Memory(_)) {
                    let site = self.named(one.site);
                    into.extend(Judged::of(one, site));
                } else {
                    self.sink.judged(one);
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
        self.differing += u64::from(differs);
    }

    fn keep_pools<'a>(&mut self, of: impl Iterator<Item = &'a ProcessView>, at: Moment) {
        let pools = of.flat_map(|process| process.pools.iter().map(|pool| (process.key.pid, pool)));
        let sums = pools.map(|(pid, pool)| PoolSums {
            pid,
            device: pool.device,
            pool: pool.pool.map_or(0, |pool| pool.0),
            reserved: pool.reserved.map(|told| told.bytes.0),
            used: pool.used.0,
            at,
        });
        self.pools.extend(sums.take(POOLS_KEPT.saturating_sub(self.pools.len())));
    }

    /// The last snapshot, and what makes figures inexact.
    fn finish(&mut self) {
        let view = View { ended_sites: true, ..VIEW };
        let last = self.ledger.snapshot(self.last, &view);
        self.judge(&last.anomalies);
        self.keep_pools(last.processes.iter(), self.last);
        for pool in &self.pools {
            self.sink.pool(pool);
        }
        for (text, count) in [
            ("events lost (ring buffer full); totals exclude them", last.certainty.lost.events()),
            (
                "processes started before the trace; earlier allocations are missing",
                self.before_trace,
            ),
            (
                "allocations are in contexts that are not known and may have ended with one",
                self.unknown_context + listed(&last).unknown_context,
            ),
            (
                "calls may have been recorded by a stream capture or executed",
                self.ambiguous_calls + listed(&last).ambiguous_calls,
            ),
            (
                "processes count the GPUs otherwise than the first one; names of devices are those \
                 of the first",
                self.differing,
            ),
        ] {
            if count > 0 {
                self.sink.warn(Warning { text: text.to_owned(), count, inexact: true });
            }
        }
    }
}

/// Sums alone.
const VIEW: View = View {
    top: 0,
    min_size: engine::units::Bytes(0),
    older: engine::units::Nanos(0),
    sort: engine::snapshot::Sort::Size,
    top_sites: 0,
    ended_sites: false,
};
