//! Entry points: the machine code at the start of each exported function.
//!
//! It starts like that of a real driver and then jumps to the implementation with all registers and
//! the stack unchanged.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use crate::abi::{Code, Handle, Outcome};
use crate::oracle::CALLS;
use crate::settings;
use crate::state;

/// An exported function.
pub(crate) struct ExportedFunction {
    /// Name of the symbol.
    pub(crate) name: &'static str,
    /// Address of the entry point.
    pub(crate) address: unsafe extern "C" fn(),
}

/// Class of a function for counting calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Allocates,
    Frees,
    Other,
}

/// An exported function with its counters and injected failures.
pub(crate) struct EntryPoint {
    name: &'static str,
    class: Class,
}

impl EntryPoint {
    pub(crate) const fn new(name: &'static str, class: &str) -> Self {
        let class = match class.as_bytes() {
            b"alloc" => Class::Allocates,
            b"free" => Class::Frees,
            _ => Class::Other,
        };
        Self { name, class }
    }

    /// Runs an implementation: injected failures and delays, then counting of failures.
    pub(crate) fn run(&self, body: impl FnOnce() -> Outcome) -> c_int {
        self.run_activity(|call| call.attempt(body))
    }

    /// Like `run`, for an implementation that counts its calls, including injected failures.
    pub(crate) fn run_activity(&self, body: impl FnOnce(ActiveCall) -> Outcome) -> c_int {
        let settings = settings::get();
        let half_latency = settings.latency / 2;
        pause(half_latency);
        let injected =
            if settings.failures.is_empty() { None } else { settings.failure(self.name) };
        let outcome = body(ActiveCall { name: self.name, injected });
        let code = injected.unwrap_or_else(|| outcome.map_or_else(|code| code as c_int, |()| 0));
        if code != 0 {
            let mut state = state::lock();
            state.activity.failed(self.name, code);
            if self.class == Class::Allocates {
                state.oracle.failed_allocations += 1;
            }
        } else {
            match self.class {
                Class::Allocates => CALLS.add_allocating(1),
                Class::Frees => CALLS.add_freeing(1),
                Class::Other => {}
            }
            if !settings.object_costs.is_empty() {
                state::lock().publish_objects();
            }
        }
        pause(half_latency);
        code
    }
}

/// A call in progress, for implementations that count their calls.
#[derive(Clone, Copy)]
pub(crate) struct ActiveCall {
    /// Name of the function.
    pub(crate) name: &'static str,
    /// Result of an injected failure.
    pub(crate) injected: Option<c_int>,
}

impl ActiveCall {
    /// Runs `body` unless the call must fail; then nothing is done. The caller returns the injected
    /// result to the program.
    pub(crate) fn attempt<T>(self, body: impl FnOnce() -> Result<T, Code>) -> Result<T, Code> {
        if self.injected.is_some() { Err(Code::Unknown) } else { body() }
    }

    /// Returns whether the default stream is the per-thread one.
    pub(crate) fn is_per_thread(self) -> bool {
        self.name.ends_with("_ptsz") || self.name.ends_with("_ptds")
    }

    /// Returns the stream that a handle means in this function.
    pub(crate) fn stream(self, stream: Handle) -> Handle {
        if stream == 0 && self.is_per_thread() { PER_THREAD } else { stream }
    }
}

/// Handle of the per-thread default stream.
const PER_THREAD: Handle = 2;

/// Waits for about this long: short times by spinning, long ones asleep.
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

/// The value that the first comparison of a `prologue-cmpl` entry point reads. Real drivers have
/// this value while no tool has hooked the function.
#[cfg(feature = "prologue-cmpl")]
pub(crate) static UNHOOKED: std::sync::atomic::AtomicU32 =
    std::sync::atomic::AtomicU32::new(0x321c_ba00);

/// The jump target of a `prologue-cmpl` entry point if a tool had hooked it.
#[cfg(feature = "prologue-cmpl")]
pub(crate) static HOOK: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// The machine code of an entry point.
macro_rules! stub {
    ($name:ident, $target:path) => {
        #[allow(non_snake_case, reason = "the name is the driver's")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            $crate::entry::stub_code!($target)
        }
    };
}
pub(crate) use stub;

/// As in driver 580.
#[cfg(all(target_arch = "x86_64", not(feature = "prologue-cmpl")))]
macro_rules! stub_code {
    ($target:path) => {
        core::arch::naked_asm!(
            "push rbp",
            "mov rbp, rsp",
            "pop rbp",
            "jmp {target}",
            // As in real drivers, every function starts at a multiple of 16.
            ".balign 16",
            target = sym $target,
        )
    };
}

/// As in drivers 470, 535 and 550.
#[cfg(all(target_arch = "x86_64", feature = "prologue-cmpl"))]
macro_rules! stub_code {
    ($target:path) => {
        core::arch::naked_asm!(
            "cmp dword ptr [rip + {unhooked}], 0x321cba00",
            "je 2f",
            "jmp qword ptr [rip + {hook}]",
            "2:",
            "push rbp",
            "mov rbp, rsp",
            "pop rbp",
            "jmp {target}",
            ".balign 16",
            unhooked = sym $crate::entry::UNHOOKED,
            hook = sym $crate::entry::HOOK,
            target = sym $target,
        )
    };
}

/// A function that saves its caller's frame.
#[cfg(all(target_arch = "aarch64", not(feature = "prologue-cmpl")))]
macro_rules! stub_code {
    ($target:path) => {
        core::arch::naked_asm!(
            "stp x29, x30, [sp, #-16]!",
            "mov x29, sp",
            "ldp x29, x30, [sp], #16",
            "b {target}",
            ".balign 16",
            target = sym $target,
        )
    };
}

/// As in drivers 535 and 550.
#[cfg(all(target_arch = "aarch64", feature = "prologue-cmpl"))]
macro_rules! stub_code {
    ($target:path) => {
        core::arch::naked_asm!(
            "adrp x10, {unhooked}",
            "mov w9, #0xba00",
            "movk w9, #0x321c, lsl #16",
            "ldr w10, [x10, :lo12:{unhooked}]",
            "cmp w10, w9",
            "b.eq 2f",
            "adrp x9, {hook}",
            "ldr x9, [x9, :lo12:{hook}]",
            "mov x16, x9",
            "br x16",
            "2:",
            "b {target}",
            ".balign 16",
            unhooked = sym $crate::entry::UNHOOKED,
            hook = sym $crate::entry::HOOK,
            target = sym $target,
        )
    };
}
pub(crate) use stub_code;

/// The function that an entry point jumps to. A function of the class `activity` gets the
/// [`ActiveCall`] first.
macro_rules! implementation {
    (activity $name:ident($($arg:ident: $ty:ty),*) = $target:path) => {
        const TARGET: fn($crate::entry::ActiveCall, $($ty),*) -> $crate::abi::Outcome = $target;
        extern "C" fn implementation($($arg: $ty),*) -> std::ffi::c_int {
            static ENTRY: $crate::entry::EntryPoint =
                $crate::entry::EntryPoint::new(stringify!($name), "activity");
            ENTRY.run_activity(|call| TARGET(call, $($arg),*))
        }
    };
    ($class:ident $name:ident($($arg:ident: $ty:ty),*) = $target:path) => {
        const TARGET: fn($($ty),*) -> $crate::abi::Outcome = $target;
        extern "C" fn implementation($($arg: $ty),*) -> std::ffi::c_int {
            static ENTRY: $crate::entry::EntryPoint =
                $crate::entry::EntryPoint::new(stringify!($name), stringify!($class));
            ENTRY.run(|| TARGET($($arg),*))
        }
    };
}
pub(crate) use implementation;

/// Exports functions. Each line is the driver's prototype and its implementation: `alloc` for calls
/// that allocate (they and their failures are counted), `free` for those that free or drop a
/// reference (also counted), `activity` for those that count every call themselves (launches,
/// copies and memsets), `call` for all others.
macro_rules! exports {
    ($($class:ident $name:ident($($arg:ident: $ty:ty),* $(,)?) = $target:path;)*) => {
        /// The exported functions of this module.
        pub(crate) static EXPORTS: &[$crate::entry::ExportedFunction] = &[$({
            $crate::entry::implementation!($class $name($($arg: $ty),*) = $target);
            $crate::entry::stub!($name, implementation);
            $crate::entry::ExportedFunction { name: stringify!($name), address: $name }
        }),*];
    };
}
pub(crate) use exports;
