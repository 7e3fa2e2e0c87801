//! Capturing streams, and whether graphs have memory nodes, as in `graph.h`.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::loss;
use crate::process;
use crate::wire::{
    VS_ACTION_CAPTURE_BEGIN, VS_ACTION_CAPTURE_END, VS_ACTION_GRAPH_NODE, VS_ACTION_STREAM_DESTROY,
    VS_CLASS_LAUNCH, VS_ENDS_CONTEXT, VS_STREAM_ORDERED, WireHook,
};

/// Highest handle of a default stream. Those that can capture are per thread.
const LAST_DEFAULT_STREAM: u64 = 2;

/// Maximum number of streams that capture at the same time.
const MAX_CAPTURES: usize = 256;

const FREE: u32 = 0;
const BUSY: u32 = 1;
const USED: u32 = 2;

/// Whether a call on a stream becomes a graph node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Captured {
    No,
    Yes,
    /// The calling thread captures another stream, which this one may have joined: streams join by
    /// waiting for an event, and those calls are too frequent to trace.
    Maybe,
}

/// A capturing stream.
struct Capture {
    state: AtomicU32,
    /// Thread that began the capture.
    thread: AtomicU32,
    /// Thread of a default stream; else 0.
    owner: AtomicU32,
    stream: AtomicU64,
}

static CAPTURES: [Capture; MAX_CAPTURES] = [const {
    Capture {
        state: AtomicU32::new(FREE),
        thread: AtomicU32::new(0),
        owner: AtomicU32::new(0),
        stream: AtomicU64::new(0),
    }
}; MAX_CAPTURES];

/// Number of capturing streams; while it is 0, launches skip the search.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Some graph has memory nodes, so graph launches are recorded.
static HAS_MEMORY: AtomicBool = AtomicBool::new(false);

/// Returns whether graph launches need a record.
pub(crate) fn needs_graph_record() -> bool {
    HAS_MEMORY.load(Ordering::Relaxed)
}

/// Returns whether `cuStreamEndCapture` has ended the capture. The driver ends it both when it
/// returns the graph and when it returns a capture error; but 903 means that no capture began on
/// the stream.
pub(crate) const fn capture_ended(result: i32) -> bool {
    result == 0 || (result >= 900 && result <= 908 && result != 903)
}

const fn owner(stream: u64, tid: u32) -> u32 {
    if stream <= LAST_DEFAULT_STREAM { tid } else { 0 }
}

impl Capture {
    fn is(&self, stream: u64, owner: u32) -> bool {
        self.state.load(Ordering::Acquire) == USED
            && self.stream.load(Ordering::Relaxed) == stream
            && self.owner.load(Ordering::Relaxed) == owner
    }

    fn is_begun_by(&self, tid: u32) -> bool {
        self.state.load(Ordering::Acquire) == USED && self.thread.load(Ordering::Relaxed) == tid
    }

    fn end(&self) {
        let used = self.state.compare_exchange(USED, FREE, Ordering::AcqRel, Ordering::Relaxed);
        if used.is_ok() {
            COUNT.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn find(stream: u64, owner: u32) -> Option<&'static Capture> {
    CAPTURES.iter().find(|capture| capture.is(stream, owner))
}

fn capture_begin(stream: u64, tid: u32) {
    let owner = owner(stream, tid);
    if find(stream, owner).is_some() {
        return;
    }
    for capture in &CAPTURES {
        let free = capture.state.compare_exchange(FREE, BUSY, Ordering::AcqRel, Ordering::Relaxed);
        if free.is_ok() {
            capture.stream.store(stream, Ordering::Relaxed);
            capture.owner.store(owner, Ordering::Relaxed);
            capture.thread.store(tid, Ordering::Relaxed);
            capture.state.store(USED, Ordering::Release);
            COUNT.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
    // Launches on the stream count as launched, not captured. Its nodes must not be missed.
    count_lost_captures();
}

/// The capture on a stream has ended, by a call of any thread.
fn capture_end(stream: u64, tid: u32) {
    if COUNT.load(Ordering::Relaxed) > 0
        && let Some(capture) = find(stream, owner(stream, tid))
    {
        capture.end();
    }
}

fn count_lost_captures() {
    HAS_MEMORY.store(true, Ordering::Relaxed);
    if process::counts_activity() {
        loss::count(VS_CLASS_LAUNCH, 0, 0);
    }
}

/// A context ended, and with it its streams and their captures. Which streams these are is not
/// known here, so all captures are dropped. Launches that other streams capture count as launched.
fn drop_captures() {
    if COUNT.load(Ordering::Relaxed) > 0 {
        CAPTURES.iter().for_each(Capture::end);
        count_lost_captures();
    }
}

/// Applies a call that may begin or end captures, or create memory nodes.
pub(crate) fn apply(hook: &WireHook, stream: u64, result: i32, tid: u32) {
    let flags = u32::from(hook.flags);
    let action = u32::from(hook.action);
    if action == VS_ACTION_CAPTURE_END {
        if capture_ended(result) {
            capture_end(stream, tid);
        }
    } else if result != 0 {
    } else if action == VS_ACTION_CAPTURE_BEGIN {
        capture_begin(stream, tid);
    } else if action == VS_ACTION_STREAM_DESTROY {
        capture_end(stream, tid);
    } else if flags & VS_ENDS_CONTEXT != 0 {
        drop_captures();
    } else if action == VS_ACTION_GRAPH_NODE || (flags & VS_STREAM_ORDERED != 0 && is_capturing()) {
        HAS_MEMORY.store(true, Ordering::Relaxed);
    }
}

/// Returns whether any stream of the process captures.
#[inline]
pub(crate) fn is_capturing() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// Returns whether a call on a stream becomes a graph node.
pub(crate) fn captured_as(stream: u64, tid: impl FnOnce() -> u32) -> Captured {
    if !is_capturing() {
        return Captured::No;
    }
    let tid = tid();
    if find(stream, owner(stream, tid)).is_some() {
        return Captured::Yes;
    }
    let is_maybe = CAPTURES.iter().any(|capture| capture.is_begun_by(tid));
    if is_maybe { Captured::Maybe } else { Captured::No }
}

/// Handles the exit of a thread. Captures on its default streams end with it; others continue.
pub(crate) fn thread_exit(tid: u32) {
    if !is_capturing() {
        return;
    }
    for stream in 0..=LAST_DEFAULT_STREAM {
        capture_end(stream, tid);
    }
    // A thread that reuses the id did not begin these captures.
    for capture in &CAPTURES {
        let _ = capture.thread.compare_exchange(tid, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Drops the parent's captures in a forked child.
pub(crate) fn reset_after_fork() {
    CAPTURES.iter().for_each(|capture| capture.state.store(FREE, Ordering::Relaxed));
    COUNT.store(0, Ordering::Relaxed);
    HAS_MEMORY.store(false, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_streams_of_a_capturing_thread_are_maybe_captured() {
        capture_begin(100, 7);
        capture_begin(2, 7);
        let captured = |stream, tid| captured_as(stream, || tid);
        assert_eq!([captured(100, 7), captured(100, 8)], [Captured::Yes; 2]);
        // A default stream captures in its own thread only.
        assert_eq!([captured(2, 7), captured(2, 8)], [Captured::Yes, Captured::No]);
        assert_eq!([captured(200, 7), captured(200, 8)], [Captured::Maybe, Captured::No]);
        thread_exit(7);
        assert_eq!([captured(2, 7), captured(100, 8)], [Captured::No, Captured::Yes]);
        assert_eq!(captured(200, 7), Captured::No);
        capture_end(100, 8);
        assert!(!is_capturing());
    }
}
