//! Panics of threads as messages.

use std::{panic, thread};

pub(crate) use agent::{Worker, panic_message};

use crate::io::output;

/// Logs a panic as one message, which never blocks on a reader. With `RUST_BACKTRACE`, the default
/// report with a backtrace is printed instead.
pub(crate) fn report_panics() {
    let default_hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if std::env::var_os("RUST_BACKTRACE").is_some() {
            return default_hook(info);
        }
        let location = info.location().map_or_else(String::new, |at| format!(" at {at}"));
        let current = thread::current();
        let (name, reason) = (current.name().unwrap_or("?"), panic_message(info.payload()));
        output::warn(&format!("the thread `{name}` panicked{location}: {reason}"));
    }));
}
