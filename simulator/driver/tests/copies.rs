//! Copies and memsets.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{
    CAPTURE_UNSUPPORTED, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, Library, OK, OUT, entries,
    oracle_of,
};

/// The exported functions of real drivers, by the first driver that has them.
const REAL: &str = include_str!("../../../crates/capture/tests/fixtures/driver_exports.txt");

/// Functions that are not simulated: volumes with attributes, and host functions.
const MISSING: [&str; 6] = [
    "cuLaunchHostFunc",
    "cuLaunchHostFunc_ptsz",
    "cuLaunchHostFunc_v2",
    "cuLaunchHostFunc_v2_ptsz",
    "cuMemcpy3DWithAttributesAsync",
    "cuMemcpy3DWithAttributesAsync_ptsz",
];

#[test]
fn all_copy_memset_and_launch_functions_are_exported() {
    let cuda = Library::load();
    let real: BTreeSet<&str> = REAL.lines().filter_map(|line| line.strip_prefix("+ ")).collect();
    // The oldest variants have 32-bit sizes.
    let old =
        |name: &str| real.contains(format!("{name}_v2").as_str()) && !name.ends_with("BatchAsync");
    let is_activity = |name: &&&str| {
        ["cuMemcpy", "cuMemset", "cuLaunch", "cuGraphLaunch"].iter().any(|p| name.starts_with(p))
    };
    let wanted: Vec<&&str> =
        real.iter().filter(is_activity).filter(|n| !old(n) && !MISSING.contains(n)).collect();
    assert!(wanted.len() > 80, "{}", wanted.len());
    let absent: Vec<_> = wanted.iter().filter(|name| cuda.symbol(name).is_none()).collect();
    assert!(absent.is_empty(), "{absent:?}");
}

/// Returns calls, bytes and failures of a function in one direction.
fn counts(oracle: &Value, function: &str, direction: &str, mode: &str) -> (u64, u64, u64) {
    let fields = [("function", function), ("direction", direction), ("mode", mode)];
    let found = entries(oracle, "copies", &fields);
    assert_eq!(found.len(), 1, "{function} {direction} {mode} in {}", oracle["copies"]);
    let number = |field: &str| found[0][field].as_u64().unwrap();
    (number("calls"), number("bytes"), number("failed"))
}

#[test]
fn linear_copies_are_counted_by_function_and_direction() {
    let test = "linear_copies_are_counted_by_function_and_direction";
    let oracle = oracle_of(test, &[("SIM_INJECT_FAILURES", "cuMemcpyDtoD_v2:2=700")], |cuda| {
        let context = cuda.start(0);
        let host = vec![0_u8; 8192];
        let host = host.as_ptr() as u64;
        let (a, b) = (cuda.alloc(8192), cuda.alloc(8192));
        let stream = cuda.get("cuStreamCreate", &[OUT, 0]);
        for (sync, asynchronous, to, from) in [
            ("cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2", a, host),
            ("cuMemcpyDtoH_v2", "cuMemcpyDtoHAsync_v2", host, a),
            ("cuMemcpyDtoD_v2", "cuMemcpyDtoDAsync_v2", b + 16, a),
        ] {
            assert_eq!(cuda.call(sync, &[to, from, 1000]), OK);
            assert_eq!(cuda.call(&format!("{sync}_ptds"), &[to, from, 1]), OK);
            assert_eq!(cuda.call(asynchronous, &[to, from, 2000, stream]), OK);
            assert_eq!(cuda.call(&format!("{asynchronous}_ptsz"), &[to, from, 2, 0]), OK);
            assert_eq!(
                cuda.call(sync, &[0, from, 10]),
                if to == b + 16 { 700 } else { INVALID_VALUE }
            );
            assert_eq!(cuda.call(sync, &[to, 0, 10]), INVALID_VALUE);
            assert_eq!(cuda.call(sync, &[0, 0, 0]), OK, "nothing is copied from nowhere");
            assert_eq!(cuda.call(asynchronous, &[to, from, 10, 0x1234]), INVALID_HANDLE);
        }
        assert_eq!(cuda.call("cuMemcpyHtoD_v2", &[a + 8000, host, 193]), INVALID_VALUE);
        let peers = [b, context, a, context, 500];
        assert_eq!(cuda.call("cuMemcpyPeer", &peers), OK);
        assert_eq!(cuda.call("cuMemcpyPeer", &[b, 7, a, context, 500]), INVALID_CONTEXT);
        assert_eq!(cuda.call("cuMemcpyPeerAsync", &[b, context, a, context, 600, stream]), OK);
    });
    assert_eq!(counts(&oracle, "cuMemcpyHtoD_v2", "H2D", "sync"), (2, 1000, 3));
    assert_eq!(counts(&oracle, "cuMemcpyDtoH_v2", "D2H", "sync"), (2, 1000, 2));
    assert_eq!(counts(&oracle, "cuMemcpyDtoD_v2", "D2D", "sync"), (2, 1000, 2));
    assert_eq!(counts(&oracle, "cuMemcpyHtoDAsync_v2", "H2D", "async"), (1, 2000, 1));
    assert_eq!(counts(&oracle, "cuMemcpyDtoHAsync_v2_ptsz", "D2H", "async"), (1, 2, 0));
    assert_eq!(counts(&oracle, "cuMemcpyDtoD_v2_ptds", "D2D", "sync"), (1, 1, 0));
    assert_eq!(counts(&oracle, "cuMemcpyPeer", "peer", "sync"), (1, 500, 1));
    assert_eq!(counts(&oracle, "cuMemcpyPeerAsync", "peer", "async"), (1, 600, 0));
}

#[test]
fn unified_copies_infer_direction_from_pointers() {
    let test = "unified_copies_infer_direction_from_pointers";
    let oracle = oracle_of(test, &[], |cuda| {
        cuda.start(0);
        let pageable = vec![0_u8; 4096];
        let pageable = pageable.as_ptr() as u64;
        let device = cuda.alloc(4096);
        let managed = cuda.get("cuMemAllocManaged", &[OUT, 4096, 1]);
        let pinned = cuda.get("cuMemAllocHost_v2", &[OUT, 4096]);
        let ordered = cuda.get("cuMemAllocAsync", &[OUT, 4096, 0]);
        let freed = cuda.alloc(4096);
        assert_eq!(cuda.free(freed), OK);
        for (to, from, bytes) in [
            (device, pageable + 1, 1),
            (managed + 100, pinned + 5, 20),
            (pageable, ordered, 300),
            (pinned + 4000, device, 96),
            (device + 8, managed, 4000),
            (pageable, pinned, 1000),
        ] {
            assert_eq!(cuda.call("cuMemcpy", &[to, from, bytes]), OK);
        }
        assert_eq!(cuda.call("cuMemcpy", &[device, freed, 1]), INVALID_VALUE);
        assert_eq!(cuda.call("cuMemcpy", &[device, pinned + 4000, 97]), INVALID_VALUE);
        assert_eq!(cuda.call("cuMemcpyAsync", &[pinned, device, 7, 0]), OK);

        let stream = cuda.get("cuStreamCreate", &[OUT, 0]);
        let attributes = [1_u32, 0, 0, 0, 0, 0];
        let attributes = attributes.as_ptr() as u64;
        let bad = [0_u32; 6];
        let copy = [device, pinned, 64, attributes, stream];
        assert_eq!(cuda.call("cuMemcpyWithAttributesAsync", &copy), OK);
        let copy = [device, pinned, 64, bad.as_ptr() as u64, stream];
        assert_eq!(cuda.call("cuMemcpyWithAttributesAsync", &copy), INVALID_VALUE);
        let legacy = [device, pinned, 64, attributes, 0];
        assert_eq!(cuda.call("cuMemcpyWithAttributesAsync", &legacy), INVALID_VALUE);
    });
    assert_eq!(counts(&oracle, "cuMemcpy", "H2D", "sync"), (2, 21, 1));
    assert_eq!(counts(&oracle, "cuMemcpy", "D2H", "sync"), (2, 396, 0));
    assert_eq!(counts(&oracle, "cuMemcpy", "D2D", "sync"), (1, 4000, 1));
    assert_eq!(counts(&oracle, "cuMemcpy", "H2H", "sync"), (1, 1000, 0));
    assert_eq!(counts(&oracle, "cuMemcpyAsync", "D2H", "async"), (1, 7, 0));
    assert_eq!(counts(&oracle, "cuMemcpyWithAttributesAsync", "H2D", "async"), (1, 64, 2));
}

#[test]
fn batch_copies_all_or_nothing() {
    let oracle = oracle_of("batch_copies_all_or_nothing", &[], |cuda| {
        cuda.start(0);
        let (a, b) = (cuda.alloc(4096), cuda.alloc(4096));
        let pinned = cuda.get("cuMemAllocHost_v2", &[OUT, 4096]);
        let stream = cuda.get("cuStreamCreate", &[OUT, 0]);
        let attributes = [1_u32, 0, 0, 0, 0, 0];
        let attributes = attributes.as_ptr() as u64;
        let (to, from) = ([a, b, a + 1000], [pinned, a, pinned + 1000]);
        let (sizes, first) = ([100_u64, 200, 3000], [0_u64]);
        let arrays = |sizes: &[u64; 3], count: u64| {
            let (to, from) = (to.as_ptr() as u64, from.as_ptr() as u64);
            [to, from, sizes.as_ptr() as u64, count, attributes, first.as_ptr() as u64, 1]
        };
        let [t, f, s, n, x, i, m] = arrays(&sizes, 3);
        assert_eq!(cuda.call("cuMemcpyBatchAsync_v2", &[t, f, s, n, x, i, m, stream]), OK);
        assert_eq!(cuda.call("cuMemcpyBatchAsync_v2", &[t, f, s, n, x, i, m, 0]), INVALID_VALUE);
        assert_eq!(cuda.call("cuMemcpyBatchAsync_v2_ptsz", &[t, f, s, n, x, i, m, 0]), OK);
        let mut failed_index = 77_u64;
        let failed_pointer = &raw mut failed_index as u64;
        assert_eq!(
            cuda.call("cuMemcpyBatchAsync", &[t, f, s, n, x, i, m, failed_pointer, stream]),
            OK
        );
        let sizes = [100_u64, 200, 4000];
        let [t, f, s, n, x, i, m] = arrays(&sizes, 3);
        let arguments = [t, f, s, n, x, i, m, failed_pointer, stream];
        assert_eq!(cuda.call("cuMemcpyBatchAsync", &arguments), INVALID_VALUE);
        assert_eq!(failed_index, 2, "the third copy is at fault");
        let none = [t, f, s, 0, x, i, m, failed_pointer, stream];
        assert_eq!(cuda.call("cuMemcpyBatchAsync", &none), INVALID_VALUE);
        assert_eq!(failed_index, u64::MAX, "no copy is at fault");
    });
    assert_eq!(counts(&oracle, "cuMemcpyBatchAsync_v2", "H2D", "async"), (2, 3100, 1));
    assert_eq!(counts(&oracle, "cuMemcpyBatchAsync_v2", "D2D", "async"), (1, 200, 0));
    assert_eq!(counts(&oracle, "cuMemcpyBatchAsync_v2_ptsz", "H2D", "async"), (2, 3100, 0));
    assert_eq!(counts(&oracle, "cuMemcpyBatchAsync", "H2D", "async"), (2, 3100, 1));
}

/// `CUDA_MEMCPY2D` as numbers: x, y, memory type, host, device, array, pitch of either side, then
/// size.
fn rectangle(from: (u64, u64, u64), to: (u64, u64, u64), size: [u64; 2]) -> [u64; 16] {
    let mut copy = [0; 16];
    for (start, (memory_type, pointer, pitch)) in [(0, from), (7, to)] {
        copy[start + 2] = memory_type;
        copy[start
            + if memory_type == 1 {
                3
            } else if memory_type == 3 {
                5
            } else {
                4
            }] = pointer;
        copy[start + 6] = pitch;
    }
    [copy[14], copy[15]] = size;
    copy
}

#[test]
fn shaped_copies_count_width_times_height_times_depth() {
    let test = "shaped_copies_count_width_times_height_times_depth";
    let oracle = oracle_of(test, &[], |cuda| {
        let context = cuda.start(0);
        let host = vec![0_u8; 8192];
        let host = host.as_ptr() as u64;
        let mut pitch = 0_u64;
        let pointer = &raw mut pitch as u64;
        let device = cuda.get("cuMemAllocPitch_v2", &[OUT, pointer, 100, 16, 4]);
        assert_eq!(pitch, 512);
        let descriptor = [64_u64, 16, 0x20 | (1 << 32)];
        let array = cuda.get("cuArrayCreate_v2", &[OUT, descriptor.as_ptr() as u64]);
        let call = |name: &str, copy: &[u64]| cuda.call(name, &[copy.as_ptr() as u64, 0]);

        let up = rectangle((1, host, 100), (2, device, pitch), [100, 16]);
        assert_eq!(call("cuMemcpy2D_v2", &up), OK);
        assert_eq!(call("cuMemcpy2DUnaligned_v2", &up), OK);
        assert_eq!(call("cuMemcpy2DAsync_v2", &up), OK);
        let into_array = rectangle((4, device, pitch), (3, array, 0), [256, 16]);
        assert_eq!(call("cuMemcpy2D_v2", &into_array), OK);
        for bad in [
            rectangle((1, host, 100), (2, device, pitch), [100, 17]),
            rectangle((1, host, 99), (2, device, pitch), [100, 16]),
            rectangle((1, 0, 100), (2, device, pitch), [100, 16]),
            rectangle((5, host, 100), (2, device, pitch), [100, 16]),
        ] {
            assert_eq!(call("cuMemcpy2DUnaligned_v2", &bad), INVALID_VALUE);
        }
        let too_wide = rectangle((4, device, pitch), (3, array, 0), [257, 1]);
        assert_eq!(call("cuMemcpy2DAsync_v2", &too_wide), INVALID_VALUE);
        let unknown = rectangle((4, device, pitch), (3, array + 8, 0), [1, 1]);
        assert_eq!(call("cuMemcpy2DAsync_v2", &unknown), INVALID_HANDLE);
        assert_eq!(cuda.call("cuMemcpy2D_v2", &[0]), INVALID_VALUE);

        // x, y, z, level, memory type, host, device, array, context, pitch, height of either side.
        let mut cuboid = [0_u64; 25];
        (cuboid[4], cuboid[6], cuboid[9], cuboid[10]) = (2, device, pitch, 4);
        (cuboid[15], cuboid[16], cuboid[20], cuboid[21]) = (1, host, 100, 4);
        cuboid[22..].copy_from_slice(&[100, 4, 3]);
        assert_eq!(call("cuMemcpy3D_v2", &cuboid), OK);
        assert_eq!(call("cuMemcpy3DAsync_v2_ptsz", &cuboid), OK);
        assert_eq!(call("cuMemcpy3DPeer", &cuboid), INVALID_CONTEXT);
        (cuboid[8], cuboid[19]) = (context, context);
        assert_eq!(call("cuMemcpy3DPeer", &cuboid), OK);
        assert_eq!(call("cuMemcpy3DPeerAsync", &cuboid), OK);
        cuboid[24] = 5;
        assert_eq!(call("cuMemcpy3D_v2", &cuboid), INVALID_VALUE, "five slices of four");
    });
    assert_eq!(counts(&oracle, "cuMemcpy2D_v2", "H2D", "sync"), (1, 1600, 0));
    assert_eq!(counts(&oracle, "cuMemcpy2D_v2", "array", "sync"), (1, 4096, 0));
    assert_eq!(counts(&oracle, "cuMemcpy2DUnaligned_v2", "H2D", "sync"), (1, 1600, 3));
    assert_eq!(counts(&oracle, "cuMemcpy2DAsync_v2", "H2D", "async"), (1, 1600, 0));
    assert_eq!(counts(&oracle, "cuMemcpy2DAsync_v2", "array", "async"), (0, 0, 2));
    assert_eq!(counts(&oracle, "cuMemcpy3D_v2", "D2H", "sync"), (1, 1200, 1));
    assert_eq!(counts(&oracle, "cuMemcpy3DAsync_v2_ptsz", "D2H", "async"), (1, 1200, 0));
    assert_eq!(counts(&oracle, "cuMemcpy3DPeer", "peer", "sync"), (1, 1200, 1));
    assert_eq!(counts(&oracle, "cuMemcpy3DPeerAsync", "peer", "async"), (1, 1200, 0));
}

#[test]
fn array_copies_are_checked_and_counted() {
    let test = "array_copies_are_checked_and_counted";
    let oracle = oracle_of(test, &[], |cuda| {
        cuda.start(0);
        let host = vec![0_u8; 1024];
        let host = host.as_ptr() as u64;
        let device = cuda.alloc(1024);
        let descriptor = [256_u64, 0, 0x20 | (1 << 32)];
        let array = cuda.get("cuArrayCreate_v2", &[OUT, descriptor.as_ptr() as u64]);
        for (name, arguments) in [
            ("cuMemcpyDtoA_v2", [array, 24, device, 1000, 0]),
            ("cuMemcpyAtoD_v2", [device, array, 24, 1000, 0]),
            ("cuMemcpyHtoA_v2", [array, 0, host, 500, 0]),
            ("cuMemcpyAtoH_v2", [host, array, 0, 400, 0]),
            ("cuMemcpyHtoAAsync_v2", [array, 0, host, 300, 0]),
            ("cuMemcpyAtoHAsync_v2", [host, array, 0, 200, 0]),
            ("cuMemcpyAtoA_v2", [array, 0, array, 512, 512]),
        ] {
            assert_eq!(cuda.call(name, &arguments), OK, "{name}");
        }
        assert_eq!(cuda.call("cuMemcpyDtoA_v2", &[array, 25, device, 1000]), INVALID_VALUE);
        assert_eq!(cuda.call("cuMemcpyAtoH_v2", &[host, device, 0, 1]), INVALID_HANDLE);
    });
    for (function, mode, expected) in [
        ("cuMemcpyDtoA_v2", "sync", (1, 1000, 1)),
        ("cuMemcpyAtoD_v2", "sync", (1, 1000, 0)),
        ("cuMemcpyHtoA_v2", "sync", (1, 500, 0)),
        ("cuMemcpyAtoH_v2", "sync", (1, 400, 1)),
        ("cuMemcpyHtoAAsync_v2", "async", (1, 300, 0)),
        ("cuMemcpyAtoHAsync_v2", "async", (1, 200, 0)),
        ("cuMemcpyAtoA_v2", "sync", (1, 512, 0)),
    ] {
        assert_eq!(counts(&oracle, function, "array", mode), expected, "{function}");
    }
}

#[test]
fn memset_bytes_depend_on_value_width() {
    let oracle = oracle_of("memset_bytes_depend_on_value_width", &[], |cuda| {
        cuda.start(0);
        let device = cuda.alloc(8192);
        for width in [8, 16, 32] {
            let name = |middle: &str, end: &str| format!("cuMemset{middle}{width}{end}");
            for (end, count) in [("_v2", 100), ("_v2_ptds", 10), ("Async", 20), ("Async_ptsz", 5)] {
                assert_eq!(cuda.call(&name("D", end), &[device, 7, count, 0]), OK);
                let rows = [device, 1024, 7, count, 8, 0];
                assert_eq!(cuda.call(&name("D2D", end), &rows), OK, "{width}{end}");
            }
            let too_many = [device, 7, 8192 * 8 / width + 1, 0];
            assert_eq!(cuda.call(&name("D", "_v2"), &too_many), INVALID_VALUE);
            assert_eq!(cuda.call(&name("D", "_v2"), &[0, 7, 1, 0]), INVALID_VALUE);
        }
        assert_eq!(cuda.call("cuMemsetD32_v2", &[device + 2, 7, 1]), INVALID_VALUE);
        assert_eq!(cuda.call("cuMemsetD2D16_v2", &[device, 1023, 7, 1, 2]), INVALID_VALUE);
    });
    for (width, failed) in [(1, 2), (2, 2), (4, 3)] {
        let name = |middle: &str, end: &str| format!("cuMemset{middle}{}{end}", width * 8);
        let memsets = |name: &str, mode: &str| counts(&oracle, name, "memset", mode);
        assert_eq!(memsets(&name("D", "_v2"), "sync"), (1, 100 * width, failed));
        assert_eq!(memsets(&name("D", "_v2_ptds"), "sync"), (1, 10 * width, 0));
        assert_eq!(memsets(&name("D", "Async"), "async"), (1, 20 * width, 0));
        assert_eq!(memsets(&name("D2D", "_v2"), "sync"), (1, 800 * width, u64::from(width == 2)));
        assert_eq!(memsets(&name("D2D", "Async_ptsz"), "async"), (1, 40 * width, 0));
    }
}

#[test]
fn bandwidth_limits_copy_speed() {
    let test = "bandwidth_limits_copy_speed";
    oracle_of(test, &[("SIM_BANDWIDTH", "2M")], |cuda| {
        cuda.start(0);
        let (a, b) = (cuda.alloc(1 << 20), cuda.alloc(1 << 20));
        let start = Instant::now();
        assert_eq!(cuda.call("cuMemcpyDtoD_v2", &[a, b, 1 << 20]), OK);
        assert!(start.elapsed() >= Duration::from_millis(500), "{:?}", start.elapsed());
        let start = Instant::now();
        assert_eq!(cuda.call("cuMemcpyDtoDAsync_v2", &[a, b, 1 << 20, 0]), OK);
        assert!(start.elapsed() < Duration::from_millis(400), "{:?}", start.elapsed());
    });
}

#[test]
fn synchronous_copy_fails_during_capture() {
    oracle_of("synchronous_copy_fails_during_capture", &[], |cuda| {
        cuda.start(0);
        let (a, b) = (cuda.alloc(64), cuda.alloc(64));
        let stream = cuda.get("cuStreamCreate", &[OUT, 1]);
        assert_eq!(cuda.call("cuStreamBeginCapture_v2", &[stream, 0]), OK);
        assert_eq!(cuda.call("cuMemcpyDtoDAsync_v2", &[a, b, 64, stream]), OK);
        assert_eq!(cuda.call("cuMemcpyDtoD_v2", &[a, b, 64]), CAPTURE_UNSUPPORTED);
    });
}
