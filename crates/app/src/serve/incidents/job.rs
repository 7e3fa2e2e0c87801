//! What the engine thread hands to the part that writes folders.

use std::sync::Arc;
use std::time::Instant;

use engine::event::{Failed, SiteFacts};
use engine::holding::Holding;
use engine::ids::{DeviceId, GpuId};
use engine::stack::{Frame, SiteName};
use engine::units::{Moment, Nanos};
use formats::export::incident::{Trigger, Who};

use super::recent::Excerpt;
use crate::serve::Published;

/// An order for the part that writes folders.
pub(crate) enum Order {
    /// A new folder.
    Write(Box<Job>),
    /// More is known of one that was written.
    Update(Update),
}

/// A folder to be written.
pub(crate) struct Job {
    /// A number of its own, for updates.
    pub(crate) number: u64,
    pub(crate) trigger: Trigger,
    pub(crate) at: Moment,
    pub(crate) who: Option<Who>,
    /// The limit that was crossed.
    pub(crate) limit: Option<String>,
    pub(crate) call: Option<Call>,
    pub(crate) device: Option<DeviceId>,
    pub(crate) gpu: Option<GpuId>,
    pub(crate) holders: Vec<Holding>,
    pub(crate) published: Arc<Published>,
    /// When that was published.
    pub(crate) published_at: Instant,
    pub(crate) excerpt: Excerpt,
    /// What the sites of the excerpt look like.
    pub(crate) sites: Vec<SiteFacts>,
    pub(crate) skipped: u64,
}

/// A call that was refused.
pub(crate) struct Call {
    pub(crate) failed: Failed,
    pub(crate) site: SiteName,
    pub(crate) frames: Arc<[Frame]>,
}

/// What became known of an incident after its folder was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Update {
    pub(crate) number: u64,
    pub(crate) errors: u64,
    pub(crate) recovered: bool,
}

impl Job {
    /// How long ago it happened.
    pub(crate) fn age(&self) -> Nanos {
        let until_published = self.published.snapshot.at - self.at;
        let since = u64::try_from(self.published_at.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Nanos(until_published.0.saturating_add(since))
    }
}
