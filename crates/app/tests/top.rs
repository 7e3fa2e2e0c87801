//! `vramscope top` on a real pseudo-terminal: keys, sizes, signals, and all of its sources.

use std::process::Command;

use serde_json::{Value, json};

use crate::harness::agent::Agent;
use crate::harness::files::{fixture, root, run, stderr, stdout, tool};
use crate::harness::{TestEnv, VRAMSCOPE, simulator, until};

/// Keys.
const ENTER: &str = "\r";
const ESCAPE: &str = "\x1b";
const DOWN: &str = "\x1b[B";

/// Runs `vramscope ARGUMENTS` on a terminal, and returns what the session saw.
fn session(command: &mut Command, size: (u32, u32), steps: &Value, arguments: &[&str]) -> Value {
    let script = root().join("crates/app/tests/top/session.py");
    command
        .arg(script)
        .arg(steps.to_string())
        .args([size.0.to_string(), size.1.to_string()])
        .arg(VRAMSCOPE)
        .args(arguments);
    let output = command.env("TERM", "xterm-256color").output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn python() -> Command {
    let mut python = tool("python");
    python.env_remove("NO_COLOR");
    python
}

fn recording() -> String {
    fixture("h200-leaks/pytorch.arrows")
}

/// Replays a recording.
fn replay(size: (u32, u32), steps: &Value, options: &[&str]) -> Value {
    let file = recording();
    session(&mut python(), size, steps, &[&["top", &file, "--speed", "1000"], options].concat())
}

/// Whether the terminal is as it was before.
fn assert_restored(state: &Value) {
    assert_eq!(state["restored"], true, "{state}");
    let modes = state["modes"].as_array().unwrap();
    // The cursor may have been shown explicitly.
    let left: Vec<_> = modes.iter().filter(|mode| **mode != 25).collect();
    assert!(left.is_empty(), "{state}");
}

#[test]
fn keys_lead_from_processes_to_allocations_at_every_size() {
    for size in [(40, 12), (80, 24), (200, 60)] {
        let steps = json!([
            {"wait": "2 of 5 processes leak"},
            {"screen": "processes"},
            {"keys": DOWN}, {"keys": ENTER}, {"wait": "› sites"}, {"wait": "PLACE"},
            {"wait": "leak, "}, {"screen": "sites"},
            {"keys": ENTER}, {"wait": "Enter allocations"}, {"screen": "stack"},
            {"keys": ENTER}, {"wait": "SIZE"},
            // One at a time: terminals send Alt+Esc as two of them.
            {"keys": ESCAPE}, {"wait": "Enter allocations"},
            {"keys": ESCAPE}, {"wait": "PLACE"},
            {"keys": ESCAPE}, {"wait": "PROGRAM"},
            {"keys": "2"}, {"wait": "LEAKS AT"},
            {"keys": "?"}, {"wait": "Esc closes"}, {"keys": ESCAPE}, {"gone": "Esc closes"},
            {"keys": "q"}, {"exit": true}
        ]);
        let seen = replay(size, &steps, &[]);
        assert_eq!(seen["status"], 0, "{seen}");
        assert_restored(&seen["end"]);
        for name in ["processes", "sites", "stack"] {
            let screen = seen["screens"][name].as_str().unwrap();
            assert!(screen.lines().count() <= size.1 as usize, "{screen}");
            let widest = screen.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= size.0 as usize, "{screen}");
        }
    }
}

#[test]
fn filter_help_and_resizing_work() {
    let steps = json!([
        {"wait": "2 of 5 processes leak"},
        {"keys": "/"}, {"keys": "oom"}, {"keys": ENTER}, {"gone": "torch_graph"},
        {"wait": "oom.py"},
        {"keys": ESCAPE}, {"wait": "torch_graph"},
        {"resize": [120, 40]}, {"wait": "Space freeze"},
        {"keys": "6"}, {"wait": "out of memory"},
        {"resize": [40, 12]}, {"wait": "TIME"}, {"screen": "small"},
        {"keys": "q"}, {"exit": true}
    ]);
    let seen = replay((80, 24), &steps, &[]);
    assert_eq!(seen["status"], 0);
    assert!(seen["screens"]["small"].as_str().unwrap().lines().count() <= 12);
}

#[test]
fn keys_with_changes_of_size_are_read() {
    let mut steps = vec![json!({"wait": "2 of 5 processes leak"})];
    for (width, (key, title)) in (80..100).zip([("2", "HOLDS"), ("1", "GROWTH/H")].iter().cycle()) {
        steps.extend([json!({"resize": [width, 24], "keys": key}), json!({"wait": title})]);
    }
    steps.extend([json!({"keys": "q"}), json!({"exit": true})]);
    assert_eq!(replay((80, 24), &json!(steps), &[])["status"], 0);
}

#[test]
fn keys_are_answered_at_once() {
    let mut steps = vec![json!({"wait": "2 of 5 processes leak"})];
    steps.extend((0..20).map(|_| json!({"keys": DOWN})));
    let tabs = ["2", "1"].into_iter().cycle().take(20);
    steps.extend(tabs.map(|tab| json!({"keys": tab})));
    steps.extend([json!({"keys": "q"}), json!({"exit": true})]);
    let seen = replay((120, 40), &json!(steps), &[]);
    let times = seen["answers_ms"].as_array().unwrap();
    let mut times: Vec<f64> = times.iter().map(|time| time.as_f64().unwrap()).collect();
    times.sort_by(f64::total_cmp);
    // Other tests keep the machine busy, so not every answer can be fast.
    assert!(times[times.len() / 2] < 50.0, "{times:?}");
}

#[test]
fn terminal_is_restored_after_every_end() {
    for (signal, name) in [(2, "SIGINT"), (15, "SIGTERM"), (1, "SIGHUP")] {
        let steps = json!([{"wait": "GPU 0"}, {"signal": signal}, {"exit": true}]);
        let seen = replay((80, 24), &steps, &[]);
        assert_eq!(seen["status"], 0, "{name}");
        assert_restored(&seen["end"]);
    }
    for keys in ["\x03", "q"] {
        let steps = json!([{"wait": "GPU 0"}, {"keys": keys}, {"exit": true}]);
        assert_restored(&replay((80, 24), &steps, &[])["end"]);
    }
}

#[test]
fn terminal_is_restored_while_stopped() {
    for stop in [json!({"signal": 20}), json!({"keys": "\x1a"})] {
        let steps = json!([
            {"wait": "GPU 0"}, stop, {"stopped": true}, {"wait": "PROGRAM"},
            {"keys": "2"}, {"wait": "LEAKS AT"}, {"keys": "q"}, {"exit": true}
        ]);
        let seen = replay((80, 24), &steps, &[]);
        assert_restored(&seen["stopped"]);
        assert_restored(&seen["end"]);
        assert_eq!(seen["status"], 0);
    }
}

#[test]
fn closed_terminal_ends_the_view() {
    let steps = json!([{"wait": "GPU 0"}, {"close": true}, {"exit": true}]);
    replay((80, 24), &steps, &[]);
}

#[test]
fn panic_restores_the_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let trigger = directory.path().join("now");
    let mut command = python();
    command.env("VRAMSCOPE_FAULT", format!("panic:top-source:{}", trigger.display()));
    let steps = json!([
        {"wait": "GPU 0"}, {"run": format!("touch {}", trigger.display())}, {"exit": true}
    ]);
    let seen = session(&mut command, (80, 24), &steps, &["top", &recording()]);
    assert_restored(&seen["end"]);
    assert_eq!(seen["status"], 2, "{seen}");
    assert!(seen["last"].as_str().unwrap().contains("top-source"), "{seen}");
}

#[test]
fn no_color_and_ascii_are_respected() {
    let steps = json!([
        {"wait": "2 of 5 processes leak"}, {"screen": "ascii"}, {"keys": "q"}, {"exit": true}
    ]);
    let file = recording();
    let arguments = ["top", &file, "--ascii", "--speed", "1000"];
    let seen = session(python().env("NO_COLOR", "1"), (80, 24), &steps, &arguments);
    assert!(seen["screens"]["ascii"].as_str().unwrap().is_ascii(), "{seen}");
    assert_eq!(seen["colors"], json!([]), "{seen}");
    let seen = session(&mut python(), (80, 24), &steps, &["top", &file, "--speed", "1000"]);
    assert_ne!(seen["colors"], json!([]), "{seen}");
}

#[test]
fn once_prints_one_screen_or_json() {
    let text = stdout(&run(&["top", &recording(), "--once"]));
    assert!(text.contains("2 of 5 processes leak") && text.contains("torch_graphs.py"), "{text}");
    assert!(!text.contains('\x1b') && !text.contains("? help"), "{text}");
    let filtered = stdout(&run(&["top", &recording(), "--once", "--filter", "oom"]));
    assert!(filtered.contains("oom.py") && !filtered.contains("torch_graphs.py"), "{filtered}");
    let columns = stdout(&run(&["top", &recording(), "--once", "--columns", "pid,used,peak"]));
    assert!(columns.contains("\n PID  USED  PEAK\n8562 11.4G 10.7G\n"), "{columns}");
    let unknown = run(&["top", &recording(), "--once", "--columns", "pid,vram"]);
    assert!(stderr(&unknown).contains("the columns are host, pid, user"), "{}", stderr(&unknown));
    let json = stdout(&run(&["top", &recording(), "--once", "--json"]));
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["leaking_processes"], 2);
    let refused = run(&["top", "--", "true"]);
    assert!(stderr(&refused).contains("`vramscope run -- CMD` prints reports"));
    let refused = run(&["top", &recording()]);
    assert!(stderr(&refused).contains("--once"), "{}", stderr(&refused));
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn live_probes_show_a_process_and_its_sites() {
    let env = TestEnv::new().sharing().env("SIM_CONTEXT_OVERHEAD", "64M");
    let workload =
        env.workload(&["train", "--steps", "100000", "--step-ms", "10", "--keep-every", "5"]);
    let pid = workload.pid().to_string();
    let steps = json!([
        {"wait": "workload"}, {"wait": &pid}, {"screen": "processes"},
        {"keys": ENTER}, {"wait": "› sites"}, {"wait": "threads.rs"}, {"screen": "sites"},
        {"keys": ENTER}, {"wait": "call stack, innermost first"}, {"screen": "stack"},
        {"keys": ENTER}, {"wait": "0x"}, {"screen": "allocations"},
        {"keys": "q"}, {"exit": true}
    ]);
    let driver = env.driver.to_str().unwrap().to_owned();
    let mut command = env.command(tool("python").get_program());
    let arguments = ["top", "--driver", &driver, "--interval", "200ms"];
    let seen = session(&mut command, (120, 40), &steps, &arguments);
    assert_eq!(seen["status"], 0, "{seen}");
    assert_restored(&seen["end"]);
}

/// A session of `top -- sh -c SCRIPT` as a user without privileges.
fn session_in_process(env: &TestEnv, script: &str, steps: &Value) -> Value {
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(env.dir.path(), open).unwrap();
    let mut command = env.command("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"]);
    command.arg(tool("python").get_program());
    let arguments = ["top", "--interval", "200ms", "--", "sh", "-c", script];
    session(&mut command, (120, 40), steps, &arguments)
}

#[test]
fn command_is_shown_without_root() {
    let env = TestEnv::new();
    let ended = env.dir.path().join("ended");
    // The second half of the command runs after the view was closed.
    let script = format!(
        "echo printed; echo failed >&2; {} train --steps 100000 --step-ms 10 --keep-every 5 &
         until [ -e {} ]; do sleep 0.1; done; kill $!; echo continued; exit 7",
        simulator().join("workload").display(),
        ended.display()
    );
    let steps = json!([
        {"wait": "workload"}, {"wait": "in-process"}, {"screen": "processes"},
        {"keys": ENTER}, {"wait": "› sites"}, {"wait": "threads.rs"},
        {"keys": ENTER}, {"wait": "call stack, innermost first"}, {"keys": "q"},
        {"wait": "continues"}, {"run": format!("touch {}", ended.display())},
        {"exit": true}
    ]);
    let seen = session_in_process(&env, &script, &steps);
    let processes = seen["screens"]["processes"].as_str().unwrap();
    assert!(!processes.contains("printed") && !processes.contains("failed"), "{processes}");
    let last = seen["last"].as_str().unwrap();
    assert!(["printed", "failed", "continued"].iter().all(|text| last.contains(text)), "{last}");
    assert_eq!(seen["status"], 7, "{seen}");
    assert_restored(&seen["end"]);
}

#[test]
fn view_stays_when_its_command_ends() {
    let env = TestEnv::new();
    let script = format!("{} leak3; exit 3", simulator().join("workload").display());
    let steps = json!([
        {"wait": "the command ended (exit status: 3)"}, {"wait": "workload"},
        {"keys": "2"}, {"wait": "LEAKS AT"}, {"keys": "q"}, {"exit": true}
    ]);
    let seen = session_in_process(&env, &script, &steps);
    assert_eq!(seen["status"], 3, "{seen}");
    assert_restored(&seen["end"]);
}

#[test]
fn command_survives_a_killed_view() {
    let env = TestEnv::new();
    let started = env.dir.path().join("started");
    let script = format!(
        // On this terminal, vramscope leads the session: its end is a hangup.
        "trap '' HUP; {} threads --threads 2 --duration 2; echo after > {}",
        simulator().join("workload").display(),
        started.display()
    );
    let steps = json!([{"wait": "workload"}, {"signal": 9}, {"exit": true}]);
    session_in_process(&env, &script, &steps);
    let oracle = until("the oracle", String::new, || env.oracles().into_values().next());
    assert!(oracle["allocations"].as_u64() > Some(100), "{oracle}");
    until("the end of the command", String::new, || started.exists().then_some(()));
}

#[test]
fn agents_are_shown_with_their_sites() {
    let env = TestEnv::new().sharing();
    let agent = Agent::start(&env, &[]);
    let workload = env.hold(0, 5, 1 << 20);
    let pid = workload.pid().to_string();
    until(
        "the process",
        || agent.messages(),
        || {
            let answer = agent.get("/api/v1/processes");
            String::from_utf8_lossy(&answer.body).contains(&pid).then_some(())
        },
    );
    let url = format!("http://{}", agent.address);
    assert!(run(&["mark", "-p", &pid, "epoch before the view"]).status.success());
    until(
        "the mark",
        || agent.messages(),
        || agent.get("/api/v1/snapshot").text().contains("epoch before").then_some(()),
    );
    let steps = json!([
        {"wait": "workload"}, {"wait": "5.00M"},
        {"keys": "6"}, {"wait": "epoch before the view"}, {"keys": "1"}, {"wait": "5.00M"},
        {"run": format!("{VRAMSCOPE} mark -p {pid} 'epoch 8'")},
        {"keys": ENTER}, {"wait": "PLACE"}, {"wait": "┬epoch 8"}, {"wait": "hold"}, {"keys": ENTER}, {"wait": "call stack, innermost first"},
        {"keys": "q"}, {"exit": true}
    ]);
    let seen = session(&mut python(), (120, 40), &steps, &["top", "--agent", &url]);
    assert_eq!(seen["status"], 0, "{seen}");
    // Twice the same agent is two hosts.
    let text = stdout(&run(&["top", "--once", "--agent", &url, "--agent", &agent.address]));
    assert!(text.contains("2 hosts") && text.matches(&pid).count() == 2, "{text}");
    let text = stdout(&run(&["trace", "--agent", &url, "-p", &pid]));
    assert!(text.contains(&format!("workload {pid} (")), "{text}");
    let unknown = run(&["trace", "--agent", &url, "-p", "4000000"]);
    assert_eq!(unknown.status.code(), Some(2), "{}", stderr(&unknown));
    let refused = run(&["top", "--once", "--agent", "127.0.0.1:1"]);
    assert!(stderr(&refused).contains("is `vramscope serve` running there?"));
}

#[test]
fn driver_values_are_shown_without_root() {
    let env = TestEnv::new().sharing().env("SIM_CONTEXT_OVERHEAD", "100M");
    let workload = env.hold(0, 5, 1 << 20);
    let mut command = env.command("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", VRAMSCOPE]);
    let output = command.args(["top", "--once"]).output().unwrap();
    let text = stdout(&output);
    assert!(text.contains("no sites and no leaks"), "{text} {}", stderr(&output));
    assert!(text.contains(&workload.pid().to_string()) && text.contains("105M"), "{text}");
}

#[test]
fn demo_needs_neither_root_nor_a_gpu() {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", VRAMSCOPE, "demo"]);
    let output = command.env_remove("VRAMSCOPE_SIMULATOR").output().unwrap();
    let text = stdout(&output);
    assert!(output.status.success() && text.contains("2 of 5 processes LEAK"), "{text}");
    let steps = json!([
        {"wait": "torch_graphs.py"}, {"wait": "leak"}, {"keys": ENTER}, {"wait": "PLACE"},
        {"keys": "q"}, {"exit": true}
    ]);
    let seen = session(python().env_remove("VRAMSCOPE_SIMULATOR"), (80, 24), &steps, &["demo"]);
    assert_eq!(seen["status"], 0, "{seen}");
}
