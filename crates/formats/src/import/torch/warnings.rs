//! Warnings about a snapshot, counted while reading and reported at the end.

use std::collections::BTreeMap;

use super::pickle::strings::{StringId, StringTable};
use crate::import::{ImportSink, Warning};
use crate::sanitize::sanitize;

/// Maximum number of unknown actions reported by name; others are one group.
const MAX_NAMED_ACTIONS: usize = 32;

/// Maximum number of failed requests reported individually.
const MAX_LISTED_FAILURES: usize = 16;

/// Counts of problems and unknown values.
#[derive(Default)]
pub(super) struct Warnings {
    unknown_actions: BTreeMap<StringId, u64>,
    more_unknown: u64,
    failures: Vec<String>,
    more_failures: u64,
    /// Entries without an action or address.
    pub(super) unusable: u64,
    /// Sizes that are larger than any address space.
    pub(super) nonsense: u64,
    /// Stacks with too many frames.
    pub(super) cut_stacks: u64,
    /// Entries without a time.
    pub(super) timeless: u64,
    /// Entries that are earlier than the previous one.
    pub(super) moved: u64,
    /// Blocks from before the trace.
    pub(super) older: u64,
    /// Frees of blocks that were not live.
    pub(super) stray_frees: u64,
    /// Allocations at a live address.
    pub(super) replaced: u64,
    /// Blocks that are live after the trace but not in the segments.
    pub(super) vanished: u64,
    /// Blocks of the segments that are newer than the trace.
    pub(super) later: u64,
    /// Blocks whose size had to be estimated.
    pub(super) guessed_sizes: u64,
    /// Blocks whose size differs from the rounded request.
    pub(super) other_rounding: u64,
    /// Segments that were reserved or returned at impossible addresses.
    pub(super) odd_segments: u64,
    /// Blocks outside of their segment, or with gaps between them.
    pub(super) odd_blocks: u64,
    /// The file has no trace.
    pub(super) no_trace: bool,
    /// The file has a trace but no segments.
    pub(super) no_segments: bool,
}

impl Warnings {
    pub(super) fn unknown_action(&mut self, action: StringId) {
        if self.unknown_actions.len() < MAX_NAMED_ACTIONS
            || self.unknown_actions.contains_key(&action)
        {
            *self.unknown_actions.entry(action).or_default() += 1;
        } else {
            self.more_unknown += 1;
        }
    }

    pub(super) fn failure(&mut self, text: impl FnOnce() -> String) {
        if self.failures.len() < MAX_LISTED_FAILURES {
            self.failures.push(text());
        } else {
            self.more_failures += 1;
        }
    }

    /// Reports all warnings.
    pub(super) fn flush(self, strings: &StringTable, sink: &mut dyn ImportSink) {
        let mut warn = |count: u64, inexact: bool, text: &str| {
            if count > 0 {
                sink.warn(Warning { text: text.to_owned(), count, inexact });
            }
        };
        for failure in &self.failures {
            warn(1, false, failure);
        }
        warn(self.more_failures, false, "more requests failed for lack of memory");
        for (&action, &count) in &self.unknown_actions {
            let name = sanitize(strings.get(action));
            warn(count, false, &format!("entries with the unknown action `{name}` were left out"));
        }
        warn(self.more_unknown, false, "entries with further unknown actions were left out");
        self.report_trace(&mut warn);
        self.report_sizes(&mut warn);
    }

    fn report_trace(&self, warn: &mut impl FnMut(u64, bool, &str)) {
        warn(
            u64::from(self.no_trace),
            true,
            "no history was recorded, so only what is live at the snapshot is known; call \
             torch.cuda.memory._record_memory_history() before the work",
        );
        warn(
            u64::from(self.no_segments),
            true,
            "the file has no segments; live memory is taken from the trace alone",
        );
        warn(self.unusable, true, "entries without an action or address were left out");
        warn(
            self.timeless,
            true,
            "entries have no time (before torch 2.2); their number stands for microseconds",
        );
        warn(self.moved, true, "entries were earlier than the one before, and were moved to it");
        warn(
            self.older,
            false,
            "blocks were allocated before the trace begins (before recording, or its ring was \
             overwritten); they count from its beginning",
        );
        warn(self.stray_frees, true, "frees of blocks that were not live were left out");
        warn(self.replaced, true, "blocks reused without a free; the older one ended");
        warn(
            self.vanished,
            true,
            "blocks are live in the trace and not in the segments; they end with the trace",
        );
        warn(
            self.later,
            true,
            "blocks are live in the segments and freed in the trace, which ended earlier; they \
             begin at its end",
        );
    }

    fn report_sizes(&self, warn: &mut impl FnMut(u64, bool, &str)) {
        warn(self.nonsense, true, "sizes were negative or too large, and count as 0");
        warn(
            self.guessed_sizes,
            true,
            "blocks over 1 MiB may be up to 1 MiB larger than counted: what was free around them \
             is from before the trace",
        );
        warn(
            self.other_rounding,
            true,
            "blocks have another size than the allocator's rounding gives, so the peak is not exact",
        );
        let text = "segments were reserved or returned at impossible addresses";
        warn(self.odd_segments, true, text);
        warn(self.odd_blocks, true, "segments have blocks that do not add up to them");
        let text = format!("stacks were cut to {} frames", super::snapshot::frames::MAX_FRAMES);
        warn(self.cut_stacks, false, &text);
    }
}
