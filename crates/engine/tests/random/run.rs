//! The seed of a run of random tests.
//!
//! A random test runs with every seed that ever failed and with one that is fresh in each run. Each test
//! binary prints the fresh one, also where everything passes. `VRAMSCOPE_SEED=N` runs that seed alone.
#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::sync::OnceLock;

/// What `VRAMSCOPE_SEED` says.
fn given() -> Option<u64> {
    let text = std::env::var("VRAMSCOPE_SEED").ok()?;
    let seed = text.trim().parse();
    assert!(seed.is_ok(), "VRAMSCOPE_SEED={text} is not a number");
    seed.ok()
}

/// The seed of this run: the given one, or a fresh one.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        // Short enough to be typed.
        let fresh = || RandomState::new().hash_one(0) % 1_000_000_000;
        let seed = given().unwrap_or_else(fresh);
        // Not by `eprintln!`: the test harness hides what passing tests print with it.
        let _ = writeln!(std::io::stderr(), "random tests: VRAMSCOPE_SEED={seed}");
        seed
    })
}

/// The seeds to run: those that failed once and the one of this run; or the given one alone.
pub fn seeds(failed: &[u64]) -> Vec<u64> {
    let failed = if given().is_some() { &[] } else { failed };
    failed.iter().copied().chain([seed()]).collect()
}

/// This many seeds in a row. The first is the one of this run, so that a seed which fails is repeated
/// by giving it.
pub fn many(count: u64) -> impl Iterator<Item = u64> {
    let first = seed();
    (0..count).map(move |number| first.wrapping_add(number))
}
