//! What a user should know of a snapshot, counted while reading and told at the end.

use std::collections::BTreeMap;

use super::words::{WordId, Words};
use crate::import::{Sink, Warning};
use crate::plain::plain;

/// Unknown actions that are named; more are one group.
const NAMED: usize = 32;

/// Failed requests that are told one by one.
const FAILURES: usize = 16;

/// Counts of what went wrong or is not known.
#[derive(Default)]
pub(super) struct Notes {
    unknown_actions: BTreeMap<WordId, u64>,
    more_unknown: u64,
    failures: Vec<String>,
    more_failures: u64,
    /// Entries without an action or address.
    pub(super) unusable: u64,
    /// Sizes that no memory can have.
    pub(super) nonsense: u64,
    /// Stacks with too many frames.
    pub(super) cut_stacks: u64,
    /// Entries without a time.
    pub(super) timeless: u64,
    /// Entries that are earlier than the one before.
    pub(super) moved: u64,
    /// Blocks from before the trace.
    pub(super) older: u64,
    /// Frees of blocks that were not live.
    pub(super) stray_frees: u64,
    /// Allocations at a live address.
    pub(super) replaced: u64,
    /// Blocks that the trace leaves live and the segments do not have.
    pub(super) vanished: u64,
    /// Blocks of the segments that came after the trace.
    pub(super) later: u64,
    /// Blocks whose size had to be guessed.
    pub(super) guessed_sizes: u64,
    /// Blocks whose size is not what rounding gives.
    pub(super) other_rounding: u64,
    /// Segments that were taken or given back where none can be.
    pub(super) odd_segments: u64,
    /// Blocks that lie outside their segment, or leave gaps.
    pub(super) odd_blocks: u64,
    /// No trace at all.
    pub(super) no_trace: bool,
    /// The trace is there and the segments are not.
    pub(super) no_segments: bool,
}

impl Notes {
    pub(super) fn unknown_action(&mut self, action: WordId) {
        if self.unknown_actions.len() < NAMED || self.unknown_actions.contains_key(&action) {
            *self.unknown_actions.entry(action).or_default() += 1;
        } else {
            self.more_unknown += 1;
        }
    }

    pub(super) fn failure(&mut self, text: impl FnOnce() -> String) {
        if self.failures.len() < FAILURES {
            self.failures.push(text());
        } else {
            self.more_failures += 1;
        }
    }

    /// Tells everything that was noted.
    pub(super) fn tell(self, words: &Words, sink: &mut dyn Sink) {
        let mut tell = |count: u64, inexact: bool, text: &str| {
            if count > 0 {
                sink.warn(Warning { text: text.to_owned(), count, inexact });
            }
        };
        for failure in &self.failures {
            tell(1, false, failure);
        }
        tell(self.more_failures, false, "more requests failed for lack of memory");
        for (&action, &count) in &self.unknown_actions {
            let name = plain(words.get(action));
            tell(count, false, &format!("entries with the unknown action `{name}` were left out"));
        }
        tell(self.more_unknown, false, "entries with further unknown actions were left out");
        self.tell_trace(&mut tell);
        self.tell_sizes(&mut tell);
    }

    fn tell_trace(&self, tell: &mut impl FnMut(u64, bool, &str)) {
        tell(
            u64::from(self.no_trace),
            true,
            "no history was recorded, so only what is live at the snapshot is known; call \
             torch.cuda.memory._record_memory_history() before the work",
        );
        tell(
            u64::from(self.no_segments),
            true,
            "the file has no segments; live memory is taken from the trace alone",
        );
        tell(self.unusable, true, "entries without an action or address were left out");
        tell(
            self.timeless,
            true,
            "entries have no time (before torch 2.2); their number stands for microseconds",
        );
        tell(self.moved, true, "entries were earlier than the one before, and were moved to it");
        tell(
            self.older,
            false,
            "blocks were allocated before the trace begins (before recording, or its ring was \
             overwritten); they count from its beginning",
        );
        tell(self.stray_frees, true, "frees of blocks that were not live were left out");
        tell(self.replaced, true, "blocks reused without a free; the older one ended");
        tell(
            self.vanished,
            true,
            "blocks are live in the trace and not in the segments; they end with the trace",
        );
        tell(
            self.later,
            true,
            "blocks are live in the segments and freed in the trace, which ended earlier; they \
             begin at its end",
        );
    }

    fn tell_sizes(&self, tell: &mut impl FnMut(u64, bool, &str)) {
        tell(self.nonsense, true, "sizes were negative or too large, and count as 0");
        tell(
            self.guessed_sizes,
            true,
            "blocks over 1 MiB may be up to 1 MiB larger than counted: what was free around them \
             is from before the trace",
        );
        tell(
            self.other_rounding,
            true,
            "blocks have another size than the allocator's rounding gives, so the peak is not exact",
        );
        tell(self.odd_segments, true, "segments were taken or given back where none can be");
        tell(self.odd_blocks, true, "segments have blocks that do not add up to them");
        let text = format!("stacks were cut to {} frames", super::frames::DEEPEST);
        tell(self.cut_stacks, false, &text);
    }
}
