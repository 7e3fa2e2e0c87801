//! Searches for the Python references that keep leaking memory alive, while a command runs.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use engine::model::Pid;
use engine::verdict::SiteVerdict;

use crate::io::output;
use crate::live::program_socket::ProgramSocket;

/// Time between two searches in a process.
const REPEAT_INTERVAL: Duration = Duration::from_mins(1);

/// Searches in the background. Their results are published to all traces, also to this one.
#[derive(Default)]
pub(crate) struct KeeperSearch {
    searched: HashMap<Pid, Instant>,
}

impl KeeperSearch {
    /// Starts a search in the processes of leak suspects, unless they were searched lately.
    pub(crate) fn search(&mut self, suspects: &[SiteVerdict]) {
        for pid in suspects.iter().filter_map(|suspect| suspect.pid) {
            let now = Instant::now();
            let is_due = |last: &Instant| now.duration_since(*last) >= REPEAT_INTERVAL;
            if !self.searched.get(&pid).is_none_or(is_due) {
                continue;
            }
            self.searched.insert(pid, now);
            // Ends within the time limit of the request, or with this process.
            let _ = std::thread::Builder::new().name("keepers".into()).spawn(move || {
                if let Err(error) = ProgramSocket::find(pid).and_then(|program| program.keepers()) {
                    output::log(&format!("--why: {error:#}"));
                }
            });
        }
    }
}
