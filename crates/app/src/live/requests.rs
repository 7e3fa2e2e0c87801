//! Requests of traced programs, through the socket in the collector's directory: one JSON object
//! per line, answered by one line.
//!
//! A request waits until all calls that returned before it were applied to the ledger, so that its
//! answer is exact.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use capture::in_process::{Waker, peer};
use engine::ledger::{EndedMeasurement, Ledger, MeasurementId};
use engine::model::{Pid, Timestamp};
use engine::snapshot::KeptSite;
use engine::verdict::Resource;
use formats::report::measurement::{KeptSiteJson, MeasurementJson};
use serde_json::{Value, json};

/// Limit of connections at the same time.
const MAX_CONNECTIONS: usize = 256;

/// Wait after a connection could not be accepted.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Limit of bytes per request.
const MAX_REQUEST_BYTES: u64 = 4096;

/// Time that an answer waits for the names of its sites.
const NAMES_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit of sites in an answer about live memory.
const MAX_LIVE_SITES: usize = 20;

/// What a program requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Operation {
    /// Begin a measurement of the program.
    Begin,
    /// End a measurement.
    End(MeasurementId),
    /// Drop a measurement.
    Cancel(MeasurementId),
    /// The live memory of a process by site.
    Live(Pid),
}

/// A request of a program.
pub(crate) struct Request {
    pid: Pid,
    operation: Operation,
    /// Set when all calls before it are known.
    pub(crate) at: Timestamp,
    answer: SyncSender<Value>,
}

/// Ended measurements whose sites have no names yet.
#[derive(Default)]
pub(crate) struct PendingAnswers(Vec<(EndedMeasurement, SyncSender<Value>, Instant)>);

/// Answers programs that connect to the socket. The requests go to the returned channel.
pub(crate) fn serve(listener: UnixListener, waker: Waker) -> Result<Receiver<Request>> {
    let (sender, requests) = channel();
    let connections = Arc::new(AtomicUsize::new(0));
    // The thread ends with the process: it blocks in accept.
    std::thread::Builder::new().name("requests".into()).spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                // Too many open files, for example.
                std::thread::sleep(ACCEPT_RETRY);
                continue;
            };
            if connections.load(Ordering::Relaxed) >= MAX_CONNECTIONS {
                continue;
            }
            connections.fetch_add(1, Ordering::Relaxed);
            let (sender, waker) = (sender.clone(), waker.clone());
            let open = Arc::clone(&connections);
            let answer = move || {
                // A program that sends nonsense loses its connection.
                let _ = answer_connection(&stream, &sender, &waker);
                open.fetch_sub(1, Ordering::Relaxed);
            };
            let _ = std::thread::Builder::new().name("request".into()).spawn(answer);
        }
    })?;
    Ok(requests)
}

/// Answers the requests of one connection until it is closed, then drops its measurements.
fn answer_connection(stream: &UnixStream, requests: &Sender<Request>, waker: &Waker) -> Result<()> {
    let pid = peer(stream)?;
    let mut reader = BufReader::new(stream);
    let mut open = Vec::new();
    let send = |operation| -> Result<Value> {
        let (answer, answered) = sync_channel(1);
        requests.send(Request { pid, operation, at: Timestamp(0), answer })?;
        waker.wake();
        answered.recv().context("the collector has ended")
    };
    let mut answer_all = || -> Result<()> {
        loop {
            let mut line = String::new();
            if reader.by_ref().take(MAX_REQUEST_BYTES).read_line(&mut line)? == 0 {
                return Ok(());
            }
            let answer = match parse(&line) {
                Ok(operation) => {
                    let answer = send(operation)?;
                    match operation {
                        Operation::Begin => open.extend(answer["id"].as_u64().map(MeasurementId)),
                        Operation::End(id) => open.retain(|known| *known != id),
                        Operation::Cancel(_) | Operation::Live(_) => {}
                    }
                    answer
                }
                Err(error) => json!({ "error": error.to_string() }),
            };
            let mut stream = stream;
            stream.write_all(format!("{answer}\n").as_bytes())?;
        }
    };
    let outcome = answer_all();
    for id in open {
        send(Operation::Cancel(id))?;
    }
    outcome
}

/// Parses a request.
fn parse(line: &str) -> Result<Operation> {
    let request: Value = serde_json::from_str(line).context("request: not JSON")?;
    let id = || request["id"].as_u64().map(MeasurementId).context("request: `id` missing");
    let pid = || {
        let pid = request["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        pid.map(Pid).context("request: `pid` missing")
    };
    Ok(match request["op"].as_str() {
        Some("begin") => Operation::Begin,
        Some("end") => Operation::End(id()?),
        Some("live") => Operation::Live(pid()?),
        _ => bail!("request: unknown `op`; use the same version of the package and of the binary"),
    })
}

impl Request {
    /// Executes the request. All calls before it have been applied.
    pub(crate) fn execute(self, ledger: &mut Ledger, pending: &mut PendingAnswers) {
        let Self { pid, operation, at, answer } = self;
        let value = match operation {
            Operation::Begin => match ledger.begin_measurement(pid, at) {
                Some(id) => json!({ "id": id.0 }),
                None => json!({ "error": "too many open measurements; end some of them" }),
            },
            Operation::End(id) => match ledger.end_measurement(id, at) {
                Some(ended) => {
                    pending.0.push((ended, answer, Instant::now() + NAMES_TIMEOUT));
                    return pending.send_complete(ledger);
                }
                None => json!({ "error": "the measurement is not open" }),
            },
            Operation::Cancel(id) => {
                ledger.cancel_measurement(id);
                json!({})
            }
            Operation::Live(pid) => live(ledger, pid, at),
        };
        let _ = answer.try_send(value);
    }
}

impl PendingAnswers {
    /// Answers requests whose sites now have names, or have waited for them long enough.
    pub(crate) fn send_complete(&mut self, ledger: &Ledger) {
        let now = Instant::now();
        let ready = |(ended, _, until): &mut (EndedMeasurement, _, Instant)| {
            ledger.has_names(ended) || now >= *until
        };
        for (ended, answer, _) in self.0.extract_if(.., ready) {
            let measurement = ledger.name_measurement(ended);
            let _ = answer.try_send(json!({ "measurement": MeasurementJson::new(&measurement) }));
        }
    }
}

/// Returns the live memory of a process: leak suspects, or the largest sites if there are none.
fn live(ledger: &Ledger, pid: Pid, at: Timestamp) -> Value {
    let Some(live) = ledger.live_by_site(pid, at) else {
        return json!({ "error": format!("process {pid}: it has not called the CUDA driver") });
    };
    let is_suspect = |site, resource: Resource| live.suspects.contains(&(site, resource));
    let mut sites: Vec<_> = live.sites.iter().collect();
    sites.sort_by_key(|row| !is_suspect(row.site, row.resource));
    let site = |row: &KeptSite| {
        let is_leak = is_suspect(row.site, row.resource);
        json!({ "leak": is_leak, "memory": KeptSiteJson::new(row) })
    };
    json!({
        "live_bytes": live.live_bytes.0,
        "tensor_bytes": live.tensor_bytes.0,
        "sites": sites.into_iter().take(MAX_LIVE_SITES).map(site).collect::<Vec<_>>(),
    })
}
