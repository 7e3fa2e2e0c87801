//! Notes on the accuracy of a view.

use std::collections::BTreeSet;

use super::GpuRow;
use crate::model::{Allocator, Bytes, GpuId, Timestamp};
use crate::snapshot::{LostTotals, Snapshot};

/// Something that readers should know about the values. Outputs number the notes in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// Capture ended early: later events are missing.
    CaptureEnded {
        /// Time of its end.
        at: Timestamp,
    },
    /// Records were lost, or their effect is ambiguous: the true memory lies within bounds.
    NotExact {
        /// Lost records.
        lost: LostTotals,
        /// Allocations that may have ended with a context.
        unknown_context: u64,
        /// Calls that may have been recorded by a stream capture or executed.
        ambiguous_calls: u64,
        /// Bounds of the live device memory of the listed processes.
        live: (Bytes, Bytes),
    },
    /// Memory functions that this version does not know were called: what they allocated is not
    /// counted.
    UnknownCalls {
        /// Calls by function (untrusted).
        functions: Vec<(Box<str>, u64)>,
    },
    /// Processes started before the trace: their earlier memory is known from the driver only.
    BeforeTrace {
        /// Number of processes.
        processes: u64,
    },
    /// The driver reports neither total nor used memory of these GPUs, as for GPUs that share
    /// their memory with the CPU.
    NoDeviceMemory {
        /// The GPUs.
        gpus: Vec<GpuId>,
    },
    /// The driver reports no usage: used memory is traced memory.
    NoDriverUsage,
    /// Allocations without a call stack.
    NoStack {
        /// Number of them.
        allocations: u64,
        /// Of this number.
        total: u64,
        /// Of those, lost.
        lost: u64,
    },
    /// Pools of allocators inside processes whose blocks are not visible: nothing is known about leaks in
    /// them.
    OpaquePools {
        /// Driver memory of the pools.
        bytes: Bytes,
        /// Number of processes.
        processes: u64,
        /// Allocators.
        allocators: BTreeSet<Allocator>,
    },
    /// Memory that caching allocators of ended processes held until exit.
    CachedAtExit {
        /// Bytes.
        bytes: Bytes,
    },
}

impl Note {
    /// Whether it makes values inexact.
    pub const fn is_inexact(&self) -> bool {
        matches!(
            self,
            Self::CaptureEnded { .. }
                | Self::NotExact { .. }
                | Self::UnknownCalls { .. }
                | Self::BeforeTrace { .. }
        )
    }

    /// Name in JSON.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::CaptureEnded { .. } => "capture_ended",
            Self::NotExact { .. } => "not_exact",
            Self::UnknownCalls { .. } => "unknown_calls",
            Self::BeforeTrace { .. } => "before_trace",
            Self::NoDeviceMemory { .. } => "no_device_memory",
            Self::NoDriverUsage => "no_driver_usage",
            Self::NoStack { .. } => "no_stack",
            Self::OpaquePools { .. } => "opaque_pools",
            Self::CachedAtExit { .. } => "cached_at_exit",
        }
    }
}

pub(super) fn of(snapshot: &Snapshot, gpus: &[GpuRow<'_>]) -> Vec<Note> {
    let mut notes = Vec::new();
    let listed = snapshot.listed_uncertainty();
    notes.extend(listed.capture_ended.map(|at| Note::CaptureEnded { at }));
    let (unknown_context, ambiguous_calls) = (listed.unknown_context, listed.ambiguous_calls);
    let is_lost = listed.lost.events() > 0 || listed.lost.processes > 0;
    if is_lost || unknown_context > 0 || ambiguous_calls > 0 || listed.live_min < listed.live_max {
        let live = (listed.live_min, listed.live_max);
        notes.push(Note::NotExact { lost: listed.lost, unknown_context, ambiguous_calls, live });
    }
    if !snapshot.unknown_calls.is_empty() {
        let functions = snapshot.unknown_calls.clone().into_iter().collect();
        notes.push(Note::UnknownCalls { functions });
    }
    let before = snapshot.processes.iter().filter(|process| process.before_trace).count() as u64;
    if before > 0 {
        notes.push(Note::BeforeTrace { processes: before });
    }
    let unreported: Vec<GpuId> =
        gpus.iter().filter(|gpu| gpu.is_memory_unreported()).filter_map(|gpu| gpu.gpu).collect();
    let running = snapshot.processes.iter().any(|process| process.ended.is_none());
    if !unreported.is_empty() {
        notes.push(Note::NoDeviceMemory { gpus: unreported });
    } else if running && !gpus.iter().any(|gpu| gpu.used.is_some()) {
        notes.push(Note::NoDriverUsage);
    }
    let (allocations, total) = (snapshot.without_stack, snapshot.allocations_total);
    let lost = snapshot.uncertainty.lost.stacks;
    // Without any stack they were not requested.
    if (allocations > 0 && allocations < total) || lost > 0 {
        notes.push(Note::NoStack { allocations, total, lost });
    }
    notes.extend(opaque_pools(snapshot));
    let cached =
        snapshot.not_freed.iter().fold(0, |sum: u64, one| sum.saturating_add(one.cached.0));
    if cached > 0 {
        notes.push(Note::CachedAtExit { bytes: Bytes(cached) });
    }
    notes
}

/// Returns the note on pools whose blocks are not visible, if there are any.
fn opaque_pools(snapshot: &Snapshot) -> Option<Note> {
    let (mut bytes, mut processes, mut allocators) = (0_u64, 0, BTreeSet::new());
    for process in &snapshot.processes {
        let views = process.allocators.iter();
        let hidden = views.filter_map(|view| Some((view.allocator, view.opaque?.1)));
        let hidden: Vec<_> = hidden.collect();
        for (allocator, size) in &hidden {
            bytes = bytes.saturating_add(size.0);
            allocators.insert(*allocator);
        }
        processes += u64::from(!hidden.is_empty());
    }
    (processes > 0).then_some(Note::OpaquePools { bytes: Bytes(bytes), processes, allocators })
}
