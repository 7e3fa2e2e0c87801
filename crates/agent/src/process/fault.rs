//! Fault points: threads fail at them if a test requested it.

use std::sync::OnceLock;

static POINT: OnceLock<fn()> = OnceLock::new();

/// Sets what happens at a fault point.
pub(crate) fn set_point(point: fn()) {
    let _ = POINT.set(point);
}

/// Fails in the current thread if a test requested it.
pub(crate) fn point() {
    if let Some(point) = POINT.get() {
        point();
    }
}
