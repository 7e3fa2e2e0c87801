//! `explain`: the parts of driver-reported memory, against a simulated NVML with known costs.

use serde_json::Value;

use crate::harness::{TestEnv, Tracer, VRAMSCOPE, Workload, compile, process, simulator};

const MIB: u64 = 1 << 20;

fn env() -> TestEnv {
    TestEnv::new()
        .sharing()
        .env("SIM_CONTEXT_OVERHEAD", "300M")
        .env("SIM_OBJECT_COSTS", "module=8M,stream=2M,graph_exec=60M")
}

fn run(env: &TestEnv, arguments: &[&str]) -> String {
    let output = env.command(VRAMSCOPE).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(env: &TestEnv, arguments: &[&str]) -> Value {
    serde_json::from_str(&run(env, arguments)).unwrap()
}

/// Size of a part, in MiB.
fn part(parts: &Value, name: &str) -> i64 {
    let all = parts.as_array().into_iter().flatten();
    let found: Vec<_> = all.filter(|part| part["part"] == name).collect();
    found.iter().map(|part| part["bytes"].as_i64().unwrap()).sum::<i64>() / MIB as i64
}

/// Fails unless the parts of a process add up to the driver's value.
fn assert_adds_up(process: &Value) {
    let parts = process["parts"].as_array().unwrap();
    let sum: i64 = parts.iter().map(|part| part["bytes"].as_i64().unwrap()).sum();
    assert_eq!(Some(sum), process["driver_bytes"].as_i64(), "{process:#}");
    let by_precision = ["measured", "bounded", "estimated"].map(|precision| {
        let these = parts.iter().filter(|p| p["precision"] == precision && p["part"] != "rest");
        these.map(|part| part["bytes"].as_u64().unwrap()).sum::<u64>()
    });
    let fields = ["measured_bytes", "bounded_bytes", "estimated_bytes"];
    assert_eq!(fields.map(|field| process[field].as_u64().unwrap()), by_precision, "{process:#}");
}

#[test]
fn each_cause_matches_the_driver_and_parts_add_up() {
    let env = env();
    let program = env.dir.path().join("program");
    compile("explain.c", &program, &["-g", env.driver.to_str().unwrap()]);
    let file = env.dir.path().join("run.arrows");
    let [driver, file] = [&env.driver, &file].map(|path| path.to_str().unwrap());
    let mut command = env.command(VRAMSCOPE);
    let options = ["--json", "--interval", "100ms", "--driver", driver, "--record", file];
    let mut tracer = Tracer::start(command.arg("trace").args(options));
    tracer.next();
    let mut workload = Workload::start(&mut env.command(&program));
    let pid = workload.pid();
    workload.wait_ready();
    for (name, mib) in [("context", 300), ("modules", 24), ("streams", 8), ("graph_execs", 120)] {
        workload.go();
        workload.wait_ready();
        let report =
            tracer.wait_for_process(pid, |process| part(&process["untracked_parts"], name) == mib);
        let parts = &process(&report, pid)["untracked_parts"];
        let own = parts.as_array().unwrap().iter().find(|part| part["part"] == name).unwrap();
        assert_eq!(own["precision"], "measured", "{parts}");
        assert_eq!((&own["min_bytes"], &own["max_bytes"]), (&own["bytes"], &own["bytes"]));
        assert_eq!(part(parts, "rest"), 0, "{parts}");
    }
    workload.go();
    workload.wait_ready();
    tracer.wait_for_process(pid, |process| {
        let driver = process["devices"][0]["driver_bytes"].as_u64().unwrap_or(0);
        driver == (300 + 24 + 8 + 120 + 40) * MIB && process["live_bytes"] == 40 * MIB
    });
    workload.go();
    workload.wait_ready();
    let limits = |process: &Value| part(&process["untracked_parts"], "context_limits");
    let report = tracer.wait_for_process(pid, |process| limits(process) == 64);
    let parts = &process(&report, pid)["untracked_parts"];
    let own = parts.as_array().unwrap().iter().find(|part| part["part"] == "context_limits");
    assert_eq!(own.unwrap()["precision"], "measured", "{parts}");
    workload.go();
    workload.wait_ready();
    tracer.wait_for_process(pid, |process| part(&process["untracked_parts"], "graph_execs") == 60);
    workload.go();
    workload.wait_ready();
    tracer.wait_for_process(pid, |process| limits(process) == 0);
    workload.go();
    assert!(workload.finish().0.success());
    tracer.wait_for("its end", |report| {
        report["processes"].as_array().unwrap().iter().any(|one| one["exited"] == true)
    });
    tracer.stop();

    let explained = json(&env, &["explain", file, "--json"]);
    let process = &explained["processes"][0];
    assert_adds_up(process);
    assert_eq!((&process["pid"], &process["exited"]), (&pid.into(), &true.into()));
    assert_eq!(process["driver_bytes"], (300 + 24 + 8 + 120 + 40 + 64) * MIB, "{process:#}");
    let parts = &process["parts"];
    let names = ["library", "context", "modules", "streams", "graph_execs", "context_limits"];
    assert_eq!(names.map(|name| part(parts, name)), [40, 300, 24, 8, 120, 64], "{process:#}");
    let limit = &process["limits"][0];
    let set = ["value", "calls", "bytes", "min_bytes", "max_bytes"];
    let set = set.map(|field| limit[field].as_u64().unwrap());
    assert_eq!(set, [72 * MIB, 1, 64 * MIB, 64 * MIB, 64 * MIB], "{limit}");
    assert_eq!((&limit["limit"], &limit["precision"]), (&"malloc_heap".into(), &"measured".into()));
    assert_eq!(process["limits"].as_array().unwrap().len(), 1, "{process:#}");
    let costs = process["objects"].as_array().unwrap();
    let exec = costs.iter().find(|cost| cost["kind"] == "graph_exec").unwrap();
    assert_eq!((&exec["bytes_each"], &exec["live"]), (&(60 * MIB).into(), &2.into()), "{exec}");
    assert!(exec["location"].as_str().unwrap().contains("main"), "{exec}");
    let module = costs.iter().find(|cost| cost["kind"] == "module").unwrap();
    assert_eq!(module["image_bytes_each"], 4096 + 640, "{module}");
    assert_eq!(
        (&module["bytes_each"], &module["live"]),
        (&(8 * MIB).into(), &3.into()),
        "{module}"
    );
    assert!(exec.get("image_bytes_each").is_none(), "{exec}");
    let text = run(&env, &["explain", file]);
    for words in ["556M reported by the driver", "2 graph executables", "malloc_heap", "+64.0M"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn running_process_is_explained_with_memory_from_before_the_trace() {
    let env = env();
    let workload = env.hold(0, 5, MIB);
    let pid = workload.pid().to_string();
    let explained = json(&env, &["explain", "-p", &pid, "--json"]);
    let process = &explained["processes"][0];
    assert_adds_up(process);
    assert_eq!((&process["exited"], &process["before_trace"]), (&false.into(), &true.into()));
    assert!(part(&process["parts"], "before_trace") >= 305, "{process:#}");
    let text = run(&env, &["explain", "-p", &pid]);
    assert!(text.contains("from before the trace") && text.contains("100.0 %"), "{text}");
}

#[test]
fn command_is_explained_at_its_highest_use() {
    let env = env();
    let workload = crate::harness::simulator().join("workload");
    let workload = workload.to_str().unwrap();
    let command = ["explain", "--json", "--", workload, "--hold-ms", "2500"];
    let steps = ["leak3", "--work-ms", "1", "--wait-ms", "1"];
    let explained = json(&env, &[&command[..], &steps[..]].concat());
    let process = &explained["processes"][0];
    assert_adds_up(process);
    assert_eq!(process["exited"], true);
    assert_eq!(part(&process["parts"], "library"), 8, "{process:#}");
    assert_eq!(part(&process["parts"], "context"), 300, "{process:#}");
    assert_eq!(process["unexplained_bytes"], 0, "{process:#}");
}

#[test]
fn process_that_keeps_a_device_open_is_listed_with_its_parent() {
    let env = env();
    let prefix = env.dir.path().join("nvidia");
    let prefix = prefix.to_str().unwrap().to_owned();
    let device = format!("{prefix}-uvm");
    std::fs::write(&device, "").unwrap();
    // A child that inherited the file of a process that has exited.
    let script = format!("sleep 60 3< {device} > /dev/null 2>&1 & echo $!");
    let mut shell = std::process::Command::new("sh");
    let output = shell.args(["-c", &script]).stdout(std::process::Stdio::piped()).output();
    let pid: u32 = String::from_utf8(output.unwrap().stdout).unwrap().trim().parse().unwrap();
    let listed = env.hold(0, 1, MIB);
    let env = env.env("VRAMSCOPE_TEST_DEVICE_PREFIX", &prefix);
    let doctor = env.command(VRAMSCOPE).arg("doctor").output().unwrap();
    let advice = run(&env, &["advise", "--json", "--duration", "3s"]);
    crate::harness::send_signal(pid, 9);
    let text = String::from_utf8(doctor.stdout).unwrap();
    let line = text.lines().find(|line| line.contains(&format!("process {pid} (sleep)")));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    for words in ["warning", "the driver does not list it", "running for", "parent "] {
        assert!(line.contains(words), "{line}");
    }
    assert!(!text.contains(&format!("process {} ", listed.pid())), "{text}");
    let advice: Value = serde_json::from_str(&advice).unwrap();
    let notes = advice["notes"].as_array().unwrap().iter();
    let found = notes.filter(|note| note.as_str().unwrap().contains(&format!("process {pid} ")));
    assert_eq!(found.count(), 1, "{advice:#}");
}

#[test]
fn command_is_explained_without_root() {
    let env = env();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(env.dir.path(), open).unwrap();
    let mut command = env.command("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"]);
    command.arg(VRAMSCOPE).args(["explain", "--json", "--"]);
    command.arg(simulator().join("workload")).args(["--hold-ms", "2500", "leak3"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let explained: Value = serde_json::from_slice(&output.stdout).unwrap();
    let process = &explained["processes"][0];
    assert_adds_up(process);
    let parts = ["context", "library"].map(|name| part(&process["parts"], name));
    assert!(parts[0] == 300 && (8..=24).contains(&parts[1]), "{process:#}");
}
