//! Collects what an incident needs while it happens: the request, the holders, the recent events.

pub(super) mod collector;
pub(super) mod event_ring;
pub(super) mod holder_history;
pub(super) mod prior_state;
pub(super) mod rate_limit;
#[cfg(test)]
pub(super) mod test_events;
pub(super) mod thresholds;
