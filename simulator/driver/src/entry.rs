//! Entry points: what the machine sees first when a program calls the driver.
//!
//! Each exported function is a small piece of machine code that begins as a real driver's does
//! and then jumps to the implementation with every register and the stack as it found them.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use crate::abi::{Code, Handle, Outcome};
use crate::ledger::CALLS;
use crate::settings;
use crate::state;

/// An exported function.
pub(crate) struct Export {
    /// The symbol.
    pub(crate) name: &'static str,
    /// Where it begins.
    pub(crate) address: unsafe extern "C" fn(),
}

/// What a function does to memory, as far as calls are counted by it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Allocates,
    Frees,
    Other,
}

/// What happens around every call.
pub(crate) struct CallSite {
    name: &'static str,
    class: Class,
}

impl CallSite {
    pub(crate) const fn new(name: &'static str, class: &str) -> Self {
        let class = match class.as_bytes() {
            b"alloc" => Class::Allocates,
            b"free" => Class::Frees,
            _ => Class::Other,
        };
        Self { name, class }
    }

    /// Runs an implementation: injected failures and delays, then the account of failures.
    pub(crate) fn run(&self, body: impl FnOnce() -> Outcome) -> c_int {
        self.run_work(|call| call.attempt(body))
    }

    /// The same for one that keeps an account of its calls, of injected failures too.
    pub(crate) fn run_work(&self, body: impl FnOnce(Call) -> Outcome) -> c_int {
        let settings = settings::get();
        let half = settings.latency / 2;
        pause(half);
        let injected =
            if settings.failures.is_empty() { None } else { settings.failure(self.name) };
        let outcome = body(Call { name: self.name, injected });
        let code = injected.unwrap_or_else(|| outcome.map_or_else(|code| code as c_int, |()| 0));
        if code != 0 {
            let mut state = state::lock();
            state.work.failed(self.name, code);
            if self.class == Class::Allocates {
                state.ledger.failed_allocations += 1;
            }
        } else {
            match self.class {
                Class::Allocates => CALLS.add_allocating(1),
                Class::Frees => CALLS.add_freeing(1),
                Class::Other => {}
            }
        }
        pause(half);
        code
    }
}

/// A call under way, for implementations that keep an account of their calls.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    /// The symbol.
    pub(crate) name: &'static str,
    /// The result of an injected failure.
    pub(crate) injected: Option<c_int>,
}

impl Call {
    /// Does what was asked for, unless the call must fail: then nothing is done. Which failure
    /// the program sees is not this one's to say.
    pub(crate) fn attempt<T>(self, body: impl FnOnce() -> Result<T, Code>) -> Result<T, Code> {
        if self.injected.is_some() { Err(Code::Unknown) } else { body() }
    }

    /// Whether the default stream is the thread's own.
    pub(crate) fn is_per_thread(self) -> bool {
        self.name.ends_with("_ptsz") || self.name.ends_with("_ptds")
    }

    /// The stream that a handle means in this function.
    pub(crate) fn stream(self, stream: Handle) -> Handle {
        if stream == 0 && self.is_per_thread() { PER_THREAD } else { stream }
    }
}

/// The handle of a thread's own default stream.
const PER_THREAD: Handle = 2;

/// Waits about as long as told: short times by spinning, long ones asleep.
pub(crate) fn pause(time: Duration) {
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

/// What an entry point jumps to. A function of the class `work` gets the [`Call`] first.
macro_rules! implementation {
    (work $name:ident($($arg:ident: $ty:ty),*) = $target:path) => {
        const TARGET: fn($crate::entry::Call, $($ty),*) -> $crate::abi::Outcome = $target;
        extern "C" fn implementation($($arg: $ty),*) -> std::ffi::c_int {
            static SITE: $crate::entry::CallSite =
                $crate::entry::CallSite::new(stringify!($name), "work");
            SITE.run_work(|call| TARGET(call, $($arg),*))
        }
    };
    ($class:ident $name:ident($($arg:ident: $ty:ty),*) = $target:path) => {
        const TARGET: fn($($ty),*) -> $crate::abi::Outcome = $target;
        extern "C" fn implementation($($arg: $ty),*) -> std::ffi::c_int {
            static SITE: $crate::entry::CallSite =
                $crate::entry::CallSite::new(stringify!($name), stringify!($class));
            SITE.run(|| TARGET($($arg),*))
        }
    };
}
pub(crate) use implementation;

/// Exports functions. Each line is the driver's prototype and the function here that does it:
/// `alloc` for calls that allocate (they and their failures are counted), `free` for those that free
/// or give up a reference (counted too), `work` for those that look at the call themselves (launches,
/// copies and fills count every call), `call` for all others.
macro_rules! exports {
    ($($class:ident $name:ident($($arg:ident: $ty:ty),* $(,)?) = $target:path;)*) => {
        /// This module's part of the driver's exported functions.
        pub(crate) static EXPORTS: &[$crate::entry::Export] = &[$({
            $crate::entry::implementation!($class $name($($arg: $ty),*) = $target);
            $crate::entry::stub!($name, implementation);
            $crate::entry::Export { name: stringify!($name), address: $name }
        }),*];
    };
}
pub(crate) use exports;
