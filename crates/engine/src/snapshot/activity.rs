//! Kernel launches and memory copies of a process, as a snapshot shows them.

use std::sync::Arc;

use crate::units::{Bytes, Nanos};
use crate::work::{Direction, Launched, NamedBy, NoName, Shape};

/// What one process asked the GPU to do, since it was first seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkView {
    /// Launches of kernels and of whole graphs, without those that failed.
    pub launches: u64,
    /// Of those: since the last snapshot; of a process that ended, all.
    pub recent_launches: u64,
    /// Launches that were recorded into a graph, and not launched by that.
    pub captured: u64,
    /// Launches that failed, of those that were looked at.
    pub failed: u64,
    /// Launches whose result was looked at.
    pub checked: u64,
    /// The time since the last snapshot; of a process that ended, since it was first seen.
    pub window: Nanos,
    /// How many kernels there are; the list may be shorter.
    pub kernels_total: u64,
    /// Kernels, the most launched first.
    pub kernels: Vec<KernelView>,
    /// Copies and fills by direction.
    pub copies: Vec<CopyView>,
}

/// A kernel, by whatever handles it was launched; or a graph.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelView {
    /// One of its handles.
    pub target: Launched,
    /// Its name as the driver knows it (hostile text).
    pub name: Option<Arc<str>>,
    /// How the name is known.
    pub by: Option<NamedBy>,
    /// Why it is not known.
    pub why: Option<NoName>,
    /// Under how many handles it was launched.
    pub handles: u64,
    /// Launches, without those that failed and those that went into a graph.
    pub launches: u64,
    /// Of those: since the last snapshot.
    pub recent: u64,
    /// Launches that were recorded into a graph.
    pub captured: u64,
    /// Launches that failed, of those that were looked at.
    pub failed: u64,
    /// Launches whose result was looked at.
    pub checked: u64,
    /// The last shape.
    pub last: Option<Shape>,
    /// The most common shape, and how often it was seen.
    pub common: Option<(Shape, u64)>,
    /// No other shape can be more common.
    pub common_is_exact: bool,
}

/// Copies or fills of one direction and mode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopyView {
    /// Which way.
    pub direction: Direction,
    /// The calls return before they are done.
    pub asynchronous: bool,
    /// Calls that succeeded.
    pub calls: u64,
    /// What they copied.
    pub bytes: Bytes,
    /// Of that: since the last snapshot.
    pub recent_bytes: Bytes,
    /// How long the synchronous ones took together.
    pub time: Nanos,
    /// Synchronous ones by bandwidth; see [`crate::work::bandwidth_of`].
    pub bandwidths: Vec<(u8, u64)>,
}
