//! Processes whose memory grows: those that hold more allocations than ever before, from time to
//! time.

use engine::model::event::{Event, EventKind, VmmCall};
use engine::model::units::{Nanos, Timestamp};

/// Minimum and maximum time that a process counts as growing after its last growth.
const MIN_HOLD: Nanos = Nanos::from_millis(20_000);
const MAX_HOLD: Nanos = Nanos::from_millis(600_000);

/// A process that grows slowly counts as growing for this many times as long as it last took to grow.
const HOLD_FACTOR: u64 = 4;

/// Growth of one process.
#[derive(Default)]
pub(crate) struct Growth {
    /// Allocations minus frees, and the maximum of that.
    held: i64,
    most: i64,
    last: Option<Timestamp>,
    until: Timestamp,
}

impl Growth {
    /// Observes a call of the process. Returns whether it begins to grow with it.
    pub(crate) fn observe(&mut self, event: &Event) -> bool {
        let change = match &event.kind {
            EventKind::Allocate(_) | EventKind::Vmm(VmmCall::Create { .. }) => 1,
            EventKind::Free(_) | EventKind::Vmm(VmmCall::Release { .. }) => -1,
            _ => return false,
        };
        self.held += change;
        if self.held <= self.most {
            return false;
        }
        self.most = self.held;
        let began = event.time > self.until;
        let took = self.last.map_or(Nanos(0), |last| event.time - last);
        let hold = took.0.saturating_mul(HOLD_FACTOR).clamp(MIN_HOLD.0, MAX_HOLD.0);
        self.last = Some(event.time);
        self.until = self.until.max(Timestamp(event.time.0.saturating_add(hold)));
        began
    }

    /// Returns whether the process grows at this time.
    pub(crate) fn is_growing(&self, at: Timestamp) -> bool {
        self.last.is_some() && at <= self.until
    }
}

#[cfg(test)]
mod tests {
    use engine::model::event::{Free, FreeFunction};
    use engine::model::ids::{AllocationKey, PhysicalHandleId, Pid, Tid};

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
        let mut growth = Growth::default();
        assert!(!growth.is_growing(Timestamp(0)));
        assert!(growth.observe(&allocate(10)));
        assert!(!growth.observe(&allocate(11)), "it grows already");
        assert!(growth.is_growing(Timestamp(31 * SECOND)));
        assert!(!growth.is_growing(Timestamp(32 * SECOND)));
        for seconds in 40..90 {
            growth.observe(&free(seconds));
            assert!(!growth.observe(&allocate(seconds)));
        }
        assert!(!growth.is_growing(Timestamp(90 * SECOND)));
    }

    #[test]
    fn slow_growth_counts_for_longer() {
        let mut growth = Growth::default();
        growth.observe(&allocate(10));
        assert!(growth.observe(&allocate(110)), "it had ended");
        assert!(growth.is_growing(Timestamp(500 * SECOND)));
    }
}
