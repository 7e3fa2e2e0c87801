//! Incident directories, with real probes on the simulated driver: the holders are compared with
//! the driver's oracle. An agent sees every process, including those of other tests, so only one of
//! these tests runs at a time.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::harness::environment::Disk;
use crate::harness::files::{run, stdout};
use crate::harness::incidents::{Agent, object};
use crate::harness::{self, TestEnv, Workload, send_signal};

const MIB: u64 = 1 << 20;

/// An environment whose devices exist: a first process creates them.
fn shared(memory: &str) -> TestEnv {
    let env = TestEnv::new().sharing();
    let env = env.env("SIM_CONTEXT_OVERHEAD", "100M").env("SIM_MEMORY", memory);
    env.workload(&["leak3", "--work-ms", "1", "--wait-ms", "1"]).finish();
    env
}

/// Returns the bytes of these holders in the incident; other processes on this machine may hold
/// memory as well.
fn holders(incident: &Value, pids: &[u32]) -> BTreeMap<u32, u64> {
    let entry = |holder: &Value| {
        (holder["pid"].as_u64().unwrap() as u32, holder["live_bytes"].as_u64().unwrap())
    };
    let all = incident["holders"].as_array().unwrap().iter().map(entry);
    all.filter(|(pid, _)| pids.contains(pid)).collect()
}

fn sites_of(incident: &Value, pid: u32) -> Vec<(u64, u64)> {
    let all = incident["holders"].as_array().unwrap();
    let holder = all.iter().find(|holder| holder["pid"] == pid).unwrap();
    let entry = |site: &Value| {
        (site["live_bytes"].as_u64().unwrap(), site["live_allocations"].as_u64().unwrap())
    };
    holder["sites"].as_array().unwrap().iter().map(entry).collect()
}

/// Ends processes cleanly, so that the driver writes their oracles.
fn end(workloads: Vec<Workload>) {
    for workload in workloads {
        workload.signal(15);
        workload.finish();
    }
}

#[test]
fn holders_of_a_shared_device_match_the_driver() {
    let env = shared("4G");
    let agent = Agent::start(&env, "");
    let others = vec![
        env.hold(0, 3, 300 * MIB),
        env.hold(0, 2, 200 * MIB),
        env.hold(0, 1, 500 * MIB),
        env.hold(1, 1, 700 * MIB),
    ];
    let start = Instant::now();
    let mut requester =
        env.workload(&["--hold-ms", "0", "oom", "--chunk-mb", "256", "--wait-ms", "60000"]);
    let pid = requester.pid();
    let dir = agent.wait_dir(pid);
    let waited = start.elapsed();
    let incident = agent.wait_page(&dir);
    // All of them still hold the same memory: now the driver reports it.
    let pids: Vec<u32> = others.iter().map(Workload::pid).chain([pid]).collect();
    requester.input.take();
    end(others.into_iter().chain([requester]).collect());
    let on =
        |pid: u32, device: usize| env.oracle(pid)["live_bytes_by_device"][device].as_u64().unwrap();
    let expected: BTreeMap<u32, u64> =
        pids.iter().map(|pid| (*pid, on(*pid, 0))).filter(|(_, bytes)| *bytes > 0).collect();
    assert_eq!(expected.len(), 4);
    assert_eq!(holders(&incident, &pids), expected, "{incident:#}");
    for (pid, bytes) in &expected {
        let sites = sites_of(&incident, *pid);
        assert_eq!(sites.iter().map(|(bytes, _)| bytes).sum::<u64>(), *bytes);
    }
    assert_eq!(incident["requester"]["pid"], pid);
    assert_eq!(incident["requested_bytes"], 256 * MIB);
    assert_eq!(
        (&incident["trigger"], &incident["oom_count"]),
        (&"out_of_memory".into(), &1.into())
    );
    assert_eq!(incident["gpu"]["index"], 0);
    assert_eq!(incident["cause"]["name"], "device_exhausted", "{incident:#}");
    for holder in incident["holders"].as_array().unwrap() {
        let own = pids.iter().any(|pid| holder["pid"] == *pid);
        assert!(!own || holder["before_trace"] == false, "its memory is known exactly: {holder}");
    }
    // `experiments/verify/oom.py` measures the time without other load.
    let delay_ms = incident["written_after_ms"].as_u64().unwrap();
    println!("from the error to the directory: {delay_ms} ms");
    assert!(u128::from(delay_ms) <= waited.as_millis(), "{delay_ms} ms of {waited:?}");
    assert_complete(&dir, pid, &incident);
    agent.stop();
}

/// Asserts that every file exists, is readable by its owner only, and is valid.
fn assert_complete(dir: &Path, pid: u32, incident: &Value) {
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(dir), 0o700);
    let name = dir.file_name().unwrap().to_str().unwrap();
    assert!(name.ends_with(&format!("Z-oom-gpu0-pid{pid}")), "{name}");
    assert_eq!(incident["id"], name);
    assert_eq!(incident["html_report"], "written", "{incident:#}");
    for file in incident["files"].as_array().unwrap() {
        assert_eq!(mode(&dir.join(file.as_str().unwrap())), 0o600);
    }
    let summary = fs::read_to_string(dir.join("summary.txt")).unwrap();
    assert!(summary.lines().count() < 100, "longer than one page: {summary}");
    for words in [
        "out of memory on GPU 0",
        "CAUSE: device_exhausted",
        "HOLDERS",
        "ADVICE",
        "kill -TERM",
        "GROWTH IN THE LAST MINUTES",
    ] {
        assert!(summary.contains(words), "{words} is not in {summary}");
    }
    let frames = incident["site"]["frames"].as_array().unwrap();
    assert!(
        frames.iter().any(|frame| frame["function"].as_str().unwrap().contains("oom")),
        "{incident:#}"
    );
    let snapshot = fs::read_to_string(dir.join("snapshot.json")).unwrap();
    let snapshot: Value = serde_json::from_str(&snapshot).unwrap();
    assert!(snapshot["processes"].as_array().unwrap().len() >= 4);
    let page = fs::read_to_string(dir.join("report.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    let recent = dir.join("recent.arrows");
    let output = run(&["replay", recent.to_str().unwrap(), "--format", "json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let requester = harness::process(&report, pid);
    assert_eq!(requester["live_bytes"], holders(incident, &[pid])[&pid]);
    assert_eq!(requester["failed_allocations"], 1);
    let advice = stdout(&run(&["advise", dir.to_str().unwrap()]));
    assert!(advice.contains("stop process") && advice.contains("state at"), "{advice}");
}

/// Calls the driver from Python, after creating a context.
const CALLS: &str = r#"
import ctypes, sys, time
cu = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cu.cuInit(0) == 0
assert cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cu.cuCtxSetCurrent(context) == 0
MIB = 1 << 20
def allocate(mib):
    return cu.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib * MIB))
def reserve(mib):
    size = ctypes.c_size_t(mib * MIB)
    return cu.cuMemAddressReserve(ctypes.byref(pointer), size, ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0))
def pinned(mib):
    return cu.cuMemHostAlloc(ctypes.byref(pointer), ctypes.c_size_t(mib * MIB), 0)
def free():
    return cu.cuMemFree_v2(pointer)
"#;

fn python(env: &TestEnv, calls: &str) -> Workload {
    let mut command = env.command("python3");
    Workload::start(command.arg("-c").arg(format!("{CALLS}\n{calls}")))
}

#[test]
fn causes_are_distinguished() {
    for (fails, calls, cause) in [
        // The device has plenty of free memory and returns an error.
        ("cuMemAlloc_v2:2=2", "allocate(10); assert allocate(20) == 2", "quota"),
        ("", "assert allocate(9000) == 2", "request_exceeds_device"),
        ("", "while allocate(512) == 0: pass", "device_exhausted"),
        ("cuMemHostAlloc:1=2", "assert pinned(10) == 2", "host_memory_exhausted"),
        ("cuMemAddressReserve:1=2", "assert reserve(10) == 2", "address_space_exhausted"),
    ] {
        let mut env = shared("8G");
        let agent = Agent::start(&env, "[incidents]\nhtml_report = false\n");
        let other = env.hold(0, 1, 300 * MIB);
        if !fails.is_empty() {
            env = env.env("SIM_INJECT_FAILURES", fails);
        }
        let workload = python(&env, &format!("{calls}\ntime.sleep(60)"));
        let incident = object(&agent.wait_dir(workload.pid()));
        assert_eq!(incident["cause"]["name"], cause, "{calls}: {incident:#}");
        assert_eq!(incident["requester"]["pid"], workload.pid());
        // No other process is stopped if the device is not the cause.
        let full = cause == "device_exhausted";
        let steps = incident["advice"][0]["steps"].as_array().unwrap();
        assert_eq!(steps.iter().any(|step| step["pid"] == other.pid()), full, "{incident:#}");
        assert!(steps.iter().any(|step| step["action"] == "reduce_memory_use"), "{incident:#}");
        let title = incident["title"].as_str().unwrap();
        assert_eq!(title.starts_with("out of memory on GPU 0: "), full, "{title}");
        drop((workload, other));
        agent.stop();
    }
}

#[test]
fn incident_of_short_lived_process_is_written() {
    let env = shared("1G");
    let agent = Agent::start(&env, "[incidents]\nhtml_report = false\n");
    let workload = python(&env, "allocate(600); allocate(600)");
    let pid = workload.pid();
    workload.finish();
    let incident = object(&agent.wait_dir(pid));
    assert_eq!(holders(&incident, &[pid]), [(pid, 600 * MIB)].into());
    agent.stop();
}

#[test]
fn preexisting_holders_are_listed_by_driver_usage() {
    let env = shared("4G");
    let before = env.hold(0, 1, 3000 * MIB);
    let agent = Agent::start(&env, "[incidents]\nhtml_report = false\n");
    // The driver is queried every second; before that, a preexisting process is unknown.
    let untracked = |process: &Value| process["untracked_bytes"].as_u64();
    agent.agent.process(before.pid(), |process| untracked(process) == Some(3100 * MIB));
    let workload = python(&env, "allocate(1000); time.sleep(60)");
    let dir = agent.wait_dir(workload.pid());
    let incident = object(&dir);
    let first = &incident["holders"][0];
    assert_eq!((&first["pid"], &first["before_trace"]), (&before.pid().into(), &true.into()));
    assert_eq!((&first["live_bytes"], &first["driver_bytes"]), (&0.into(), &(3100 * MIB).into()));
    let summary = fs::read_to_string(dir.join("summary.txt")).unwrap();
    for words in [
        format!("most of it was held by process {} (workload): 3.03 GiB untracked", before.pid()),
        format!("process {} (workload): 3.03 GiB reported by the driver, not traced", before.pid()),
    ] {
        assert!(summary.contains(&words), "{words} is not in {summary}");
    }
    drop((workload, before));
    agent.stop();
}

#[test]
fn failures_at_the_same_time_are_one_incident() {
    let env = shared("1G");
    let settings = "[incidents]\nhtml_report = false\ngroup_window = \"1s\"\ncooldown = \"1h\"\n";
    let agent = Agent::start(&env, settings);
    let calls = "while True:\n allocate(600)\n allocate(600)\n free()\n time.sleep(0.01)";
    let workload = python(&env, calls);
    let dir = agent.wait_dir(workload.pid());
    let own = format!("pid{}", workload.pid());
    agent.wait("the count", || object(&dir)["oom_count"].as_u64().unwrap() > 1);
    agent.wait("the message", || agent.agent.messages().contains("suppressed (last: pid"));
    drop(workload);
    assert_eq!(agent.named(&own).len(), 1);
    let incident = object(&dir);
    assert_eq!(incident["recovered"], true, "a request of the same size succeeded later");
    let count_line = format!("Failed {} times", incident["oom_count"]);
    let summary = fs::read_to_string(dir.join("summary.txt")).unwrap();
    assert!(summary.contains(&count_line) && summary.contains("(recovered)"), "{summary}");
    agent.stop();
}

#[test]
fn threshold_and_manual_incidents_are_written_once() {
    let env = shared("1G");
    let settings = "[incidents]\ngpu_used_above = 0.5\nprocess_live_above = \"500M\"\n";
    let agent = Agent::start(&env, settings);
    let holder = env.hold(0, 1, 600 * MIB);
    let pid = holder.pid();
    let by_process = object(&agent.wait_dir(pid));
    assert_eq!(
        (&by_process["trigger"], &by_process["requester"]["pid"]),
        (&"threshold".into(), &pid.into())
    );
    let of_gpu = |path: &PathBuf| path.to_str().unwrap().ends_with("-threshold-gpu0");
    agent.wait("the limit of the GPU", || agent.dirs().iter().any(of_gpu));
    let of_gpu = object(&agent.dirs().into_iter().find(of_gpu).unwrap());
    assert!(of_gpu["threshold"].as_str().unwrap().contains("threshold 0.5"), "{of_gpu:#}");
    let by_process = agent.named(&format!("pid{pid}")).remove(0).join("summary.txt");
    let summary = fs::read_to_string(by_process).unwrap();
    assert!(summary.contains("snapshot.json is from the same moment"), "{summary}");
    assert!(summary.contains("free at that time (estimated)"), "{summary}");
    assert_eq!(holders(&of_gpu, &[pid]), [(pid, 600 * MIB)].into());
    send_signal(agent.agent.pid(), 10);
    let manual = object(&agent.wait_named("manual", 1)[0]);
    assert_eq!(manual["trigger"], "manual");
    assert_eq!(holders(&manual, &[pid]), [(pid, 600 * MIB)].into());
    assert_eq!(agent.named(&format!("pid{pid}")).len(), 1, "crossed once");
    agent.stop();
}

#[test]
fn oldest_incidents_are_removed_and_restart_keeps_the_rest() {
    let env = shared("1G");
    let settings = "[incidents]\nretention_count = 2\nhtml_report = false\n";
    let agent = Agent::start(&env, settings);
    for count in 1..=2 {
        send_signal(agent.agent.pid(), 10);
        agent.wait_named("manual", count);
    }
    let old = agent.dirs();
    drop(agent);
    fs::create_dir(env.dir.path().join("state/incidents/.2020-half.part")).unwrap();
    let agent = Agent::start(&env, settings);
    assert_eq!(agent.dirs(), old, "a restart keeps them");
    assert!(!agent.state.join("incidents/.2020-half.part").exists());
    send_signal(agent.agent.pid(), 10);
    agent.wait("the removal of the oldest", || {
        agent.dirs().len() == 2 && !agent.dirs().contains(&old[0])
    });
    assert!(agent.dirs().contains(&old[1]));
    agent.stop();
}

#[test]
fn full_disk_is_reported_and_leaves_no_partial_incident() {
    let env = shared("1G");
    let tiny = Disk::new(env.dir.path().join("tiny"));
    fs::create_dir(tiny.0.join("incidents")).unwrap();
    // Fills the disk.
    let filler = Command::new("dd")
        .args(["if=/dev/zero", "bs=4k", "status=none"])
        .arg(format!("of={}", tiny.0.join("filler").display()))
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(!filler.success(), "the disk is not full");
    let settings = "[incidents]\nhtml_report = false\ncooldown = \"0s\"\ngroup_window = \"0s\"\n";
    let agent = Agent::start_in(&env, tiny.0.clone(), settings);
    let workload = env.workload(&["oom", "--chunk-mb", "300", "--wait-ms", "200"]);
    agent.wait("the message", || agent.agent.messages().contains("cannot write the incident"));
    workload.finish();
    let messages = agent.agent.messages();
    assert!(
        messages.contains("No space left") && messages.contains("free some space"),
        "{messages}"
    );
    // Incidents that could not be written are in the API, without directories.
    let listed = agent.agent.api("incidents");
    let text = listed["incidents"][0]["summary_text"].as_str().unwrap();
    assert!(text.contains("CAUSE: ") && text.contains("workload"), "{text}");
    assert!(!text.contains("/sim/"), "{text}");
    assert_eq!(fs::read_dir(tiny.0.join("incidents")).unwrap().count(), 0, "partial files");
    // With free space the next one is written.
    fs::remove_file(tiny.0.join("filler")).unwrap();
    let workload = env.workload(&["oom", "--chunk-mb", "300", "--wait-ms", "200"]);
    agent.wait_dir(workload.pid());
    workload.finish();
    agent.stop();
}

#[test]
fn simultaneous_failures_have_one_incident_each() {
    let env = shared("4G");
    let agent = Agent::start(&env, "[incidents]\nhtml_report = false\n");
    let mut workloads: Vec<Workload> = (0..16)
        .map(|_| env.workload(&["--wait-start", "oom", "--chunk-mb", "700", "--wait-ms", "1"]))
        .collect();
    for workload in &mut workloads {
        workload.wait_ready();
    }
    workloads.iter_mut().for_each(Workload::go);
    let pids: Vec<u32> = workloads.iter().map(Workload::pid).collect();
    for pid in pids {
        agent.wait_dir(pid);
    }
    workloads.into_iter().for_each(|workload| drop(workload.finish()));
    agent.stop();
}

#[test]
fn oversized_requests_do_not_displace_real_incidents() {
    let env = shared("2G");
    let settings = "[incidents]\nhtml_report = false\nretention_count = 2\nmax_per_hour = 2\ncooldown = \"0s\"\n\
                    group_window = \"0s\"\n";
    let agent = Agent::start(&env, settings);
    let first = python(&env, "allocate(1500); allocate(1000); time.sleep(120)");
    agent.wait_dir(first.pid());
    // Requests for 64 TiB, from one process after the other and many times from one.
    for times in [1, 1, 1, 1, 1, 200] {
        let calls = format!("for _ in range({times}): assert allocate(64 << 20) == 2");
        assert!(python(&env, &calls).finish().0.success());
    }
    let second = python(&env, "while allocate(64) == 0: pass\ntime.sleep(120)");
    agent.wait_dir(second.pid());
    // Both real ones exist, and some of the others.
    let all = agent.dirs();
    let cause = |dir: &PathBuf| object(dir)["cause"]["name"].as_str().unwrap().to_owned();
    let oversized = all.iter().filter(|one| cause(one) == "request_exceeds_device").count();
    assert_eq!(all.len() - oversized, 2, "{all:?}");
    assert!((1..=3).contains(&oversized), "{all:?}");
    assert_eq!(agent.named(&format!("pid{}", first.pid())).len(), 1, "{all:?}");
    drop((first, second));
    agent.stop();
}
