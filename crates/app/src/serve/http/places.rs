//! Places for connections. Whoever comes when all are taken gets the place of the one that has waited
//! longest without a whole request: clients that say nothing keep nobody from being answered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::task::AbortHandle;

/// Those that are open.
pub(super) struct Places {
    most: usize,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    by_number: HashMap<u64, (Arc<Standing>, Option<AbortHandle>)>,
}

impl Places {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, open: Mutex::default() })
    }

    /// A place for one more; none where every connection has a request that is not answered yet.
    pub(super) fn take(self: &Arc<Self>) -> Option<Place> {
        let mut open = self.lock();
        if open.by_number.len() >= self.most {
            let waiting = open.by_number.iter();
            let waiting = waiting.filter_map(|(id, (standing, _))| Some((standing.waits()?, *id)));
            let (_, longest) = waiting.min()?;
            if let Some((_, Some(task))) = open.by_number.remove(&longest) {
                task.abort();
            }
        }
        let number = open.next;
        open.next += 1;
        let standing = Arc::new(Standing::default());
        open.by_number.insert(number, (Arc::clone(&standing), None));
        drop(open);
        Some(Place { all: Arc::clone(self), number, standing })
    }

    /// The task that has a place, which ends when another one gets it.
    pub(super) fn note(&self, number: u64, task: AbortHandle) {
        if let Some((_, known)) = self.lock().by_number.get_mut(&number) {
            *known = Some(task);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place; it is free again when this goes.
pub(super) struct Place {
    all: Arc<Places>,
    pub(super) number: u64,
    pub(super) standing: Arc<Standing>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.lock().by_number.remove(&self.number);
    }
}

/// What a connection is about.
pub(super) struct Standing(Mutex<State>);

struct State {
    /// Requests that are not answered, or whose answers are not handed over.
    requests: usize,
    /// The other side has not taken what was written.
    writes: bool,
    /// Since when there is neither.
    since: Instant,
}

impl Default for Standing {
    fn default() -> Self {
        Self(Mutex::new(State { requests: 0, writes: false, since: Instant::now() }))
    }
}

impl Standing {
    /// There is a whole request.
    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        self.lock().requests += 1;
        Busy(Arc::clone(self))
    }

    /// Whether the other side still has to take something.
    pub(super) fn write(&self, writes: bool) {
        let mut state = self.lock();
        if state.writes && !writes {
            state.since = Instant::now();
        }
        state.writes = writes;
    }

    /// Since when it has waited for a request, where it does.
    fn waits(&self) -> Option<Instant> {
        let state = self.lock();
        (state.requests == 0 && !state.writes).then_some(state.since)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request, until its answer is handed over.
pub(super) struct Busy(Arc<Standing>);

impl Drop for Busy {
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

    /// Runs two connections that wait for ever; what they hold is gone when they are ended.
    fn with_two(test: impl FnOnce(&Arc<Places>, [Arc<Standing>; 2], &dyn Fn() -> usize)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let places = Places::new(2);
        let connect = || {
            let place = places.take().unwrap();
            let (number, standing) = (place.number, Arc::clone(&place.standing));
            let task = runtime.spawn(async move {
                let _place = place;
                pending::<()>().await;
            });
            places.note(number, task.abort_handle());
            standing
        };
        let standings = [connect(), connect()];
        let open = || {
            runtime.block_on(tokio::task::yield_now());
            places.lock().by_number.len()
        };
        assert_eq!(open(), 2);
        test(&places, standings, &open);
    }

    #[test]
    fn who_waited_longest_makes_room_and_who_is_answered_does_not() {
        with_two(|places, [first, second], open| {
            let busy = first.begin();
            let third = places.take().expect("the second one waits");
            // Nobody but the second one was ended.
            assert_eq!((Arc::strong_count(&first), open()), (4, 2));
            assert_eq!(Arc::strong_count(&second), 1, "its task is gone");
            third.standing.write(true);
            assert!(places.take().is_none(), "both have something to do");
            drop(busy);
            assert!(places.take().is_some());
            assert_eq!(Arc::strong_count(&third.standing), 2);
        });
    }

    #[test]
    fn a_wait_begins_anew_with_each_answer() {
        with_two(|places, [first, second], open| {
            drop(first.begin());
            second.write(true);
            second.write(false);
            let _third = places.take().unwrap();
            open();
            assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (1, 3));
        });
    }
}
