//! Connection slots. If all are in use, a new connection replaces the one that has waited longest
//! for a request, so idle clients cannot block others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::task::AbortHandle;

/// Slots of open connections.
pub(in crate::serve::api) struct ConnectionSlots {
    max: usize,
    open: Mutex<OpenConnection>,
}

#[derive(Default)]
struct OpenConnection {
    next: u64,
    by_id: HashMap<u64, (Arc<ConnectionStatus>, Option<AbortHandle>)>,
}

impl ConnectionSlots {
    pub(in crate::serve::api) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, open: Mutex::default() })
    }

    /// Acquires a slot; none if every connection has a request in flight.
    pub(in crate::serve::api) fn acquire(self: &Arc<Self>) -> Option<ConnectionSlot> {
        let mut open = self.lock();
        if open.by_id.len() >= self.max {
            let waiting = open.by_id.iter();
            let waiting = waiting.filter_map(|(id, (status, _))| Some((status.idle_since()?, *id)));
            let (_, longest) = waiting.min()?;
            if let Some((_, Some(task))) = open.by_id.remove(&longest) {
                task.abort();
            }
        }
        let id = open.next;
        open.next += 1;
        let status = Arc::new(ConnectionStatus::default());
        open.by_id.insert(id, (Arc::clone(&status), None));
        drop(open);
        Some(ConnectionSlot { all: Arc::clone(self), id, status })
    }

    /// Sets the task of a slot, to be aborted when the slot is reassigned.
    pub(in crate::serve::api) fn set_task(&self, id: u64, task: AbortHandle) {
        if let Some((_, current)) = self.lock().by_id.get_mut(&id) {
            *current = Some(task);
        }
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnection> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot; released on drop.
pub(in crate::serve::api) struct ConnectionSlot {
    all: Arc<ConnectionSlots>,
    pub(in crate::serve::api) id: u64,
    pub(in crate::serve::api) status: Arc<ConnectionStatus>,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.all.lock().by_id.remove(&self.id);
    }
}

/// State of a connection.
pub(in crate::serve::api) struct ConnectionStatus(Mutex<ConnectionState>);

struct ConnectionState {
    /// Requests without a completely sent response.
    requests: usize,
    /// The client has not received everything that was written.
    is_writing: bool,
    /// Time since which the connection is idle.
    since: Instant,
}

impl Default for ConnectionStatus {
    fn default() -> Self {
        Self(Mutex::new(ConnectionState { requests: 0, is_writing: false, since: Instant::now() }))
    }
}

impl ConnectionStatus {
    /// Registers a complete request.
    pub(in crate::serve::api) fn begin(self: &Arc<Self>) -> InFlightRequest {
        self.lock().requests += 1;
        InFlightRequest(Arc::clone(self))
    }

    /// Sets whether the client still has to receive data.
    pub(in crate::serve::api) fn write(&self, is_writing: bool) {
        let mut state = self.lock();
        if state.is_writing && !is_writing {
            state.since = Instant::now();
        }
        state.is_writing = is_writing;
    }

    /// Returns the time since which it has waited for a request, if it does.
    fn idle_since(&self) -> Option<Instant> {
        let state = self.lock();
        (state.requests == 0 && !state.is_writing).then_some(state.since)
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request until its response is sent.
pub(in crate::serve::api) struct InFlightRequest(Arc<ConnectionStatus>);

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.requests = state.requests.saturating_sub(1);
        state.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// Runs two connections that wait forever; their resources are released when they are aborted.
    fn with_two(
        test: impl FnOnce(&Arc<ConnectionSlots>, [Arc<ConnectionStatus>; 2], &dyn Fn() -> usize),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let slots = ConnectionSlots::new(2);
        let connect = || {
            let slot = slots.acquire().unwrap();
            let (id, status) = (slot.id, Arc::clone(&slot.status));
            let task = runtime.spawn(async move {
                let _slot = slot;
                pending::<()>().await;
            });
            slots.set_task(id, task.abort_handle());
            status
        };
        let statuses = [connect(), connect()];
        let open = || {
            runtime.block_on(tokio::task::yield_now());
            slots.lock().by_id.len()
        };
        assert_eq!(open(), 2);
        test(&slots, statuses, &open);
    }

    #[test]
    fn longest_idle_connection_is_replaced() {
        with_two(|slots, [first, second], open| {
            let busy = first.begin();
            let third = slots.acquire().expect("the second one waits");
            // Only the second one was aborted.
            assert_eq!((Arc::strong_count(&first), open()), (4, 2));
            assert_eq!(Arc::strong_count(&second), 1, "its task is gone");
            third.status.write(true);
            assert!(slots.acquire().is_none(), "both have something to do");
            drop(busy);
            assert!(slots.acquire().is_some());
            assert_eq!(Arc::strong_count(&third.status), 2);
        });
    }

    #[test]
    fn idle_time_restarts_after_each_response() {
        with_two(|slots, [first, second], open| {
            drop(first.begin());
            second.write(true);
            second.write(false);
            let _third = slots.acquire().unwrap();
            open();
            assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (1, 3));
        });
    }
}
