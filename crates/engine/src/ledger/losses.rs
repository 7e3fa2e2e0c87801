//! Losses of the host: their attribution to processes, and the bounds that follow.

use crate::model::{Event, LostDelta, Pid};
use crate::snapshot::{MAX_UNKNOWN_FUNCTIONS, Uncertainty};

use super::driver::graph::NodeLimitReached;
use super::memory::totals::ByteSum;
use super::{Ledger, memory, process_view};

/// Limit of processes whose losses are kept until they are announced.
const MAX_UNANNOUNCED: usize = 1024;

/// Name of the unknown functions beyond the limit.
const OTHER_FUNCTIONS: &str = "other functions";

/// Pid of losses that could not be attributed to a process.
const UNATTRIBUTED_PID: Pid = Pid(0);

impl Ledger {
    /// A node that was dropped because of a limit counts as lost.
    pub(super) fn record_node_loss(&mut self, event: &Event, result: Result<(), NodeLimitReached>) {
        if let Err(NodeLimitReached { bytes }) = result {
            self.record_loss(
                event,
                &LostDelta { other: 1, allocated_bytes: bytes, ..LostDelta::default() },
            );
        }
    }

    /// Records losses. They are attributed to the process with that pid if it runs, or ended since
    /// the last snapshot (ignoring a possible successor with the same pid of which nothing was
    /// seen). All other losses may belong to any process.
    pub(super) fn record_loss(&mut self, event: &Event, lost: &LostDelta) {
        let Event { pid, time: at, .. } = *event;
        // A listed process was not lost, even if it was never announced.
        let is_listed = self.running.get(&pid).is_some_and(|process| !process.no_calls_since_exec);
        let processes = if is_listed { 0 } else { lost.processes };
        let lost = &LostDelta { processes, ..*lost };
        self.lost.add(lost, at);
        let owner = match self.running.get_mut(&pid) {
            Some(process) => Some(process),
            // The end of an unknown process is not that of a process that ended before.
            None if lost.processes > 0 => None,
            None => self.ended.latest(|process| process.key.pid == pid),
        };
        if let Some(process) = owner.filter(|_| pid != UNATTRIBUTED_PID) {
            process.record_loss(lost, false, at);
            return;
        }
        self.unattributed.add(lost, at);
        if pid != UNATTRIBUTED_PID
            && lost.processes == 0
            && *lost != LostDelta::default()
            && self.before_announcement.len() < MAX_UNANNOUNCED
        {
            let all = self.before_announcement.entry(pid).or_default();
            *all = all.combined(lost, u64::saturating_add);
        }
        for process in self.running.values_mut() {
            process.record_loss(lost, true, at);
        }
    }

    /// Records calls of a function whose effect on memory is not known.
    pub(super) fn record_unknown_calls(&mut self, event: &Event, function: &str, calls: u64) {
        let own = &mut self.process(event).unknown_calls;
        *own = own.saturating_add(calls);
        let is_listed = self.unknown_calls.contains_key(function)
            || self.unknown_calls.len() + 1 < MAX_UNKNOWN_FUNCTIONS;
        let name = if is_listed { function } else { OTHER_FUNCTIONS };
        let all = self.unknown_calls.entry(name.into()).or_default();
        *all = all.saturating_add(calls);
    }

    /// Bounds over all running processes; [`memory::loss`] explains why they contain the true value.
    pub(super) fn uncertainty(&self) -> Uncertainty {
        let mut ended = ByteSum::default();
        let mut ended_by_anyone = ByteSum::default();
        let mut mapped_only = ByteSum::default();
        let mut ends = 0;
        let mut unlisted = ByteSum::from(self.unattributed.allocated_bytes);
        for process in self.running.values() {
            let losses = &process.losses;
            unlisted = unlisted.plus(process.unlisted_bytes());
            ended = ended.plus(losses.ended_with_context());
            ended = ended.plus(process.context_ends.doubtful_bytes());
            ended = ended
                .plus(process_view::possibly_freed(process, &[&losses.own, &losses.ambiguous]));
            let LostDelta { allocations, frees, .. } = losses.shared.counts;
            if process.possible_lost_frees(allocations, frees) > 0 {
                ended_by_anyone = ended_by_anyone.plus(losses.before_lost_frees());
                mapped_only = mapped_only.plus(process.physical.mapped_only());
                let LostDelta { allocations, frees, .. } = self.unattributed.counts;
                ends = ends.max(process.possible_lost_frees(allocations, frees));
            }
        }
        if ended_by_anyone > ByteSum::default() {
            let walks = || self.shown().flat_map(process_view::walks).collect();
            let bound = memory::loss::ended_by(ends, mapped_only, walks);
            ended = ended.plus(ended_by_anyone.min(bound));
        }
        Uncertainty {
            lost: self.lost,
            live_min: self.live().minus(ended).bytes(),
            live_max: self.live().plus(unlisted).bytes(),
            implied_frees: self.shown().map(|process| process.pending_frees.count).sum(),
            before_trace: self.shown().any(|process| process.before_trace),
            capture_ended: None,
            unknown_context: self.shown().map(|process| process.context_ends.doubtful()).sum(),
            ambiguous_calls: self.shown().map(|process| process.ambiguous_calls()).sum(),
            unknown_calls: self
                .unknown_calls
                .values()
                .fold(0, |sum, calls| sum.saturating_add(*calls)),
        }
    }
}
