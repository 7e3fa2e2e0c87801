//! Searches for the Python references that keep leaking memory alive, while a command runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use engine::ledger::Ledger;
use engine::model::{Pid, SiteName};
use engine::verdict::SiteVerdict;

use crate::io::output;
use crate::live::program_socket::{ProgramSocket, SiteKeepers};

/// Time between two searches in a process.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// What keeps the memory of one site of a process alive.
type SiteText = (Pid, SiteName, Arc<str>);

/// Searches in the background.
pub(crate) struct KeeperSearch {
    searched: HashMap<Pid, Instant>,
    sender: Sender<SiteText>,
    found: Receiver<SiteText>,
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
                    Ok((sites, _)) => sites.iter().for_each(|site| {
                        let _ = site_name(site).map(|name| sender.send((pid, name, text(site))));
                    }),
                    Err(error) => output::log(&format!("--why: {error:#}")),
                }
            });
        }
    }

    /// Adds the results so far to the ledger.
    pub(crate) fn apply(&mut self, ledger: &mut Ledger) {
        for (pid, site, text) in self.found.try_iter() {
            ledger.set_kept_by(pid, site, text);
        }
    }
}

fn text(site: &SiteKeepers) -> Arc<str> {
    site.to_string().into()
}

/// Returns the name of a leaking site for which references were found.
fn site_name(site: &SiteKeepers) -> Option<SiteName> {
    let has_keeper = site.is_leak && site.answer["keepers"].get(0).is_some();
    let name = site.memory["site"].as_str().filter(|_| has_keeper)?;
    u64::from_str_radix(name, 16).ok().map(SiteName::Resolved)
}
