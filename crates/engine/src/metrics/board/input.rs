//! What a board is told, once for each snapshot.

use crate::ids::GpuId;
use crate::snapshot::Snapshot;
use crate::stack::{Frame, SiteName};
use crate::units::Bytes;

/// Everything that figures are made of.
pub struct Input<'a> {
    /// Who holds what. Each snapshot is to be told once, in order: processes that ended are in one only.
    pub snapshot: &'a Snapshot,
    /// The GPUs of the host. What is on any other is told as on one that is not known.
    pub gpus: &'a [Gpu],
    /// The agent itself.
    pub own: &'a Own,
    /// A site in a few words; they are cleaned and cut here.
    pub place: fn(SiteName, &[Frame]) -> String,
}

/// A GPU of the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gpu {
    /// Its index.
    pub id: GpuId,
    /// `GPU-…`.
    pub uuid: Box<str>,
    /// What the vendor calls it.
    pub name: Box<str>,
    /// All of its memory.
    pub total: Bytes,
}

/// A count by two words: a receiver, trigger or exporter, and the outcome.
pub type Outcomes = Vec<((&'static str, &'static str), u64)>;

/// What the agent tells of itself.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Own {
    /// Its version.
    pub version: Box<str>,
    /// When it began, in seconds of the Unix clock.
    pub started: f64,
    /// The probes are attached.
    pub ready: bool,
    /// Processor time that it took, in seconds.
    pub cpu_seconds: f64,
    /// Resident memory.
    pub memory: Bytes,
    /// Steps down that its budget made it take.
    pub degraded: u64,
    /// Events that it applied.
    pub events: u64,
    /// Processes that ended and are in no snapshot, for there were too many at once.
    pub unlisted_ends: u64,
    /// Answers of 1xx, 2xx and so on.
    pub http: [u64; 5],
    /// Alerts that fire, by severity.
    pub alerts: Vec<(Box<str>, u64)>,
    /// Notifications, by receiver and outcome.
    pub notifications: Outcomes,
    /// Incidents, by trigger and outcome.
    pub incidents: Outcomes,
    /// Exports, by exporter and outcome.
    pub onward: Outcomes,
}
