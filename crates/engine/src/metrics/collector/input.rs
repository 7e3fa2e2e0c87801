//! Input of the collector, once per snapshot.

use crate::model::{Bytes, CallStack, GpuId, SiteName};
use crate::snapshot::Snapshot;

/// Everything that metrics are computed from.
pub struct CollectorInput<'a> {
    /// State of all processes. Each snapshot must be passed once, in order: ended processes are
    /// only in one.
    pub snapshot: &'a Snapshot,
    /// GPUs of the host. Memory on any other GPU is exported with an unknown GPU.
    pub gpus: &'a [GpuInfo],
    /// The agent itself.
    pub agent: &'a AgentStats,
    /// Describes a site in a few words; the result is sanitized and truncated.
    pub location: fn(SiteName, &CallStack) -> String,
}

/// A GPU of the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuInfo {
    /// Index.
    pub id: GpuId,
    /// UUID: `GPU-…`.
    pub uuid: Box<str>,
    /// Model name.
    pub name: Box<str>,
    /// Total memory.
    pub total: Bytes,
}

/// Counts by two words: receiver, trigger or exporter, and outcome.
pub type OutcomeCounts = Vec<((&'static str, &'static str), u64)>;

/// Values about the agent itself.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct AgentStats {
    /// Version.
    pub version: Box<str>,
    /// Start time, Unix time in seconds.
    pub started: f64,
    /// Whether the probes are attached.
    pub ready: bool,
    /// CPU time in seconds.
    pub cpu_seconds: f64,
    /// Resident memory.
    pub memory: Bytes,
    /// Degradation steps in effect.
    pub degraded: u64,
    /// Events processed.
    pub events: u64,
    /// Ended processes that were never in a snapshot, because too many ended at once.
    pub unlisted_ends: u64,
    /// HTTP responses with status 1xx, 2xx and so on.
    pub http: [u64; 5],
    /// Firing alerts, by severity.
    pub alerts: Vec<(Box<str>, u64)>,
    /// Notifications, by receiver and outcome.
    pub notifications: OutcomeCounts,
    /// Incidents, by trigger and outcome.
    pub incidents: OutcomeCounts,
    /// Exports, by exporter and outcome.
    pub exports: OutcomeCounts,
}
