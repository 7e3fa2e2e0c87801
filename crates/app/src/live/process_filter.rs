//! Selection of processes by pid, GPU, user and program.

use engine::model::{GpuId, Pid};
use engine::snapshot::{ProcessView, Snapshot};

/// Processes to report; all if empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ProcessFilter {
    /// Only these processes.
    pub(crate) pids: Vec<Pid>,
    /// Only processes that use this GPU.
    pub(crate) gpu: Option<GpuId>,
    /// Only processes of this user: a name or a user id.
    pub(crate) user: Option<String>,
    /// Only processes whose program contains this text.
    pub(crate) name: Option<String>,
}

impl ProcessFilter {
    /// Whether all processes are selected.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the options for this selection as they are typed, each after a blank.
    pub(crate) fn arguments(&self) -> String {
        let text = |name: &str, value: &Option<String>| {
            value.as_ref().map(|value| format!(" {name} '{}'", value.replace('\'', r"'\''")))
        };
        let pids = self.pids.iter().map(|pid| format!(" -p {pid}"));
        let gpu = self.gpu.map(|gpu| format!(" --gpu {}", gpu.0));
        let texts = [text("--user", &self.user), text("--name", &self.name)];
        pids.chain(gpu).chain(texts.into_iter().flatten()).collect()
    }

    fn selects(&self, process: &ProcessView) -> bool {
        let is_user = |wanted: &String| {
            process.identity.user.as_deref() == Some(wanted)
                || process.uid.is_some_and(|uid| *wanted == uid.to_string())
        };
        let uses = |gpu: GpuId| process.devices.iter().any(|device| device.gpu == Some(gpu));
        (self.pids.is_empty() || self.pids.contains(&process.key.pid))
            && self.gpu.is_none_or(uses)
            && self.user.as_ref().is_none_or(is_user)
            && self.name.as_ref().is_none_or(|wanted| process.program().contains(wanted.as_str()))
    }

    /// Removes all other processes, their verdicts and their anomalies. GPUs stay: other processes
    /// fill them, too.
    pub(crate) fn apply(&self, snapshot: &mut Snapshot) {
        if self.is_empty() {
            return;
        }
        snapshot.processes.retain(|one| self.selects(one));
        let selected = &snapshot.processes;
        // Out-of-memory errors and anomalies have the program as their name.
        let is_selected = |pid: Pid, name: &str| {
            selected
                .iter()
                .any(|one| one.key.pid == pid && (*one.name == *name || one.program() == name))
        };
        let is_verdict =
            |pid: Option<Pid>, name: &str| pid.is_some_and(|pid| is_selected(pid, name));
        snapshot.not_freed.retain(|one| is_selected(one.key.pid, &one.name));
        snapshot.suspects.retain(|one| is_verdict(one.pid, &one.process));
        snapshot.suspects_total = snapshot.suspects.len() as u64;
        snapshot.other_verdicts.retain(|one| is_verdict(one.pid, &one.process));
        let is_kept = |pid: Pid| selected.iter().any(|one| one.key.pid == pid);
        snapshot.marks.retain(|one| one.pid.is_none_or(is_kept));
        snapshot.anomalies.retain(|one| is_selected(one.pid, &one.process));
        snapshot.out_of_memory.retain(|one| is_selected(one.pid, &one.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::model::{CallStack, ProcessIdentity, ProcessKey, SiteName, Tid, Timestamp};
    use engine::snapshot::OutOfMemory;

    fn process(pid: u32, user: Option<&str>, program: &str) -> ProcessView {
        let identity = ProcessIdentity {
            program: Some(program.into()),
            user: user.map(Into::into),
            ..ProcessIdentity::default()
        };
        ProcessView {
            key: ProcessKey { pid: Pid(pid), start: 1 },
            uid: Some(pid + 1000),
            name: "python3".into(),
            identity,
            ..ProcessView::default()
        }
    }

    #[test]
    fn processes_are_selected_by_user_and_program() {
        let all = Snapshot {
            processes: vec![
                process(1, Some("ann"), "train.py"),
                process(2, Some("bob"), "serve.py"),
                process(3, None, "train_large.py"),
            ],
            ..Snapshot::default()
        };
        let pids = |user: Option<&str>, name: Option<&str>| {
            let [user, name] = [user, name].map(|text| text.map(ToOwned::to_owned));
            let mut snapshot = all.clone();
            ProcessFilter { user, name, ..ProcessFilter::default() }.apply(&mut snapshot);
            snapshot.processes.iter().map(|one| one.key.pid.0).collect::<Vec<_>>()
        };
        assert_eq!(pids(None, None), [1, 2, 3]);
        assert_eq!(pids(Some("ann"), None), [1]);
        assert_eq!(pids(Some("1003"), None), [3]);
        assert_eq!(pids(None, Some("train")), [1, 3]);
        assert_eq!(pids(Some("bob"), Some("train")), [] as [u32; 0]);
    }

    #[test]
    fn errors_of_selected_programs_are_kept() {
        let oom = |pid: u32, program: &str| OutOfMemory {
            at: Timestamp(0),
            pid: Pid(pid),
            tid: Tid(pid),
            name: program.into(),
            device: None,
            gpu: None,
            requested: None,
            site: None,
            site_name: SiteName::Unknown,
            frames: CallStack::default(),
            framework: None,
            recovered: None,
            holders: Vec::new(),
        };
        let mut snapshot = Snapshot {
            processes: vec![process(1, None, "train.py"), process(2, None, "serve.py")],
            out_of_memory: vec![oom(1, "train.py"), oom(2, "serve.py")],
            ..Snapshot::default()
        };
        ProcessFilter { pids: vec![Pid(1)], ..ProcessFilter::default() }.apply(&mut snapshot);
        let kept: Vec<_> = snapshot.out_of_memory.iter().map(|one| one.pid.0).collect();
        assert_eq!(kept, [1]);
    }
}
