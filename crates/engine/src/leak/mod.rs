//! Leak classifier: decides from the history of a site whether its memory leaks. Used for live
//! traces and for files.
//!
//! A site here is one kind of memory or object from one call stack of one process. Its history is
//! kept as a [`Track`]: a [`GrowthHistory`] (time windows) and a [`LifetimeHistogram`] (lifetimes of
//! freed allocations). [`classify`] is a pure function of both and the current time. A program that
//! frees everything at its end has leaked while it ran: [`Track`] classifies the state before.
//!
//! The strongest evidence is *when the live allocations were made*: `growth_run` detects ongoing
//! growth, `pattern` classifies everything that is not a leak, `evidence` computes the values that
//! support a verdict, and `cache` decides whether the tensors in PyTorch's cache account for its
//! memory. `docs/guide/leak-verdicts.md` explains the rules.

mod advice;
mod cache;
mod evidence;
mod growth_history;
mod growth_run;
mod lifetime_histogram;
mod majority_device;
mod pattern;
mod track;
mod usage_trend;

pub use advice::{Advice, advise};
pub(crate) use cache::{
    always_unused, classify_cache, is_bounded, is_framework_cache, is_torch_cache,
};
pub use growth_history::{GrowthHistory, MAX_WINDOWS, Window};
pub use growth_run::MIN_GROWTH;
pub use lifetime_histogram::LifetimeHistogram;
pub(crate) use majority_device::MajorityDevice;
pub use track::Track;
pub(crate) use usage_trend::UsageTrend;

use crate::model::{MemoryKind, Nanos};
use crate::verdict::{Confidence, Evidence, Resource, Verdict};

use growth_run::GrowthRun;

/// Input of the classifier for one site. Quantities are bytes or object counts; times are relative
/// to the start of the trace.
#[derive(Clone, Copy, Debug)]
pub struct SiteObservation<'a> {
    /// Live quantity over time.
    pub history: &'a GrowthHistory,
    /// Lifetimes of freed allocations.
    pub lifetimes: &'a LifetimeHistogram,
    /// Live quantity.
    pub live: u64,
    /// Number of live allocations.
    pub live_count: u64,
    /// Number of allocations made.
    pub allocated: u64,
    /// Number of allocations freed by the program.
    pub freed: u64,
    /// Mean age of live allocations.
    pub mean_age: Nanos,
    /// Mean lifetime of freed allocations; `None` if none was freed.
    pub mean_life: Option<Nanos>,
    /// Time of the first allocation.
    pub first: Nanos,
    /// Time of the last allocation.
    pub last: Nanos,
    /// Current time.
    pub now: Nanos,
    /// Whether the process or the file has ended, so that no change can follow.
    pub has_ended: bool,
    /// Whether the call stack is known, so that this is a single site.
    pub has_stack: bool,
    /// Whether this is the state before the program freed most of it and ended.
    pub freed_at_end: bool,
    /// Whether the allocations are a sample: quantities are estimates.
    pub is_sampled: bool,
}

/// Windows of a site, prepared for the classifier.
struct ObservedWindows {
    windows: Vec<Window>,
    length: u64,
    /// Start of the first window.
    start: u64,
    /// Time of the first allocation.
    first: u64,
    now: u64,
    /// See [`LifetimeHistogram::due_age`].
    due: Option<u64>,
}

impl ObservedWindows {
    fn of(site: &SiteObservation<'_>) -> Self {
        let (length, start, mut windows) = site.history.windows_until(site.now, site.live);
        let (length, start) = (length.0, start.0);
        let end = start.saturating_add(length.saturating_mul(windows.len() as u64));
        // A window that has just started may not have reached its minimum yet.
        if windows.len() > 1
            && end.saturating_sub(site.now.0) > length / 2
            && let (Some(last), Some(before)) = (windows.pop(), windows.last_mut())
        {
            *before = before.then(last);
        }
        let due = site.lifetimes.due_age().map(|due| due.0);
        Self { windows, length, start, first: site.first.0.max(start), now: site.now.0, due }
    }

    /// Start and end of a window, clamped to the life of the site.
    fn bounds(&self, index: usize) -> (u64, u64) {
        let start_of_window = self.start.saturating_add(self.length.saturating_mul(index as u64));
        let is_last = index + 1 >= self.windows.len();
        let ends = if is_last { self.now } else { start_of_window.saturating_add(self.length) };
        (start_of_window.max(self.first), ends.min(self.now))
    }

    fn window(&self, index: usize) -> Window {
        self.windows.get(index).copied().unwrap_or_default()
    }

    /// Minimum of the live quantity since a window: allocations that existed then and were not
    /// freed.
    fn floor(&self, from: usize) -> u64 {
        self.windows.iter().skip(from).map(|window| window.low).min().unwrap_or(0)
    }

    fn duration(&self) -> u64 {
        self.now.saturating_sub(self.first)
    }
}

/// Returns verdict, confidence and evidence for a site. Cost: a few hundred operations.
pub fn classify(site: &SiteObservation<'_>) -> (Verdict, Confidence, Evidence) {
    let observed = ObservedWindows::of(site);
    let run = GrowthRun::newest(&observed);
    let (verdict, confidence) = match run.as_ref().filter(|run| run.is_leak(&observed, site)) {
        Some(run) => (Verdict::Leak, run.confidence(site)),
        None => pattern::classify_non_leak(&observed, site),
    };
    let evidence = match &run {
        Some(run) if verdict == Verdict::Leak => evidence::of(&observed, site, verdict, Some(run)),
        run => {
            let time_to_verdict = run.as_ref().and_then(|run| run.remaining(&observed, site));
            Evidence { time_to_verdict, ..evidence::of(&observed, site, verdict, None) }
        }
    };
    (verdict, confidence, evidence)
}

/// Resource that is classified for a memory kind; `None` for memory that a program cannot free or
/// does not own.
pub(crate) const fn resource(kind: MemoryKind) -> Option<Resource> {
    if let Some(allocator) = kind.allocator() {
        return Some(Resource::Blocks(allocator));
    }
    match kind {
        MemoryKind::Imported
        | MemoryKind::Static
        | MemoryKind::ManagedStatic
        | MemoryKind::Pool
        | MemoryKind::Unknown => None,
        _ => Some(Resource::Memory(kind)),
    }
}
