//! The kernel's clocks, as the probes read them.

use engine::model::units::Timestamp;

/// Reads the clock of `bpf_ktime_get_ns`.
#[must_use]
pub fn monotonic() -> Timestamp {
    Timestamp(read(libc::CLOCK_MONOTONIC))
}

/// Reads the clock of `bpf_ktime_get_boot_ns`, which also counts while the machine sleeps.
#[must_use]
pub(crate) fn boot() -> u64 {
    read(libc::CLOCK_BOOTTIME)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: time is writable; both clocks exist on every kernel that can trace.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
