//! Processes in real cgroups and namespaces: their container is reported, and the ledger matches
//! the oracle.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{TestEnv, TraceResult, Tracer, VRAMSCOPE, Workload, assert_same, simulator};

const POD: &str = "0a1b2c3d-1111-2222-3333-444455556666";

/// Returns an id that no other test uses.
fn id(seed: u8) -> String {
    format!("{:08x}{seed:02x}", std::process::id()).repeat(7)[..64].to_owned()
}

/// A version 2 cgroup in its own mount, independent of the mounts of this machine.
struct Cgroup {
    mount: tempfile::TempDir,
    path: PathBuf,
}

impl Cgroup {
    fn new(names: &[&str]) -> Self {
        let mount = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "cgroup2", "cgroup2"])
            .arg(mount.path())
            .status()
            .unwrap();
        assert!(mounted.success(), "these tests need permission to mount");
        let mut path = mount.path().to_owned();
        for name in names {
            path.push(name);
            fs::create_dir_all(&path).unwrap();
        }
        Self { mount, path }
    }

    /// Returns a script that runs a program in the cgroup.
    fn script(&self, rest: &str) -> String {
        format!("echo $$ > {}/cgroup.procs && {rest}", self.path.display())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        while self.path != self.mount.path() {
            // Parent cgroups may contain others of the same test process.
            let _ = fs::remove_dir(&self.path);
            self.path.pop();
        }
        let _ = Command::new("umount").arg("-l").arg(self.mount.path()).status();
    }
}

/// Returns the process of that container in a report.
fn inside<'a>(report: &'a Value, id: &str) -> Option<&'a Value> {
    let processes = report["processes"].as_array().unwrap();
    processes.iter().find(|process| process["container"]["id"] == id)
}

fn wait_for_end(tracer: &mut Tracer, id: &str) -> Value {
    let report = tracer.wait_for("the container's process", |report| {
        inside(report, id).is_some_and(|process| process["exited"] == true)
    });
    inside(&report, id).unwrap().clone()
}

/// Returns the oracle of a process that has pid 1 in its namespace, with pids of the host.
fn oracle_of_first(env: &TestEnv, pid: &Value) -> Value {
    let mut oracle = env.oracle(1);
    for allocation in oracle["live"].as_array_mut().unwrap() {
        assert_eq!(allocation["thread"], 1);
        allocation["thread"] = pid.clone();
    }
    oracle
}

fn workload() -> String {
    simulator().join("workload").display().to_string()
}

#[test]
fn container_and_its_pid_are_reported_live_and_in_replay() {
    let env = TestEnv::new();
    let id = id(1);
    let cgroup = Cgroup::new(&[&format!("docker-{id}.scope")]);
    let file = env.dir.path().join("trace.vramscope");
    let mut tracer = env.start_trace(&[
        "--driver",
        env.driver.to_str().unwrap(),
        "--record",
        file.to_str().unwrap(),
        "--stacks",
        "off",
    ]);
    tracer.next();
    let script = cgroup.script(&format!(
        "exec unshare --pid --fork --mount-proc {} leak3 --work-ms 300 --wait-ms 1000",
        workload()
    ));
    Workload::start(env.command("sh").args(["-c", &script])).finish();
    let process = wait_for_end(&mut tracer, &id);
    assert_eq!(
        process["container"],
        json!({ "id": id, "runtime": "docker", "pid": 1 }),
        "{process}"
    );
    assert_ne!(process["pid"], 1);
    assert_eq!(process["live_bytes"], 8 << 20);
    assert_same(&process, &oracle_of_first(&env, &process["pid"]));
    let traced = tracer.stop();
    assert!(traced.status.success(), "{}", traced.messages);
    replays_equal(&traced, &file);
    let words = format!("  container {} (docker), pid 1 in container", &id[..12]);
    let text = report(&file, &["--allocations"]);
    assert!(text.lines().any(|line| line == words), "{text}");
}

fn report(file: &Path, options: &[&str]) -> String {
    let mut command = Command::new(VRAMSCOPE);
    command.arg("replay").arg(file).args(options);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Asserts that the recording has the same last state of every process as the live trace.
fn replays_equal(traced: &TraceResult, file: &Path) {
    let replayed: Value = serde_json::from_str(&report(file, &["--format", "json"])).unwrap();
    assert_eq!(&replayed, traced.last());
}

/// Starts a tracer with other pod logs than those of this machine.
fn trace_with_logs(env: &TestEnv, logs: &Path) -> Tracer {
    let script = format!(
        "mount --bind {} /var/log && exec {VRAMSCOPE} trace --json --interval 100ms --driver {}",
        logs.display(),
        env.driver.display()
    );
    Tracer::start(Command::new("unshare").args(["--mount", "sh", "-c", &script]))
}

#[test]
fn driver_in_a_pod_mount_namespace_is_traced() {
    // Long enough for a busy machine to find the copy of the driver before its first call.
    let env = TestEnv::new().env("SIM_INIT_MS", "2000");
    let id = id(2);
    let logs = tempfile::tempdir().unwrap();
    fs::create_dir_all(logs.path().join(format!("pods/team_trainer-0_{POD}/main"))).unwrap();
    let slice = format!("kubepods-burstable-pod{}.slice", POD.replace('-', "_"));
    let scope = format!("cri-containerd-{id}.scope");
    let names = ["kubepods.slice", "kubepods-burstable.slice", &slice, &scope];
    let cgroup = Cgroup::new(&names);
    let mut tracer = trace_with_logs(&env, logs.path());
    tracer.next();
    // A copy of the driver that is not visible outside.
    let within = cgroup.script(&format!(
        "mount -t tmpfs tmpfs /mnt && cp {} /mnt/libcuda.so.1 && \
         LD_LIBRARY_PATH=/mnt exec unshare --pid --fork --mount-proc {} kinds",
        env.driver.display(),
        workload()
    ));
    Workload::start(env.command("unshare").args(["--mount", "sh", "-c", &within])).finish();
    assert!(!Path::new("/mnt/libcuda.so.1").exists());
    let process = wait_for_end(&mut tracer, &id);
    let pod = json!({ "uid": POD, "name": "trainer-0", "namespace": "team", "container": "main" });
    assert_eq!(
        process["container"],
        json!({ "id": id, "runtime": "containerd", "pid": 1, "pod": pod })
    );
    assert_same(&process, &oracle_of_first(&env, &process["pid"]));
    tracer.stop();
}

#[test]
fn exec_keeps_the_container() {
    let env = TestEnv::new();
    let id = id(3);
    let cgroup = Cgroup::new(&["machine.slice", &format!("libpod-{id}.scope"), "container"]);
    let mut tracer = env.start_trace(&["--driver", env.driver.to_str().unwrap()]);
    tracer.next();
    let outside = env.workload(&["kinds"]);
    let pid = outside.pid();
    outside.finish();
    let script = cgroup.script(&format!("exec {} exec", workload()));
    let within = Workload::start(env.command("sh").args(["-c", &script]));
    let own = within.pid();
    within.finish();
    tracer.wait_for("both", |report| {
        inside(report, &id).is_some_and(|process| process["exited"] == true)
    });
    let traced = tracer.stop();
    let processes = traced.last()["processes"].as_array().unwrap();
    let of = |pid: u32| processes.iter().filter(move |process| process["pid"] == pid);
    let programs: Vec<_> = of(own).collect();
    assert_eq!(programs.len(), 2, "{}", traced.last());
    for program in programs {
        assert_eq!(program["container"]["id"], id.as_str());
        assert_eq!(program["container"]["runtime"], "podman");
        assert_eq!(program["container"]["pid"], own);
    }
    assert!(of(pid).all(|process| process.get("container").is_none()));
    assert_eq!(of(pid).count(), 1);
}

#[test]
fn job_rank_and_process_tree_are_reported_live_and_in_replay() {
    let env = TestEnv::new();
    let job = std::process::id();
    let cgroup = Cgroup::new(&["slurmstepd.scope", &format!("job_{job}"), "step_3"]);
    let file = env.dir.path().join("trace.vramscope");
    let [driver, recording] = [&env.driver, &file].map(|path| path.to_str().unwrap());
    let mut tracer = env.start_trace(&["--driver", driver, "--record", recording]);
    tracer.next();
    // Two processes of one tree.
    let run = format!("{} leak3 --work-ms 600 --wait-ms 100", workload());
    let script = cgroup.script(&format!("({run} & {run} & wait); true"));
    let mut shell = env.command("sh");
    Workload::start(shell.args(["-c", &script]).env("RANK", "2")).finish();
    let name = format!("slurm {job}.3");
    let of_job = |report: &Value| -> Vec<Value> {
        let all = report["processes"].as_array().unwrap().iter();
        all.filter(|process| process["job"] == name.as_str()).cloned().collect()
    };
    let report = tracer.wait_for("both processes", |report| of_job(report).len() == 2);
    let [one, two] = &of_job(&report)[..] else { panic!("{report}") };
    assert_eq!((&one["rank"], &two["rank"]), (&2.into(), &2.into()), "{one}");
    assert_eq!(one["tree"], two["tree"]);
    assert!(one["tree"]["pid"].as_u64().unwrap() > 1, "{one}");
    let traced = tracer.stop();
    replays_equal(&traced, &file);
    let line = |by: &str, words: &str| {
        let text = report_by(&file, by);
        text.lines()
            .find(|line| line.ends_with(words))
            .unwrap_or_else(|| panic!("{text}"))
            .to_owned()
    };
    assert_eq!(line("job", &name).split_whitespace().nth(4), Some("2"), "two processes");
    let tree = &one["tree"];
    let root = format!("{} ({})", tree["program"].as_str().unwrap(), tree["pid"]);
    assert_eq!(line("tree", &root).split_whitespace().nth(4), Some("2"));
    assert_eq!(line("user", "root").split_whitespace().nth(4), Some("2"));
}

fn report_by(file: &Path, by: &str) -> String {
    report(file, &["--by", by])
}
