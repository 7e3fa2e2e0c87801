//! A part of the agent: a thread with a name, that ends when nothing is published any more.

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use rustix::thread::CapabilitySet;

use super::{Shared, rights};
use crate::output;

/// A part that runs.
pub(crate) struct Part {
    name: &'static str,
    thread: JoinHandle<()>,
}

impl Part {
    /// Starts it, without any rights. It must end soon after the feed is closed.
    pub(crate) fn spawn(
        name: &'static str,
        shared: &Arc<Shared>,
        work: impl FnOnce(&Arc<Shared>) + Send + 'static,
    ) -> Result<Self> {
        Self::spawn_with(CapabilitySet::empty(), name, shared, work)
    }

    /// The same for a part that needs a right.
    pub(crate) fn spawn_with(
        kept: CapabilitySet,
        name: &'static str,
        shared: &Arc<Shared>,
        work: impl FnOnce(&Arc<Shared>) + Send + 'static,
    ) -> Result<Self> {
        let shared = Arc::clone(shared);
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || match rights::only(kept) {
                Ok(()) => work(&shared),
                Err(error) => output::complain(&format!("{name}: {}", output::reasons(&error))),
            })
            .with_context(|| format!("cannot start the thread `{name}`"))?;
        Ok(Self { name, thread })
    }

    /// Waits for its end. A part that panicked is named.
    pub(crate) fn join(self) -> Result<(), &'static str> {
        self.thread.join().map_err(|_| self.name)
    }

    /// Its name, if it has ended.
    pub(crate) fn over(&self) -> Option<&'static str> {
        self.thread.is_finished().then_some(self.name)
    }
}
