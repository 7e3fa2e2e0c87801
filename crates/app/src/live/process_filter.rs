//! Selection of processes by user and program.

use engine::model::ids::Pid;
use engine::model::program::ProcessIdentity;
use engine::snapshot::Snapshot;

/// Processes to report; all if empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ProcessFilter {
    /// Only processes of this user: a name or a user id.
    pub(crate) user: Option<String>,
    /// Only processes whose program contains this text.
    pub(crate) name: Option<String>,
}

impl ProcessFilter {
    /// Whether all processes are selected.
    pub(crate) const fn is_empty(&self) -> bool {
        self.user.is_none() && self.name.is_none()
    }

    fn selects(&self, identity: &ProcessIdentity, uid: Option<u32>, name: &str) -> bool {
        let is_user = |wanted: &String| {
            identity.user.as_deref() == Some(wanted)
                || uid.is_some_and(|uid| *wanted == uid.to_string())
        };
        let program = identity.program_or(name);
        self.user.as_ref().is_none_or(is_user)
            && self.name.as_ref().is_none_or(|wanted| program.contains(wanted.as_str()))
    }

    /// Removes all other processes, their verdicts and their anomalies. GPUs stay: other processes
    /// fill them, too.
    pub(crate) fn apply(&self, snapshot: &mut Snapshot) {
        if self.is_empty() {
            return;
        }
        snapshot.processes.retain(|one| self.selects(&one.identity, one.uid, &one.name));
        let selected: Vec<(Pid, Box<str>)> =
            snapshot.processes.iter().map(|one| (one.key.pid, one.name.clone())).collect();
        let is_selected = |pid: Pid, name: &str| {
            selected.iter().any(|(own, known)| *own == pid && **known == *name)
        };
        let is_verdict =
            |pid: Option<Pid>, name: &str| pid.is_some_and(|pid| is_selected(pid, name));
        snapshot.not_freed.retain(|one| is_selected(one.key.pid, &one.name));
        snapshot.suspects.retain(|one| is_verdict(one.pid, &one.process));
        snapshot.suspects_total = snapshot.suspects.len() as u64;
        snapshot.other_verdicts.retain(|one| is_verdict(one.pid, &one.process));
        snapshot.anomalies.retain(|one| is_selected(one.pid, &one.process));
        snapshot.out_of_memory.retain(|one| is_selected(one.pid, &one.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::model::ids::ProcessKey;
    use engine::snapshot::ProcessView;

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
            ProcessFilter { user, name }.apply(&mut snapshot);
            snapshot.processes.iter().map(|one| one.key.pid.0).collect::<Vec<_>>()
        };
        assert_eq!(pids(None, None), [1, 2, 3]);
        assert_eq!(pids(Some("ann"), None), [1]);
        assert_eq!(pids(Some("1003"), None), [3]);
        assert_eq!(pids(None, Some("train")), [1, 3]);
        assert_eq!(pids(Some("bob"), Some("train")), [] as [u32; 0]);
    }
}
