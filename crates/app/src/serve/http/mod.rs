//! The agent's answers over HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use super::{Part, Shared};

/// Answered requests by the class of the answer.
#[derive(Default)]
pub(crate) struct Requests {
    classes: [AtomicU64; 5],
}

impl Requests {
    /// Counts an answer.
    pub(crate) fn count(&self, status: u16) {
        let class = usize::from(status / 100).saturating_sub(1);
        if let Some(count) = self.classes.get(class) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Answers of 1xx, 2xx, and so on.
    pub(crate) fn classes(&self) -> [u64; 5] {
        self.classes.each_ref().map(|count| count.load(Ordering::Relaxed))
    }
}

/// Listens, and starts the part that answers. A port that is taken fails here.
pub(crate) fn start(shared: &Arc<Shared>) -> Result<Part> {
    Part::spawn("http", shared, |_| ())
}
