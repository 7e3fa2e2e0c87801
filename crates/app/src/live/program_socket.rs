//! Requests to the Python package in a program, and to the collector that traces it.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use capture::in_process::{SOCKET_FILE, collector_dirs};
use capture::{MarkRequest, MarkScope, MarkSubject};
use engine::model::{Mark, Pid};
use formats::sanitize::{sanitize, sanitized};
use serde_json::{Value, json};

use crate::io::output;

/// Limit of bytes of an answer.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// Time for an answer: a search for references takes at most 30 seconds of CPU time.
const TIMEOUT: Duration = Duration::from_mins(2);

/// Maximum number of sites whose references are searched.
const MAX_SITES: usize = 5;

/// Maximum number of addresses of a site with which its references are published.
const MAX_PUBLISHED: usize = 4;

/// Time for a trace to read what is published: an idle one reads every 250 milliseconds.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(2);

/// The sockets of one program.
pub(crate) struct ProgramSocket {
    pid: Pid,
    dir: PathBuf,
}

/// Live memory of a site, and what keeps it alive.
pub(crate) struct SiteKeepers {
    /// Whether the site is a leak suspect.
    pub(crate) is_leak: bool,
    /// The site, as the collector reports it.
    pub(crate) memory: Value,
    /// The answer of the package.
    pub(crate) answer: Value,
}

impl ProgramSocket {
    /// Finds the sockets of a process that has imported the Python package.
    pub(crate) fn find(pid: Pid) -> Result<Self> {
        let dir = collector_dirs().into_iter().find(|dir| socket(dir, pid).exists());
        let dir = dir.with_context(|| {
            format!(
                "process {pid}: the Python package vramscope is not loaded in it; start the program \
                 with `vramscope run --why`, or import vramscope in it"
            )
        })?;
        Ok(Self { pid, dir })
    }

    /// Returns the live memory of the program, as its collector knows it; `None` without a collector.
    pub(crate) fn live(&self) -> Result<Option<Value>> {
        let path = self.dir.join(SOCKET_FILE);
        if !path.exists() {
            return Ok(None);
        }
        exchange(&path, &json!({ "op": "live", "pid": self.pid.0 })).map(Some)
    }

    /// Whether the program registered functions that free memory.
    pub(crate) fn can_reclaim(&self) -> bool {
        let answer = exchange(&socket(&self.dir, self.pid), &json!({ "op": "callbacks" }));
        answer.is_ok_and(|answer| answer["count"].as_u64().is_some_and(|count| count > 0))
    }

    /// Calls the functions of the program that free memory.
    pub(crate) fn reclaim(&self) -> Result<Value> {
        exchange(&socket(&self.dir, self.pid), &json!({ "op": "reclaim" }))
    }

    /// Returns what keeps the memory of leak suspects alive, or without suspects that of the
    /// largest sites. Also returns facts about the search. All traces of the process show the result.
    pub(crate) fn keepers(&self) -> Result<(Vec<SiteKeepers>, Value)> {
        let live = self.live()?.with_context(|| {
            format!("process {}: not traced; start the program with `vramscope run`", self.pid)
        })?;
        let sites = live["sites"].as_array().map_or(&[][..], Vec::as_slice);
        let has_leak = sites.iter().any(|site| site["leak"] == true);
        let is_wanted = |site: &&Value| {
            let addresses = site["memory"]["addresses"].as_array();
            (!has_leak || site["leak"] == true) && addresses.is_some_and(|list| !list.is_empty())
        };
        let sites: Vec<_> = sites.iter().filter(is_wanted).take(MAX_SITES).collect();
        let addresses: Vec<_> = sites.iter().map(|site| &site["memory"]["addresses"]).collect();
        let request = json!({ "op": "why", "sites": addresses });
        let mut answer = exchange(&socket(&self.dir, self.pid), &request)?;
        let answers = answer["sites"].as_array().cloned().unwrap_or_default();
        let keepers = sites.into_iter().zip(answers).map(|(site, answer)| SiteKeepers {
            is_leak: site["leak"] == true,
            memory: site["memory"].clone(),
            answer,
        });
        let keepers: Vec<_> = keepers.collect();
        let requests: Vec<_> = keepers.iter().flat_map(|site| site.requests(self.pid)).collect();
        if let Err(error) = capture::publish(&requests, PUBLISH_TIMEOUT) {
            output::log(&format!("traces of this host do not get the result: {error}"));
        }
        Ok((keepers, answer["search"].take()))
    }
}

impl SiteKeepers {
    /// What traces are to know: the references that keep a leaking site alive, if there are any.
    fn requests(&self, pid: Pid) -> Vec<MarkRequest> {
        let has_keeper = self.is_leak && self.answer["keepers"].get(0).is_some();
        let addresses = self.memory["addresses"].as_array().filter(|_| has_keeper);
        let addresses = addresses.map_or(&[][..], Vec::as_slice).iter().filter_map(Value::as_u64);
        // Several, because some may be freed before a trace reads the result.
        let request = |address| {
            let mut label = sanitized(&self.to_string());
            label.truncate(label.floor_char_boundary(Mark::MAX_LABEL_BYTES));
            let (subject, scope) = (MarkSubject::KeptBy(address), MarkScope::Process(pid));
            MarkRequest { subject, scope, label }
        };
        addresses.take(MAX_PUBLISHED).map(request).collect()
    }
}

impl fmt::Display for SiteKeepers {
    /// The most frequent keeper: `__main__.history (dict, 1233 entries)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keeper = &self.answer["keepers"][0];
        let Some(container) = keeper["container"].as_str() else {
            return match self.answer["in_cycles"].as_u64() {
                Some(1..) => f.write_str("unreachable reference cycles; gc.collect() frees them"),
                _ => f.write_str("no Python reference was found"),
            };
        };
        let kind = keeper["container_type"].as_str().unwrap_or("object");
        write!(f, "{} ({}", sanitize(container), sanitize(kind))?;
        match keeper["entries"].as_u64() {
            Some(entries @ 2..) => write!(f, ", {entries} entries)"),
            _ => f.write_str(")"),
        }
    }
}

/// Path of the socket of the package in a process.
fn socket(dir: &Path, pid: Pid) -> PathBuf {
    dir.join(format!("python-{pid}"))
}

/// Sends a request and returns the answer.
fn exchange(path: &Path, request: &Value) -> Result<Value> {
    let failed = || format!("{}: cannot be asked; has the program exited?", path.display());
    let mut stream = UnixStream::connect(path).with_context(failed)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("{request}\n").as_bytes()).with_context(failed)?;
    let mut line = String::new();
    BufReader::new(stream).take(MAX_ANSWER_BYTES).read_line(&mut line).with_context(failed)?;
    let answer: Value = serde_json::from_str(&line).with_context(failed)?;
    if let Some(error) = answer["error"].as_str() {
        bail!("{}", sanitize(error));
    }
    Ok(answer)
}
