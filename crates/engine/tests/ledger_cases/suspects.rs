//! Verdicts on sites, and anomalies.

use engine::model::blocks::Allocator;
use std::fmt::Write as _;

use engine::verdict::{AnomalyKind, Confidence, Resource, Verdict};
use engine::view::{Leak, LeakResource, View};

use super::*;

const SECOND: u64 = 1_000_000_000;

/// A process that keeps 1 MiB every 0.1 s at site 3, and allocates and frees 4 MiB at site 4.
fn leaking(pid: u32, seconds: u64, kind: &str) -> String {
    let mut trace = format!("{pid} process 1 name=train\n {pid}.9 name loader @1\n");
    for step in 0..seconds * 10 {
        let at = step * SECOND / 10 + 10;
        let address = 0x100_0000 + step * 16;
        writeln!(trace, "{pid}.9 alloc {address:#x} 1M {kind} gpu0 site3 @{at}").unwrap();
        writeln!(trace, "{pid}.9 alloc 0x10 4M device gpu0 site4 @{}", at + 20).unwrap();
        writeln!(trace, "{pid}.9 free 0x10 @{0}-{0}", at + SECOND / 20).unwrap();
    }
    trace
}

fn report(trace: &str, seconds: u64) -> Snapshot {
    snapshot_at(
        trace,
        seconds * SECOND,
        &SnapshotOptions { ended_sites: true, ..SnapshotOptions::default() },
    )
}

#[test]
fn only_the_leaking_site_is_a_suspect() {
    let trace = leaking(7, 60, "device") + "0 frames site3 keep main\n 0 frames site4 step main";
    let snapshot = report(&trace, 60);
    let [suspect] = &snapshot.suspects[..] else { panic!("{:?}", snapshot.suspects) };
    assert_eq!(&*suspect.frames[0].function, "keep");
    assert_eq!((suspect.pid, &*suspect.process), (Some(Pid(7)), "train"));
    assert_eq!(suspect.resource, Resource::Memory(MemoryKind::Device));
    assert_eq!(suspect.device, Some(DeviceId(0)));
    assert_eq!(suspect.thread.as_ref().map(|(tid, name)| (tid.0, &**name)), Some((9, "loader")));
    assert!(suspect.confidence >= Confidence::Likely);
    // 10 MiB per second.
    let gib = suspect.evidence.growth_per_hour >> 30;
    assert!((34..=36).contains(&gib), "{gib}");
    assert_eq!(suspect.evidence.live, 600 * MIB);
    let [other] = &snapshot.other_verdicts[..] else { panic!("{:?}", snapshot.other_verdicts) };
    assert_eq!((other.verdict, &*other.frames[0].function), (Verdict::Periodic, "step"));
}

#[test]
fn time_until_full_needs_free_memory() {
    let trace = leaking(7, 60, "device");
    assert_eq!(report(&trace, 60).suspects[0].evidence.time_until_full, None);
    let known = "7 gpus GPU3 @500\n 0 gpu_free GPU3 9G @510\n 0 gpu_free GPU1 1M @520\n";
    let snapshot = report(&(trace + known), 60);
    assert_eq!(snapshot.processes.len(), 1);
    // 9216 MiB at 10 MiB per second.
    let seconds = snapshot.suspects[0].evidence.time_until_full.unwrap().0 / SECOND;
    assert!((900..=950).contains(&seconds), "{seconds}");
}

#[test]
fn suspect_is_reported_while_running_but_not_at_start_up() {
    let trace = leaking(7, 60, "device");
    let mut ledger = engine::ledger::Ledger::new();
    let mut events = events(&trace).into_iter().peekable();
    let mut leaks_at = |seconds: u64| {
        while let Some(event) = events.next_if(|event| event.time.0 < seconds * SECOND) {
            ledger.apply(&event);
        }
        !ledger
            .snapshot(Timestamp(seconds * SECOND), &SnapshotOptions::default())
            .suspects
            .is_empty()
    };
    assert_eq!([2, 11, 29, 33, 40, 60].map(&mut leaks_at), [false, false, false, true, true, true]);
}

#[test]
fn verdict_does_not_depend_on_earlier_snapshots() {
    let huge = with_a_huge_one("").replace("7 process", "8 process").replace("7.8", "8.8");
    let trace = huge + &leaking(7, 40, "device");
    let last = |often: bool| {
        let mut ledger = engine::ledger::Ledger::new();
        for (number, event) in events(&trace).iter().enumerate() {
            ledger.apply(event);
            if often && number % 7 == 0 {
                ledger.snapshot(event.time, &SnapshotOptions::default());
            }
        }
        let options = SnapshotOptions { ended_sites: true, ..SnapshotOptions::default() };
        let snapshot = ledger.snapshot(Timestamp(40 * SECOND), &options);
        (snapshot.suspects, snapshot.other_verdicts, snapshot.anomalies)
    };
    let (suspects, verdicts, anomalies) = last(false);
    assert_eq!((suspects.len(), verdicts.len(), anomalies.len()), (1, 3, 1));
    assert_eq!(last(true), (suspects, verdicts, anomalies));
}

#[test]
fn ids_with_equal_frames_are_classified_as_one_site() {
    // Each of the two ids leaks too little to be judged alone.
    let mut trace = "7 process 1\n".to_owned();
    for step in 0..18_u64 {
        let (at, site) = (step * 2 * SECOND + 10, 3 + step % 2);
        writeln!(trace, "7 alloc {:#x} 1M device site{site} @{at}", 0x100 + step).unwrap();
    }
    assert!(report(&trace, 36).suspects.is_empty());
    trace += "0 frames site3 keep main\n 0 frames site4 keep main";
    assert_eq!(report(&trace, 36).suspects.len(), 1);
}

#[test]
fn leaks_of_one_function_are_one_leak() {
    let mut trace = leaking(7, 60, "device");
    for step in 0..600_u64 {
        let at = step * SECOND / 10 + 30;
        let address = 0x900_0000 + step * 16;
        writeln!(trace, "7.9 alloc {address:#x} 2M pinned site5 @{at}").unwrap();
        writeln!(trace, "7.9 alloc {:#x} 1M pinned site6 @{at}", address + 8).unwrap();
    }
    trace += "0 frames site3 cuMemAlloc_v2 keep main\n 0 frames site4 step main\n";
    trace += "0 frames site5 cuMemHostAlloc keep main\n 0 frames site6 cuMemHostAlloc load main\n";
    let snapshot = report(&trace, 60);
    assert_eq!(snapshot.suspects_total, 3);
    let view = View::of(&snapshot, &[]);
    let [one, two] = &view.leaks[..] else { panic!("{:?}", view.leaks) };
    let function = |one: &Leak<'_>| one.stack.responsible().map(|frame| frame.function.to_string());
    assert_eq!([one, two].map(function), [Some("keep".into()), Some("load".into())]);
    let also: Vec<_> = one.also.iter().map(|part| part.resource).collect();
    assert_eq!((one.resource, also), (LeakResource::Device, vec![LeakResource::Host]));
    assert!(two.also.is_empty());
    assert_eq!(one.sites.len(), 2);
}

#[test]
fn memory_freed_at_exit_is_a_suspect_if_it_grew() {
    let mut trace = leaking(7, 12, "device");
    for step in 0..120_u64 {
        let (address, at) = (0x100_0000 + step * 16, 12 * SECOND + step * 1000);
        writeln!(trace, "7.9 free {address:#x} @{at}-{at}").unwrap();
    }
    let exit = 12 * SECOND + SECOND / 10;
    assert!(report(&trace, 13).suspects.is_empty());
    let snapshot = report(&(trace + &format!("7 exit @{exit}\n")), 13);
    let [suspect] = &snapshot.suspects[..] else { panic!("{:?}", snapshot.suspects) };
    assert_eq!(suspect.evidence.freed_at_end, 120 * MIB);
    assert_eq!((suspect.evidence.live, suspect.evidence.freed), (120 * MIB, 0));
    assert_eq!(snapshot.processes[0].live_bytes.0, 0);
}

#[test]
fn host_memory_is_classified_and_imported_memory_is_not() {
    assert_eq!(report(&leaking(7, 40, "pinned"), 40).suspects.len(), 1);
    for kind in ["imported", "static", "unknown"] {
        assert!(report(&leaking(7, 40, kind), 40).suspects.is_empty(), "{kind}");
    }
}

#[test]
fn suspect_of_an_exited_process_is_in_the_last_report() {
    let trace = leaking(7, 8, "device") + &format!("7 exit @{}\n", 8 * SECOND);
    // Long after, and after a report without the process, which had exited.
    let mut ledger = ledger(&trace);
    assert!(
        ledger.snapshot(Timestamp(100 * SECOND), &SnapshotOptions::default()).suspects.is_empty()
    );
    let last = SnapshotOptions { ended_sites: true, ..SnapshotOptions::default() };
    let snapshot = ledger.snapshot(Timestamp(200 * SECOND), &last);
    let [suspect] = &snapshot.suspects[..] else { panic!("{:?}", snapshot.suspects) };
    assert_eq!(suspect.evidence.observed.0 / SECOND, 7);
    // Without an exit it could still be starting up.
    assert!(report(&leaking(7, 8, "device"), 8).suspects.is_empty());
}

/// A process whose cache allocates 1 MiB every 0.1 s at site 3. `tensor(step)` returns the site of
/// one tensor per step, and the MiB in all tensors after it.
fn with_tensors(seconds: u64, tensor: impl Fn(u64) -> (u64, u64)) -> Snapshot {
    let mut trace = leaking(7, seconds, "device");
    for step in 0..seconds * 10 {
        let (at, (site, allocated)) = (step * SECOND / 10 + 15, tensor(step));
        let address = 0x100_0000 + step * 16;
        let reserved = step + 1;
        let line = format!("{address:#x} 1M gpu0 site{site} of {allocated}M {reserved}M @{at}");
        writeln!(trace, "7.9 tensor {line}").unwrap();
    }
    trace += "0 frames site3 libc10_cuda.so:malloc forward main\n 0 frames site4 step main\n";
    trace += "0 frames site5 keep main\n";
    report(&trace, seconds)
}

/// Returns the verdict on the memory of the cache, with its evidence.
fn cache(snapshot: &Snapshot) -> Option<&engine::verdict::SiteVerdict> {
    let all = || snapshot.suspects.iter().chain(&snapshot.other_verdicts);
    let is_cache = |one: &&engine::verdict::SiteVerdict| &*one.frames[0].function == "malloc";
    all().filter(|one| !one.frames.is_empty()).find(is_cache)
}

#[test]
fn cache_that_grows_with_leaking_tensors_is_not_a_suspect() {
    let snapshot = with_tensors(40, |step| (5, step + 1));
    let [suspect] = &snapshot.suspects[..] else { panic!("{:?}", snapshot.suspects) };
    assert_eq!(
        (suspect.resource, &*suspect.frames[0].function),
        (Resource::Blocks(Allocator::PyTorch), "keep")
    );
    // Its growth is listed with the tensors.
    assert_eq!(cache(&snapshot), None);
}

#[test]
fn cache_of_small_bounded_tensors_is_a_leak() {
    let verdict = |allocated| {
        // Tensors of many sites, none of which leaks.
        let snapshot = with_tensors(40, |step| (100 + step, allocated));
        let cache = cache(&snapshot).unwrap();
        let tensors = cache.evidence.tensors.unwrap();
        assert!(tensors.bounded && !tensors.explain_growth(), "{tensors:?}");
        assert_eq!(cache.verdict == Verdict::Leak, snapshot.suspects.len() == 1);
        cache.verdict
    };
    assert_eq!(verdict(267), Verdict::Cache);
    assert_eq!(verdict(266), Verdict::Leak);
}

#[test]
fn cache_that_grows_with_tensors_of_many_sites_is_a_suspect() {
    let snapshot = with_tensors(40, |step| (100 + step, step + 1));
    let [suspect] = &snapshot.suspects[..] else { panic!("{:?}", snapshot.suspects) };
    assert_eq!(
        (suspect.verdict, suspect.resource),
        (Verdict::Leak, Resource::Memory(MemoryKind::Device))
    );
    assert!(!suspect.evidence.tensors.unwrap().bounded);
}

#[test]
fn cache_without_known_tensors_is_classified_like_other_memory() {
    let trace = leaking(7, 40, "device") + "0 frames site3 libc10_cuda.so:malloc main\n";
    let snapshot = report(&trace, 40);
    assert_eq!((snapshot.suspects.len(), cache(&snapshot).unwrap().evidence.tensors), (1, None));
}

fn with_a_huge_one(rest: &str) -> String {
    let mut trace = "7 process 1 name=train\n7.8 name worker-1 @5\n".to_owned();
    for step in 0..40_u64 {
        let (at, address) = (step * 1000 + 10, 0x100 + step % 4);
        writeln!(trace, "7.8 alloc {address:#x} 10M device gpu0 site3 @{at}").unwrap();
        writeln!(trace, "7.8 free {address:#x} @{0}-{0}", at + 10).unwrap();
        if step == 20 {
            writeln!(trace, "7.8 alloc 0x900 2096M device gpu0 site4 @{}", at + 20).unwrap();
        }
    }
    trace + rest
}

#[test]
fn huge_allocation_is_an_anomaly_and_marked_while_live() {
    let mut ledger = ledger(&with_a_huge_one("0 frames site4 huge main"));
    let snapshot = ledger.snapshot(Timestamp(SECOND), &SnapshotOptions::default());
    let [one] = &snapshot.anomalies[..] else { panic!("{:?}", snapshot.anomalies) };
    assert_eq!((one.pid, one.tid.unwrap().0, &*one.thread), (Pid(7), 8, "worker-1"));
    assert_eq!((&*one.frames[0].function, one.device), ("huge", Some(DeviceId(0))));
    let AnomalyKind::Size { key, bytes, baseline, of, of_site, live } = one.details else {
        panic!()
    };
    assert_eq!((key.value, bytes.0, of, of_site, live), (0x900, 2096 * MIB, 21, false, true));
    assert!((10..16).contains(&(baseline.0 / MIB)), "{baseline}");
    let listed = &only(&snapshot).threads[0].allocations;
    let marks: Vec<_> = listed.iter().map(|one| (one.key.value, one.baseline)).collect();
    assert_eq!(marks, [(0x900, Some(baseline))]);
    // The next snapshot has nothing new; the last one lists all anomalies.
    assert!(ledger.snapshot(Timestamp(SECOND), &SnapshotOptions::default()).anomalies.is_empty());
    let last = SnapshotOptions { ended_sites: true, ..SnapshotOptions::default() };
    assert_eq!(ledger.snapshot(Timestamp(SECOND), &last).anomalies.len(), 1);
}

#[test]
fn anomaly_is_reported_after_its_free_and_after_exit() {
    let trace = with_a_huge_one("7 free 0x900 @50000-50000\n 7 exit @60000");
    let mut ledger = ledger(&trace);
    let first = ledger.snapshot(Timestamp(SECOND), &SnapshotOptions::default());
    let is_live = |snapshot: &Snapshot| match snapshot.anomalies[0].details {
        AnomalyKind::Size { live, .. } => live,
        AnomalyKind::Growth { .. } => panic!(),
    };
    assert!(!is_live(&first));
    let last = ledger.snapshot(
        Timestamp(SECOND),
        &SnapshotOptions { ended_sites: true, ..SnapshotOptions::default() },
    );
    assert_eq!((last.anomalies.len(), is_live(&last)), (1, false));
}

#[test]
fn sudden_growth_is_reported_once() {
    let mut trace = "7 process 1\n".to_owned();
    let mut address = 0x100;
    let mut alloc = |at: u64, count: u64| {
        for number in 0..count {
            address += 16;
            writeln!(trace, "7 alloc {address:#x} 2M device site3 @{}", at + number).unwrap();
        }
    };
    // Two per second, and 400 in one of the seconds.
    for second in 0..60_u64 {
        alloc((second << 30) + 50, if second == 45 { 400 } else { 2 });
    }
    let snapshot = report(&trace, 100);
    let [one] = &snapshot.anomalies[..] else { panic!("{:?}", snapshot.anomalies) };
    let AnomalyKind::Growth { bytes, within, .. } = one.details else { panic!("{one:?}") };
    assert_eq!((bytes.0 / MIB, within.0, one.at.0), (800, 1 << 30, 46 << 30));
}

#[test]
fn communicators_are_named_before_during_and_after_their_end() {
    let mut trace = "7 process 1 name=train\n 7.9 name main @1\n".to_owned();
    for step in 0..150 {
        let at = step * SECOND * 2 / 5 + 10;
        writeln!(trace, "7.9 alloc {:#x} 24M device gpu0 site3 @{at}", 0x100 + step * 16).unwrap();
        writeln!(trace, "7.9 alloc {:#x} 2M pinned site4 @{at}", 0x108 + step * 16).unwrap();
    }
    for step in 0..150 {
        let at = 61 * SECOND + step * SECOND / 15;
        writeln!(trace, "7.9 free {:#x} @{at}-{at}", 0x100 + step * 16).unwrap();
        writeln!(trace, "7.9 free {:#x} @{at}-{at}", 0x108 + step * 16).unwrap();
    }
    trace += "0 frames site3 cuMemAlloc_v2 ncclCudaCallocDebug ncclCommInitRank evaluate main\n";
    trace += "0 frames site4 cuMemHostAlloc ncclCudaHostCalloc ncclCommInitRank evaluate main\n";
    let exit = format!("7 exit @{}\n", 72 * SECOND);
    // Before the first free, in between, and after the exit.
    for (seconds, freed, trace) in
        [(60, 0, &trace), (65, 61, &trace), (70, 136, &trace), (73, 150, &(trace.clone() + &exit))]
    {
        let events = trace.lines().filter(|line| {
            let at = line.rsplit_once('@').and_then(|(_, at)| at.split('-').next()?.parse().ok());
            at.is_none_or(|at: u64| at <= seconds * SECOND)
        });
        let snapshot = report(&events.collect::<Vec<_>>().join("\n"), seconds);
        let view = View::of(&snapshot, &[]);
        let [leak] = &view.leaks[..] else { panic!("{seconds}: {:?}", view.leaks) };
        assert_eq!(&*leak.stack.responsible().unwrap().function, "evaluate");
        assert!(leak.advice.text.contains("ncclCommDestroy"), "{}", leak.advice.text);
        assert_eq!(leak.sites[0].evidence.freed_at_end / (24 * MIB), freed, "{seconds}");
    }
}
