//! Start and end of processes and threads.

use super::*;

#[test]
fn process_is_named_after_its_main_thread() {
    let mut trace = "7 process 100 name=python\n7.8 name loader\n7.7 name ray::Train\n".to_owned();
    let named = |trace: &str| only(&after(trace)).name.to_string();
    assert_eq!(named(&trace), "ray::Train");
    for number in 0..20 {
        trace.push_str(&format!("7.7 name n{number}\n"));
    }
    assert_eq!(named(&trace), "n6");
}

#[test]
fn announced_process_has_its_info() {
    let snapshot = after(
        "7 process 100 uid=1000 name=python before \n 7.8 name loader \n 7.8 alloc 0x10 1M device",
    );
    let process = only(&snapshot);
    assert_eq!((process.key.pid, process.key.start), (Pid(7), 100));
    assert_eq!((process.uid, &*process.name, process.before_trace), (Some(1000), "python", true));
    assert_eq!((process.threads[0].tid.0, &*process.threads[0].name), (8, "loader"));
    assert_eq!(process.ended, None);
}

#[test]
fn unannounced_process_has_no_info() {
    let snapshot = after("7.7 free 0x10");
    let process = only(&snapshot);
    assert_eq!((process.uid, &*process.name, process.before_trace), (None, "", true));
}

#[test]
fn second_announcement_updates_info_and_keeps_memory() {
    let snapshot = after(
        "7 process 100 uid=1 name=sh
         7.7 alloc 0x10 1M device
         7 process 100 uid=2 name=python",
    );
    let process = only(&snapshot);
    assert_eq!((live(process), process.uid, &*process.name), ((1, 1), Some(2), "python"));
}

#[test]
fn late_announcement_names_the_existing_process() {
    let snapshot = after("7.7 alloc 0x10 1M device \n 7 process 100 uid=2 name=python");
    let process = only(&snapshot);
    assert_eq!((live(process), process.key.start), ((1, 1), 100));
    assert!(!process.before_trace);
}

#[test]
fn pid_with_another_start_time_is_another_process() {
    let snapshot = after(
        "7 process 100 name=old
         7.7 alloc 0x10 1M device
         7 process 200 name=new
         7.7 free 0x10",
    );
    let [new, old] = &snapshot.processes[..] else { panic!("{:#?}", snapshot.processes) };
    assert_eq!((&*old.name, old.ended, live(old)), ("old", Some(ProcessEnd::Exited), (1, 1)));
    assert_eq!((&*new.name, new.ended, ends(new)), ("new", None, (0, 1, 0, 0)));
    assert_eq!(snapshot.live_bytes, Bytes(0));
}

#[test]
fn exited_process_is_listed_once_with_its_live_memory() {
    let mut ledger = ledger("7.7 alloc 0x10 1M device @10 \n 7 exit @50");
    assert_eq!(ledger.live_bytes(), Bytes(0));
    let snapshot = ledger.snapshot(Timestamp(1000), &SnapshotOptions::default());
    let process = only(&snapshot);
    assert_eq!((process.ended, live(process)), (Some(ProcessEnd::Exited), (1, 1)));
    assert_eq!(process.threads[0].allocations[0].age, Nanos(40));
    assert_eq!((snapshot.live_bytes, snapshot.live_allocations), (Bytes(0), 0));
    assert!(ledger.snapshot(Timestamp(1001), &SnapshotOptions::default()).processes.is_empty());
}

#[test]
fn exited_process_without_memory_is_listed_once() {
    let snapshot = after("7.7 alloc 0x10 1M device \n 7.7 free 0x10 \n 7 exit");
    assert_eq!(only(&snapshot).ended, Some(ProcessEnd::Exited));
}

#[test]
fn exit_of_a_process_without_calls_is_ignored() {
    assert!(after("7 exit \n 8 exec \n 9.9 exit").processes.is_empty());
}

#[test]
fn exec_ends_the_process_and_the_next_call_starts_a_new_one() {
    let trace = "7 process 100 uid=5 name=sh before
                 7.7 alloc 0x10 1M device
                 7 exec";
    let snapshot = after(trace);
    assert_eq!((only(&snapshot).ended, live(only(&snapshot))), (Some(ProcessEnd::Exec), (1, 1)));
    let snapshot = after(&format!("{trace}\n 7.7 alloc 0x20 2M device"));
    let [new, old] = &snapshot.processes[..] else { panic!("{:#?}", snapshot.processes) };
    assert_eq!((new.key, new.uid), (old.key, old.uid));
    assert_eq!((live(new), new.ended, new.before_trace), ((2, 1), None, false));
    assert_eq!(new.allocations_total, 1);
}

#[test]
fn exit_right_after_exec_adds_nothing() {
    let snapshot = after("7.7 alloc 0x10 1M device \n 7 exec \n 7 exec \n 7 exit");
    assert_eq!(only(&snapshot).ended, Some(ProcessEnd::Exec));
}

#[test]
fn thread_is_kept_while_it_holds_memory() {
    let trace = "7.8 name old
                 7.8 alloc 0x10 1M device
                 7.8 exit";
    let snapshot = after(trace);
    assert_eq!(&*only(&snapshot).threads[0].name, "old");
    let snapshot = after(&format!("{trace}\n 7.7 free 0x10 \n 7.8 alloc 0x20 1M device"));
    assert_eq!(&*only(&snapshot).threads[0].name, "");
    let snapshot = after(&format!("{trace}\n 7.8 alloc 0x20 1M device"));
    assert_eq!(lists(only(&snapshot)), [(8, vec![0x10, 0x20])]);
}

#[test]
fn forked_child_does_not_inherit_allocations() {
    let snapshot = after("7.7 alloc 0x10 1M device \n 8 process 200 \n 8.8 free 0x10");
    assert_eq!(live(&snapshot.processes[0]), (1, 1));
    assert_eq!(ends(&snapshot.processes[1]), (0, 1, 0, 0));
}

/// Container id, pod, and pid in the container.
fn container(process: &ProcessView) -> Option<(&str, Option<&str>, Option<u32>)> {
    let container = process.container.as_deref()?;
    let pod = container.pod.as_ref().map(|pod| &*pod.uid);
    Some((&*container.id, pod, container.container_pid.map(|pid| pid.0)))
}

#[test]
fn process_has_its_latest_container() {
    let trace = "7 process 100
                 7 container 3f2a podman inside=5
                 7.7 alloc 0x10 1M device";
    assert_eq!(container(only(&after(trace))), Some(("3f2a", None, Some(5))));
    let snapshot = after(&format!("{trace}\n 7 container 3f2a podman pod=77 name=web inside=5"));
    assert_eq!(container(only(&snapshot)), Some(("3f2a", Some("77"), Some(5))));
    assert_eq!(live(only(&snapshot)), (1, 1));
}

#[test]
fn exec_keeps_the_container_and_pid_reuse_does_not() {
    let trace = "7 process 100
                 7 container 3f2a docker inside=5
                 7.7 alloc 0x10 1M device";
    let snapshot = after(&format!("{trace}\n 7 exec \n 7.7 alloc 0x20 2M device"));
    for process in &snapshot.processes {
        assert_eq!(container(process), Some(("3f2a", None, Some(5))));
    }
    let snapshot = after(&format!("{trace}\n 7 process 200"));
    let containers: Vec<_> = snapshot.processes.iter().map(container).collect();
    assert_eq!(containers, [None, Some(("3f2a", None, Some(5)))]);
}

#[test]
fn container_event_does_not_create_a_process() {
    assert!(after("7 container 3f2a docker").processes.is_empty());
}
