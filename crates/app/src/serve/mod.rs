//! The agent. Its workers read the snapshots that the engine thread publishes, each on its own
//! thread, and never use capture.

pub(crate) mod actions;
pub(crate) mod alerts;
pub(crate) mod api;
pub(crate) mod budget;
pub(crate) mod capabilities;
pub(crate) mod child_program;
pub(crate) mod config;
pub(crate) mod exporters;
pub(crate) mod incidents;
pub(crate) mod kubernetes;
mod log_queue;
pub(crate) mod metrics_input;
mod outcome_counter;
pub(crate) mod secret;
mod self_usage;
mod snapshot_feed;
pub(crate) mod trusted_path;
mod worker;

pub(crate) use log_queue::LogQueue;
pub(crate) use outcome_counter::OutcomeCounter;
pub(crate) use self_usage::SelfUsage;
pub(crate) use snapshot_feed::{PublishedSnapshot, SnapshotFeed};
pub(crate) use worker::AgentThread;

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
    pub(crate) requests: api::RequestCounts,
    /// CPU share of HTTP responses.
    pub(crate) http_cpu: api::CpuShare,
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
            requests: api::RequestCounts::default(),
            http_cpu: api::CpuShare::default(),
            exports: OutcomeCounter::default(),
        })
    }
}
