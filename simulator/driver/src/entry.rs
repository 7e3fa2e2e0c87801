//! Entry points: what the machine sees first when a program calls the driver.
//!
//! Each exported function is a small piece of machine code that begins as a real driver's does
//! and then jumps to the implementation with every register and the stack as it found them.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use crate::abi::Outcome;
use crate::settings;
use crate::state;

/// An exported function.
pub(crate) struct Export {
    /// The symbol.
    pub(crate) name: &'static str,
    /// Where it begins.
    pub(crate) address: unsafe extern "C" fn(),
}

/// What happens around every call.
pub(crate) struct CallSite {
    name: &'static str,
    allocates: bool,
}

impl CallSite {
    pub(crate) const fn new(name: &'static str, class: &str) -> Self {
        // Strings cannot be compared in constants; the two classes differ in length.
        Self { name, allocates: class.len() == "alloc".len() }
    }

    /// Runs an implementation: injected failures and delays, then the account of failures.
    pub(crate) fn run(&self, body: impl FnOnce() -> Outcome) -> c_int {
        let settings = settings::get();
        let half = settings.latency / 2;
        pause(half);
        let injected =
            if settings.failures.is_empty() { None } else { settings.failure(self.name) };
        let code = injected.unwrap_or_else(|| body().map_or_else(|code| code as c_int, |()| 0));
        if code != 0 && self.allocates {
            state::lock().ledger.failed_allocations += 1;
        }
        pause(half);
        code
    }
}

/// Waits about as long as told: short times by spinning, long ones asleep.
fn pause(time: Duration) {
    if time.is_zero() {
        return;
    }
    if time >= Duration::from_micros(50) {
        std::thread::sleep(time);
        return;
    }
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// What the first comparison of a `prologue-cmpl` entry point looks at. Real drivers hold this
/// value while no tool has put itself in between.
#[cfg(feature = "prologue-cmpl")]
pub(crate) static UNHOOKED: std::sync::atomic::AtomicU32 =
    std::sync::atomic::AtomicU32::new(0x321c_ba00);

/// Where a `prologue-cmpl` entry point would jump if a tool had put itself in between.
#[cfg(feature = "prologue-cmpl")]
pub(crate) static HOOK: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// The machine code of an entry point: as in driver 580.
#[cfg(not(feature = "prologue-cmpl"))]
macro_rules! stub {
    ($name:ident, $target:path) => {
        #[allow(non_snake_case, reason = "the name is the driver's")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "pop rbp",
                "jmp {target}",
                target = sym $target,
            )
        }
    };
}

/// The machine code of an entry point: as in drivers 470, 535 and 550.
#[cfg(feature = "prologue-cmpl")]
macro_rules! stub {
    ($name:ident, $target:path) => {
        #[allow(non_snake_case, reason = "the name is the driver's")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "cmp dword ptr [rip + {unhooked}], 0x321cba00",
                "je 2f",
                "jmp qword ptr [rip + {hook}]",
                "2:",
                "push rbp",
                "mov rbp, rsp",
                "pop rbp",
                "jmp {target}",
                unhooked = sym $crate::entry::UNHOOKED,
                hook = sym $crate::entry::HOOK,
                target = sym $target,
            )
        }
    };
}
pub(crate) use stub;

/// Exports functions. Each line is the driver's prototype and the function here that does it:
/// `alloc` for calls that allocate (their failures are counted), `call` for all others.
macro_rules! exports {
    ($($class:ident $name:ident($($arg:ident: $ty:ty),* $(,)?) = $target:path;)*) => {
        /// This module's part of the driver's exported functions.
        pub(crate) static EXPORTS: &[$crate::entry::Export] = &[$({
            const TARGET: fn($($ty),*) -> $crate::abi::Outcome = $target;
            extern "C" fn implementation($($arg: $ty),*) -> std::ffi::c_int {
                static SITE: $crate::entry::CallSite =
                    $crate::entry::CallSite::new(stringify!($name), stringify!($class));
                SITE.run(|| TARGET($($arg),*))
            }
            $crate::entry::stub!($name, implementation);
            $crate::entry::Export { name: stringify!($name), address: $name }
        }),*];
    };
}
pub(crate) use exports;
