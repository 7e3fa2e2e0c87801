//! Learns the contexts of threads that ran before the probes did.
//!
//! Such a thread never sets its context again, but frameworks ask the driver for it all the time.
//! Probing these questions for good would cost a training step more than everything else together,
//! so they are probed for a moment: at the start, and again when an allocation comes from a thread
//! whose context is still not known.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use engine::ids::Pid;

use super::attach::{Attachment, attach};
use super::drivers::places;
use super::object::Loaded;
use crate::hooks::Group;
use crate::libraries::Image;

/// How long the questions are probed.
const MOMENT: Duration = Duration::from_secs(1);

/// How long a process is left alone after that.
const REST: Duration = Duration::from_secs(10);

/// Beyond so many processes one link for all is cheaper than one each.
const MANY: usize = 32;

pub(crate) struct Learning {
    link_per_process: bool,
    wanted: HashSet<Pid>,
    asked: HashMap<Pid, Instant>,
    running: Option<(Instant, Vec<Attachment>)>,
}

impl Learning {
    pub(crate) fn new(link_per_process: bool) -> Self {
        let (wanted, asked) = (HashSet::new(), HashMap::new());
        Self { link_per_process, wanted, asked, running: None }
    }

    /// A process has threads whose context is not known.
    pub(crate) fn want(&mut self, pid: Pid) {
        let rests = self.asked.get(&pid).is_some_and(|asked| asked.elapsed() < REST);
        if !rests {
            self.wanted.insert(pid);
        }
    }

    /// Begins and ends the probing of questions.
    pub(crate) fn look<'a>(&mut self, loaded: &Loaded, images: impl Iterator<Item = &'a Image>) {
        if let Some((since, _)) = &self.running {
            if since.elapsed() < MOMENT {
                return;
            }
            self.running = None;
        }
        if self.wanted.is_empty() {
            return;
        }
        let pids = std::mem::take(&mut self.wanted);
        let scopes: Vec<Option<Pid>> = if self.link_per_process && pids.len() <= MANY {
            pids.iter().copied().map(Some).collect()
        } else {
            vec![None]
        };
        let now = Instant::now();
        self.asked.retain(|_, asked| asked.elapsed() < REST);
        self.asked.extend(pids.into_iter().map(|pid| (pid, now)));
        let mut attachments = Vec::new();
        for image in images {
            let places = places(image, &[Group::Queries]);
            for scope in &scopes {
                // A process that ended has nothing to tell; other failures leave devices unknown,
                // and the report says so.
                let attached = attach(
                    loaded,
                    &image.attach_path(),
                    &image.path,
                    &places,
                    loaded.knobs.calls(),
                    *scope,
                );
                attachments.extend(attached.ok());
            }
        }
        self.running = Some((now, attachments));
    }
}
