//! The in-process capture library. `CUDA_INJECTION64_PATH` makes the CUDA driver load it in
//! `cuInit`. It wraps the driver's functions and writes the records of `wire.h` into memory that it
//! shares with `vramscope run`.
//!
//! The program must not be affected. In case of doubt a function, or the whole driver, is not
//! wrapped, and the collector reports what is missing. Wrapped calls take no lock, allocate nothing
//! and make no system call, except the first call of a thread, of a forked child and from a new call
//! site.

mod allocators;
mod arch;
mod area;
mod calls;
mod code;
mod library;
mod process;
mod shared;
mod start;
mod wire;
mod wrapper;

#[path = "../../capture/src/plan/entry/mod.rs"]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "shared with the capture crate")]
mod entry;

#[path = "../../capture/src/hooks/unhooked.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the capture crate")]
mod unhooked;

use std::ffi::c_int;

/// Names the build of this library. The collector reads it in the file.
#[unsafe(no_mangle)]
pub static VRAMSCOPE_LAYOUT: [u8; area::LAYOUT_MARK.len()] = area::LAYOUT_MARK;

/// Called by the driver inside the first `cuInit` of a process. Returns 1, as NVIDIA's libraries do
/// for success: a failure of this library must not fail the program.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> c_int {
    // A panic must not reach the driver: the program continues untraced.
    let _ = std::panic::catch_unwind(start::start);
    std::panic::catch_unwind(start::chain).unwrap_or(1)
}

/// Random seeds for the tests of shared files; the capture crate runs them with other seeds.
#[cfg(test)]
mod random {
    pub(crate) const fn seed() -> u64 {
        1
    }
}
