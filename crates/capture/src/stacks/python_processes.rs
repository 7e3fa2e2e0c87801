//! Processes that run Python, and their frames.

use std::time::{Duration, Instant};

use engine::model::ids::Pid;
use engine::model::stack::Frame;
use hashbrown::HashMap;

use super::python::{ProcessMemory, PythonSymbolizer, PythonUnsupported, find};
use crate::wire::{WirePython, WirePythonFrame};

/// Minimum time between two attempts for an interpreter that has not started.
const DETECT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Processes that run Python.
#[derive(Default)]
pub(crate) struct PythonProcesses {
    symbolizer: PythonSymbolizer<ProcessMemory>,
    unsupported: HashMap<Pid, (PythonUnsupported, Instant)>,
    /// Reasons that were not reported yet.
    unreported: Vec<(Pid, String)>,
}

impl PythonProcesses {
    /// Returns the data that the probes need to walk the Python stacks of a process, if it has any.
    pub(crate) fn detect(&mut self, pid: Pid) -> Option<WirePython> {
        self.unsupported.remove(&pid);
        match find(pid) {
            Ok(None) => None,
            Ok(Some(interpreter)) => {
                self.symbolizer.add(pid, &interpreter, ProcessMemory(pid));
                Some(interpreter.wire)
            }
            Err(reason) => {
                // A process that has exited needs no report.
                let exists = std::fs::exists(format!("/proc/{pid}/maps")).unwrap_or(false);
                if exists && reason != PythonUnsupported::NotReadyYet {
                    self.unreported.push((pid, reason.to_string()));
                }
                self.unsupported.insert(pid, (reason, Instant::now()));
                None
            }
        }
    }

    /// Returns whether a process was checked recently, or with a final result.
    pub(crate) fn detected_recently(&self, pid: Pid) -> bool {
        match self.unsupported.get(&pid) {
            Some((PythonUnsupported::NotReadyYet, time)) => time.elapsed() < DETECT_RETRY_INTERVAL,
            Some(_) => true,
            None => false,
        }
    }

    /// Returns the processes whose Python is not supported since the last call, with the reason.
    pub(crate) fn drain_unsupported(&mut self) -> Vec<(Pid, String)> {
        std::mem::take(&mut self.unreported)
    }

    /// Returns why the Python stacks of a process cannot be read.
    pub(crate) fn unsupported_reason(&self, pid: Pid) -> Option<&PythonUnsupported> {
        self.unsupported.get(&pid).map(|(reason, _)| reason)
    }

    /// Symbolizes a frame; `None` for internal frames of the interpreter.
    pub(crate) fn frame(&mut self, pid: Pid, frame: &WirePythonFrame) -> Option<Frame> {
        self.symbolizer.frame(pid, frame)
    }

    pub(crate) fn process_exited(&mut self, pid: Pid) {
        self.symbolizer.process_exited(pid);
        self.unsupported.remove(&pid);
    }
}
