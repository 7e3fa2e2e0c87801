//! Which GPUs a process's devices are, and what the driver says of them.

use super::*;

/// Devices with their GPU, live MiB and the driver's MiB; -1 is none.
fn rows(process: &ProcessView) -> Vec<(i32, i32, u64, i64)> {
    let all = process.devices.iter();
    all.map(|view| {
        (
            view.device.map_or(-1, |device| i32::from(device.0)),
            view.gpu.map_or(-1, |gpu| i32::from(gpu.0)),
            view.live_bytes.0 / MIB,
            view.driver_bytes.map_or(-1, |bytes| (bytes.0 / MIB) as i64),
        )
    })
    .collect()
}

#[test]
fn a_device_is_shown_with_its_gpu_and_the_drivers_account_of_it() {
    let snapshot = after(
        "1 process 100
         1 gpus GPU5 none GPU2
         1.1 alloc 0x10 8M device gpu0
         1.1 alloc 0x20 4M device gpu1
         1 account GPU5 100M
         1 account GPU5 200M",
    );
    let process = only(&snapshot);
    assert_eq!(rows(process), [(0, 5, 8, 200), (1, -1, 4, -1)]);
    assert_eq!(process.devices[0].untracked(), Some(Bytes(192 * MIB)));
}

#[test]
fn lost_driver_account_is_unknown_until_it_is_reported_again() {
    let story = "1 process 100
         1 gpus GPU5
         1.1 alloc 0x10 8M device gpu0
         1 account GPU5 100M
         0 gpu_free GPU5 50M
         0 account_lost";
    let lost = after(story);
    assert_eq!(rows(only(&lost)), [(0, 5, 8, -1)]);
    assert_eq!(only(&lost).devices[0].untracked(), None);
    assert!(lost.gpus.is_empty());
    let again = after(&format!("{story}\n1 account GPU5 200M\n0 gpu_free GPU5 40M"));
    assert_eq!(rows(only(&again)), [(0, 5, 8, 200)]);
    assert_eq!(again.gpus.len(), 1);
}

#[test]
fn an_account_is_shown_where_nothing_is_live_and_where_the_device_is_not_known() {
    let snapshot = after(
        "1 process 100
         1 gpus GPU5 GPU2
         1.1 alloc 0x10 4M device
         1 account GPU9 300M
         1 account GPU7 400M
         1 account GPU2 500M",
    );
    let want = [(1, 2, 0, 500), (-1, -1, 4, -1), (-1, 7, 0, 400), (-1, 9, 0, 300)];
    assert_eq!(rows(only(&snapshot)), want);
}

#[test]
fn mapping_and_account_belong_to_the_program_and_open_no_process() {
    let snapshot = after(
        "1 process 100
         1 gpus GPU5
         1 account GPU5 100M
         1 exec
         1.1 alloc 0x10 8M device gpu0
         2 gpus GPU1
         2 account GPU1 100M",
    );
    assert_eq!(rows(&snapshot.processes[0]), [(0, -1, 8, -1)]);
    assert_eq!(snapshot.processes.len(), 2);
    assert_eq!(snapshot.processes[1].ended, Some(End::Replaced));
}

#[test]
fn out_of_memory_tells_who_held_the_gpu_whatever_their_ordinals() {
    let trace = "1 process 100
                 2 process 200
                 3 process 300
                 1 gpus GPU5 GPU6
                 2 gpus GPU6 GPU5
                 1.1 alloc 0x10 1M device gpu0
                 2.2 alloc 0x10 2M device gpu0
                 2.2 alloc 0x20 4M device gpu1
                 3.3 alloc 0x10 8M device gpu0
                 3.3 alloc 0x20 16M device gpu1";
    let oom = |line: &str| {
        let snapshot = after(&format!("{trace}\n {line}"));
        let [oom] = &snapshot.out_of_memory[..] else { panic!("{:?}", snapshot.out_of_memory) };
        let holders = oom.holders.iter().map(|(pid, _, bytes)| (pid.0, bytes.0 / MIB));
        (oom.gpu.map(|gpu| gpu.0), holders.collect::<Vec<_>>())
    };
    // The third process's mapping is not known: there the ordinal decides.
    assert_eq!(oom("1.1 fail f5 2 device 1G gpu0"), (Some(5), vec![(3, 8), (2, 4), (1, 1)]));
    assert_eq!(oom("2.2 fail f5 2 device 1G gpu1"), (Some(5), vec![(3, 16), (2, 4), (1, 1)]));
    assert_eq!(oom("3.3 fail f5 2 device 1G gpu0"), (None, vec![(3, 8), (2, 2), (1, 1)]));
    assert_eq!(oom("3.3 fail f5 2 device 1G"), (None, vec![(3, 24), (2, 6), (1, 1)]));
}
