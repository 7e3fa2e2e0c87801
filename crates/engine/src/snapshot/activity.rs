//! Kernel launches and memory copies of a process in a snapshot.

use std::sync::Arc;

use crate::model::{
    Bytes, CopyDirection, LaunchShape, LaunchTarget, NameSource, Nanos, UnnamedReason,
};

/// GPU activity of one process since it was first seen.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ActivityView {
    /// Launches of kernels and graphs, without failed ones.
    pub launches: u64,
    /// Of those: since the last snapshot; for an ended process, all.
    pub recent_launches: u64,
    /// Launches that were captured into a graph, which did not execute them.
    pub captured: u64,
    /// Failed launches among the checked ones.
    pub failed: u64,
    /// Launches whose result was checked.
    pub checked: u64,
    /// Time since the last snapshot; for an ended process, since it was first seen.
    pub window: Nanos,
    /// Number of kernels; the list may be shorter.
    pub kernels_total: u64,
    /// Kernels, most launches first.
    pub kernels: Vec<KernelView>,
    /// Copies and memsets by direction.
    pub copies: Vec<CopyView>,
}

/// A kernel, over all handles it was launched with; or a graph.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KernelView {
    /// One of its handles.
    pub target: LaunchTarget,
    /// Name known to the driver (untrusted).
    pub name: Option<Arc<str>>,
    /// Source of the name.
    pub name_source: Option<NameSource>,
    /// Why the name is unknown.
    pub unnamed_reason: Option<UnnamedReason>,
    /// Number of handles that it was launched with.
    pub handles: u64,
    /// Launches, without failed and captured ones.
    pub launches: u64,
    /// Of those: since the last snapshot.
    pub recent: u64,
    /// Launches that were captured into a graph.
    pub captured: u64,
    /// Failed launches among the checked ones.
    pub failed: u64,
    /// Launches whose result was checked.
    pub checked: u64,
    /// Last launch shape.
    pub last: Option<LaunchShape>,
    /// Most common launch shape, and its count.
    pub common: Option<(LaunchShape, u64)>,
    /// Whether no other shape can be more common.
    pub common_is_exact: bool,
}

/// Copies or memsets of one direction and mode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyView {
    /// Direction.
    pub direction: CopyDirection,
    /// Whether the calls return before the copy is done.
    pub asynchronous: bool,
    /// Successful calls.
    pub calls: u64,
    /// Bytes copied.
    pub bytes: Bytes,
    /// Of those: since the last snapshot.
    pub recent_bytes: Bytes,
    /// Total time of the synchronous calls.
    pub time: Nanos,
    /// Synchronous calls by bandwidth; see [`crate::model::activity::bandwidth_of`].
    pub bandwidths: Vec<(u8, u64)>,
}
