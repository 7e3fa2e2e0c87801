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

pub(crate) use feed::{Feed, Published};
pub(crate) use messages::Messages;
pub(crate) use own::Usage;
pub(crate) use part::Part;
pub(crate) use tally::Tally;

use std::sync::Arc;

use config::Config;

/// State that the workers of the agent share.
pub(crate) struct Shared {
    /// Configuration.
    pub(crate) config: Config,
    /// Snapshots published by the engine thread.
    pub(crate) feed: Feed,
    /// Current alerts.
    pub(crate) alerts: alerts::Board,
    /// Recent incidents and their counts.
    pub(crate) incidents: incidents::Shelf,
    /// Pod names from the kubelet.
    pub(crate) pods: kubernetes::Directory,
    /// Number of served requests.
    pub(crate) requests: http::Requests,
    /// CPU share of HTTP responses.
    pub(crate) http_cpu: http::Allowance,
    /// Exports by exporter and outcome: `sent`, `failed`, or `dropped` for an older one.
    pub(crate) onward: Tally,
}

impl Shared {
    pub(crate) fn new(config: Config) -> Arc<Self> {
        Arc::new(Self {
            config,
            feed: Feed::default(),
            alerts: alerts::Board::default(),
            incidents: incidents::Shelf::default(),
            pods: kubernetes::Directory::default(),
            requests: http::Requests::default(),
            http_cpu: http::Allowance::default(),
            onward: Tally::default(),
        })
    }
}
