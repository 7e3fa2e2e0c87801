//! What a forked child needs: a driver of its own, not yet initialised.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::ledger::CALLS;
use crate::{context, exit, settings, state};

static EPOCH: AtomicU32 = AtomicU32::new(0);

/// A number that differs between a parent's past and its forked child.
pub(crate) fn epoch() -> u32 {
    EPOCH.load(Ordering::Relaxed)
}

/// Makes sure that forked children begin anew.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Runs in the child before `fork` returns there. It takes no lock: threads that do not exist
/// here may have held one.
extern "C" fn in_child() {
    EPOCH.fetch_add(1, Ordering::Relaxed);
    state::forget();
    CALLS.forget();
    state::forget_thread();
    context::forget_stack();
    exit::forget();
    if let Some(settings) = settings::if_read() {
        settings.forget_calls();
    }
}
