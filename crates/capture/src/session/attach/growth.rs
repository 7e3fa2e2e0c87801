//! Processes whose memory grows: those that hold more allocations than ever before, from time to
//! time.

use std::collections::HashMap;

use engine::model::event::{Event, EventKind, VmmCall};
use engine::model::ids::Pid;
use engine::model::units::{Nanos, Timestamp};

/// Minimum and maximum time that a process counts as growing after its last growth.
const MIN_HOLD: Nanos = Nanos::from_millis(20_000);
const MAX_HOLD: Nanos = Nanos::from_millis(600_000);

/// A process that grows slowly counts as growing for this many times as long as it last took to grow.
const HOLD_FACTOR: u64 = 4;

/// Growth of one process.
#[derive(Default)]
struct Growth {
    /// Allocations minus frees, and the maximum of that.
    held: i64,
    most: i64,
    last: Option<Timestamp>,
    until: Timestamp,
}

/// Growth of processes.
#[derive(Default)]
pub(crate) struct GrowthTracker(HashMap<Pid, Growth>);

impl GrowthTracker {
    /// Follows a process from now on.
    pub(crate) fn add(&mut self, pid: Pid) {
        self.0.entry(pid).or_default();
    }

    /// Observes a call of a process. Returns whether a known process begins to grow with it.
    pub(crate) fn observe(&mut self, event: &Event) -> bool {
        let change = match &event.kind {
            EventKind::Allocate(_) | EventKind::Vmm(VmmCall::Create { .. }) => 1,
            EventKind::Free(_) | EventKind::Vmm(VmmCall::Release { .. }) => -1,
            _ => return false,
        };
        let Some(growth) = self.0.get_mut(&event.pid) else { return false };
        growth.held += change;
        if growth.held <= growth.most {
            return false;
        }
        growth.most = growth.held;
        let began = event.time > growth.until;
        let took = growth.last.map_or(Nanos(0), |last| event.time - last);
        let hold = took.0.saturating_mul(HOLD_FACTOR).clamp(MIN_HOLD.0, MAX_HOLD.0);
        growth.last = Some(event.time);
        growth.until = growth.until.max(Timestamp(event.time.0.saturating_add(hold)));
        began
    }

    /// Whether a process grows at this time.
    pub(crate) fn is_growing(&self, pid: Pid, at: Timestamp) -> bool {
        self.0.get(&pid).is_some_and(|growth| growth.last.is_some() && at <= growth.until)
    }

    /// Whether any process grows at this time.
    pub(crate) fn is_any_growing(&self, at: Timestamp) -> bool {
        self.0.keys().any(|pid| self.is_growing(*pid, at))
    }

    /// Forgets a process.
    pub(crate) fn remove(&mut self, pid: Pid) {
        self.0.remove(&pid);
    }
}

#[cfg(test)]
mod tests {
    use engine::model::event::{Free, FreeFunction};
    use engine::model::ids::{AllocationKey, PhysicalHandleId, Tid};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn event(kind: EventKind, seconds: u64) -> Event {
        let time = Timestamp(seconds * SECOND);
        Event { pid: Pid(1), tid: Tid(1), entry_time: time, time, kind }
    }

    fn allocate(seconds: u64) -> Event {
        let handle = PhysicalHandleId(seconds);
        event(
            EventKind::Vmm(VmmCall::Create {
                handle,
                bytes: 1,
                location: engine::model::event::MemoryLocation::Host,
                site: None,
            }),
            seconds,
        )
    }

    fn free(seconds: u64) -> Event {
        let key = AllocationKey::address(1);
        event(EventKind::Free(Free { key, by: FreeFunction::Free, stream: None }), seconds)
    }

    #[test]
    fn only_more_allocations_than_before_are_growth() {
        let mut tracker = GrowthTracker::default();
        assert!(!tracker.observe(&allocate(1)), "an unknown process");
        tracker.add(Pid(1));
        assert!(!tracker.is_growing(Pid(1), Timestamp(0)));
        assert!(tracker.observe(&allocate(10)));
        assert!(!tracker.observe(&allocate(11)), "it grows already");
        assert!(tracker.is_growing(Pid(1), Timestamp(31 * SECOND)));
        assert!(!tracker.is_growing(Pid(1), Timestamp(32 * SECOND)));
        for seconds in 40..90 {
            tracker.observe(&free(seconds));
            assert!(!tracker.observe(&allocate(seconds)));
        }
        assert!(!tracker.is_any_growing(Timestamp(90 * SECOND)));
    }

    #[test]
    fn slow_growth_counts_for_longer() {
        let mut tracker = GrowthTracker::default();
        tracker.add(Pid(1));
        tracker.observe(&allocate(10));
        assert!(tracker.observe(&allocate(110)), "it had ended");
        assert!(tracker.is_growing(Pid(1), Timestamp(500 * SECOND)));
        tracker.remove(Pid(1));
        assert!(!tracker.is_growing(Pid(1), Timestamp(120 * SECOND)));
    }
}
