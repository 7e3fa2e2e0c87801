//! Searches for the Python references that keep leaking memory alive, while a command runs.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use engine::model::{Event, EventKind, Pid, SiteName, Tid, Timestamp};
use engine::verdict::SiteVerdict;
use formats::sanitize::sanitized;

use crate::io::output;
use crate::live::program_socket::{ProgramSocket, SiteKeepers};

/// Time between two searches in a process.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// Searches in the background.
pub(crate) struct KeeperSearch {
    searched: HashMap<Pid, Instant>,
    sender: Sender<(Pid, EventKind)>,
    found: Receiver<(Pid, EventKind)>,
}

impl Default for KeeperSearch {
    fn default() -> Self {
        let (sender, found) = channel();
        Self { searched: HashMap::new(), sender, found }
    }
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
            let sender = self.sender.clone();
            // Ends within the time limit of the request, or with this process.
            let _ = std::thread::Builder::new().name("keepers".into()).spawn(move || {
                match ProgramSocket::find(pid).and_then(|program| program.keepers()) {
                    Ok((sites, _)) => sites.iter().filter_map(kept_by).for_each(|kind| {
                        let _ = sender.send((pid, kind));
                    }),
                    Err(error) => output::log(&format!("--why: {error:#}")),
                }
            });
        }
    }

    /// Returns the results since the last call.
    pub(crate) fn found(&self, at: Timestamp) -> Vec<Event> {
        let event = |(pid, kind): (Pid, EventKind)| Event {
            pid,
            tid: Tid(pid.0),
            entry_time: at,
            time: at,
            kind,
        };
        self.found.try_iter().map(event).collect()
    }
}

/// Returns the references that keep a leaking site alive, if there are any.
fn kept_by(site: &SiteKeepers) -> Option<EventKind> {
    let has_keeper = site.is_leak && site.answer["keepers"].get(0).is_some();
    let name = site.memory["site"].as_str().filter(|_| has_keeper)?;
    let text = sanitized(&site.to_string());
    Some(EventKind::KeptBy(SiteName::from_text(name)?, text.into()))
}
