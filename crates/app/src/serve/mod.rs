//! The agent: it watches while nobody looks. Its parts read what the engine thread publishes, each on
//! a thread of its own, and never see capture.

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

/// What the parts of the agent share.
pub(crate) struct Shared {
    /// What was asked for.
    pub(crate) config: Config,
    /// What the engine thread publishes.
    pub(crate) feed: Feed,
    /// Built-in alerts, as they stand.
    pub(crate) alerts: alerts::Board,
    /// Snapshots that were taken, and how that went.
    pub(crate) incidents: incidents::Shelf,
    /// Names of pods, as the kubelet told them.
    pub(crate) pods: kubernetes::Directory,
    /// Answered requests.
    pub(crate) requests: http::Requests,
    /// Processor time for answers.
    pub(crate) answering: http::Allowance,
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
            answering: http::Allowance::default(),
            onward: Tally::default(),
        })
    }
}
