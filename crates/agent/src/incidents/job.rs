//! Messages from the engine thread to the incident writer.

use std::sync::Arc;
use std::time::Instant;

use engine::model::{
    Bytes, CallStack, DeviceId, FailedCall, GpuId, Holder, Nanos, SiteFrames, SiteName, Timestamp,
};
use formats::report::incident::{Requester, Trigger};

use super::collect::event_ring::EventWindow;
use crate::PublishedSnapshot;

/// A command for the incident writer.
pub(crate) enum WriterCommand {
    /// Write a new incident.
    Write(Box<IncidentJob>),
    /// Update a written incident.
    Update(IncidentUpdate),
}

/// An incident to be written.
pub(crate) struct IncidentJob {
    /// Id for updates.
    pub(crate) number: u64,
    pub(crate) trigger: Trigger,
    pub(crate) at: Timestamp,
    pub(crate) requester: Option<Requester>,
    /// The threshold that was crossed.
    pub(crate) limit: Option<String>,
    pub(crate) call: Option<FailedAllocation>,
    pub(crate) device: Option<DeviceId>,
    pub(crate) gpu: Option<GpuId>,
    pub(crate) holders: Vec<Holder>,
    /// Unused memory in PyTorch's cache of the requester at that time.
    pub(crate) cached: Option<Bytes>,
    pub(crate) published: Arc<PublishedSnapshot>,
    /// Time of its publication.
    pub(crate) published_at: Instant,
    pub(crate) window: EventWindow,
    /// Frames of the sites in the window.
    pub(crate) sites: Vec<SiteFrames>,
    pub(crate) skipped: u64,
}

/// A failed call.
pub(crate) struct FailedAllocation {
    pub(crate) failed: FailedCall,
    pub(crate) site: SiteName,
    pub(crate) frames: CallStack,
}

/// What became known of an incident after it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IncidentUpdate {
    pub(crate) number: u64,
    pub(crate) errors: u64,
    pub(crate) recovered: bool,
}

impl IncidentJob {
    /// Time since the incident.
    pub(crate) fn age(&self) -> Nanos {
        let until_published = self.published.snapshot.at - self.at;
        let since = u64::try_from(self.published_at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Nanos(until_published.0.saturating_add(since))
    }
}
