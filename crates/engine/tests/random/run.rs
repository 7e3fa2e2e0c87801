//! The seed of a run of random tests.
//!
//! A random test runs with every seed that failed before and with a fresh one. Each test process
//! prints the fresh seed, even if all tests pass. `VRAMSCOPE_SEED=N` runs only that seed.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::sync::OnceLock;

/// Returns the value of `VRAMSCOPE_SEED`.
fn given() -> Option<u64> {
    let text = std::env::var("VRAMSCOPE_SEED").ok()?;
    let seed = text.trim().parse();
    assert!(seed.is_ok(), "VRAMSCOPE_SEED={text} is not a number");
    seed.ok()
}

/// Returns the seed of this run: the given one, or a fresh one.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        // Short enough to be typed.
        let fresh = || RandomState::new().hash_one(0) % 1_000_000_000;
        let seed = given().unwrap_or_else(fresh);
        // Not `eprintln!`: the test harness hides it for passing tests.
        let _ = writeln!(std::io::stderr(), "random tests: VRAMSCOPE_SEED={seed}");
        seed
    })
}

/// Returns the seeds to run: those that failed before and the one of this run, or only the given
/// one.
pub fn seeds(failed: &[u64]) -> Vec<u64> {
    let failed = if given().is_some() { &[] } else { failed };
    failed.iter().copied().chain([seed()]).collect()
}

/// Returns consecutive seeds that start at the one of this run, so that a failure can be repeated
/// with `VRAMSCOPE_SEED`.
pub fn many(count: u64) -> impl Iterator<Item = u64> {
    let first = seed();
    (0..count).map(move |number| first.wrapping_add(number))
}
