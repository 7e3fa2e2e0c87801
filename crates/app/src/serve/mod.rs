//! The agent. Its workers read the snapshots that the engine thread publishes, each on its own
//! thread, and never use capture.

pub(crate) mod actions;
pub(crate) mod alerts;
pub(crate) mod budget;
pub(crate) mod config;
mod feed;
pub(crate) mod figures;
pub(crate) mod http;
pub(crate) mod incidents;
pub(crate) mod kubernetes;
mod messages;
pub(crate) mod onward;
mod own;
mod part;
pub(crate) mod program;
pub(crate) mod rights;
pub(crate) mod secret;
mod tally;
pub(crate) mod trust;

pub(crate) use feed::{PublishedSnapshot, SnapshotFeed};
pub(crate) use messages::LogQueue;
pub(crate) use own::SelfUsage;
pub(crate) use part::AgentThread;
pub(crate) use tally::OutcomeCounter;

use std::sync::Arc;

use config::Config;

/// State that the workers of the agent share.
pub(crate) struct AgentState {
    /// Configuration.
    pub(crate) config: Config,
    /// Snapshots published by the engine thread.
    pub(crate) feed: SnapshotFeed,
    /// Current alerts.
    pub(crate) alerts: alerts::AlertStore,
    /// Recent incidents and their counts.
    pub(crate) incidents: incidents::IncidentStore,
    /// Pod names from the kubelet.
    pub(crate) pods: kubernetes::PodDirectory,
    /// Number of served requests.
    pub(crate) requests: http::RequestCounts,
    /// CPU share of HTTP responses.
    pub(crate) http_cpu: http::CpuShare,
    /// Exports by exporter and outcome: `sent`, `failed`, or `dropped` for an older one.
    pub(crate) exports: OutcomeCounter,
}

impl AgentState {
    pub(crate) fn new(config: Config) -> Arc<Self> {
        Arc::new(Self {
            config,
            feed: SnapshotFeed::default(),
            alerts: alerts::AlertStore::default(),
            incidents: incidents::IncidentStore::default(),
            pods: kubernetes::PodDirectory::default(),
            requests: http::RequestCounts::default(),
            http_cpu: http::CpuShare::default(),
            exports: OutcomeCounter::default(),
        })
    }
}
