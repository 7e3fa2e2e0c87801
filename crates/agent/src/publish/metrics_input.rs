//! Inputs of the metrics collector other than the snapshot.

use engine::metrics::{AgentStats, GpuInfo};
use engine::model::Bytes;
use formats::export::ReportContext;

use crate::AgentState;
use crate::process::budget::AgentUsage;

/// Returns the GPUs of the host.
pub(crate) fn gpus(context: &ReportContext) -> Vec<GpuInfo> {
    let gpu = |gpu: &formats::export::GpuLabel| GpuInfo {
        id: gpu.id,
        uuid: gpu.uuid.as_str().into(),
        name: gpu.name.as_str().into(),
        total: Bytes(gpu.total_bytes),
    };
    context.gpus.iter().map(gpu).collect()
}

/// Returns the agent's own values.
pub(crate) fn own(usage: &AgentUsage, unlisted_ends: u64, shared: &AgentState) -> AgentStats {
    let mut alerts: Vec<(Box<str>, u64)> = Vec::new();
    for alert in shared.alerts.list().into_iter().filter(|alert| alert.resolved.is_none()) {
        match alerts.iter_mut().find(|(severity, _)| **severity == *alert.severity) {
            Some((_, count)) => *count += 1,
            None => alerts.push((alert.severity.into(), 1)),
        }
    }
    AgentStats {
        version: env!("CARGO_PKG_VERSION").into(),
        started: usage.started,
        ready: usage.tracing,
        cpu_seconds: usage.cpu_seconds,
        memory: usage.memory,
        degraded: usage.steps.len() as u64,
        events: usage.events,
        unlisted_ends,
        http: shared.requests.classes(),
        alerts,
        notifications: shared.alerts.notified.counts(),
        incidents: shared.incidents.counts.counts(),
        exports: shared.exports.counts(),
    }
}
