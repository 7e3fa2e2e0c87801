//! Against a kubelet that is a small program of Python's, with TLS and a token.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use engine::container::Runtime;
use engine::event::{Event, ProcessFacts, What};
use engine::ids::{Pid, Tid};
use engine::ledger::Ledger;
use engine::snapshot::View;
use engine::units::Moment;

use super::*;
use crate::serve::config::kubernetes::Kubernetes;

const TRAINER: &str = "3f2a5b6c7d8e9f003f2a5b6c7d8e9f003f2a5b6c7d8e9f003f2a5b6c7d8e9f00";
const STRANGER: &str = "b16b00b5b16b00b5b16b00b5b16b00b5b16b00b5b16b00b5b16b00b5b16b00b5";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kubelet")
}

/// A kubelet on a port of its own.
struct Fake {
    child: Child,
    address: String,
    /// With the token, for its owner alone.
    folder: tempfile::TempDir,
}

impl Fake {
    /// `what` it does wrong, if anything.
    fn start(what: &str) -> Self {
        let mut child = Command::new("python3")
            .arg(fixtures().join("kubelet.py"))
            .arg(what)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        std::fs::copy(fixtures().join("token"), &token).unwrap();
        std::fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
        Self { child, address: format!("https://127.0.0.1:{}", line.trim()), folder }
    }

    fn settings(&self) -> Kubernetes {
        Kubernetes {
            kubelet_url: Some(self.address.clone()),
            token_file: Some(self.folder.path().join("token")),
            ca_file: Some(fixtures().join("ca.pem")),
            ..Kubernetes::default()
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process in that container looks like in a snapshot.
fn snapshot(id: &str, pod: Option<Pod>) -> Snapshot {
    let mut ledger = Ledger::new();
    let facts = ProcessFacts { start: 1, uid: 0, name: "python".into(), before_trace: false };
    let container =
        Container { id: id.into(), runtime: Runtime::Containerd, pod, pid_inside: Some(Pid(1)) };
    for what in [What::Process(facts), What::Container(Box::new(container))] {
        let at = Moment(1);
        ledger.apply(&Event { pid: Pid(7), tid: Tid(7), entered: at, at, what });
    }
    ledger.snapshot(Moment(2), &View::default())
}

fn nameless(uid: &str) -> Option<Pod> {
    Some(Pod { uid: uid.into(), name: None, namespace: None, container: None })
}

#[test]
fn the_kubelet_names_what_the_files_did_not() {
    let fake = Fake::start("fine");
    let directory = Directory::default();
    directory.replace(kubelet::ask(&fake.settings()).unwrap());
    let mut shown = snapshot(TRAINER, nameless("hash-of-a-file"));
    directory.name(&mut shown);
    let container = shown.processes[0].container.as_ref().unwrap();
    let pod = container.pod.as_ref().unwrap();
    assert_eq!((&*pod.uid, container.pid_inside), ("hash-of-a-file", Some(Pid(1))));
    assert_eq!(
        (pod.namespace.as_deref(), pod.name.as_deref(), pod.container.as_deref()),
        (Some("team"), Some("trainer-0"), Some("main"))
    );
    // Whose pod the cgroup did not tell, and who is in none.
    let mut shown = snapshot(TRAINER, None);
    directory.name(&mut shown);
    let pod = shown.processes[0].container.as_ref().unwrap().pod.clone().unwrap();
    assert_eq!(&*pod.uid, "0a1b2c3d-1111-2222-3333-444455556666");
    let mut shown = snapshot(STRANGER, None);
    let before = shown.clone();
    directory.name(&mut shown);
    assert_eq!(shown, before);
}

#[test]
fn a_kubelet_that_refuses_lies_or_hangs_is_an_error_that_says_so() {
    for (what, words) in [
        ("refuses", "403"),
        ("nonsense", "not a pod list"),
        ("cut", "truncated"),
        ("redirects", "302"),
        ("hangs", "no response"),
    ] {
        let fake = Fake::start(what);
        let timeout = crate::serve::config::Span(Duration::from_secs(2));
        let error = kubelet::ask(&Kubernetes { timeout, ..fake.settings() }).unwrap_err();
        assert!(format!("{error:#}").contains(words), "{what}: {error:#}");
    }
}

#[test]
fn a_kubelet_is_believed_only_with_its_certificate_and_gets_the_token() {
    let fake = Fake::start("fine");
    let other = Kubernetes { ca_file: None, ..fake.settings() };
    assert!(format!("{:#}", kubelet::ask(&other).unwrap_err()).contains("no response"));
    let none = Kubernetes { token_file: None, ..fake.settings() };
    assert!(format!("{:#}", kubelet::ask(&none).unwrap_err()).contains("401"));
    let wrong = Kubernetes { ca_file: Some(fixtures().join("token")), ..fake.settings() };
    assert!(format!("{:#}", kubelet::ask(&wrong).unwrap_err()).contains("no certificate"));
}

#[test]
fn strangers_are_asked_for_a_few_times_only_and_failures_make_it_patient() {
    let fake = Fake::start("fine");
    let config = crate::serve::config::Config {
        kubernetes: fake.settings(),
        ..crate::serve::config::Config::default()
    };
    let shared = Shared::new(config);
    let mut asker = Asker::default();
    assert!(asker.is_due());
    let shown = snapshot(STRANGER, None);
    for _ in 0..PATIENCE {
        let unknown = asker.unknown(&shown);
        assert_eq!(unknown, [STRANGER.into()]);
        asker.ask(&shared, unknown);
        assert!(!asker.is_due());
    }
    assert!(asker.unknown(&shown).is_empty());
    let mut named = snapshot(TRAINER, None);
    assert_eq!(asker.unknown(&named).len(), 1);
    shared.pods.name(&mut named);
    assert!(asker.unknown(&named).is_empty());
    drop(fake);
    asker.ask(&shared, vec![TRAINER.into()]);
    assert_eq!(asker.failures, 1);
    // What was known stays known.
    let mut named = snapshot(TRAINER, None);
    shared.pods.name(&mut named);
    assert!(asker.unknown(&named).is_empty());
}
