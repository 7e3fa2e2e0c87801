//! Messages from the engine thread to the incident writer.

use std::sync::Arc;
use std::time::Instant;

use engine::event::{Failed, SiteFacts};
use engine::holding::Holding;
use engine::ids::{DeviceId, GpuId};
use engine::stack::{Frame, SiteName};
use engine::units::{Bytes, Moment, Nanos};
use formats::export::incident::{Trigger, Who};

use super::recent::Excerpt;
use crate::serve::Published;

/// A command for the incident writer.
pub(crate) enum Order {
    /// Write a new incident.
    Write(Box<Job>),
    /// Update a written incident.
    Update(Update),
}

/// An incident to be written.
pub(crate) struct Job {
    /// Id for updates.
    pub(crate) number: u64,
    pub(crate) trigger: Trigger,
    pub(crate) at: Moment,
    pub(crate) requester: Option<Who>,
    /// The threshold that was crossed.
    pub(crate) limit: Option<String>,
    pub(crate) call: Option<Call>,
    pub(crate) device: Option<DeviceId>,
    pub(crate) gpu: Option<GpuId>,
    pub(crate) holders: Vec<Holding>,
    /// Unused memory in PyTorch's cache of the requester at that time.
    pub(crate) cached: Option<Bytes>,
    pub(crate) published: Arc<Published>,
    /// Time of its publication.
    pub(crate) published_at: Instant,
    pub(crate) window: Excerpt,
    /// Frames of the sites in the window.
    pub(crate) sites: Vec<SiteFacts>,
    pub(crate) skipped: u64,
}

/// A failed call.
pub(crate) struct Call {
    pub(crate) failed: Failed,
    pub(crate) site: SiteName,
    pub(crate) frames: Arc<[Frame]>,
}

/// What became known of an incident after it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Update {
    pub(crate) number: u64,
    pub(crate) errors: u64,
    pub(crate) recovered: bool,
}

impl Job {
    /// Time since the incident.
    pub(crate) fn age(&self) -> Nanos {
        let until_published = self.published.snapshot.at - self.at;
        let since = u64::try_from(self.published_at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Nanos(until_published.0.saturating_add(since))
    }
}
