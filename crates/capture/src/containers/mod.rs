//! Containers of processes: from the names of their cgroups, the node's log files and `/proc`. Nobody
//! is asked.

mod cgroup;
mod logs;

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use engine::container::{Container, Pod};
use engine::event::{Event, What};
use engine::ids::{Pid, Tid};
use engine::units::Moment;

use logs::Logs;

/// The most that is read of a file in `/proc`.
const LONGEST: u64 = 64 * 1024;

/// Containers without names that are looked at again, and how often.
const MOST_NAMELESS: usize = 4096;
const AGAIN: Duration = Duration::from_secs(5);

/// How often a container is looked at again before nobody is expected to name it.
const PATIENCE: u32 = 12;

/// Tells containers of processes, with names of pods as soon as these are known.
pub(crate) struct Containers {
    proc: PathBuf,
    logs: Logs,
    /// Of which pods something is not known yet: what was told, and how often that was looked for.
    nameless: HashMap<Pid, (Container, u32)>,
    looked: Instant,
}

impl Containers {
    /// `logs`: the folder that has the node's `pods` and `containers`.
    pub(crate) fn new(logs: &Path) -> Self {
        Self::under(Path::new("/proc"), logs)
    }

    fn under(proc: &Path, logs: &Path) -> Self {
        Self {
            proc: proc.to_owned(),
            logs: Logs::new(logs),
            nameless: HashMap::new(),
            looked: Instant::now(),
        }
    }

    /// A process was announced: where it runs, if that is a container.
    pub(crate) fn began(&mut self, pid: Pid, now: Moment) -> Option<Event> {
        let found = cgroup::parse(&self.read(pid, "cgroup")?)?;
        let pod = |uid| Pod { uid, name: None, namespace: None, container: None };
        let mut container = Container {
            id: found.id,
            runtime: found.runtime,
            pod: found.pod.map(pod),
            pid_inside: self.read(pid, "status").and_then(|status| pid_inside(&status)),
        };
        let named = self.logs.name(&mut container);
        self.nameless.remove(&pid);
        if !named && self.nameless.len() < MOST_NAMELESS {
            self.nameless.insert(pid, (container.clone(), 0));
        }
        Some(event(pid, now, container))
    }

    /// Whom the account told about is announced there; its container belongs right behind.
    pub(crate) fn beside(&mut self, events: Vec<Event>, now: Moment) -> Vec<Event> {
        let mut all = Vec::with_capacity(events.len());
        for event in events {
            let began = matches!(event.what, What::Process(_)).then_some(event.pid);
            all.push(event);
            all.extend(began.and_then(|pid| self.began(pid, now)));
        }
        all
    }

    pub(crate) fn ended(&mut self, pid: Pid) {
        self.nameless.remove(&pid);
    }

    /// Containers whose names became known, from time to time.
    pub(crate) fn news(&mut self, now: Moment) -> Vec<Event> {
        if self.nameless.is_empty() || self.looked.elapsed() < AGAIN {
            return Vec::new();
        }
        self.looked = Instant::now();
        self.look_again(now)
    }

    fn look_again(&mut self, now: Moment) -> Vec<Event> {
        let mut events = Vec::new();
        let logs = &mut self.logs;
        self.nameless.retain(|pid, (container, looks)| {
            let before = container.clone();
            let named = logs.name(container);
            if *container != before {
                events.push(event(*pid, now, container.clone()));
            }
            *looks += 1;
            !named && *looks < PATIENCE
        });
        events
    }

    fn read(&self, pid: Pid, file: &str) -> Option<String> {
        let file = File::open(self.proc.join(pid.to_string()).join(file)).ok()?;
        let mut bytes = Vec::new();
        file.take(LONGEST).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn event(pid: Pid, now: Moment, container: Container) -> Event {
    let what = What::Container(Box::new(container));
    Event { pid, tid: Tid(pid.0), entered: now, at: now, what }
}

/// The last of the process's numbers, which is that of the innermost namespace.
fn pid_inside(status: &str) -> Option<Pid> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().last()?.parse().ok().map(Pid)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use engine::container::Runtime;

    use super::*;

    const ID: &str = "3f2a5b6c7d8e9f003f2a5b6c7d8e9f003f2a5b6c7d8e9f003f2a5b6c7d8e9f00";
    const UID: &str = "0a1b2c3d-1111-2222-3333-444455556666";

    /// A `/proc` with one process, and a folder of logs.
    struct Node(tempfile::TempDir);

    impl Node {
        fn new(cgroup: &str, status: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let process = folder.path().join("proc/7");
            fs::create_dir_all(&process).unwrap();
            fs::write(process.join("cgroup"), cgroup).unwrap();
            fs::write(process.join("status"), status).unwrap();
            Self(folder)
        }

        fn containers(&self) -> Containers {
            Containers::under(&self.0.path().join("proc"), &self.0.path().join("log"))
        }
    }

    fn container(event: Option<Event>) -> Option<Container> {
        event.map(|event| match event.what {
            What::Container(container) => *container,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn a_process_is_told_with_its_container_and_its_number_inside() {
        let node = Node::new(
            &format!("0::/system.slice/docker-{ID}.scope\n"),
            "Name:\tsh\nNSpid:\t7\t4\t1\n",
        );
        let found = container(node.containers().began(Pid(7), Moment(1))).unwrap();
        assert_eq!((&*found.id, found.runtime), (ID, Runtime::Docker));
        assert_eq!((found.pid_inside, found.pod), (Some(Pid(1)), None));
    }

    #[test]
    fn a_process_of_the_host_or_one_that_is_gone_has_no_container() {
        let node = Node::new("0::/user.slice/user-0.slice/session-1.scope\n", "NSpid:\t7\n");
        assert!(node.containers().began(Pid(7), Moment(1)).is_none());
        assert!(node.containers().began(Pid(8), Moment(1)).is_none());
    }

    #[test]
    fn a_name_that_comes_later_is_told_once() {
        let node = Node::new(&format!("0::/kubepods/pod{UID}/{ID}\n"), "Name:\tx\n");
        let mut containers = node.containers();
        let found = container(containers.began(Pid(7), Moment(1))).unwrap();
        assert_eq!((found.pid_inside, found.pod.unwrap().name), (None, None));
        assert!(containers.look_again(Moment(2)).is_empty());
        let logs = node.0.path().join(format!("log/pods/team_web_{UID}/main"));
        fs::create_dir_all(logs).unwrap();
        // The folders are read a second apart at the most often.
        std::thread::sleep(Duration::from_millis(1100));
        let mut news = containers.look_again(Moment(3));
        let pod = container(news.pop()).unwrap().pod.unwrap();
        assert_eq!((pod.name.as_deref(), pod.namespace.as_deref()), (Some("web"), Some("team")));
        assert!(news.is_empty() && containers.look_again(Moment(4)).is_empty());
    }

    #[test]
    fn nobody_is_looked_for_without_end() {
        let node = Node::new(&format!("0::/kubepods/pod{UID}/{ID}\n"), "");
        let mut containers = node.containers();
        containers.began(Pid(7), Moment(1));
        for _ in 0..PATIENCE {
            assert_eq!(containers.nameless.len(), 1);
            containers.look_again(Moment(2));
        }
        assert!(containers.nameless.is_empty());
        containers.began(Pid(7), Moment(1));
        containers.ended(Pid(7));
        assert!(containers.nameless.is_empty());
    }

    #[test]
    fn files_without_end_are_read_up_to_a_bound() {
        let node = Node::new(&"0::/x\n".repeat(1 << 20), "");
        assert!(node.containers().began(Pid(7), Moment(1)).is_none());
    }
}
