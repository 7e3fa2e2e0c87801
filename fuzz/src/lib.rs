//! What all fuzz targets share: the bodies of the targets, mutators that know a format, a limit on
//! memory, and the share of inputs that get past the first parser.

mod allocator;
pub mod mutate;
pub mod panics;
#[path = "../../crates/formats/tests/fuzz/mod.rs"]
mod readers;

use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use libfuzzer_sys::Corpus;

pub use agent::fuzz::{config, http};
pub use capture::fuzz::{dwarf, elf, python, records};

/// Reads a file of any supported format.
#[must_use]
pub fn import(bytes: &[u8]) -> bool {
    readers::import(bytes)
}

/// Reads a log of nvidia-smi.
#[must_use]
pub fn smi(bytes: &[u8]) -> bool {
    readers::smi(bytes)
}

/// Replays a recording.
#[must_use]
pub fn recording(bytes: &[u8]) -> bool {
    readers::recording(bytes)
}

/// Inputs that were run, and those that the reader accepted.
static RUN: AtomicU64 = AtomicU64::new(0);
static ACCEPTED: AtomicU64 = AtomicU64::new(0);

/// One in this many inputs that the reader rejects is kept in the corpus, because what is made from
/// them is rejected as well.
const REJECTED_INTERVAL: u64 = 8;

/// Runs a target on one input, within the memory limit.
pub fn run(target: fn(&[u8]) -> bool, bytes: &[u8]) -> Corpus {
    if RUN.fetch_add(1, Ordering::Relaxed) == 0 {
        panics::install_hook();
        // SAFETY: the function only reads counters and prints them.
        unsafe { libc::atexit(print_counts) };
    }
    allocator::start_input();
    let accepted = target(bytes);
    ACCEPTED.fetch_add(u64::from(accepted), Ordering::Relaxed);
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    if accepted || hasher.finish() % REJECTED_INTERVAL == 0 { Corpus::Keep } else { Corpus::Reject }
}

/// Prints the counters, for `fuzz/run`.
extern "C" fn print_counts() {
    let (accepted, run) = (ACCEPTED.load(Ordering::Relaxed), RUN.load(Ordering::Relaxed));
    eprintln!("accepted: {accepted} of {run}");
    eprintln!("tolerated panics: {}", panics::tolerated());
}

/// Defines a target: its function, and the mutator of its format.
#[macro_export]
macro_rules! target {
    ($run:expr, $mutate:expr) => {
        libfuzzer_sys::fuzz_target!(|bytes: &[u8]| -> libfuzzer_sys::Corpus {
            $crate::run($run, bytes)
        });
        libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
            $crate::mutate::mutate($mutate, data, size, max_size, seed)
        });
    };
}
