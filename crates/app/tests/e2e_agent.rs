//! The agent over time: what it gives up to keep to its budget, which rights it keeps, and what is left
//! when it is killed and begins again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod harness;

use std::path::Path;
use std::time::Duration;

use harness::Stage;
use harness::agent::{Agent, check, serve};
use harness::files::{blocks, stderr};
use serde_json::Value;

/// Its programs, maps and links in the kernel are counted by its open files.
fn kernel_objects(pid: u32) -> usize {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let is_bpf = |target: &std::path::PathBuf| target.to_string_lossy().contains("bpf");
    files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok()).filter(is_bpf).count()
}

fn live(process: &Value) -> u64 {
    process["live_bytes"].as_u64().unwrap()
}

#[test]
fn stacks_are_given_up_for_the_budget_and_memory_stays_exact() {
    let stage = Stage::new();
    let agent = Agent::start(&stage, &["--max-memory", "20M"]);
    // Allocates and frees all the time, and keeps one in ten, while one step follows the other.
    let spam = ["spam", "--throughput", "500", "--duration", "30", "--free-ratio", "0.9"];
    let player = stage.workload(&[&spam[..], &["--hold-ms", "15000"]].concat());
    let pid = player.pid();
    let steps = |agent: &Agent| agent.api("status")["degraded"].clone();
    let names = ["cheap_stacks", "no_stacks", "coarse_sites"];
    agent.until("the last step", |agent| (steps(agent) == serde_json::json!(names)).then_some(()));
    let told = agent.messages();
    for words in ["frame pointers only", "not taken any more", "put together"] {
        assert!(told.contains(words), "{told}");
    }
    assert_eq!(agent.metric("vramscope_degraded"), [(String::new(), 3.0)]);
    let sites = agent.process(pid, |process| live(process) > 0)["sites"].clone();
    assert!(sites.as_array().unwrap().len() <= 2, "{sites}");
    // At the end of its work it holds still: what the agent says then is what the driver wrote down.
    let last = agent.until("that it holds still", |agent| {
        let now = agent.process(pid, |_| true);
        std::thread::sleep(Duration::from_millis(2500));
        let later = agent.process(pid, |_| true);
        (later["allocations_total"] == now["allocations_total"]).then_some(later)
    });
    assert!(player.finish().0.success());
    let truth = stage.oracle(pid);
    assert_eq!(last["live_bytes"], truth["live_bytes"]);
    assert_eq!(last["allocations_total"], truth["allocations"]);
    assert_eq!(last["frees_total"], truth["frees"]);
    assert_eq!(agent.metric("vramscope_exact"), [(String::new(), 1.0)]);
    agent.end(15);
}

#[test]
fn a_killed_agent_leaves_nothing_and_the_next_one_names_what_was_there_before() {
    // The simulated NVML tells who holds what, as the real one does.
    let stage = Stage::new().sharing();
    let agent = Agent::start(&stage, &[]);
    let mut early = stage.workload(&[
        "--wait-start",
        "--hold-ms",
        "60000",
        "hold",
        "--count",
        "100",
        "--size",
        "65536",
    ]);
    early.wait_ready();
    early.go();
    let pid = early.pid();
    let seen = agent.process(pid, |process| process["live_allocations"] == 100);
    assert_eq!((&seen["before_trace"], live(&seen)), (&Value::Bool(false), 6_553_600));
    assert!(kernel_objects(agent.pid()) > 3);
    let id = agent.pid();
    agent.end(9);
    assert!(!Path::new(&format!("/proc/{id}")).exists());
    // Nothing is left on the driver: uprobes of a dead process are gone from its code.
    let probes = std::fs::read_to_string("/sys/kernel/tracing/uprobe_events").unwrap_or_default();
    assert!(!probes.contains("vramscope"), "{probes}");

    let next = Agent::start(&stage, &[]);
    let known = next.process(pid, |_| true);
    assert_eq!((&known["before_trace"], live(&known)), (&Value::Bool(true), 0));
    assert_eq!(next.metric("vramscope_exact"), [(String::new(), 0.0)]);
    // The driver's own account has what the ledger cannot have.
    next.until("the account", |agent| {
        let samples = agent.metric("vramscope_process_untracked_bytes");
        let own = samples.iter().find(|(labels, _)| labels.contains(&format!("pid=\"{pid}\"")))?;
        (own.1 >= 6_553_600.0).then_some(())
    });
    // What comes after the restart is exact again.
    let mut late = stage.workload(&[
        "--wait-start",
        "--hold-ms",
        "60000",
        "hold",
        "--count",
        "7",
        "--size",
        "4096",
    ]);
    late.wait_ready();
    late.go();
    let new = next.process(late.pid(), |process| process["live_allocations"] == 7);
    assert_eq!((&new["before_trace"], live(&new)), (&Value::Bool(false), 7 * 4096));
    next.end(15);
}

/// Starts the agent from a file of its own, with a rule about what a GPU holds.
fn installed(stage: &Stage, binary: &std::path::Path) -> Agent {
    let folder = stage.folder.path();
    let settings = folder.join("agent.toml");
    let rule =
        "name = \"held\"\nmetric = \"vramscope_gpu_used_bytes\"\nabove = \"1M\"\nfor = \"0s\"";
    std::fs::write(&settings, format!("[[alerts.rule]]\n{rule}\n")).unwrap();
    let mut command = stage.command(binary.to_str().unwrap());
    command.args(["serve", "--listen", "127.0.0.1:0", "--driver"]).arg(&stage.driver);
    command.arg("--state").arg(folder.join("state")).arg("--config").arg(&settings);
    Agent::run(&mut command, folder)
}

#[test]
fn an_agent_that_is_upgraded_keeps_incidents_and_tells_again_what_still_holds() {
    let stage = Stage::new();
    let devices = stage.folder.path().join("devices").display().to_string();
    let stage = stage.env("SIM_STATE", &devices);
    let binary = stage.folder.path().join("vramscope");
    std::fs::copy(VRAMSCOPE, &binary).unwrap();
    let agent = installed(&stage, &binary);
    let hold = ["--hold-ms", "60000", "hold", "--count", "100", "--size", "65536"];
    let holder = stage.workload(&hold);
    let fires = |agent: &Agent| {
        agent.until("the alert", |agent| {
            agent.messages().contains("alert firing: held").then_some(())
        });
    };
    fires(&agent);
    stage.workload(&["--device", "1", "oom", "--chunk-mb", "700"]).finish();
    let ids = |agent: &Agent| {
        let found = agent.json("/api/v1/incidents").unwrap();
        let all = found["incidents"].as_array().unwrap();
        all.iter().map(|one| one["id"].clone()).collect::<Vec<_>>()
    };
    agent.until("the incident", |agent| (ids(agent).len() == 1).then_some(()));
    let before = ids(&agent);

    // As a package manager does it: a new file takes the name of the one that runs, and it goes on.
    let new = stage.folder.path().join("vramscope.new");
    std::fs::copy(VRAMSCOPE, &new).unwrap();
    std::fs::rename(&new, &binary).unwrap();
    let exe = |agent: &Agent| std::fs::read_link(format!("/proc/{}/exe", agent.pid())).unwrap();
    assert!(exe(&agent).to_string_lossy().ends_with("(deleted)"));
    let more = stage.workload(&["--hold-ms", "60000", "hold", "--count", "7", "--size", "4096"]);
    agent.process(more.pid(), |process| process["live_allocations"] == 7);
    assert!(agent.end(15));

    // What was allocated in between was seen by nobody, and is told as that.
    let between = stage.workload(&hold);
    std::thread::sleep(Duration::from_millis(500));
    let next = installed(&stage, &binary);
    assert_eq!(exe(&next), binary.canonicalize().unwrap());
    assert_eq!(ids(&next), before);
    fires(&next);
    for process in [&holder, &more, &between] {
        let known = next.process(process.pid(), |_| true);
        assert_eq!((&known["before_trace"], live(&known)), (&Value::Bool(true), 0));
    }
    assert!(next.end(15));
}

#[test]
fn each_thread_has_only_the_rights_that_it_needs() {
    // DAC_READ_SEARCH, SYS_PTRACE, SYS_RESOURCE, PERFMON, BPF.
    const TRACING: u64 = 1 << 2 | 1 << 19 | 1 << 24 | 1 << 38 | 1 << 39;
    let stage = Stage::new();
    let agent = Agent::start(&stage, &[]);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap();
    let mut names = Vec::new();
    for task in tasks {
        let task = task.unwrap().path();
        let status = std::fs::read_to_string(task.join("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().to_owned()
        };
        let name = field("Name:");
        let rights = u64::from_str_radix(&field("CapPrm:"), 16).unwrap();
        let allowed = match name.as_str() {
            "vramscope" | "http" | "alerts" | "incidents" => 0,
            _ => TRACING,
        };
        assert_eq!(rights & !allowed, 0, "{name} may do too much: {rights:x}");
        assert_eq!(field("NoNewPrivs:"), "1", "{name}");
        names.push(name);
    }
    for name in ["vramscope", "capture", "http", "alerts", "incidents"] {
        assert!(names.iter().any(|thread| thread == name), "{name} is not among {names:?}");
    }
    agent.end(2);
}

#[test]
fn bad_settings_are_told_all_at_once_and_nothing_is_started() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agent.toml");
    let check = |text: &str, options: &[&str]| {
        std::fs::write(&file, text).unwrap();
        let output = check(&file).args(options).output().unwrap();
        (output.status.code().unwrap(), stderr(&output))
    };
    let wrong = "[http]\nlisten = \"0.0.0.0:9754\"\nkey = \"k.pem\"\n[trace]\nmax_cpu = -1.0\n";
    let (code, text) = check(wrong, &[]);
    assert_eq!(code, 2, "{text}");
    for part in ["reachable from other hosts", "needs its key", "percent of one core"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (code, text) = check("[http]\nlisten = \"127.0.0.1:9754\"\nlissten = 1\n", &[]);
    assert!(code == 2 && text.contains("lissten") && text.contains("line 3"), "{text}");
    let (code, text) = check("[trace]\nmax_memory = \"much\"\n", &[]);
    assert!(code == 2 && text.contains("max_memory") && text.contains("no unit of size"), "{text}");
    let (code, text) = check("", &["--listen", "192.0.2.1:80"]);
    assert!(code == 2 && text.contains("192.0.2.1:80 is reachable"), "{text}");
    assert_eq!(check("", &[]).0, 0);
}

#[test]
fn an_agent_without_alerts_and_incidents_runs_on() {
    let stage = Stage::new();
    let text = "[alerts]\nenabled = false\n[incidents]\nenabled = false\n";
    let agent = Agent::start_with(&stage, text, &[]);
    agent.until("the third snapshot", |agent| {
        (agent.api("status")["sequence"].as_u64() >= Some(3)).then_some(())
    });
    agent.end(15);
}

#[test]
fn the_settings_in_the_documents_are_good_ones() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agent.toml");
    std::fs::write(&file, &blocks("docs/agent.md", "toml")[0]).unwrap();
    let output = check(&file).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn gpus_that_can_be_asked_late_are_told_all_the_same() {
    // The library that tells of GPUs comes when the agent runs already, as on a host that starts.
    let stage = Stage::new().sharing();
    let folder = stage.folder.path().join("late");
    std::fs::create_dir(&folder).unwrap();
    let mut command = serve(&stage, &[]);
    let agent = Agent::run(command.env("LD_LIBRARY_PATH", &folder), stage.folder.path());
    let mut player = stage.workload(&[
        "--wait-start",
        "--hold-ms",
        "60000",
        "hold",
        "--count",
        "3",
        "--size",
        "4096",
    ]);
    player.wait_ready();
    player.go();
    let pid = player.pid();
    agent.process(pid, |process| process["live_allocations"] == 3);
    assert_eq!(agent.metric("vramscope_gpu_total_bytes"), []);
    let nvml = stage.driver.parent().unwrap().join("libnvidia-ml.so.1");
    std::fs::copy(nvml, folder.join("libnvidia-ml.so.1")).unwrap();
    agent.until("the GPUs", |agent| {
        let total = agent.metric("vramscope_gpu_total_bytes");
        (!total.is_empty()).then_some(())
    });
    agent.until("the GPU of the process", |agent| {
        let live = agent.metric("vramscope_process_live_bytes");
        let own = live.iter().find(|(labels, _)| labels.contains(&format!("pid=\"{pid}\"")))?;
        (own.0.contains("gpu=\"0\"") && own.1 == 12_288.0).then_some(())
    });
    agent.end(15);
}
