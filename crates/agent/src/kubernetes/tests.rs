//! Tests against a fake kubelet in Python, with TLS and a token.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use engine::ledger::Ledger;
use engine::model::{ContainerRuntime, Event, EventKind, Pid, ProcessInfo, Tid, Timestamp};
use engine::snapshot::SnapshotOptions;

use super::*;
use crate::config::kubernetes::KubernetesConfig;

const TRAINER: &str = "3f2a5b6c7d8e9f003f2a5b6c7d8e9f003f2a5b6c7d8e9f003f2a5b6c7d8e9f00";
const UNKNOWN: &str = "b16b00b5b16b00b5b16b00b5b16b00b5b16b00b5b16b00b5b16b00b5b16b00b5";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../app/tests/fixtures/kubelet")
}

/// A fake kubelet on its own port.
struct Fake {
    child: Child,
    address: String,
    /// Holds the token, private to its owner.
    dir: tempfile::TempDir,
}

impl Fake {
    /// `kind`: the error to simulate, if any.
    fn start(mode: &str) -> Self {
        let mut child = Command::new("python3")
            .arg(fixtures().join("kubelet.py"))
            .arg(mode)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        std::fs::copy(fixtures().join("token"), &token).unwrap();
        std::fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
        Self { child, address: format!("https://127.0.0.1:{}", line.trim()), dir }
    }

    fn config(&self) -> KubernetesConfig {
        KubernetesConfig {
            kubelet_url: Some(self.address.clone()),
            token_file: Some(self.dir.path().join("token")),
            ca_file: Some(fixtures().join("ca.pem")),
            ..KubernetesConfig::default()
        }
    }
}

fn list_pods(config: &KubernetesConfig) -> Result<Pods> {
    kubelet::list_pods(&HttpClient::new(config.endpoint().unwrap().unwrap())?)
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a snapshot with a process in that container.
fn snapshot(id: &str, pod: Option<Pod>) -> Snapshot {
    let mut ledger = Ledger::new();
    let info = ProcessInfo { start: 1, uid: 0, name: "python".into(), before_trace: false };
    let container = Container {
        id: id.into(),
        runtime: ContainerRuntime::Containerd,
        pod,
        container_pid: Some(Pid(1)),
    };
    for kind in [EventKind::Process(info), EventKind::Container(Box::new(container))] {
        let at = Timestamp(1);
        ledger.apply(&Event { pid: Pid(7), tid: Tid(7), entry_time: at, time: at, kind });
    }
    ledger.snapshot(Timestamp(2), &SnapshotOptions::default())
}

fn unnamed(uid: &str) -> Option<Pod> {
    Some(Pod { uid: uid.into(), name: None, namespace: None, container: None })
}

#[test]
fn kubelet_names_containers_without_log_files() {
    let fake = Fake::start("fine");
    let directory = PodDirectory::default();
    directory.replace(list_pods(&fake.config()).unwrap());
    let mut view = snapshot(TRAINER, unnamed("hash-of-a-file"));
    directory.name(&mut view);
    let container = view.processes[0].container.as_ref().unwrap();
    let pod = container.pod.as_ref().unwrap();
    assert_eq!((&*pod.uid, container.container_pid), ("hash-of-a-file", Some(Pid(1))));
    assert_eq!(
        (pod.namespace.as_deref(), pod.name.as_deref(), pod.container.as_deref()),
        (Some("team"), Some("trainer-0"), Some("main"))
    );
    // Without a pod in the cgroup, and a container in no pod.
    let mut view = snapshot(TRAINER, None);
    directory.name(&mut view);
    let pod = view.processes[0].container.as_ref().unwrap().pod.clone().unwrap();
    assert_eq!(&*pod.uid, "0a1b2c3d-1111-2222-3333-444455556666");
    let mut view = snapshot(UNKNOWN, None);
    let before = view.clone();
    directory.name(&mut view);
    assert_eq!(view, before);
}

#[test]
fn kubelet_failures_are_reported() {
    for (mode, expected) in [
        ("refuses", "403"),
        ("nonsense", "not a pod list"),
        ("cut", "truncated"),
        ("redirects", "302"),
        ("hangs", "no response"),
    ] {
        let fake = Fake::start(mode);
        let timeout = crate::config::DurationValue::secs(2);
        let error = list_pods(&KubernetesConfig { timeout, ..fake.config() }).unwrap_err();
        assert!(format!("{error:#}").contains(expected), "{mode}: {error:#}");
    }
}

#[test]
fn kubelet_certificate_and_token_are_required() {
    let fake = Fake::start("fine");
    let other = KubernetesConfig { ca_file: None, ..fake.config() };
    assert!(format!("{:#}", list_pods(&other).unwrap_err()).contains("no response"));
    let none = KubernetesConfig { token_file: None, ..fake.config() };
    assert!(format!("{:#}", list_pods(&none).unwrap_err()).contains("401"));
    let invalid = KubernetesConfig { ca_file: Some(fixtures().join("token")), ..fake.config() };
    assert!(format!("{:#}", list_pods(&invalid).unwrap_err()).contains("no certificate"));
}

#[test]
fn unknown_containers_are_retried_with_backoff() {
    let fake = Fake::start("fine");
    let shared = AgentState::new(crate::config::Config::default());
    let endpoint = fake.config().endpoint().unwrap().unwrap();
    let mut poller = KubeletPoller::new(HttpClient::new(endpoint).unwrap());
    assert!(poller.is_due());
    let view = snapshot(UNKNOWN, None);
    for _ in 0..MAX_LOOKUPS {
        let unknown = poller.unknown(&view);
        assert_eq!(unknown, [UNKNOWN.into()]);
        poller.query(&shared, unknown);
        assert!(!poller.is_due());
    }
    assert!(poller.unknown(&view).is_empty());
    let mut named = snapshot(TRAINER, None);
    assert_eq!(poller.unknown(&named).len(), 1);
    shared.pods.name(&mut named);
    assert!(poller.unknown(&named).is_empty());
    drop(fake);
    poller.query(&shared, vec![TRAINER.into()]);
    assert_eq!(poller.failures, 1);
    // Known names stay known.
    let mut named = snapshot(TRAINER, None);
    shared.pods.name(&mut named);
    assert!(poller.unknown(&named).is_empty());
}
