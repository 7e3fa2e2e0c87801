//! Which processes run Python, and what their frames are.

use std::time::{Duration, Instant};

use engine::ids::Pid;
use engine::stack::Frame;
use hashbrown::HashMap;

use super::python::{Names, NoPython, ProcessMemory, find};
use crate::wire::{WirePython, WirePythonFrame};

/// An interpreter that has not started is looked at again, not too often.
const AGAIN: Duration = Duration::from_millis(100);

/// Processes that run Python.
#[derive(Default)]
pub(crate) struct Pythons {
    names: Names<ProcessMemory>,
    refused: HashMap<Pid, (NoPython, Instant)>,
    news: Vec<(Pid, String)>,
}

impl Pythons {
    /// What the probes need to walk the Python stacks of a process, where it has any.
    pub(crate) fn look(&mut self, pid: Pid) -> Option<WirePython> {
        self.refused.remove(&pid);
        match find(pid) {
            Ok(None) => None,
            Ok(Some(interpreter)) => {
                self.names.add(pid, &interpreter, ProcessMemory(pid));
                Some(interpreter.wire)
            }
            Err(why) => {
                // Nobody asks about a process that is gone.
                let is_there = std::fs::exists(format!("/proc/{pid}/maps")).unwrap_or(false);
                if is_there && why != NoPython::NotReadyYet {
                    self.news.push((pid, why.to_string()));
                }
                self.refused.insert(pid, (why, Instant::now()));
                None
            }
        }
    }

    /// Whether it was looked at a moment ago, or once and for all.
    pub(crate) fn looked_lately(&self, pid: Pid) -> bool {
        match self.refused.get(&pid) {
            Some((NoPython::NotReadyYet, when)) => when.elapsed() < AGAIN,
            Some(_) => true,
            None => false,
        }
    }

    /// Refusals that nobody was told of, in words.
    pub(crate) fn take_refusals(&mut self) -> Vec<(Pid, String)> {
        std::mem::take(&mut self.news)
    }

    /// Why the Python stacks of a process are not told.
    pub(crate) fn refusal(&self, pid: Pid) -> Option<&NoPython> {
        self.refused.get(&pid).map(|(why, _)| why)
    }

    /// What a frame is; `None` for those that no program has written.
    pub(crate) fn frame(&mut self, pid: Pid, frame: &WirePythonFrame) -> Option<Frame> {
        self.names.frame(pid, frame)
    }

    pub(crate) fn forget(&mut self, pid: Pid) {
        self.names.forget(pid);
        self.refused.remove(&pid);
    }
}
