//! Advice on how to free memory, derived from a snapshot.

use std::fs;

use engine::advice::{AdviceInput, advise};
use engine::model::{Bytes, DeviceHolder, GpuId, Nanos, Pid};
use engine::oom::OomCause;
use engine::snapshot::{ProcessView, Snapshot};

use super::{AdviceReport, GpuAdvice};
use crate::export::ReportContext;
use crate::report::view::duration_words;

/// A request for advice.
#[derive(Clone, Copy)]
pub struct AdviceRequest<'a> {
    /// Only this GPU; None: every known one.
    pub gpu: Option<GpuId>,
    /// Only steps for these processes; empty: all.
    pub only: &'a [Pid],
    /// The process whose allocation failed.
    pub requester: Option<Pid>,
    /// The cause of the failure.
    pub cause: Option<OomCause>,
    /// Returns for how long a process has launched nothing.
    pub idle: &'a dyn Fn(&ProcessView) -> Option<Nanos>,
    /// Own process, if the processes run on this host, so that more can be read about them.
    pub own: Option<Pid>,
}

/// Returns how memory could be freed, with notes for the reader.
pub fn advice_report(
    request: &AdviceRequest<'_>,
    snapshot: &Snapshot,
    context: &ReportContext,
) -> AdviceReport {
    AdviceReport {
        time: context.clock.precise(snapshot.at),
        gpus: gpu_advice(request, snapshot, context),
        notes: notes(snapshot),
    }
}

/// Returns advice for each GPU.
pub fn gpu_advice(
    request: &AdviceRequest<'_>,
    snapshot: &Snapshot,
    context: &ReportContext,
) -> Vec<GpuAdvice> {
    let for_gpu = |gpu: Option<GpuId>| {
        let steps = advise(&AdviceInput {
            snapshot,
            gpu,
            gpu_memory: Bytes(
                gpu.and_then(|gpu| context.gpu(gpu)).map_or(0, |gpu| gpu.total_bytes),
            ),
            only: request.only,
            requester: request.requester,
            cause: request.cause,
            protected: &|process| is_protected(process, request.own),
            idle: request.idle,
        });
        GpuAdvice::new(gpu, snapshot, context, &steps)
    };
    if request.gpu.is_some() {
        return vec![for_gpu(request.gpu)];
    }
    let gpus = gpus(snapshot);
    if gpus.is_empty() && !snapshot.processes.is_empty() {
        return vec![for_gpu(None)];
    }
    gpus.into_iter().map(|gpu| for_gpu(Some(gpu))).collect()
}

/// Returns notes for the reader of the advice.
fn notes(snapshot: &Snapshot) -> Vec<String> {
    let mut notes = Vec::new();
    if snapshot.uncertainty.before_trace {
        notes.push(
            "some processes started before the trace: of earlier memory only the driver-reported \
             total is known, of caches only what changed since"
                .into(),
        );
    }
    for holder in snapshot.device_holders.iter().filter(|holder| holder.has_cuda) {
        notes.push(format!(
            "{}: it may keep memory; check whether it can be ended",
            device_holder_sentence(holder)
        ));
    }
    if snapshot.gpus.is_empty() {
        notes.push("driver-reported totals are unavailable: free memory is unknown".into());
    }
    notes
}

/// Returns who a process is that has a GPU open and that the driver does not list. The text is
/// untrusted.
pub fn device_holder_sentence(holder: &DeviceHolder) -> String {
    let gpus: Vec<_> = holder.gpus.iter().map(|gpu| gpu.0.to_string()).collect();
    let open = match gpus.len() {
        0 => "the CUDA driver".to_owned(),
        1 => format!("GPU {}", gpus.join("")),
        _ => format!("GPUs {}", gpus.join(", ")),
    };
    let mut details = vec![format!("running for {}", duration_words(holder.age))];
    if holder.is_zombie {
        details.push("zombie".to_owned());
    }
    if let Some((pid, name)) = &holder.parent {
        let listed = if holder.parent_is_listed { ", which uses the GPU" } else { "" };
        details.push(format!("parent {name} ({pid}){listed}"));
    }
    if let Some(container) = &holder.container {
        let id: String = container.id.chars().take(12).collect();
        details.push(format!("container {id}"));
    }
    format!(
        "process {} ({}) has {open} open, but the driver does not list it ({})",
        holder.pid,
        holder.name,
        details.join(", ")
    )
}

/// Returns GPUs on which memory is held, or whose free memory is known.
fn gpus(snapshot: &Snapshot) -> Vec<GpuId> {
    let views = snapshot.processes.iter().flat_map(|process| &process.devices);
    let held = views
        .filter(|view| view.live_bytes.0 > 0 || view.driver_bytes.is_some_and(|bytes| bytes.0 > 0));
    let reported = snapshot.gpus.iter().map(|view| view.gpu);
    let mut gpus: Vec<_> = held.filter_map(|view| view.gpu).chain(reported).collect();
    gpus.sort_unstable();
    gpus.dedup();
    gpus
}

/// Whether a process must not be stopped: pid 1 and, on this host, vramscope itself and system
/// services of root.
pub fn is_protected(process: &ProcessView, own: Option<Pid>) -> bool {
    let pid = process.key.pid;
    if pid.0 <= 1 || Some(pid) == own {
        return true;
    }
    let user = process.uid.is_some_and(|uid| uid != 0) || process.container.is_some();
    let cgroup = || fs::read_to_string(format!("/proc/{pid}/cgroup"));
    own.is_some() && !user && cgroup().is_ok_and(|text| is_service(&text))
}

/// Whether a cgroup is that of a system service, or of pid 1.
fn is_service(cgroup: &str) -> bool {
    let paths = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.into_iter().any(|path| {
        let service = path.starts_with("/system.slice/") && path.ends_with(".service");
        service || path == "/init.scope"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_services_are_detected() {
        assert!(is_service("0::/system.slice/nvidia-persistenced.service\n"));
        assert!(is_service("1:name=systemd:/init.scope\n"));
        assert!(!is_service("0::/user.slice/user-1000.slice/session-3.scope\n"));
        assert!(!is_service("0::/system.slice/docker-0123.scope\n"));
        assert!(!is_service(""));
    }
}
