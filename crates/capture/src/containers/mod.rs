//! Containers of processes, from the names of their cgroups, the node's log files and `/proc`,
//! without API requests.

pub(crate) mod cgroup;
mod pod_logs;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use engine::model::container::{Container, Pod};
use engine::model::event::{Event, EventKind};
use engine::model::ids::{Pid, Tid};
use engine::model::units::Timestamp;

use crate::session::processes::{Process, ProcessTable};
use pod_logs::PodLogIndex;

/// Maximum bytes read of a file in `/proc`.
const MAX_PROC_FILE_BYTES: u64 = 64 * 1024;

/// How often the names of unnamed containers are retried.
const RENAME_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of retries for the names of a container.
const MAX_NAME_RETRIES: u32 = 12;

/// The process has exited or cannot be read.
struct ProcessGone;

/// Resolves processes to containers, with names of pods as soon as these are known.
pub(crate) struct ContainerResolver {
    proc: PathBuf,
    logs: PodLogIndex,
    last_retry: Instant,
}

impl ContainerResolver {
    /// `logs`: the directory with the node's `pods` and `containers`.
    pub(crate) fn new(logs: &Path) -> Self {
        Self::under(Path::new("/proc"), logs)
    }

    fn under(proc: &Path, logs: &Path) -> Self {
        Self { proc: proc.to_owned(), logs: PodLogIndex::new(logs), last_retry: Instant::now() }
    }

    /// Returns the container of a new process, if it runs in one.
    pub(crate) fn process_started(
        &mut self,
        pid: Pid,
        process: &mut Process,
        now: Timestamp,
    ) -> Option<EventKind> {
        let prefetched = process.scanned.container.take();
        let mut container = match self.detect(pid) {
            Ok(container) => container?,
            Err(ProcessGone) => prefetched?.1,
        };
        let named = self.logs.name(&mut container, now);
        process.unnamed_container = (!named).then(|| (container.clone(), 0));
        Some(EventKind::Container(Box::new(container)))
    }

    /// Reads the containers of processes that mapped a driver: short-lived ones may have exited
    /// when their first call is read.
    pub(crate) fn prefetch(&self, pids: Vec<Pid>, processes: &mut ProcessTable, now: Timestamp) {
        for pid in pids {
            if let Ok(Some(container)) = self.detect(pid)
                && let Some(process) = processes.running(pid)
            {
                process.scanned.container = Some((now, container));
            }
        }
    }

    /// Detects the container of a process, without names.
    fn detect(&self, pid: Pid) -> Result<Option<Container>, ProcessGone> {
        let text = self.read(pid, "cgroup").ok_or(ProcessGone)?;
        let Some(found) = cgroup::parse(&text) else { return Ok(None) };
        let pod = |uid| Pod { uid, name: None, namespace: None, container: None };
        Ok(Some(Container {
            id: found.id,
            runtime: found.runtime,
            pod: found.pod.map(pod),
            container_pid: self.read(pid, "status").and_then(|status| container_pid(&status)),
        }))
    }

    /// Periodically returns containers whose names became known.
    pub(crate) fn poll_names(
        &mut self,
        processes: &mut ProcessTable,
        now: Timestamp,
    ) -> Vec<Event> {
        if self.last_retry.elapsed() < RENAME_RETRY_INTERVAL {
            return Vec::new();
        }
        self.last_retry = Instant::now();
        let renamed = processes
            .iter_mut()
            .filter_map(|(pid, process)| Some(event(pid, now, self.retry_name(process, now)?)));
        renamed.collect()
    }

    /// Returns the container of a process if its names became known.
    fn retry_name(&mut self, process: &mut Process, now: Timestamp) -> Option<Container> {
        let (container, retries) = process.unnamed_container.as_mut()?;
        let before = container.clone();
        let named = self.logs.name(container, now);
        *retries += 1;
        let renamed = (*container != before).then(|| container.clone());
        let is_last = named || *retries >= MAX_NAME_RETRIES;
        process.unnamed_container.take_if(|_| is_last);
        renamed
    }

    fn read(&self, pid: Pid, file: &str) -> Option<String> {
        let file = File::open(self.proc.join(pid.to_string()).join(file)).ok()?;
        let mut bytes = Vec::new();
        file.take(MAX_PROC_FILE_BYTES).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn event(pid: Pid, now: Timestamp, container: Container) -> Event {
    let kind = EventKind::Container(Box::new(container));
    Event { pid, tid: Tid(pid.0), entry_time: now, time: now, kind }
}

/// Returns the last pid in `NSpid`, which is that in the innermost namespace.
fn container_pid(status: &str) -> Option<Pid> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().last()?.parse().ok().map(Pid)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use engine::model::container::ContainerRuntime;

    use super::*;

    const ID: &str = "3f2a5b6c7d8e9f003f2a5b6c7d8e9f003f2a5b6c7d8e9f003f2a5b6c7d8e9f00";
    const UID: &str = "0a1b2c3d-1111-2222-3333-444455556666";
    const SECOND: u64 = 1_000_000_000;

    /// A `/proc` with one process, and a log directory.
    struct Node(tempfile::TempDir);

    impl Node {
        fn new(cgroup: &str, status: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let process = dir.path().join("proc/7");
            fs::create_dir_all(&process).unwrap();
            fs::write(process.join("cgroup"), cgroup).unwrap();
            fs::write(process.join("status"), status).unwrap();
            Self(dir)
        }

        fn containers(&self) -> ContainerResolver {
            ContainerResolver::under(&self.0.path().join("proc"), &self.0.path().join("log"))
        }
    }

    /// Returns the container of a new process.
    fn started(containers: &mut ContainerResolver, pid: u32, at: u64) -> Option<Container> {
        let mut process = Process::default();
        match containers.process_started(Pid(pid), &mut process, Timestamp(at))? {
            EventKind::Container(container) => Some(*container),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn process_has_container_and_inner_pid() {
        let node = Node::new(
            &format!("0::/system.slice/docker-{ID}.scope\n"),
            "Name:\tsh\nNSpid:\t7\t4\t1\n",
        );
        let found = started(&mut node.containers(), 7, 1).unwrap();
        assert_eq!((&*found.id, found.runtime), (ID, ContainerRuntime::Docker));
        assert_eq!((found.container_pid, found.pod), (Some(Pid(1)), None));
    }

    #[test]
    fn host_process_and_exited_process_have_no_container() {
        let node = Node::new("0::/user.slice/user-0.slice/session-1.scope\n", "NSpid:\t7\n");
        assert!(started(&mut node.containers(), 7, 1).is_none());
        assert!(started(&mut node.containers(), 8, 1).is_none());
    }

    #[test]
    fn late_name_is_reported_once() {
        let node = Node::new(&format!("0::/kubepods/pod{UID}/{ID}\n"), "Name:\tx\n");
        let mut containers = node.containers();
        let mut process = Process::default();
        let found = containers.process_started(Pid(7), &mut process, Timestamp(1));
        let Some(EventKind::Container(found)) = found else { panic!("{found:?}") };
        assert_eq!((found.container_pid, found.pod.unwrap().name), (None, None));
        let mut retry = |at| containers.retry_name(&mut process, Timestamp(at));
        assert_eq!(retry(2), None);
        let logs = node.0.path().join(format!("log/pods/team_web_{UID}/main"));
        fs::create_dir_all(logs).unwrap();
        // The directories are read at most once per second.
        assert_eq!(retry(SECOND), None);
        let pod = retry(1 + SECOND).unwrap().pod.unwrap();
        assert_eq!((pod.name.as_deref(), pod.namespace.as_deref()), (Some("web"), Some("team")));
        assert_eq!(retry(2 + 2 * SECOND), None);
    }

    #[test]
    fn exited_process_uses_prefetched_container_once() {
        let own = Pid(std::process::id());
        let node = Node::new("", "");
        let files = node.0.path().join(format!("proc/{own}"));
        fs::create_dir(&files).unwrap();
        fs::write(files.join("cgroup"), format!("0::/docker/{ID}\n")).unwrap();
        let (mut containers, mut processes) = (node.containers(), ProcessTable::default());
        containers.prefetch(vec![own, Pid(u32::MAX)], &mut processes, Timestamp(1));
        fs::remove_dir_all(files).unwrap();
        let process = processes.entry(own);
        assert!(containers.process_started(own, process, Timestamp(2)).is_some());
        // Once: the next program is another one.
        assert!(containers.process_started(own, process, Timestamp(3)).is_none());
        assert!(processes.running(Pid(u32::MAX)).is_none());
    }

    #[test]
    fn live_process_overrides_prefetch() {
        let node = Node::new(&format!("0::/docker/{ID}\n"), "");
        let (mut containers, mut process) = (node.containers(), Process::default());
        let container = containers.detect(Pid(7)).ok().flatten().unwrap();
        process.scanned.container = Some((Timestamp(1), container));
        fs::write(node.0.path().join("proc/7/cgroup"), "0::/user.slice\n").unwrap();
        assert!(containers.process_started(Pid(7), &mut process, Timestamp(2)).is_none());
    }

    #[test]
    fn unnamed_container_is_retried_a_limited_number_of_times() {
        let node = Node::new(&format!("0::/kubepods/pod{UID}/{ID}\n"), "");
        let mut containers = node.containers();
        let mut process = Process::default();
        containers.process_started(Pid(7), &mut process, Timestamp(1));
        for _ in 0..MAX_NAME_RETRIES {
            assert!(process.unnamed_container.is_some());
            containers.retry_name(&mut process, Timestamp(2));
        }
        assert!(process.unnamed_container.is_none());
    }

    #[test]
    fn proc_files_are_read_up_to_a_limit() {
        let node = Node::new(&"0::/x\n".repeat(1 << 20), "");
        assert!(started(&mut node.containers(), 7, 1).is_none());
    }
}
