//! The in-process capture library. The CUDA driver loads it in `cuInit` where
//! `CUDA_INJECTION64_PATH` names it; it wraps the driver's functions and writes the records of
//! `wire.h` into memory that it shares with `vramscope run`.
//!
//! The program must never notice. Where anything is unusual, a function or the whole driver stays
//! as it is, and the collector learns what is missing. Wrapped calls take no lock, allocate nothing
//! and make no system call, except the first call of a thread and of a forked child.

mod area;
mod call;
mod code;
mod context;
mod copy;
mod driver;
mod emit;
mod graph;
mod launch;
mod loss;
mod kernel_name;
mod process;
mod python;
mod shared;
mod stack;
mod start;
mod tensor;
mod thread;
mod wire;
mod wrapper;

#[path = "../../capture/src/patch.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the capture crate")]
mod patch;
#[path = "../../capture/src/prologue.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the capture crate")]
mod prologue;

use std::ffi::c_int;

/// Called by the driver, inside of the first `cuInit` of a process. Returns 1, as NVIDIA's own
/// libraries do for success; a failure of ours must not become one of the program.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> c_int {
    // A panic must not reach the driver. It would be a bug; the program continues untraced.
    let _ = std::panic::catch_unwind(start::start);
    std::panic::catch_unwind(start::chain).unwrap_or(1)
}

/// What the tests of shared files expect; the capture crate runs them with other seeds.
#[cfg(test)]
mod random {
    pub(crate) const fn seed() -> u64 {
        1
    }
}
