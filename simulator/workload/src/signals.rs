//! Stop and start signals.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;

static STOP: AtomicBool = AtomicBool::new(false);
static GO: AtomicBool = AtomicBool::new(false);

/// Poll interval of waiting threads.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

extern "C" fn on_stop(_signal: c_int) {
    STOP.store(true, Ordering::Relaxed);
}

extern "C" fn on_start(_signal: c_int) {
    GO.store(true, Ordering::Relaxed);
}

/// Makes SIGINT and SIGTERM end the program cleanly, and SIGUSR1 start it.
pub(crate) fn install() -> anyhow::Result<()> {
    let stop = on_stop as extern "C" fn(c_int);
    let start = on_start as extern "C" fn(c_int);
    for (signal, handler) in [(libc::SIGINT, stop), (libc::SIGTERM, stop), (libc::SIGUSR1, start)] {
        // SAFETY: all zeroes is a valid `sigaction`: plain numbers and an optional pointer.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as usize;
        // SAFETY: the handlers only store to an atomic, which is safe in a signal handler.
        if unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) } != 0 {
            bail!("cannot handle signal {signal}: {}", io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Returns whether the program received a stop signal.
pub(crate) fn stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// Sleeps. Returns false if the program received a stop signal meanwhile.
pub(crate) fn sleep(time: Duration) -> bool {
    let end = Instant::now() + time;
    while !stopped() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(POLL_INTERVAL));
    }
    false
}

/// Sleeps for some milliseconds. Returns false if the program received a stop signal meanwhile.
pub(crate) fn sleep_ms(time: u64) -> bool {
    sleep(Duration::from_millis(time))
}

/// Waits for a line on standard input or for SIGUSR1. Returns false after a stop signal.
pub(crate) fn wait_for_start() -> bool {
    let mut open = true;
    while !stopped() {
        if GO.swap(false, Ordering::Relaxed) {
            return true;
        }
        if !open {
            std::thread::sleep(POLL_INTERVAL);
            continue;
        }
        match read_byte() {
            Some(Some(b'\n')) => return true,
            Some(Some(_)) | None => {}
            // End of the input: only a signal can start the program now.
            Some(None) => open = false,
        }
    }
    false
}

/// Returns a byte of standard input (`Some(None)` at its end), or `None` if nothing can be read
/// yet.
fn read_byte() -> Option<Option<u8>> {
    let mut request = libc::pollfd { fd: libc::STDIN_FILENO, events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure of this frame.
    if unsafe { libc::poll(&raw mut request, 1, 20) } <= 0 {
        return None;
    }
    let mut byte = 0_u8;
    // SAFETY: reads one byte into this frame.
    match unsafe { libc::read(libc::STDIN_FILENO, (&raw mut byte).cast(), 1) } {
        1 => Some(Some(byte)),
        0 => Some(None),
        _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => None,
        _ => Some(None),
    }
}
