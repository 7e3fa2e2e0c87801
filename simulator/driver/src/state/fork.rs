//! Reset after a fork: the child has its own, uninitialized driver.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::api::context;
use crate::oracle::CALLS;
use crate::state::exit;
use crate::{settings, state};

static EPOCH: AtomicU32 = AtomicU32::new(0);

/// A number that is different in a forked child.
pub(crate) fn epoch() -> u32 {
    EPOCH.load(Ordering::Relaxed)
}

/// Registers the reset of forked children.
pub(crate) fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Runs in the child before `fork` returns. It takes no lock: a thread that does not exist in the
/// child may hold it.
extern "C" fn in_child() {
    EPOCH.fetch_add(1, Ordering::Relaxed);
    state::reset();
    CALLS.reset();
    state::reset_thread();
    context::clear_stack();
    exit::restore_default_actions();
    if let Some(settings) = settings::if_read() {
        settings.reset_calls();
    }
}
