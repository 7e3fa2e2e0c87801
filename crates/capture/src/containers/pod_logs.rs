//! Names of pods from the names of the node's log files: no API request is made, no file is opened.
//!
//! ```text
//! pods/<namespace>_<pod>_<uid>/<container>/
//! containers/<pod>_<namespace>_<container>-<id>.log
//! ```
//!
//! Names of pods and namespaces contain no `_`, so the parts are unambiguous.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use engine::model::container::{Container, Pod};
use engine::model::units::{Nanos, Timestamp};

/// Maximum number of entries read per directory. A node runs a few hundred pods.
const MAX_DIR_ENTRIES: usize = 16_384;

/// Maximum length of a part of a name.
const MAX_NAME_LEN: usize = 253;

/// Minimum time between two scans.
const MIN_SCAN_INTERVAL: Nanos = Nanos::from_millis(1000);

/// Names found in the last scan of the log directories.
pub(crate) struct PodLogIndex {
    dir: PathBuf,
    containers: HashMap<Box<str>, PodNames>,
    pods: HashMap<Box<str>, PodNames>,
    last_scan: Option<Timestamp>,
}

/// The names of a pod and, if known, of one of its containers.
#[derive(Clone, PartialEq, Eq, Debug)]
struct PodNames {
    namespace: Box<str>,
    pod: Box<str>,
    uid: Option<Box<str>>,
    container: Option<Box<str>>,
}

impl PodLogIndex {
    pub(crate) fn new(dir: &Path) -> Self {
        let (containers, pods) = (HashMap::new(), HashMap::new());
        Self { dir: dir.to_owned(), containers, pods, last_scan: None }
    }

    /// Adds the known names to a container. Returns whether it has all of them now.
    pub(crate) fn name(&mut self, container: &mut Container, now: Timestamp) -> bool {
        if !self.apply(container) && self.rescan(now) {
            return self.apply(container);
        }
        is_named(container)
    }

    fn apply(&self, container: &mut Container) -> bool {
        let container_names = self.containers.get(&container.id);
        let uid = container.pod.as_ref().map(|pod| pod.uid.clone());
        let uid = uid.or_else(|| container_names?.uid.clone());
        let pod_names = uid.as_ref().and_then(|uid| self.pods.get(uid));
        if let (Some(uid), Some(names)) = (uid, container_names.or(pod_names)) {
            container.pod = Some(Pod {
                uid,
                name: Some(names.pod.clone()),
                namespace: Some(names.namespace.clone()),
                container: names.container.clone(),
            });
        }
        is_named(container)
    }

    /// Scans the directories, unless the last scan was too recent.
    fn rescan(&mut self, now: Timestamp) -> bool {
        if self.last_scan.is_some_and(|last| now - last < MIN_SCAN_INTERVAL) {
            return false;
        }
        self.last_scan = Some(now);
        self.pods = entries(&self.dir.join("pods"))
            .filter_map(|(name, path)| {
                let mut names = parse_pod(&name)?;
                names.container = only_container(&path);
                Some((names.uid.clone()?, names))
            })
            .collect();
        let uids: HashMap<_, _> = self
            .pods
            .values()
            .map(|names| ((&*names.namespace, &*names.pod), &names.uid))
            .collect();
        self.containers = entries(&self.dir.join("containers"))
            .filter_map(|(name, _)| {
                let (id, mut names) = parse_container(&name)?;
                names.uid = uids.get(&(&*names.namespace, &*names.pod)).copied().cloned().flatten();
                Some((id, names))
            })
            .collect();
        true
    }
}

/// Returns whether the pod and the container have names.
fn is_named(container: &Container) -> bool {
    container.pod.as_ref().is_some_and(|pod| pod.name.is_some() && pod.container.is_some())
}

fn entries(dir: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let found = fs::read_dir(dir).into_iter().flatten().take(MAX_DIR_ENTRIES);
    found.filter_map(|entry| {
        let entry = entry.ok()?;
        Some((entry.file_name().into_string().ok()?, entry.path()))
    })
}

/// Parses `<namespace>_<pod>_<uid>`.
fn parse_pod(name: &str) -> Option<PodNames> {
    let [namespace, pod, uid] = parts(name, '_')?;
    let uid = (uid.len() >= 32).then(|| uid.into());
    Some(PodNames { namespace: namespace.into(), pod: pod.into(), uid, container: None })
}

/// Parses `<pod>_<namespace>_<container>-<id>.log`.
fn parse_container(name: &str) -> Option<(Box<str>, PodNames)> {
    let [pod, namespace, rest] = parts(name.strip_suffix(".log")?, '_')?;
    let (container, id) = rest.rsplit_once('-')?;
    let is_id = id.len() >= 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let names = PodNames {
        namespace: namespace.into(),
        pod: pod.into(),
        uid: None,
        container: Some(container.into()),
    };
    (is_id && !container.is_empty()).then(|| (id.into(), names))
}

/// Splits a name into three parts, none of them empty or too long.
fn parts(name: &str, separator: char) -> Option<[&str; 3]> {
    let mut parts = name.splitn(3, separator);
    let parts = [parts.next()?, parts.next()?, parts.next()?];
    let is_valid =
        |part: &&str| !part.is_empty() && part.len() <= MAX_NAME_LEN && !part.contains(separator);
    parts.iter().all(is_valid).then_some(parts)
}

/// Returns the name of a pod's container if it has exactly one.
fn only_container(dir: &Path) -> Option<Box<str>> {
    let mut dirs = entries(dir).filter(|(_, path)| path.is_dir());
    let (name, _) = dirs.next()?;
    let fits = dirs.next().is_none() && name.len() <= MAX_NAME_LEN;
    fits.then(|| name.into())
}

#[cfg(test)]
mod tests {
    use engine::model::container::ContainerRuntime;

    use super::*;

    const ID: &str = "3f2a5b6c7d8e9f003f2a5b6c7d8e9f003f2a5b6c7d8e9f003f2a5b6c7d8e9f00";
    const UID: &str = "0a1b2c3d-1111-2222-3333-444455556666";

    fn container(uid: Option<&str>) -> Container {
        let pod =
            uid.map(|uid| Pod { uid: uid.into(), name: None, namespace: None, container: None });
        Container { id: ID.into(), runtime: ContainerRuntime::Containerd, pod, container_pid: None }
    }

    /// Namespace, pod and container.
    fn names(container: &Container) -> Option<(&str, &str, Option<&str>)> {
        let pod = container.pod.as_ref()?;
        Some((pod.namespace.as_deref()?, pod.name.as_deref()?, pod.container.as_deref()))
    }

    fn log(dir: &Path, name: &str) {
        fs::create_dir_all(dir.join("containers")).unwrap();
        fs::write(dir.join("containers").join(name), "").unwrap();
    }

    #[test]
    fn pod_is_named_by_its_log_directory() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join(format!("pods/team_trainer-0_{UID}"));
        fs::create_dir_all(pod.join("main")).unwrap();
        let mut one = container(Some(UID));
        assert!(PodLogIndex::new(dir.path()).name(&mut one, Timestamp(1)));
        assert_eq!(names(&one), Some(("team", "trainer-0", Some("main"))));
        // With two containers the directory is ambiguous.
        fs::create_dir_all(pod.join("sidecar")).unwrap();
        let mut one = container(Some(UID));
        assert!(!PodLogIndex::new(dir.path()).name(&mut one, Timestamp(1)));
        assert_eq!(names(&one), Some(("team", "trainer-0", None)));
        // The log file of the container is not.
        log(dir.path(), &format!("trainer-0_team_main-loop-{ID}.log"));
        assert!(PodLogIndex::new(dir.path()).name(&mut one, Timestamp(1)));
        assert_eq!(names(&one), Some(("team", "trainer-0", Some("main-loop"))));
    }

    #[test]
    fn pod_missing_in_cgroup_is_found_by_container_id() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join(format!("pods/team_trainer-0_{UID}/main"))).unwrap();
        log(dir.path(), &format!("trainer-0_team_main-{ID}.log"));
        let mut one = container(None);
        assert!(PodLogIndex::new(dir.path()).name(&mut one, Timestamp(1)));
        assert_eq!(names(&one), Some(("team", "trainer-0", Some("main"))));
        assert_eq!(&*one.pod.unwrap().uid, UID);
    }

    #[test]
    fn missing_or_malformed_log_directories_give_no_names() {
        let dir = tempfile::tempdir().unwrap();
        let mut logs = PodLogIndex::new(&dir.path().join("nowhere"));
        assert!(!logs.name(&mut container(Some(UID)), Timestamp(1)));
        for name in ["a_b", "a__b", &format!("a_b_c_{UID}"), &format!("_b_{UID}"), "a_b_short"] {
            fs::create_dir_all(dir.path().join("pods").join(name)).unwrap();
        }
        for name in ["a_b_c.log", &format!("a_b_c-{ID}"), &format!("a_b_-{ID}.log")] {
            log(dir.path(), name);
        }
        let mut one = container(Some(UID));
        assert!(!PodLogIndex::new(dir.path()).name(&mut one, Timestamp(1)));
        assert_eq!(one, container(Some(UID)));
    }
}
