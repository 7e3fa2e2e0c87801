//! Names of pods that the node's files do not tell, from its kubelet where one is named.

mod kubelet;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use engine::container::{Container, Pod};
use engine::snapshot::Snapshot;

use super::{Part, Shared};
use crate::output;
use kubelet::Pods;

/// Between two requests; longer after failures.
const PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// How soon the end of the agent is noticed.
const ATTENTION: Duration = Duration::from_millis(500);

/// After so many answers without it a container is none of the node's pods. So many are remembered.
const PATIENCE: u32 = 3;
const MOST_STRANGERS: usize = 4096;

/// What the kubelet told last.
#[derive(Default)]
pub(crate) struct Directory {
    pods: Mutex<Arc<Pods>>,
}

impl Directory {
    fn pods(&self) -> Arc<Pods> {
        Arc::clone(&self.pods.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn replace(&self, pods: Pods) {
        *self.pods.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(pods);
    }

    /// Adds names to containers that have none.
    pub(crate) fn name(&self, snapshot: &mut Snapshot) {
        let pods = self.pods();
        if pods.is_empty() {
            return;
        }
        for process in &mut snapshot.processes {
            let Some(container) = process.container.as_mut().filter(|it| !is_named(it)) else {
                continue;
            };
            let Some(told) = pods.get(&container.id) else { continue };
            // The uid of the cgroup stays: that of a pod from a file may differ elsewhere.
            let uid = container.pod.as_ref().map_or(&told.uid, |pod| &pod.uid).clone();
            let named =
                Container { pod: Some(Pod { uid, ..told.clone() }), ..Container::clone(container) };
            *container = Arc::new(named);
        }
    }
}

fn is_named(container: &Container) -> bool {
    container.pod.as_ref().is_some_and(|pod| pod.name.is_some() && pod.container.is_some())
}

/// Starts the part that asks, where a kubelet is named.
pub(crate) fn start(shared: &Arc<Shared>) -> Result<Option<Part>> {
    if shared.config.kubernetes.kubelet_url.is_none() {
        return Ok(None);
    }
    Part::spawn("kubelet", shared, |shared| {
        Asker::default().run(shared);
        Ok(())
    })
    .map(Some)
}

/// Asks when there is a container without a name, and not too often.
#[derive(Default)]
struct Asker {
    asked: Option<Instant>,
    failures: u32,
    /// How often containers were not in an answer.
    strangers: HashMap<Box<str>, u32>,
}

impl Asker {
    fn run(&mut self, shared: &Shared) {
        let mut seen = 0;
        while !shared.feed.is_closed() {
            let Some(published) = shared.feed.newer(seen, ATTENTION) else { continue };
            seen = published.sequence;
            let unknown = self.unknown(&published.snapshot);
            if !unknown.is_empty() && self.is_due() {
                self.ask(shared, unknown);
            }
        }
    }

    /// Containers that nobody named yet and somebody may.
    fn unknown(&self, snapshot: &Snapshot) -> Vec<Box<str>> {
        let containers = snapshot.processes.iter().filter_map(|it| it.container.as_deref());
        let open = containers.filter(|it| !is_named(it)).filter(|container| {
            self.strangers.get(&container.id).is_none_or(|answers| *answers < PATIENCE)
        });
        open.map(|container| container.id.clone()).collect()
    }

    fn is_due(&self) -> bool {
        let pause = PAUSE.saturating_mul(1 << self.failures.min(6)).min(LONGEST_PAUSE);
        self.asked.is_none_or(|asked| asked.elapsed() >= pause)
    }

    fn ask(&mut self, shared: &Shared, unknown: Vec<Box<str>>) {
        let answer = kubelet::ask(&shared.config.kubernetes);
        self.asked = Some(Instant::now());
        match answer {
            Ok(pods) => {
                self.failures = 0;
                if self.strangers.len() > MOST_STRANGERS {
                    self.strangers.clear();
                }
                for id in unknown {
                    if !pods.contains_key(&id) {
                        *self.strangers.entry(id).or_default() += 1;
                    }
                }
                shared.pods.replace(pods);
            }
            Err(error) => {
                if self.failures == 0 {
                    output::complain(&format!(
                        "pod names from {} only: {}",
                        shared.config.kubernetes.log_dir.display(),
                        formats::plain::plain(&format!("{error:#}"))
                    ));
                }
                self.failures = self.failures.saturating_add(1);
            }
        }
    }
}

#[cfg(test)]
mod tests;
