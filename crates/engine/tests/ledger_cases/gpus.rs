//! Mapping of devices to GPUs, and driver-reported usage.

use engine::model::ids::GpuId;

use super::*;

/// Devices with their GPU, live MiB and driver-reported MiB; -1 means none.
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
fn device_has_its_gpu_and_driver_reported_usage() {
    let snapshot = after(
        "1 process 100
         1 gpus GPU5 none GPU2
         1.1 alloc 0x10 8M device gpu0
         1.1 alloc 0x20 4M device gpu1
         1 usage GPU5 100M
         1 usage GPU5 200M",
    );
    let process = only(&snapshot);
    assert_eq!(rows(process), [(0, 5, 8, 200), (1, -1, 4, -1)]);
    assert_eq!(process.devices[0].untracked(), Some(Bytes(192 * MIB)));
}

#[test]
fn lost_driver_usage_is_unknown_until_reported_again() {
    let trace = "1 process 100
         1 gpus GPU5
         1.1 alloc 0x10 8M device gpu0
         1 usage GPU5 100M
         0 gpu_free GPU5 50M
         0 usage_lost";
    let lost = after(trace);
    assert_eq!(rows(only(&lost)), [(0, 5, 8, -1)]);
    assert_eq!(only(&lost).devices[0].untracked(), None);
    assert!(lost.gpus.is_empty());
    let again = after(&format!("{trace}\n1 usage GPU5 200M\n0 gpu_free GPU5 40M"));
    assert_eq!(rows(only(&again)), [(0, 5, 8, 200)]);
    assert_eq!(again.gpus.len(), 1);
}

#[test]
fn driver_usage_is_shown_without_live_memory_or_device() {
    let snapshot = after(
        "1 process 100
         1 gpus GPU5 GPU2
         1.1 alloc 0x10 4M device
         1 usage GPU9 300M
         1 usage GPU7 400M
         1 usage GPU2 500M",
    );
    let want = [(1, 2, 0, 500), (-1, -1, 4, -1), (-1, 7, 0, 400), (-1, 9, 0, 300)];
    assert_eq!(rows(only(&snapshot)), want);
}

/// Devices of live allocations by address; -1 is an unknown device.
fn devices_by_address(process: &ProcessView) -> Vec<(u64, i32)> {
    let all = process.threads.iter().flat_map(|thread| &thread.allocations);
    let mut all: Vec<_> = all
        .map(|one| (one.key.value, one.device.map_or(-1, |device| i32::from(device.0))))
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn memory_of_a_process_with_one_visible_gpu_is_on_it() {
    let trace = "1 process 100 before
                 1.1 alloc 0x10 8M device
                 1.2 alloc 0x20 4M device C7
                 1.2 alloc 0x30 2M async stream5
                 1.2 free 0x10
                 1 gpus GPU5
                 1.3 alloc 0x40 1M device
                 1.3 alloc 0x50 1M async C8 stream6
                 1 usage GPU5 100M";
    let snapshot = after(trace);
    let process = only(&snapshot);
    assert_eq!(rows(process), [(0, 5, 8, 100)]);
    assert_eq!(devices_by_address(process), [(0x20, 0), (0x30, 0), (0x40, 0), (0x50, 0)]);
    assert_eq!(
        (process.devices[0].peak_bytes, process.peak_bytes),
        (Bytes(14 * MIB), Bytes(14 * MIB))
    );
    assert_eq!(
        (process.devices[0].untracked(), process.untracked()),
        (Some(Bytes(92 * MIB)), Some(Bytes(92 * MIB)))
    );
    assert!(
        process.pools.iter().all(|pool| pool.device == Some(DeviceId(0))),
        "{:?}",
        process.pools
    );
}

#[test]
fn process_that_uses_another_device_sees_more_than_one() {
    for other in ["1 ctx create C9 gpu1", "1.1 alloc 0x90 1M device gpu1"] {
        for trace in [format!("1 gpus GPU5\n {other}"), format!("{other}\n 1 gpus GPU5")] {
            let snapshot =
                after(&format!("1 process 100 before\n {trace}\n 1.1 alloc 0x10 8M device"));
            assert_eq!(devices_by_address(only(&snapshot))[0], (0x10, -1), "{trace}");
        }
    }
}

#[test]
fn memory_older_than_a_single_gpu_report_is_on_that_gpu() {
    let trace = "1 process 100 before
                 1 gpus GPU5 GPU2
                 1.1 alloc 0x10 8M device @100-110
                 1.1 alloc 0x20 4M device C7 @120-130
                 1 usage GPU2 100M only @140-200
                 1.1 alloc 0x30 2M device C7 @210-220
                 1.1 alloc 0x40 1M device @230-240";
    let snapshot = after(trace);
    let process = only(&snapshot);
    assert_eq!(rows(process), [(1, 2, 14, 100), (-1, -1, 1, -1)]);
    assert_eq!(devices_by_address(process), [(0x10, 1), (0x20, 1), (0x30, 1), (0x40, -1)]);
    assert_eq!(process.devices[0].untracked(), Some(Bytes(88 * MIB)));
    // Memory allocated after the driver was queried may be on a GPU that was added since.
    let late = after(&trace.replace("@100-110", "@100-150").replace("@120-130", "@120-160"));
    assert_eq!(devices_by_address(only(&late)), [(0x10, -1), (0x20, -1), (0x30, -1), (0x40, -1)]);
}

#[test]
fn single_gpu_report_covers_memory_on_unknown_devices() {
    let trace = "1 process 100 before
                 1 gpus none none
                 1.1 alloc 0x10 8M device @100-110
                 1 usage GPU2 100M only @140-200";
    let snapshot = after(trace);
    let process = only(&snapshot);
    assert_eq!(rows(process), [(-1, 2, 8, 100)]);
    assert_eq!(process.devices[0].untracked(), Some(Bytes(92 * MIB)));
    let of = |filter| ledger(trace).holders(filter).first().map(|one| one.live_bytes.0 / MIB);
    assert_eq!(of(engine::model::holder::DeviceFilter::Gpu(GpuId(2))), Some(8));
    assert_eq!(of(engine::model::holder::DeviceFilter::Gpu(GpuId(1))), None);
}

#[test]
fn memory_on_unknown_devices_is_not_untracked() {
    let snapshot = after(
        "1 process 100 before
         1 gpus GPU5 GPU2
         1.1 alloc 0x10 8M device
         1.1 alloc 0x20 1M device gpu0
         1 usage GPU5 101M
         1 usage GPU2 100M",
    );
    let process = only(&snapshot);
    assert_eq!(rows(process), [(0, 5, 1, 101), (1, 2, 0, 100), (-1, -1, 8, -1)]);
    for device in &process.devices[..2] {
        assert_eq!(device.untracked(), Some(Bytes(92 * MIB)));
        assert_eq!(device.untracked_max(), Some(Bytes(100 * MIB)));
    }
    assert_eq!(process.untracked(), Some(Bytes(192 * MIB)));
}

#[test]
fn device_of_a_context_is_learned_for_peaks_and_sites() {
    let mut trace = "1 process 100 before\n".to_owned();
    for step in 0..40_u64 {
        let at = step * 1_000_000_000 + 100;
        trace += &format!("1.1 alloc {:#x} 1M device C7 site3 @{at}\n", 0x100 + step);
    }
    trace += "1.1 alloc 0x10 8M device C7 @40000000000\n 1.1 free 0x10 @40000000001-40000000002\n";
    trace += "1 ctx learn C7 gpu1 @40000000100";
    let snapshot = snapshot_at(&trace, 40_000_000_200, &SnapshotOptions::default());
    let process = only(&snapshot);
    assert_eq!((process.devices.len(), process.devices[0].device), (1, Some(DeviceId(1))));
    assert_eq!(process.devices[0].peak_bytes, Bytes(48 * MIB));
    let [suspect] = &snapshot.suspects[..] else { panic!("{:?}", snapshot.suspects) };
    assert_eq!(suspect.device, Some(DeviceId(1)));
}

#[test]
fn gpu_mapping_and_usage_do_not_create_a_process() {
    let snapshot = after(
        "1 process 100
         1 gpus GPU5
         1 usage GPU5 100M
         1 exec
         1.1 alloc 0x10 8M device gpu0
         2 gpus GPU1
         2 usage GPU1 100M",
    );
    assert_eq!(rows(&snapshot.processes[0]), [(0, -1, 8, -1)]);
    assert_eq!(snapshot.processes.len(), 2);
    assert_eq!(snapshot.processes[1].ended, Some(ProcessEnd::Exec));
}

#[test]
fn out_of_memory_lists_holders_of_the_gpu_by_any_ordinal() {
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
    // The mapping of the third process is unknown: the ordinal decides.
    assert_eq!(oom("1.1 fail f5 2 device 1G gpu0"), (Some(5), vec![(3, 8), (2, 4), (1, 1)]));
    assert_eq!(oom("2.2 fail f5 2 device 1G gpu1"), (Some(5), vec![(3, 16), (2, 4), (1, 1)]));
    assert_eq!(oom("3.3 fail f5 2 device 1G gpu0"), (None, vec![(3, 8), (2, 2), (1, 1)]));
    assert_eq!(oom("3.3 fail f5 2 device 1G"), (None, vec![(3, 24), (2, 6), (1, 1)]));
}

#[test]
fn overlapping_calls_on_a_device_give_its_peak_bounds() {
    // The free on device 0 is in progress while thread 2 allocates there; device 1 is not affected.
    let snapshot = after(
        "1.1 ctx create C3 gpu0
         1.1 ctx create C1 gpu1
         1.1 alloc 0x10 8M device C3 gpu0
         1.1 alloc 0x20 4M device C1 gpu1
         1.2 alloc 0x30 2M device C3 gpu0 @51-52
         1.1 free 0x10 @50-60",
    );
    let bounds: Vec<_> = only(&snapshot).devices.iter().map(|row| row.peak_bounds).collect();
    assert_eq!(bounds, [Some((Bytes(8 * MIB), Bytes(10 * MIB))), None]);
    assert_eq!(only(&snapshot).peak_bounds, Some((Bytes(12 * MIB), Bytes(14 * MIB))));
}

#[test]
fn destroy_that_outlasts_the_reuse_of_its_handle_widens_the_peak() {
    // The context's 8 MiB may have ended before the 2 MiB were allocated.
    let snapshot = after(
        "1.1 ctx create C1 gpu0 @5-10
         1.1 alloc 0x10 8M device C1 @15-20
         1.2 ctx create C2 gpu0 @21-22
         1.2 alloc 0x20 2M device C2 @40-41
         1.2 ctx create C1 gpu0 @50-51
         1.1 ctx destroy C1 @30-70",
    );
    let bounds: Vec<_> = only(&snapshot).devices.iter().map(|row| row.peak_bounds).collect();
    assert_eq!(bounds, [Some((Bytes(8 * MIB), Bytes(10 * MIB)))]);
    assert_eq!(only(&snapshot).peak_bounds, Some((Bytes(8 * MIB), Bytes(10 * MIB))));
}

#[test]
fn peak_bounds_of_a_device_cover_memory_placed_late() {
    // The context of 0x10 becomes known after 0x20 was freed: both were on device 0 at one time.
    let snapshot = after(
        "1.1 alloc 0x10 8M device C7
         1.1 ctx create C5 gpu0
         1.1 alloc 0x20 4M device C5 gpu0
         1.1 free 0x20
         1.1 ctx create C6 gpu1
         1.1 alloc 0x30 1M device C6 gpu1
         1.1 ctx retain C7 gpu0",
    );
    let first = &only(&snapshot).devices[0];
    assert_eq!((first.device, first.live_bytes), (Some(DeviceId(0)), Bytes(8 * MIB)));
    assert_eq!(first.peak_bounds, Some((Bytes(8 * MIB), Bytes(12 * MIB))));
}
