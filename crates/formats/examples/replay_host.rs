//! Replays a recording as a day of a host, for `experiments/cost/fleet`: `replay_host RECORDING DIR HOST SEED
//! START HOURS FILE_HOURS`. START is a Unix time in seconds; a file has the rows of FILE_HOURS.
//!
//! The recording is stretched to two hours and repeated with other pids, one release and one job per
//! run. Tables go to DIR/lake and the last two hours of metrics to DIR/metrics/HOST, both as an agent
//! writes them. Prints the state of the last sample, and sums over all, as the ledger has them.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "an experiment prints its result and fails loudly"
)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::ledger::Ledger;
use engine::metrics::{
    AgentStats, CollectorInput, GpuInfo, MetricSet, MetricsCollector, SeriesLimits,
};
use engine::model::container::{Container, ContainerRuntime, Pod};
use engine::model::event::{Event, EventKind, OUT_OF_MEMORY};
use engine::model::ids::{Pid, Tid};
use engine::model::units::{Bytes, Timestamp};
use engine::snapshot::{Snapshot, SnapshotOptions};
use formats::WallClock;
use formats::export::parquet::{LiveTable, PartFile, TableSample, part_path};
use formats::export::{ReportContext, openmetrics};
use formats::recording::{FunctionTable, RecordingReader, RecordingRow};
use formats::report::incident::IncidentRow;
use formats::report::verdict::short_location;

const SECOND: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * SECOND;
/// Interval of samples.
const SAMPLE: u64 = 60 * SECOND;
const RUN: u64 = 2 * HOUR;
/// Start of the agent, since boot.
const BOOT: u64 = 100 * HOUR;

/// The recording: its events with the share of its duration at which they happened.
struct Recording {
    events: Vec<(f64, Event)>,
    gpus: Vec<formats::export::GpuLabel>,
}

fn read(path: &Path) -> Recording {
    let mut reader = RecordingReader::open(path, |_| None).unwrap();
    let (mut events, mut gpus) = (Vec::new(), Vec::new());
    while let Some(row) = reader.next_row().unwrap() {
        match row {
            RecordingRow::Event(event) => events.push(event),
            RecordingRow::Gpu(gpu) => gpus.push(gpu),
            _ => (),
        }
    }
    let first = events.iter().map(|event| event.time.0).min().unwrap();
    let last = events.iter().map(|event| event.time.0).max().unwrap();
    let share = |event: &Event| (event.time.0 - first) as f64 / (last - first + 1) as f64;
    Recording { events: events.into_iter().map(|event| (share(&event), event)).collect(), gpus }
}

/// One run of the recording on a host.
struct Run {
    number: u64,
    seed: u64,
    begin: u64,
}

impl Run {
    fn event(&self, share: f64, event: &Event) -> Event {
        let time = self.begin + (share * (RUN - SECOND) as f64) as u64;
        let took = event.time.0.saturating_sub(event.entry_time.0);
        let base = ((self.seed * 7919 + self.number * 97) % 30_000) as u32;
        let mut event = event.clone();
        event.pid = Pid(event.pid.0 + base);
        event.tid = Tid(event.tid.0 + base);
        event.time = Timestamp(time);
        event.entry_time = Timestamp(time.saturating_sub(took));
        match &mut event.kind {
            EventKind::Process(info) => {
                info.start = self.begin;
                info.before_trace = false;
            }
            EventKind::Identity(identity) => {
                let release = if self.number < 6 { "1.4.2" } else { "1.5.0" };
                identity.group.release = Some(release.into());
                identity.group.job =
                    Some(format!("slurm {}", self.seed * 100 + self.number).into());
            }
            _ => (),
        }
        event
    }

    /// A pod for each user's programs on the host.
    fn container(&self, event: &Event) -> Event {
        let name = format!("train-{}-{}", self.seed, event.pid.0 % 3);
        let pod = Pod {
            uid: name.as_str().into(),
            name: Some(name.as_str().into()),
            namespace: Some(format!("team-{}", self.seed % 20).into()),
            container: Some("main".into()),
        };
        let container = Container {
            id: format!("{name}-0").into(),
            runtime: ContainerRuntime::Containerd,
            pod: Some(pod),
            container_pid: None,
        };
        Event { kind: EventKind::Container(Box::new(container)), ..event.clone() }
    }
}

/// The files of a host.
struct Tables {
    dir: PathBuf,
    host: String,
    file_hours: u64,
    open: Vec<(u64, PartFile<BufWriter<File>>)>,
    rows: u64,
}

impl Tables {
    fn add(&mut self, sample: &TableSample<'_>) {
        let hour = (sample.snapshot.at.0 - BOOT) / HOUR / self.file_hours;
        if self.open.first().is_some_and(|(opened, _)| *opened != hour) {
            self.finish();
        }
        for (index, table) in LiveTable::ALL.into_iter().enumerate() {
            if self.open.len() == index {
                let now = sample.context.clock.nanos(sample.snapshot.at);
                let path = self.dir.join(part_path(table, &self.host, now, 0));
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                let file = BufWriter::new(File::create(path).unwrap());
                self.open.push((hour, PartFile::new(table, file, sample).unwrap()));
            }
            self.open[index].1.add(sample).unwrap();
        }
    }

    fn finish(&mut self) {
        for (_, part) in self.open.drain(..) {
            self.rows += part.rows();
            part.finish().unwrap().flush().unwrap();
        }
    }
}

/// The agent of the host.
struct Host {
    ledger: Ledger,
    collector: MetricsCollector,
    context: ReportContext,
    gpus: Vec<GpuInfo>,
    tables: Tables,
    texts: BufWriter<File>,
    agent_start: i64,
    end: u64,
    previous: Option<Timestamp>,
    incidents: Vec<IncidentRow>,
    events: u64,
    /// Bytes of processes times the seconds that a sample covers.
    byte_seconds: f64,
    samples: u64,
    series: usize,
    /// Number and live memory of the processes in the last sample.
    last: (usize, u64),
}

impl Host {
    fn new(recording: &Recording, dir: &Path, name: &str, seed: u64, start: u64) -> Self {
        let mut labels = recording.gpus.clone();
        for gpu in &mut labels {
            gpu.uuid = format!("GPU-{seed:08x}-{}", gpu.id.0);
        }
        let gpus = labels.iter().map(|gpu| GpuInfo {
            id: gpu.id,
            uuid: gpu.uuid.as_str().into(),
            name: gpu.name.as_str().into(),
            total: Bytes(gpu.total_bytes),
        });
        fs::create_dir_all(dir.join("metrics")).unwrap();
        Self {
            ledger: Ledger::new().without_ended_history(),
            collector: MetricsCollector::new(SeriesLimits::default()),
            gpus: gpus.collect(),
            texts: BufWriter::new(File::create(dir.join("metrics").join(name)).unwrap()),
            tables: Tables {
                dir: dir.join("lake"),
                host: name.to_owned(),
                file_hours: 1,
                open: Vec::new(),
                rows: 0,
            },
            context: ReportContext {
                source: None,
                clock: WallClock::fixed(Timestamp(BOOT), start as i64),
                function: |_| "",
                recorded: FunctionTable::default(),
                gpus: labels,
            },
            agent_start: start as i64 * 1_000_000,
            end: BOOT,
            previous: None,
            incidents: Vec::new(),
            events: 0,
            byte_seconds: 0.0,
            samples: 0,
            series: 0,
            last: (0, 0),
        }
    }

    fn metrics(&mut self, snapshot: &Snapshot) -> MetricSet {
        let agent = AgentStats {
            version: env!("CARGO_PKG_VERSION").into(),
            started: self.agent_start as f64 / 1e6,
            ready: true,
            cpu_seconds: self.events as f64 / 1e6,
            memory: Bytes(40 << 20),
            events: self.events,
            ..AgentStats::default()
        };
        self.collector.observe(&CollectorInput {
            snapshot,
            gpus: &self.gpus,
            agent: &agent,
            location: short_location,
        })
    }

    fn sample(&mut self, at: u64, is_due: bool) {
        let options = SnapshotOptions { top: 10, top_sites: 200, ..SnapshotOptions::DEFAULT };
        let snapshot = self.ledger.snapshot(Timestamp(at), &options);
        let metrics = self.metrics(&snapshot);
        let new = if is_due { std::mem::take(&mut self.incidents) } else { Vec::new() };
        self.tables.add(&TableSample {
            snapshot: &snapshot,
            metrics: &metrics,
            context: &self.context,
            paths: false,
            previous: self.previous,
            agent_start: self.agent_start,
            incidents: &new,
            is_due,
        });
        if is_due {
            let seconds = self.previous.map_or(0.0, |last| (at - last.0) as f64 / 1e9);
            self.last = live(&snapshot);
            self.byte_seconds += self.last.1 as f64 * seconds;
            self.previous = Some(Timestamp(at));
            self.samples += 1;
            self.series = metrics.families.iter().map(|family| family.samples.len()).sum();
            if at + RUN > self.end {
                let text = openmetrics::encode(Arc::new(metrics)).unwrap();
                self.texts.write_all(text.as_bytes()).unwrap();
            }
        }
    }

    fn apply(&mut self, run: &Run, event: &Event) {
        self.events += 1;
        self.ledger.apply(event);
        let EventKind::Failed(call) = &event.kind else { return };
        let Some((_, bytes)) = call.requested.filter(|_| call.code == OUT_OF_MEMORY) else {
            return;
        };
        let nanos = self.context.clock.nanos(event.time);
        self.incidents.push(IncidentRow {
            id: format!("{nanos}-oom-{}", event.pid.0),
            micros: Some(nanos / 1000),
            trigger: "out_of_memory".into(),
            cause: Some(("request_too_large".into(), "certain".into())),
            recovered: false,
            errors: 1,
            requester: None,
            gpu: Some((0, self.context.gpus.first().map(|gpu| gpu.uuid.clone()))),
            requested_bytes: Some(bytes),
            summary: format!("run {}", run.number),
        });
    }
}

/// Returns the number and the live memory of running processes.
fn live(snapshot: &Snapshot) -> (usize, u64) {
    let running = snapshot.processes.iter().filter(|process| process.ended.is_none());
    running.fold((0, 0), |(count, bytes), process| (count + 1, bytes + process.live_bytes.0))
}

/// Replays the recording until the end, and returns the number of processes.
fn replay(recording: &Recording, agent: &mut Host, seed: u64) -> u64 {
    // Hosts are at different points of the recording at the same time.
    let phase = seed * 613 % 7200 * SECOND;
    let (mut next, mut processes) = (BOOT, 0);
    for number in 0.. {
        let run = Run { number, seed, begin: BOOT - phase + number * RUN };
        let mut pids = BTreeSet::new();
        for (share, event) in &recording.events {
            let event = run.event(*share, event);
            while next <= event.time.0 && next < agent.end {
                agent.sample(next, true);
                next += SAMPLE;
            }
            if event.time.0 >= agent.end {
                break;
            }
            agent.apply(&run, &event);
            if matches!(event.kind, EventKind::Process(_)) {
                pids.insert(event.pid);
                processes += 1;
                agent.apply(&run, &run.container(&event));
            }
        }
        if next >= agent.end {
            break;
        }
        let over = Timestamp(run.begin + RUN - SECOND / 2);
        for pid in pids {
            let tid = Tid(pid.0);
            let kind = EventKind::Exit;
            agent.apply(&run, &Event { pid, tid, entry_time: over, time: over, kind });
        }
        if over.0 > BOOT {
            agent.sample(over.0, false);
        }
    }
    agent.tables.finish();
    agent.texts.flush().unwrap();
    processes
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| arguments[index].parse::<u64>().unwrap();
    let recording = read(Path::new(&arguments[0]));
    let seed = number(3);
    let mut agent = Host::new(&recording, Path::new(&arguments[1]), &arguments[2], seed, number(4));
    agent.end = BOOT + number(5) * HOUR;
    agent.tables.file_hours = number(6);
    let processes = replay(&recording, &mut agent, seed);
    let (running, live_bytes) = agent.last;
    println!(
        "{{\"rows\": {}, \"samples\": {}, \"series\": {}, \"processes\": {processes}, \"running\": {running}, \
         \"live_bytes\": {live_bytes}, \"byte_seconds\": {}}}",
        agent.tables.rows, agent.samples, agent.series, agent.byte_seconds
    );
}
