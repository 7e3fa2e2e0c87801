//! Open connections. If there are too many, a new one replaces the one that has waited longest for
//! a request, so idle clients cannot block others.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::task::AbortHandle;

/// The open connections.
pub(in crate::api) struct Connections {
    max: usize,
    open: Vec<(Arc<Activity>, AbortHandle)>,
}

/// Whether a connection waits for a request.
pub(in crate::api) struct Activity {
    /// Time since which it waits; none while a request is handled.
    idle_since: Mutex<Option<Instant>>,
}

impl Connections {
    pub(in crate::api) const fn new(max: usize) -> Self {
        Self { max, open: Vec::new() }
    }

    /// Makes room for one more. Returns whether there is: not if all handle a request.
    pub(in crate::api) fn make_room(&mut self) -> bool {
        self.open.retain(|(_, task)| !task.is_finished());
        if self.open.len() < self.max {
            return true;
        }
        let idle = self.open.iter().enumerate();
        let idle = idle.filter_map(|(index, (activity, _))| Some((activity.idle_since()?, index)));
        let Some((_, longest)) = idle.min() else { return false };
        self.open.swap_remove(longest).1.abort();
        true
    }

    pub(in crate::api) fn add(&mut self, activity: Arc<Activity>, task: AbortHandle) {
        self.open.push((activity, task));
    }
}

impl Activity {
    pub(in crate::api) fn new() -> Arc<Self> {
        Arc::new(Self { idle_since: Mutex::new(Some(Instant::now())) })
    }

    /// Sets whether a request is handled.
    pub(in crate::api) fn set_busy(&self, is_busy: bool) {
        let idle_since = (!is_busy).then(Instant::now);
        *self.idle_since.lock().unwrap_or_else(PoisonError::into_inner) = idle_since;
    }

    fn idle_since(&self) -> Option<Instant> {
        *self.idle_since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[test]
    fn longest_idle_connection_is_replaced() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut connections = Connections::new(2);
        let mut connect = || {
            let is_open = connections.make_room();
            let activity = Activity::new();
            let task = runtime.spawn(pending::<()>());
            connections.add(Arc::clone(&activity), task.abort_handle());
            (is_open, activity, task)
        };
        let (_, first, first_task) = connect();
        let (_, second, second_task) = connect();
        // The first one answered a request just now.
        first.set_busy(true);
        first.set_busy(false);
        let (is_open, third, third_task) = connect();
        runtime.block_on(async { tokio::task::yield_now().await });
        assert!(is_open && second_task.is_finished() && !first_task.is_finished());
        first.set_busy(true);
        third.set_busy(true);
        assert!(!connections.make_room(), "both handle a request");
        first.set_busy(false);
        assert!(connections.make_room());
        runtime.block_on(async { tokio::task::yield_now().await });
        assert!(first_task.is_finished() && !third_task.is_finished());
        drop(second);
    }
}
