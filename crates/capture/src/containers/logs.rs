//! Names of pods from the names of the node's own log files: no server is asked, no file is opened.
//!
//! ```text
//! pods/<namespace>_<pod>_<uid>/<container>/
//! containers/<pod>_<namespace>_<container>-<id>.log
//! ```
//!
//! Names of pods and namespaces have no `_`, so that the parts can be told apart.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use engine::container::{Container, Pod};
use engine::units::{Moment, Nanos};

/// Entries that are read of a folder. A node runs some hundred pods.
const MOST: usize = 16_384;

/// The longest part of a name that is believed.
const LONGEST: usize = 253;

/// The least time between two looks.
const PAUSE: Nanos = Nanos::from_millis(1000);

/// What the folders told when they were read last.
pub(crate) struct Logs {
    folder: PathBuf,
    containers: HashMap<Box<str>, Names>,
    pods: HashMap<Box<str>, Names>,
    read: Option<Moment>,
}

/// The names of a pod; of one of its containers where that is known.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Names {
    namespace: Box<str>,
    pod: Box<str>,
    uid: Option<Box<str>>,
    container: Option<Box<str>>,
}

impl Logs {
    pub(crate) fn new(folder: &Path) -> Self {
        let (containers, pods) = (HashMap::new(), HashMap::new());
        Self { folder: folder.to_owned(), containers, pods, read: None }
    }

    /// Adds the names to a container, as far as they are known. Whether it has all of them now.
    pub(crate) fn name(&mut self, container: &mut Container, now: Moment) -> bool {
        if !self.tell(container) && self.read_again(now) {
            return self.tell(container);
        }
        is_named(container)
    }

    fn tell(&self, container: &mut Container) -> bool {
        let of_container = self.containers.get(&container.id);
        let uid = container.pod.as_ref().map(|pod| pod.uid.clone());
        let uid = uid.or_else(|| of_container?.uid.clone());
        let of_pod = uid.as_ref().and_then(|uid| self.pods.get(uid));
        if let (Some(uid), Some(names)) = (uid, of_container.or(of_pod)) {
            container.pod = Some(Pod {
                uid,
                name: Some(names.pod.clone()),
                namespace: Some(names.namespace.clone()),
                container: names.container.clone(),
            });
        }
        is_named(container)
    }

    /// Reads the folders, unless that was a moment ago.
    fn read_again(&mut self, now: Moment) -> bool {
        if self.read.is_some_and(|read| now - read < PAUSE) {
            return false;
        }
        self.read = Some(now);
        self.pods = entries(&self.folder.join("pods"))
            .filter_map(|(name, path)| {
                let mut names = of_pod(&name)?;
                names.container = only_container(&path);
                Some((names.uid.clone()?, names))
            })
            .collect();
        let uids: HashMap<_, _> = self
            .pods
            .values()
            .map(|names| ((&*names.namespace, &*names.pod), &names.uid))
            .collect();
        self.containers = entries(&self.folder.join("containers"))
            .filter_map(|(name, _)| {
                let (id, mut names) = of_container(&name)?;
                names.uid = uids.get(&(&*names.namespace, &*names.pod)).cloned().cloned().flatten();
                Some((id, names))
            })
            .collect();
        true
    }
}

/// Whether nothing is left to be learned: it belongs to no pod, or has its names.
fn is_named(container: &Container) -> bool {
    container.pod.as_ref().is_some_and(|pod| pod.name.is_some() && pod.container.is_some())
}

fn entries(folder: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let found = fs::read_dir(folder).into_iter().flatten().take(MOST);
    found.filter_map(|entry| {
        let entry = entry.ok()?;
        Some((entry.file_name().into_string().ok()?, entry.path()))
    })
}

/// `<namespace>_<pod>_<uid>`.
fn of_pod(name: &str) -> Option<Names> {
    let [namespace, pod, uid] = parts(name, '_')?;
    let uid = (uid.len() >= 32).then(|| uid.into());
    Some(Names { namespace: namespace.into(), pod: pod.into(), uid, container: None })
}

/// `<pod>_<namespace>_<container>-<id>.log`.
fn of_container(name: &str) -> Option<(Box<str>, Names)> {
    let [pod, namespace, rest] = parts(name.strip_suffix(".log")?, '_')?;
    let (container, id) = rest.rsplit_once('-')?;
    let is_id = id.len() >= 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let names = Names {
        namespace: namespace.into(),
        pod: pod.into(),
        uid: None,
        container: Some(container.into()),
    };
    (is_id && !container.is_empty()).then(|| (id.into(), names))
}

/// Three parts, none of them empty or endless.
fn parts(name: &str, by: char) -> Option<[&str; 3]> {
    let mut parts = name.splitn(3, by);
    let parts = [parts.next()?, parts.next()?, parts.next()?];
    let fine = |part: &&str| !part.is_empty() && part.len() <= LONGEST && !part.contains(by);
    parts.iter().all(fine).then_some(parts)
}

/// The name of a pod's container, where it has but one.
fn only_container(folder: &Path) -> Option<Box<str>> {
    let mut folders = entries(folder).filter(|(_, path)| path.is_dir());
    let (name, _) = folders.next()?;
    let fits = folders.next().is_none() && name.len() <= LONGEST;
    fits.then(|| name.into())
}

#[cfg(test)]
mod tests {
    use engine::container::Runtime;

    use super::*;

    const ID: &str = "3f2a5b6c7d8e9f003f2a5b6c7d8e9f003f2a5b6c7d8e9f003f2a5b6c7d8e9f00";
    const UID: &str = "0a1b2c3d-1111-2222-3333-444455556666";

    fn container(uid: Option<&str>) -> Container {
        let pod =
            uid.map(|uid| Pod { uid: uid.into(), name: None, namespace: None, container: None });
        Container { id: ID.into(), runtime: Runtime::Containerd, pod, pid_inside: None }
    }

    /// Namespace, pod and container.
    fn told(container: &Container) -> Option<(&str, &str, Option<&str>)> {
        let pod = container.pod.as_ref()?;
        Some((pod.namespace.as_deref()?, pod.name.as_deref()?, pod.container.as_deref()))
    }

    fn log(folder: &Path, name: &str) {
        fs::create_dir_all(folder.join("containers")).unwrap();
        fs::write(folder.join("containers").join(name), "").unwrap();
    }

    #[test]
    fn a_pod_is_named_by_the_folder_of_its_logs() {
        let folder = tempfile::tempdir().unwrap();
        let pod = folder.path().join(format!("pods/team_trainer-0_{UID}"));
        fs::create_dir_all(pod.join("main")).unwrap();
        let mut one = container(Some(UID));
        assert!(Logs::new(folder.path()).name(&mut one, Moment(1)));
        assert_eq!(told(&one), Some(("team", "trainer-0", Some("main"))));
        // With two containers the folder does not tell which of them it is.
        fs::create_dir_all(pod.join("sidecar")).unwrap();
        let mut one = container(Some(UID));
        assert!(!Logs::new(folder.path()).name(&mut one, Moment(1)));
        assert_eq!(told(&one), Some(("team", "trainer-0", None)));
        // The link of the container does.
        log(folder.path(), &format!("trainer-0_team_main-loop-{ID}.log"));
        assert!(Logs::new(folder.path()).name(&mut one, Moment(1)));
        assert_eq!(told(&one), Some(("team", "trainer-0", Some("main-loop"))));
    }

    #[test]
    fn a_pod_that_the_cgroup_does_not_tell_is_found_by_the_id_of_its_container() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join(format!("pods/team_trainer-0_{UID}/main"))).unwrap();
        log(folder.path(), &format!("trainer-0_team_main-{ID}.log"));
        let mut one = container(None);
        assert!(Logs::new(folder.path()).name(&mut one, Moment(1)));
        assert_eq!(told(&one), Some(("team", "trainer-0", Some("main"))));
        assert_eq!(&*one.pod.unwrap().uid, UID);
    }

    #[test]
    fn folders_that_are_missing_or_odd_tell_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut logs = Logs::new(&folder.path().join("nowhere"));
        assert!(!logs.name(&mut container(Some(UID)), Moment(1)));
        for name in ["a_b", "a__b", &format!("a_b_c_{UID}"), &format!("_b_{UID}"), "a_b_short"] {
            fs::create_dir_all(folder.path().join("pods").join(name)).unwrap();
        }
        for name in ["a_b_c.log", &format!("a_b_c-{ID}"), &format!("a_b_-{ID}.log")] {
            log(folder.path(), name);
        }
        let mut one = container(Some(UID));
        assert!(!Logs::new(folder.path()).name(&mut one, Moment(1)));
        assert_eq!(one, container(Some(UID)));
    }
}
