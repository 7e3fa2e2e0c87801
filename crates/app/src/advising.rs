//! Advice on what would give memory back, from a snapshot: the same for the agent and for the verb.

use std::fs;

use engine::advice::{Situation, advise};
use engine::diagnosis::Cause;
use engine::ids::{GpuId, Pid};
use engine::snapshot::{ProcessView, Snapshot};
use engine::units::Nanos;
use formats::export::Names;
use formats::export::advice::GpuAdvice;

/// What is asked.
#[derive(Clone, Copy)]
pub(crate) struct Question<'a> {
    /// One GPU; else every one that is known.
    pub(crate) gpu: Option<GpuId>,
    /// Only steps of these processes; all where there are none.
    pub(crate) only: &'a [Pid],
    /// Who was refused memory.
    pub(crate) asker: Option<Pid>,
    /// Why.
    pub(crate) cause: Option<Cause>,
    /// For how long a process has launched nothing.
    pub(crate) idle: &'a dyn Fn(&ProcessView) -> Option<Nanos>,
    /// The processes are of this host, so that more can be found out about them.
    pub(crate) local: bool,
}

/// The advice, GPU by GPU.
pub(crate) fn answer(
    question: &Question<'_>,
    snapshot: &Snapshot,
    names: &Names,
) -> Vec<GpuAdvice> {
    let one = |gpu: Option<GpuId>| {
        let steps = advise(&Situation {
            snapshot,
            gpu,
            only: question.only,
            asker: question.asker,
            cause: question.cause,
            protected: if question.local { &is_protected } else { &is_first },
            idle: question.idle,
        });
        GpuAdvice::new(gpu, snapshot, names, &steps)
    };
    if question.gpu.is_some() {
        return vec![one(question.gpu)];
    }
    let gpus = gpus(snapshot);
    if gpus.is_empty() && !snapshot.processes.is_empty() {
        return vec![one(None)];
    }
    gpus.into_iter().map(|gpu| one(Some(gpu))).collect()
}

/// What the reader of advice should know.
pub(crate) fn notes(snapshot: &Snapshot) -> Vec<String> {
    let mut notes = Vec::new();
    if snapshot.certainty.before_trace {
        notes.push(
            "some processes started before the trace: of earlier memory only the driver-reported \
             total is known, of caches only what changed since"
                .into(),
        );
    }
    if snapshot.gpus.is_empty() {
        notes.push("driver-reported totals are unavailable: free memory is unknown".into());
    }
    notes
}

/// The GPUs that somebody holds memory of, or whose free memory is known.
fn gpus(snapshot: &Snapshot) -> Vec<GpuId> {
    let views = snapshot.processes.iter().flat_map(|process| &process.devices);
    let held = views
        .filter(|view| view.live_bytes.0 > 0 || view.driver_bytes.is_some_and(|bytes| bytes.0 > 0));
    let told = snapshot.gpus.iter().map(|view| view.gpu);
    let mut gpus: Vec<_> = held.filter_map(|view| view.gpu).chain(told).collect();
    gpus.sort_unstable();
    gpus.dedup();
    gpus
}

/// Whom nobody should be told to end: this program, the first process, and services that root runs.
pub(crate) fn is_protected(process: &ProcessView) -> bool {
    let pid = process.key.pid;
    if pid.0 <= 1 || pid.0 == std::process::id() {
        return true;
    }
    let own = process.uid.is_some_and(|uid| uid != 0) || process.container.is_some();
    !own && fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| is_service(&text))
}

/// The first process of some host.
fn is_first(process: &ProcessView) -> bool {
    process.key.pid.0 <= 1
}

/// Whether a process's cgroup is that of a service of the system, or of the first process.
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
    fn services_of_the_system_are_recognised_and_containers_are_none() {
        assert!(is_service("0::/system.slice/nvidia-persistenced.service\n"));
        assert!(is_service("1:name=systemd:/init.scope\n"));
        assert!(!is_service("0::/user.slice/user-1000.slice/session-3.scope\n"));
        assert!(!is_service("0::/system.slice/docker-0123.scope\n"));
        assert!(!is_service(""));
    }
}
