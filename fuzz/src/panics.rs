//! Panics that do not end the process.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static TOLERATED: Cell<Tolerated> = const { Cell::new(Tolerated::None) };
}

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Panics that are caught, so that the process continues.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Tolerated {
    /// None.
    None,
    /// Those of other people's crates, for readers that catch them: the file then has no symbols.
    Dependencies,
    /// All: a mutator reads the input with a library that may panic.
    All,
}

/// Runs a function while some panics are tolerated.
pub fn tolerate<T>(what: Tolerated, run: impl FnOnce() -> T) -> T {
    let before = TOLERATED.replace(what);
    let result = run();
    TOLERATED.set(before);
    result
}

/// Number of panics that were tolerated.
pub(crate) fn tolerated() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// The fuzzer's hook ends the process; this one calls it for all panics that are not tolerated.
pub(crate) fn install_hook() {
    let abort = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let is_own = || panic.location().is_none_or(|at| at.file().contains("/crates/"));
        match TOLERATED.get() {
            Tolerated::None => abort(panic),
            Tolerated::Dependencies if is_own() => abort(panic),
            Tolerated::Dependencies | Tolerated::All => drop(COUNT.fetch_add(1, Ordering::Relaxed)),
        }
    }));
}
