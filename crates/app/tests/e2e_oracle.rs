//! The last report matches the driver's oracle, for every workload, with probes and in-process,
//! every attach mode and both builds of the driver.

use crate::harness::{self, TestEnv, simulator, trace_both};

#[test]
fn three_allocations_and_two_frees_match_the_driver() {
    let workload = ["leak3", "--work-ms", "700", "--wait-ms", "700"];
    for (_, traced) in trace_both(TestEnv::new, &[], &workload) {
        let totals: Vec<u64> =
            traced.reports.iter().map(|report| report["live_bytes"].as_u64().unwrap()).collect();
        let mib = |n: u64| n << 20;
        assert!(totals.contains(&mib(24)), "all three were seen live: {totals:?}");
        assert_eq!(totals.last(), Some(&0), "nothing is live after the exit");
        assert_eq!(traced.last()["not_freed_bytes"], mib(8));
    }
}

#[test]
fn training_on_two_threads_matches_the_driver() {
    trace_both(TestEnv::new, &[], &["train", "--steps", "150", "--step-ms", "2"]);
}

#[test]
fn four_processes_match_the_driver() {
    let workload = ["stressor", "--duration", "3", "--sleep-ms", "5"];
    for (env, _) in trace_both(TestEnv::new, &[], &workload) {
        assert_eq!(env.oracles().len(), 4);
    }
}

#[test]
fn cross_thread_frees_match_the_driver() {
    trace_both(TestEnv::new, &[], &["threads", "--threads", "5", "--duration", "3"]);
}

#[test]
fn anomaly_is_listed_with_its_thread() {
    for (env, traced) in trace_both(TestEnv::new, &[], &["anomaly", "--iter-ms", "50"]) {
        let pid = *env.oracles().keys().next().unwrap();
        let processes =
            traced.reports.iter().flat_map(|report| report["processes"].as_array().unwrap());
        let ours = processes.filter(|process| process["pid"] == pid).flat_map(harness::live);
        let mut huge = ours.filter(|(_, bytes, ..)| *bytes == 2096 << 20);
        let Some((_, _, device, kind, thread)) = huge.next() else {
            panic!("the allocation of 2096 MiB is not shown")
        };
        assert_eq!((device, kind.as_str()), (Some(0), "device"));
        assert_ne!(thread, u64::from(pid), "it is made by one of the other threads");
    }
}

#[test]
fn paced_calls_match_the_driver() {
    let workload = ["spam", "--throughput", "4000", "--duration", "2"];
    trace_both(TestEnv::new, &[], &workload);
}

#[test]
fn unpaced_calls_under_probes_match_the_driver() {
    let env = TestEnv::new();
    let workload = ["spam", "--throughput", "max", "--duration", "2"];
    env.trace(&[], &workload).assert_matches_oracle(&env);
}

#[test]
fn leaks_of_a_fast_program_match_the_driver() {
    let workload = ["spam", "--throughput", "max", "--free-ratio", "0.5", "--count", "60000"];
    trace_both(TestEnv::new, &["--top", "1000000", "--ring-size", "64M"], &workload);
}

#[test]
fn contexts_and_devices_match_the_driver() {
    trace_both(TestEnv::new, &[], &["contexts"]);
}

#[test]
fn every_memory_kind_matches_the_driver() {
    trace_both(TestEnv::new, &[], &["kinds"]);
}

#[test]
fn forked_child_has_its_own_ledger() {
    for (env, _) in trace_both(TestEnv::new, &[], &["fork"]) {
        assert_eq!(env.oracles().len(), 2);
    }
}

#[test]
fn exec_starts_a_new_ledger() {
    for (_, traced) in trace_both(TestEnv::new, &[], &["exec"]) {
        let processes = traced.last()["processes"].as_array().unwrap();
        let ends: Vec<_> = processes.iter().map(|process| process["end_reason"].as_str()).collect();
        assert_eq!(ends, [Some("exit"), Some("exec")]);
    }
}

#[test]
fn out_of_memory_is_reported() {
    let env = || TestEnv::new().env("SIM_MEMORY", "2G");
    for (_, traced) in trace_both(env, &[], &["oom", "--chunk-mb", "300"]) {
        let ooms: Vec<_> = traced
            .reports
            .iter()
            .flat_map(|report| report["out_of_memory"].as_array().cloned().unwrap_or_default())
            .collect();
        assert_eq!(ooms.len(), 1);
        assert_eq!(ooms[0]["requested_bytes"], 300 << 20);
        assert_eq!(ooms[0]["holders"][0]["live_bytes"], 1800 << 20);
    }
}

#[test]
fn failed_calls_change_nothing() {
    // The program continues after every failure, so that there are many.
    let failing = "cuMemAlloc_v2:every7=2,cuMemFree_v2:every5=1,cuMemCreate:every3=2";
    let env = || TestEnv::new().env("SIM_INJECT_FAILURES", failing);
    let workload = ["random", "--ops", "3000", "--threads", "2"];
    for (env, _) in trace_both(env, &["--top", "1000000"], &workload) {
        let (_, oracle) = env.oracles().into_iter().next().unwrap();
        assert!(oracle["failed_allocations"].as_u64() > Some(20), "{oracle}");
    }
}

#[test]
fn older_driver_build_matches() {
    let env = || TestEnv::with_copy_of(&simulator().join("cmpl"));
    for (_, traced) in trace_both(env, &[], &["threads", "--threads", "4", "--duration", "2"]) {
        assert!(!traced.messages.contains("not traced"), "{}", traced.messages);
    }
}

#[test]
fn every_attach_mode_matches_the_driver() {
    for attach_mode in ["session", "multi", "single"] {
        let env = TestEnv::new();
        let workload = ["threads", "--threads", "4", "--duration", "1"];
        env.trace(&["--attach-mode", attach_mode], &workload).assert_matches_oracle(&env);
    }
}

#[test]
fn many_live_allocations_match_the_driver() {
    let workload = ["hold", "--count", "50000", "--size", "4096", "--distinct", "--wait-ms", "300"];
    trace_both(TestEnv::new, &["--top", "1000000", "--ring-size", "64M"], &workload);
}
