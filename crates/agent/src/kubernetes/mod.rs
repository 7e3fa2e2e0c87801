//! Pod names that the node's log files do not contain, from its kubelet if one is configured.

mod kubelet;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use engine::model::{Container, Pod};
use engine::snapshot::Snapshot;

use super::{AgentState, Worker};
use crate::delivery::http_client::HttpClient;
use kubelet::Pods;

/// Minimum time between two queries, and its maximum after failures.
const MIN_REQUEST_INTERVAL: Duration = Duration::from_secs(5);
const MAX_BACKOFF: Duration = Duration::from_mins(5);

/// Poll interval for shutdown.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Number of responses without a container after which it is not queried again, and maximum number
/// of such containers.
const MAX_LOOKUPS: u32 = 3;
const MAX_UNKNOWN_CONTAINERS: usize = 4096;

/// Pods of the last response of the kubelet.
#[derive(Default)]
pub(crate) struct PodDirectory {
    pods: Mutex<Arc<Pods>>,
}

impl PodDirectory {
    fn pods(&self) -> Arc<Pods> {
        Arc::clone(&self.pods.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn replace(&self, pods: Pods) {
        *self.pods.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(pods);
    }

    /// Adds pod names to containers without one.
    pub(crate) fn name(&self, snapshot: &mut Snapshot) {
        let pods = self.pods();
        if pods.is_empty() {
            return;
        }
        for process in &mut snapshot.processes {
            let Some(container) = process.container.as_mut().filter(|it| !is_named(it)) else {
                continue;
            };
            let Some(info) = pods.get(&container.id) else { continue };
            // The uid from the cgroup stays: the API may have another one for pods from manifest
            // files.
            let uid = container.pod.as_ref().map_or(&info.uid, |pod| &pod.uid).clone();
            let named =
                Container { pod: Some(Pod { uid, ..info.clone() }), ..Container::clone(container) };
            *container = Arc::new(named);
        }
    }
}

fn is_named(container: &Container) -> bool {
    container.pod.as_ref().is_some_and(|pod| pod.name.is_some() && pod.container.is_some())
}

/// Starts the worker that queries the kubelet, if one is configured.
pub(crate) fn start(shared: &Arc<AgentState>) -> Result<Option<Worker>> {
    let endpoint = shared.config.kubernetes.endpoint().map_err(|reason| anyhow!(reason))?;
    let Some(endpoint) = endpoint else { return Ok(None) };
    let poller = KubeletPoller::new(HttpClient::new(endpoint)?);
    Worker::of_agent("kubelet", shared, move |shared| {
        poller.run(shared);
        Ok(())
    })
    .map(Some)
}

/// Queries the kubelet when a container has no name, at a limited rate.
struct KubeletPoller {
    client: HttpClient,
    last_query: Option<Instant>,
    failures: u32,
    /// How often containers were missing in a response.
    missing: HashMap<Box<str>, u32>,
}

impl KubeletPoller {
    fn new(client: HttpClient) -> Self {
        Self { client, last_query: None, failures: 0, missing: HashMap::new() }
    }

    fn run(mut self, shared: &AgentState) {
        let mut seen = 0;
        while !shared.feed.is_closed() {
            let Some(published) = shared.feed.newer(seen, POLL_INTERVAL) else { continue };
            seen = published.sequence;
            let unknown = self.unknown(&published.snapshot);
            if !unknown.is_empty() && self.is_due() {
                self.query(shared, unknown);
            }
        }
    }

    /// Returns containers without a name that the kubelet may know.
    fn unknown(&self, snapshot: &Snapshot) -> Vec<Box<str>> {
        let containers = snapshot.processes.iter().filter_map(|it| it.container.as_deref());
        let open = containers.filter(|it| !is_named(it)).filter(|container| {
            self.missing.get(&container.id).is_none_or(|count| *count < MAX_LOOKUPS)
        });
        open.map(|container| container.id.clone()).collect()
    }

    fn is_due(&self) -> bool {
        let interval =
            MIN_REQUEST_INTERVAL.saturating_mul(1 << self.failures.min(6)).min(MAX_BACKOFF);
        self.last_query.is_none_or(|last| last.elapsed() >= interval)
    }

    fn query(&mut self, shared: &AgentState, unknown: Vec<Box<str>>) {
        let response = kubelet::list_pods(&self.client);
        self.last_query = Some(Instant::now());
        match response {
            Ok(pods) => {
                self.failures = 0;
                if self.missing.len() > MAX_UNKNOWN_CONTAINERS {
                    self.missing.clear();
                }
                for id in unknown {
                    if !pods.contains_key(&id) {
                        *self.missing.entry(id).or_default() += 1;
                    }
                }
                shared.pods.replace(pods);
            }
            Err(error) => {
                if self.failures == 0 {
                    tracing::warn!(
                        "pod names from {} only: {}",
                        shared.config.kubernetes.log_dir.display(),
                        formats::sanitize::sanitize(&format!("{error:#}"))
                    );
                }
                self.failures = self.failures.saturating_add(1);
            }
        }
    }
}

#[cfg(test)]
mod tests;
