//! Contains panics in helper threads: a panic costs one result, not the thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

/// Returns the message of a panic. Untrusted text.
#[must_use]
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Runs a closure; a panic is an error that names the thread. What the closure borrows mutably must
/// not be used after a panic.
pub(crate) fn contain<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let guarded = || {
        crate::fault::point();
        run()
    };
    catch_unwind(AssertUnwindSafe(guarded)).unwrap_or_else(|panic| {
        let current = thread::current();
        let name = current.name().unwrap_or("?");
        Err(format!("the thread `{name}` panicked: {}", panic_message(&*panic)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contained_panic_is_an_error_with_its_message() {
        assert_eq!(contain(|| Ok(1)), Ok(1));
        assert_eq!(contain::<()>(|| Err("no".into())), Err("no".into()));
        let error = contain::<()>(|| panic!("at {}", 3)).unwrap_err();
        assert!(error.ends_with("panicked: at 3"), "{error}");
    }
}
