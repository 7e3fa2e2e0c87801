//! Attacks by other users of the host on the agent: its directories, configuration and secrets.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::harness::agent::{Agent, check, serve, settings};
use crate::harness::files::stderr;
use crate::harness::{self, TestEnv};

/// A user that owns nothing here.
const NOBODY_UID: u32 = 65534;

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn write(path: &Path, text: &str, bits: u32) {
    fs::write(path, text).unwrap();
    mode(path, bits);
}

/// Runs a command that must end soon.
fn ended(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// Returns the error of the agent about a state directory, at start and in a check.
fn refused_state(env: &TestEnv, state: &Path) -> String {
    let output = ended(serve(env, &["--state-dir", state.to_str().unwrap()]));
    assert_eq!(output.status.code(), Some(2), "{}: {}", state.display(), stderr(&output));
    assert!(!stderr(&output).contains("attached to"), "{}", stderr(&output));
    let text = format!("state_dir = \"{}\"\n", state.display());
    let checked = check(Path::new(&settings(env, &text))).output().unwrap();
    assert_eq!(checked.status.code(), Some(2), "{}: {}", state.display(), stderr(&checked));
    stderr(&output)
}

#[test]
fn agent_rejects_a_state_dir_that_others_control() {
    let env = TestEnv::new();
    let base = env.dir.path();
    let victim = base.join("victim");
    fs::create_dir(&victim).unwrap();

    let link = base.join("link");
    symlink(&victim, &link).unwrap();
    lchown(&link, Some(NOBODY_UID), Some(NOBODY_UID)).unwrap();
    let message = refused_state(&env, &link);
    assert!(message.contains("owned by user 65534"), "{message}");

    let foreign = base.join("foreign");
    fs::create_dir(&foreign).unwrap();
    chown(&foreign, Some(NOBODY_UID), Some(NOBODY_UID)).unwrap();
    assert!(refused_state(&env, &foreign).contains("owned by user 65534"));
    // The owner of a parent directory can replace its contents.
    assert!(refused_state(&env, &foreign.join("below")).contains("owned by user 65534"));

    for bits in [0o777, 0o775] {
        let open = base.join(format!("open-{bits:o}"));
        fs::create_dir(&open).unwrap();
        fs::write(open.join("old"), "").unwrap();
        chown(&open, None, Some(NOBODY_UID)).unwrap();
        mode(&open, bits);
        let message = refused_state(&env, &open);
        assert!(message.contains("other users can write to it"), "{message}");
        assert!(message.contains("chmod go-w"), "{message}");
    }

    let planted = base.join("planted");
    fs::create_dir(&planted).unwrap();
    symlink(&victim, planted.join("incidents")).unwrap();
    lchown(planted.join("incidents"), Some(NOBODY_UID), Some(NOBODY_UID)).unwrap();
    let message = refused_state(&env, &planted);
    assert!(message.contains("planted/incidents: it is a symbolic link"), "{message}");
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0, "something was written");
}

#[test]
fn agent_accepts_systemd_and_kubernetes_state_dirs() {
    let env = TestEnv::new();
    let base = env.dir.path();
    // systemd with DynamicUser: a link, owned by root, to the real directory.
    fs::create_dir_all(base.join("private/state")).unwrap();
    symlink("private/state", base.join("linked")).unwrap();
    // An emptyDir volume is writable by all, and empty.
    let volume = base.join("volume");
    fs::create_dir(&volume).unwrap();
    mode(&volume, 0o777);
    for state in [base.join("linked"), volume.clone(), base.join("new/below")] {
        let agent = Agent::start(&env, &["--state-dir", state.to_str().unwrap()]);
        agent.end(15);
        let bits = |path: PathBuf| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(bits(state.join("incidents")), 0o700);
    }
    assert_eq!(fs::metadata(&volume).unwrap().mode() & 0o777, 0o700);
}

/// Whether a command succeeds as a user that owns nothing here.
fn as_nobody(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).uid(NOBODY_UID).gid(NOBODY_UID).stdout(Stdio::null());
    command.stderr(Stdio::null()).status().unwrap().success()
}

#[test]
fn unprivileged_user_reaches_neither_files_nor_signals() {
    let env = TestEnv::new();
    // The path to the files is open; only the files themselves are protected.
    mode(env.dir.path(), 0o755);
    let (state, token) = (env.dir.path().join("state"), env.dir.path().join("token"));
    write(&token, "0123456789abcdef-secret\n", 0o600);
    let files = [state.to_str().unwrap(), token.to_str().unwrap()];
    let mut agent = Agent::start(&env, &["--state-dir", files[0], "--token-file", files[1]]);
    let (incidents, pid) = (state.join("incidents"), agent.pid().to_string());
    let process = |name: &str| format!("/proc/{pid}/{name}");
    assert!(as_nobody("cat", &[&process("status")]), "the check itself works");
    for file in [&token, &state.join("lock"), Path::new(&process("environ"))] {
        assert!(!as_nobody("cat", &[file.to_str().unwrap()]), "{}", file.display());
    }
    for directory in [&state, &incidents] {
        assert!(!as_nobody("ls", &[directory.to_str().unwrap()]), "{}", directory.display());
    }
    for signal in ["-TERM", "-USR1", "-STOP"] {
        assert!(!as_nobody("kill", &[signal, &pid]), "{signal}");
    }
    // Any local user can connect: the token protects all data.
    assert_eq!(agent.get("/metrics").status, 401);
    assert_eq!(agent.get("/api/v1/incidents").status, 401);
    agent.headers = "authorization: Bearer 0123456789abcdef-secret\r\n".into();
    agent.until("a snapshot", |agent| (agent.get("/metrics").status == 200).then_some(()));
    agent.end(15);
}

const COMMANDS: [&str; 1] =
    ["[[alerts.receiver]]\ntype = \"command\"\ncommand = [\"/bin/true\"]\n"];

#[test]
fn config_with_commands_must_not_be_writable_by_others() {
    let env = TestEnv::new();
    let base = env.dir.path();
    let file = base.join("agent.toml");
    let state = format!("state_dir = \"{}\"\n", base.join("state").display());
    let error = |command: Command| {
        let output = ended(command);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        stderr(&output)
    };
    for commands in COMMANDS {
        write(&file, &format!("{state}{commands}"), 0o644);
        assert!(check(&file).output().unwrap().status.success());
        for bits in [0o666, 0o646] {
            mode(&file, bits);
            let message = error(check(&file));
            assert!(message.contains("other users can write to it"), "{message}");
            let started = error(serve(&env, &["--config", file.to_str().unwrap()]));
            assert!(started.contains("other users can write to it"), "{started}");
        }
        // Its own group may write; another one may not.
        mode(&file, 0o664);
        assert!(check(&file).output().unwrap().status.success());
        chown(&file, None, Some(NOBODY_UID)).unwrap();
        assert!(error(check(&file)).contains("other users can write to it"));
        chown(&file, Some(NOBODY_UID), Some(0)).unwrap();
        mode(&file, 0o644);
        assert!(error(check(&file)).contains("owned by user 65534"));
        chown(&file, Some(0), None).unwrap();
        fs::remove_file(&file).unwrap();
    }
    // Without commands there is nothing to gain.
    write(&file, &state, 0o666);
    assert!(check(&file).output().unwrap().status.success());
}

/// Returns configurations with a file in each key that takes a secret.
fn secrets(file: &Path) -> Vec<String> {
    let file = file.display();
    vec![
        format!("[http]\ntoken_file = \"{file}\"\n"),
        format!("[[alerts.receiver]]\ntype = \"webhook\"\nurl_file = \"{file}\"\n"),
        format!(
            "[[alerts.receiver]]\ntype = \"webhook\"\nurl = \"https://a.example/\"\n\
             token_file = \"{file}\"\n"
        ),
        format!("[exporters.otlp]\nendpoint = \"https://a.example/\"\ntoken_file = \"{file}\"\n"),
        format!(
            "[exporters.otlp]\nendpoint = \"https://a.example/\"\nusername = \"me\"\n\
             password_file = \"{file}\"\n"
        ),
        format!("[kubernetes]\nkubelet_url = \"https://a.example/\"\ntoken_file = \"{file}\"\n"),
    ]
}

fn checked(env: &TestEnv, text: &str) -> Output {
    let state = env.dir.path().join("state");
    let text = format!("state_dir = \"{}\"\n{text}", state.display());
    check(Path::new(&settings(env, &text))).output().unwrap()
}

/// A token for a request, and an address for a webhook.
const SECRET: &str = "https://a.example/0123456789abcdef\n";

#[test]
fn all_secrets_have_one_permission_rule() {
    let env = TestEnv::new();
    let file = env.dir.path().join("secret");
    let key = env.dir.path().join("key.pem");
    let certificate = harness::environment::certificate(env.dir.path()).0;
    let mut all = secrets(&file);
    all.push(format!(
        "[http]\ntls_cert_file = \"{certificate}\"\ntls_key_file = \"{}\"\n",
        key.display()
    ));
    for text in &all {
        for (bits, is_fine) in [
            (0o600, true),
            (0o400, true),
            (0o640, true),
            (0o440, true),
            (0o644, false),
            (0o604, false),
            (0o666, false),
            (0o660, false),
            (0o602, false),
        ] {
            write(&file, SECRET, bits);
            mode(&key, bits);
            let output = checked(&env, text);
            assert_eq!(output.status.success(), is_fine, "{bits:o} {text}: {}", stderr(&output));
            assert!(is_fine || stderr(&output).contains("chmod 600"), "{}", stderr(&output));
            assert!(!stderr(&output).contains("0123456789abcdef"), "{}", stderr(&output));
        }
    }
    write(&file, SECRET, 0o644);
    let advise = Command::new(harness::VRAMSCOPE)
        .args(["advise", "--agent", "127.0.0.1:9", "--token-file"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(stderr(&advise).contains("chmod 600"), "{}", stderr(&advise));
}

/// A tmpfs as Kubernetes mounts Secrets: read-only, with links to the newest version.
struct Projected(PathBuf);

impl Projected {
    fn new(dir: PathBuf, bits: u32, group: u32) -> Self {
        fs::create_dir(&dir).unwrap();
        let run = |arguments: &[&str]| {
            let done = Command::new("mount").args(arguments).arg(&dir).status().unwrap();
            assert!(done.success(), "mounting a tmpfs needs root");
        };
        run(&["-t", "tmpfs", "-o", "mode=1777", "secret"]);
        let version = dir.join("..2026_11_16");
        fs::create_dir(&version).unwrap();
        write(&version.join("token"), SECRET, bits);
        chown(version.join("token"), None, Some(group)).unwrap();
        symlink("..2026_11_16", dir.join("..data")).unwrap();
        symlink("..data/token", dir.join("token")).unwrap();
        run(&["-o", "remount,ro"]);
        Self(dir)
    }
}

impl Drop for Projected {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn kubernetes_secrets_are_accepted() {
    let env = TestEnv::new();
    for (name, bits, group) in [("plain", 0o644, 0), ("fs-group", 0o640, 2000)] {
        let mount = Projected::new(env.dir.path().join(name), bits, group);
        for text in secrets(&mount.0.join("token")) {
            let output = checked(&env, &text);
            assert!(output.status.success(), "{name} {text}: {}", stderr(&output));
        }
    }
}

#[test]
fn http_1_1_request_needs_exactly_one_host() {
    let env = TestEnv::new();
    let token = env.dir.path().join("token");
    write(&token, "0123456789abcdef\n", 0o600);
    let bearer = "authorization: Bearer 0123456789abcdef\r\n";
    for options in [&[][..], &["--token-file", token.to_str().unwrap()]] {
        let agent = Agent::start(&env, options);
        let get = |version: &str, hosts: &str| {
            let head = format!("GET /healthz HTTP/{version}\r\n{hosts}{bearer}");
            agent.raw(&format!("{head}connection: close\r\n\r\n")).status
        };
        assert_eq!(get("1.1", ""), 400);
        assert_eq!(get("1.1", "host: localhost\r\nhost: localhost\r\n"), 400);
        assert_eq!(get("1.1", "host: localhost\r\n"), 200);
        assert_eq!(get("1.0", ""), 200);
        agent.end(15);
    }
}
