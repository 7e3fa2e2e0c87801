//! Streams that capture, and whether graphs have memory nodes, by the rules of `graph.h`.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::loss;
use crate::process;
use crate::wire::{
    VS_ACTION_CAPTURE_BEGIN, VS_ACTION_CAPTURE_END, VS_ACTION_GRAPH_NODE, VS_ACTION_STREAM_DESTROY,
    VS_CLASS_LAUNCH, VS_ENDS_CONTEXT, VS_STREAM_ORDERED, WireHook,
};

/// Handles up to this one are default streams. Captures of them belong to a thread.
const LAST_DEFAULT_STREAM: u64 = 2;

/// Streams that can capture at the same time.
const MAX_CAPTURES: usize = 256;

const FREE: u32 = 0;
const BUSY: u32 = 1;
const USED: u32 = 2;

/// A stream that captures.
struct Capture {
    state: AtomicU32,
    /// Thread that began it.
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

/// Captures under way; while there are none, launches need not look.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Some graph has memory nodes, so launches of graphs matter to memory.
static HAS_MEMORY: AtomicBool = AtomicBool::new(false);

/// Whether launches of graphs need a record.
pub(crate) fn needs_graph_record() -> bool {
    HAS_MEMORY.load(Ordering::Relaxed)
}

/// Whether a call that should end a capture has ended it: the driver does so whether it returns the
/// graph or an error about captures, except that error 903 is about a stream without a capture.
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

fn begin(stream: u64, tid: u32) {
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
    // Launches on the stream pass for launches now. Its nodes must not be missed.
    lose_captures();
}

fn end(stream: u64, tid: u32) {
    if COUNT.load(Ordering::Relaxed) > 0
        && let Some(capture) = find(stream, owner(stream, tid))
    {
        capture.end();
    }
}

fn lose_captures() {
    HAS_MEMORY.store(true, Ordering::Relaxed);
    if process::counts_activity() {
        loss::count(VS_CLASS_LAUNCH, 0, 0);
    }
}

/// A context ended, and with it captures on its streams. Which ones is not known, so all are
/// forgotten.
fn forget_captures() {
    if COUNT.load(Ordering::Relaxed) > 0 {
        CAPTURES.iter().for_each(Capture::end);
        lose_captures();
    }
}

/// Follows a call that may begin or end captures, or make memory nodes.
pub(crate) fn apply(hook: &WireHook, stream: u64, result: i32, tid: u32) {
    let flags = u32::from(hook.flags);
    let action = u32::from(hook.action);
    if action == VS_ACTION_CAPTURE_END {
        if capture_ended(result) {
            end(stream, tid);
        }
    } else if result != 0 {
    } else if action == VS_ACTION_CAPTURE_BEGIN {
        begin(stream, tid);
    } else if action == VS_ACTION_STREAM_DESTROY {
        end(stream, tid);
    } else if flags & VS_ENDS_CONTEXT != 0 {
        forget_captures();
    } else if action == VS_ACTION_GRAPH_NODE
        || (flags & VS_STREAM_ORDERED != 0 && COUNT.load(Ordering::Relaxed) > 0)
    {
        HAS_MEMORY.store(true, Ordering::Relaxed);
    }
}

/// Whether a call on a stream becomes a node: the stream captures, or has joined a capture of the
/// calling thread.
pub(crate) fn is_captured(stream: u64, tid: impl FnOnce() -> u32) -> bool {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let tid = tid();
    let own = owner(stream, tid);
    CAPTURES.iter().any(|capture| {
        capture.is(stream, own)
            || (capture.state.load(Ordering::Acquire) == USED
                && capture.thread.load(Ordering::Relaxed) == tid)
    })
}

/// A thread ends. Captures on its default streams end with it.
pub(crate) fn thread_exit(tid: u32) {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return;
    }
    for stream in 0..=LAST_DEFAULT_STREAM {
        end(stream, tid);
    }
    // Other captures continue; a thread that gets the same id has nothing to do with them.
    for capture in &CAPTURES {
        let _ = capture.thread.compare_exchange(tid, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Starts without captures, in a forked child.
pub(crate) fn reset_after_fork() {
    CAPTURES.iter().for_each(|capture| capture.state.store(FREE, Ordering::Relaxed));
    COUNT.store(0, Ordering::Relaxed);
    HAS_MEMORY.store(false, Ordering::Relaxed);
}
