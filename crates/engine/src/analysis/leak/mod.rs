//! The judge: how what is live of a place behaves over time, and whether it leaks. The same for a
//! running trace and for files.
//!
//! A place is what one call stack of one process holds of one sort. What it did is kept as a
//! [`Course`] (windows of time) and [`Spans`] (how long freed ones lived). [`judge`] is a pure
//! function of both and the moment; it can be asked at any time.
//!
//! The strongest evidence is *when those were born that are live*: `era` finds the growth that goes
//! on, `shape` names what is no leak, `evidence` adds up what a verdict rests on, `cache` says when the
//! tensors of PyTorch's cache account for its memory. `docs/guide/leak-verdicts.md` has the rules in words.

mod cache;
mod course;
mod era;
mod evidence;
mod majority;
mod shape;
mod spans;

pub(crate) use cache::{is_bounded, is_torch_cache, judge_cache};
pub use course::{Course, WINDOWS, Window};
pub(crate) use majority::Majority;
pub use spans::Spans;

use crate::kind::Kind;
use crate::units::Nanos;
use crate::verdict::{Evidence, Subject, Sureness, Verdict};

use era::Era;

/// What is known of a place when it is judged. Quantities are bytes, or numbers of objects; moments
/// are counted from the beginning of the trace.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// What was live over time.
    pub course: &'a Course,
    /// How long freed ones lived.
    pub spans: &'a Spans,
    /// What is live now.
    pub live: u64,
    /// How many that are.
    pub live_count: u64,
    /// All that began.
    pub begun: u64,
    /// Of those: freed by the program.
    pub ended: u64,
    /// The mean age of what is live.
    pub mean_age: Nanos,
    /// The mean life of what was freed; `None` where nothing was.
    pub mean_life: Option<Nanos>,
    /// When the first and the last began.
    pub first: Nanos,
    /// See `first`.
    pub last: Nanos,
    /// The moment of the judgement.
    pub now: Nanos,
    /// Nothing will happen any more: the process or the file ended.
    pub over: bool,
    /// It is one place: the call stack is known.
    pub named: bool,
}

/// The windows of a place as they are judged.
struct Past {
    windows: Vec<Window>,
    length: u64,
    /// When the first window began.
    start: u64,
    /// When the place began.
    first: u64,
    now: u64,
    /// See [`Spans::due`].
    due: Option<u64>,
}

impl Past {
    fn of(case: &Case<'_>) -> Self {
        let (length, start, mut windows) = case.course.until(case.now, case.live);
        let (length, start) = (length.0, start.0);
        let end = start.saturating_add(length.saturating_mul(windows.len() as u64));
        // A window that has just begun has not seen its trough yet.
        if windows.len() > 1
            && end.saturating_sub(case.now.0) > length / 2
            && let (Some(last), Some(before)) = (windows.pop(), windows.last_mut())
        {
            *before = Window {
                low: before.low.min(last.low),
                high: before.high.max(last.high),
                end: last.end,
                kept: before.kept.saturating_add(last.kept),
                kept_count: before.kept_count.saturating_add(last.kept_count),
                born: before.born.saturating_add(last.born),
            };
        }
        let due = case.spans.due().map(|due| due.0);
        Self { windows, length, start, first: case.first.0.max(start), now: case.now.0, due }
    }

    /// When a window began and ended, within the life of the place.
    fn bounds(&self, index: usize) -> (u64, u64) {
        let begins = self.start.saturating_add(self.length.saturating_mul(index as u64));
        let is_last = index + 1 >= self.windows.len();
        let ends = if is_last { self.now } else { begins.saturating_add(self.length) };
        (begins.max(self.first), ends.min(self.now))
    }

    fn window(&self, index: usize) -> Window {
        self.windows.get(index).copied().unwrap_or_default()
    }

    /// The least that was live from a window on: what was there then and did not go since.
    fn floor(&self, from: usize) -> u64 {
        self.windows.iter().skip(from).map(|window| window.low).min().unwrap_or(0)
    }

    fn watched(&self) -> u64 {
        self.now.saturating_sub(self.first)
    }
}

/// What is thought of a place, how sure it is, and why. Costs a few hundred steps.
#[must_use]
pub fn judge(case: &Case<'_>) -> (Verdict, Sureness, Evidence) {
    let past = Past::of(case);
    let era = Era::find(&past);
    let (verdict, sureness) = match era.as_ref().filter(|era| era.is_leak(&past, case)) {
        Some(era) => (Verdict::Leak, era.sureness(case)),
        None => shape::of(&past, case),
    };
    let grows = era.filter(|_| verdict == Verdict::Leak);
    (verdict, sureness, evidence::of(&past, case, verdict, grows.as_ref()))
}

/// What is judged of a kind of memory; none of what a program cannot free or does not own.
pub(crate) const fn subject(kind: Kind) -> Option<Subject> {
    match kind {
        Kind::Torch => Some(Subject::Tensors),
        Kind::Imported | Kind::Static | Kind::ManagedStatic | Kind::Pool | Kind::Unknown => None,
        _ => Some(Subject::Memory(kind)),
    }
}

/// Whether it is worth while to judge a place of which only that much is known: a leak needs so many
/// that are live, and goes on.
#[must_use]
pub fn may_leak(live_count: u64, first: Nanos, last: Nanos, now: Nanos) -> bool {
    let (life, idle) = (now.0.saturating_sub(first.0), now.0.saturating_sub(last.0));
    live_count >= era::SURVIVORS && idle <= life / 2
}
