//! The end of the process: the oracle is written at a normal exit and at a fatal signal.

use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::oracle::json;
use crate::state::{self, DriverPhase};

/// Write end of the pipe that the signal handler uses; -1 if missing.
static PIPE: AtomicI32 = AtomicI32::new(-1);
static CAUGHT: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
const SIGNALS: [c_int; 2] = [libc::SIGTERM, libc::SIGINT];

/// The dynamic linker calls this after the program's own exit handlers.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = end;

/// Writes the oracle. From now on calls fail, as those of a real driver do during shutdown.
extern "C" fn end() {
    let mut state = state::lock();
    if state.phase == DriverPhase::Running {
        state.phase = DriverPhase::Deinitialized;
        json::write(&state);
        if let Some(shared) = &state.shared {
            shared.leave();
        }
    }
}

/// Installs handlers for signals that end the process, unless the program has its own. They write
/// the oracle first and then let the signal take its default action.
pub(crate) fn catch_signals() {
    let mut ends = [-1; 2];
    // SAFETY: the array has room for the two descriptors that `pipe2` writes.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return;
    }
    // SAFETY: `pipe2` has just created this descriptor, and nothing else owns it.
    let reader = unsafe { OwnedFd::from_raw_fd(ends[0]) };
    let thread = std::thread::Builder::new().name("sim-oracle".to_owned());
    if thread.spawn(move || wait_for_signal(reader)).is_err() {
        return;
    }
    PIPE.store(ends[1], Ordering::Release);
    for (signal, caught) in SIGNALS.iter().zip(&CAUGHT) {
        if is_default(*signal) && set_handler(*signal, on_signal as *const () as usize) {
            caught.store(true, Ordering::Relaxed);
        }
    }
}

/// Restores the default signal actions after a fork: the pipe belongs to the parent.
pub(crate) fn restore_default_actions() {
    PIPE.store(-1, Ordering::Release);
    for (signal, caught) in SIGNALS.iter().zip(&CAUGHT) {
        if caught.swap(false, Ordering::Relaxed) && is_ours(*signal) {
            set_handler(*signal, libc::SIG_DFL);
        }
    }
}

fn handler_of(signal: c_int) -> Option<usize> {
    // SAFETY: all zeroes is a valid `sigaction`: plain numbers and an optional pointer.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: reads the current action only, into a structure of this frame.
    let result = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    (result == 0).then_some(action.sa_sigaction)
}

fn is_default(signal: c_int) -> bool {
    handler_of(signal) == Some(libc::SIG_DFL)
}

fn is_ours(signal: c_int) -> bool {
    handler_of(signal) == Some(on_signal as *const () as usize)
}

fn set_handler(signal: c_int, handler: usize) -> bool {
    // SAFETY: as in `handler_of`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler is `SIG_DFL` or `on_signal`, which only makes one system call and lives
    // in a library that is never unloaded.
    unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) == 0 }
}

/// Only wakes the thread that writes the oracle: nothing else is safe in a signal handler.
extern "C" fn on_signal(signal: c_int) {
    let pipe = PIPE.load(Ordering::Acquire);
    let byte = u8::try_from(signal).unwrap_or(0);
    // SAFETY: writes one byte of this frame; a bad descriptor only makes the call fail. The
    // thread-local error number is restored, as a signal handler must.
    unsafe {
        let errno = *libc::__errno_location();
        libc::write(pipe, (&raw const byte).cast(), 1);
        *libc::__errno_location() = errno;
    }
}

fn wait_for_signal(reader: OwnedFd) {
    use std::io::Read;
    let mut byte = [0_u8; 1];
    if std::fs::File::from(reader).read_exact(&mut byte).is_err() {
        return;
    }
    end();
    let signal = c_int::from(byte[0]);
    set_handler(signal, libc::SIG_DFL);
    // SAFETY: sends this process the signal that it received; the default action ends it.
    unsafe { libc::kill(libc::getpid(), signal) };
}
