//! Device and host memory, and contexts.

use crate::common::{
    ALREADY_REGISTERED, CONTEXT_DESTROYED, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, MIB,
    NOT_FOUND, NOT_INITIALIZED, NOT_REGISTERED, OK, OUT, OUT_OF_MEMORY, isolated, live, oracle_of,
};

#[test]
fn calls_fail_before_cu_init() {
    let test = "calls_fail_before_cu_init";
    let ended = isolated(test, &[], |cuda| {
        assert_eq!(cuda.out("cuMemAlloc_v2", &[OUT, 4]).0, NOT_INITIALIZED);
        assert_eq!(cuda.free(0), NOT_INITIALIZED);
        assert_eq!(cuda.out("cuDeviceGetCount", &[OUT]).0, NOT_INITIALIZED);
        assert_eq!(cuda.call("cuInit", &[1]), INVALID_VALUE);
        assert_eq!(cuda.out("cuDriverGetVersion", &[OUT]).0, OK);
    });
    assert!(ended.output.status.success());
    assert!(ended.oracles().is_empty(), "a driver that was never used has no oracle");
}

#[test]
fn devices_follow_the_environment() {
    let environment = [("SIM_DEVICES", "3"), ("SIM_MEMORY", "512M")];
    oracle_of("devices_follow_the_environment", &environment, |cuda| {
        cuda.start(2);
        assert_eq!(cuda.get("cuDeviceGetCount", &[OUT]), 3);
        assert_eq!(cuda.get("cuDeviceTotalMem_v2", &[OUT, 1]), 512 * MIB);
        assert_eq!(cuda.out("cuDeviceGet", &[OUT, 3]).0, INVALID_DEVICE);
        assert_eq!(cuda.get("cuCtxGetDevice", &[OUT]), 2);
        let mut name = [0_u8; 10];
        assert_eq!(cuda.call("cuDeviceGetName", &[name.as_mut_ptr() as u64, 10, 0]), OK);
        assert_eq!(&name, b"Simulated\0");
    });
}

#[test]
fn unfreed_memory_is_live() {
    let oracle = oracle_of("unfreed_memory_is_live", &[], |cuda| {
        cuda.start(1);
        let first = cuda.alloc(8 * MIB);
        let second = cuda.alloc(1000);
        let third = cuda.alloc(3 * MIB);
        assert_eq!((first % (2 * MIB), third % (2 * MIB), second % 512), (0, 0, 0));
        assert_eq!(cuda.free(first), OK);
        assert_eq!(cuda.free(0), OK);
    });
    assert_eq!(oracle["allocations"], 3);
    assert_eq!(oracle["frees"], 1);
    assert_eq!(live(&oracle, "device"), [1000, 3 * MIB]);
    assert_eq!(oracle["live_bytes_by_device"], serde_json::json!([0, 3 * MIB + 1000]));
    assert_eq!(oracle["peak_bytes"], 11 * MIB + 1000);
    assert_eq!(oracle["live"][0]["device"], 1);
}

#[test]
fn invalid_frees_change_nothing() {
    let oracle = oracle_of("invalid_frees_change_nothing", &[], |cuda| {
        cuda.start(0);
        let pointer = cuda.alloc(4 * MIB);
        let small = cuda.alloc(4096);
        for wrong in [pointer + 512, small + 512, 0x1234_5000] {
            assert_eq!(cuda.free(wrong), INVALID_VALUE);
        }
        assert_eq!(cuda.free(small), OK);
        assert_eq!(cuda.free(small), INVALID_VALUE);
    });
    assert_eq!(oracle["frees"], 1);
    assert_eq!(live(&oracle, "device"), [4 * MIB]);
}

#[test]
fn freed_addresses_are_reused() {
    oracle_of("freed_addresses_are_reused", &[], |cuda| {
        cuda.start(0);
        for bytes in [64, 5000, 2 * MIB, 100 * MIB] {
            let first = cuda.alloc(bytes);
            assert_eq!(cuda.free(first), OK);
            assert_eq!(cuda.alloc(bytes), first);
        }
    });
}

#[test]
fn full_device_returns_out_of_memory() {
    let oracle = oracle_of("full_device_returns_out_of_memory", &[("SIM_MEMORY", "10M")], |cuda| {
        cuda.start(0);
        cuda.alloc(6 * MIB);
        let mut untouched = 77_u64;
        let pointer = &raw mut untouched as u64;
        assert_eq!(cuda.call("cuMemAlloc_v2", &[pointer, 5 * MIB]), OUT_OF_MEMORY);
        assert_eq!(untouched, 77);
        assert_eq!(cuda.out("cuMemAlloc_v2", &[OUT, 0]).0, INVALID_VALUE);
        assert_eq!(cuda.out("cuMemAlloc_v2", &[OUT, u64::MAX - 5]).0, OUT_OF_MEMORY);
        cuda.alloc(4 * MIB);
        let mut total = 0_u64;
        assert_eq!(cuda.get("cuMemGetInfo_v2", &[OUT, &raw mut total as u64]), 0);
        assert_eq!(total, 10 * MIB);
        // The other device has its own memory.
        let other = cuda.get("cuDevicePrimaryCtxRetain", &[OUT, 1]);
        assert_eq!(cuda.call("cuCtxSetCurrent", &[other]), OK);
        cuda.alloc(10 * MIB);
    });
    assert_eq!(oracle["failed_allocations"], 3);
    assert_eq!(oracle["allocations"], 3);
}

#[test]
fn live_list_names_each_kind() {
    let oracle = oracle_of("live_list_names_each_kind", &[], |cuda| {
        cuda.start(0);
        let mut pitch = 0_u64;
        let arguments = [OUT, &raw mut pitch as u64, 1000, 10, 4];
        cuda.get("cuMemAllocPitch_v2", &arguments);
        assert_eq!(pitch, 1024);
        assert_eq!(
            cuda.out("cuMemAllocPitch_v2", &[OUT, arguments[1], 10, 10, 3]).0,
            INVALID_VALUE
        );
        cuda.get("cuMemAllocManaged", &[OUT, 5000, 1]);
        assert_eq!(cuda.out("cuMemAllocManaged", &[OUT, 5000, 0]).0, INVALID_VALUE);
        cuda.get("cuMemAllocHost_v2", &[OUT, 6000]);
        let pinned = cuda.get("cuMemHostAlloc", &[OUT, 7000, 2]);
        // SAFETY: the driver has just allocated 7000 bytes there.
        unsafe { std::ptr::write_bytes(pinned as *mut u8, 1, 7000) };
        assert_eq!(cuda.get("cuMemHostGetDevicePointer_v2", &[OUT, pinned, 0]), pinned);
        assert_eq!(cuda.call("cuMemFreeHost", &[pinned + 4096]), INVALID_VALUE);
        assert_eq!(cuda.call("cuMemFreeHost", &[pinned]), OK);
        assert_eq!(cuda.call("cuMemFreeHost", &[pinned]), INVALID_VALUE);
        // Host allocations of 0 bytes succeed and return null.
        assert_eq!(cuda.get("cuMemHostAlloc", &[OUT, 0, 0]), 0);
        let own = vec![0_u8; 8192].leak().as_ptr() as u64;
        assert_eq!(cuda.call("cuMemHostRegister_v2", &[own, 8192, 0]), OK);
        assert_eq!(cuda.call("cuMemHostRegister_v2", &[own + 4096, 1, 0]), ALREADY_REGISTERED);
        assert_eq!(cuda.call("cuMemHostUnregister", &[own + 4096]), INVALID_VALUE);
        assert_eq!(cuda.call("cuMemHostUnregister", &[own + 8192]), NOT_REGISTERED);
    });
    assert_eq!(live(&oracle, "device"), [10 * 1024]);
    assert_eq!(live(&oracle, "managed"), [5000]);
    assert_eq!(live(&oracle, "pinned"), [6000]);
    assert_eq!(live(&oracle, "registered"), [8192]);
    assert_eq!(oracle["live_bytes"], 10 * 1024);
    assert_eq!(oracle["failed_allocations"], 3);
}

#[test]
fn pointer_attributes_are_returned() {
    oracle_of("pointer_attributes_are_returned", &[], |cuda| {
        let context = cuda.start(1);
        let pointer = cuda.alloc(5 * MIB);
        let mut base = 0_u64;
        let size = cuda.get("cuMemGetAddressRange_v2", &[&raw mut base as u64, OUT, pointer + 9]);
        assert_eq!((base, size), (pointer, 5 * MIB));
        let unknown = cuda.out("cuMemGetAddressRange_v2", &[0, OUT, 0x1234_5000]);
        assert_eq!(unknown.0, NOT_FOUND);
        for (attribute, value) in [(1, context), (2, 2), (8, 0), (9, 1), (11, pointer), (17, 0)] {
            let found = cuda.get("cuPointerGetAttribute", &[OUT, attribute, pointer + 9]);
            assert!(found == value || attribute == 11, "{attribute}: {found}");
        }
        assert_eq!(cuda.out("cuPointerGetAttribute", &[OUT, 2, 0x1234_5000]).0, INVALID_VALUE);
    });
}

#[test]
fn contexts_are_stacked_per_thread() {
    oracle_of("contexts_are_stacked_per_thread", &[], |cuda| {
        let primary = cuda.start(0);
        let current = || cuda.get("cuCtxGetCurrent", &[OUT]);
        let created = cuda.get("cuCtxCreate_v2", &[OUT, 0, 1]);
        assert_eq!(current(), created);
        assert_eq!(cuda.get("cuCtxGetDevice", &[OUT]), 1);
        assert_eq!(cuda.get("cuCtxGetDevice_v2", &[OUT, primary]), 0);
        assert_eq!(cuda.call("cuCtxPushCurrent_v2", &[primary]), OK);
        assert_eq!(cuda.get("cuCtxPopCurrent_v2", &[OUT]), primary);
        assert_eq!(cuda.call("cuCtxSetCurrent", &[primary]), OK);
        assert_eq!(cuda.get("cuCtxPopCurrent_v2", &[OUT]), primary);
        assert_eq!(current(), primary, "what was below the replaced one");
        assert_eq!(cuda.call("cuCtxSetCurrent", &[0]), OK);
        assert_eq!(current(), 0);
        assert_eq!(cuda.out("cuCtxPopCurrent_v2", &[OUT]).0, INVALID_CONTEXT);
        assert_eq!(cuda.out("cuMemAlloc_v2", &[OUT, 4]).0, INVALID_CONTEXT);
        let elsewhere = std::thread::spawn(move || cuda.out("cuMemAlloc_v2", &[OUT, 4]).0);
        assert_eq!(elsewhere.join().unwrap(), INVALID_CONTEXT, "a thread begins with none");
        assert_eq!(cuda.call("cuCtxDestroy_v2", &[primary]), INVALID_CONTEXT);
    });
}

#[test]
fn handle_of_a_destroyed_context_is_reused_once_no_stack_has_it() {
    oracle_of("handle_of_a_destroyed_context_is_reused_once_no_stack_has_it", &[], |cuda| {
        cuda.start(0);
        let create = || cuda.get("cuCtxCreate_v2", &[OUT, 0, 0]);
        let pop = || cuda.get("cuCtxPopCurrent_v2", &[OUT]);
        let (first, second) = (create(), create());
        assert_eq!(cuda.call("cuCtxDestroy_v2", &[first]), OK);
        assert_ne!(create(), first);
        pop();
        assert_eq!((pop(), cuda.get("cuCtxGetCurrent", &[OUT])), (second, first));
        assert_eq!(cuda.out("cuMemAlloc_v2", &[OUT, 4]).0, 709, "its context was destroyed");
        pop();
        assert_eq!(create(), first);
    });
}

#[test]
fn memory_is_freed_from_any_live_context() {
    let oracle = oracle_of("memory_is_freed_from_any_live_context", &[], |cuda| {
        cuda.start(0);
        let here = cuda.alloc(100);
        let there = cuda.alloc(100);
        let nowhere = cuda.alloc(100);
        assert_eq!(std::thread::spawn(move || cuda.free(there)).join().unwrap(), OK);
        cuda.get("cuCtxCreate_v2", &[OUT, 0, 1]);
        assert_eq!(cuda.free(here), OK, "from a context of another device");
        let ended = cuda.get("cuCtxCreate_v2", &[OUT, 0, 0]);
        let other = std::thread::spawn(move || {
            assert_eq!(cuda.call("cuCtxSetCurrent", &[ended]), OK);
            let destroyed = std::thread::spawn(move || cuda.call("cuCtxDestroy_v2", &[ended]));
            assert_eq!(destroyed.join().unwrap(), OK);
            assert_eq!(cuda.out("cuMemAlloc_v2", &[OUT, 4]).0, CONTEXT_DESTROYED);
            cuda.free(nowhere)
        });
        assert_eq!(other.join().unwrap(), CONTEXT_DESTROYED);
    });
    assert_eq!(oracle["frees"], 2);
    assert_eq!(live(&oracle, "device"), [100]);
}

#[test]
fn context_end_releases_its_memory() {
    let oracle = oracle_of("context_end_releases_its_memory", &[], |cuda| {
        cuda.start(0);
        let kept = cuda.alloc(100);
        let context = cuda.get("cuCtxCreate_v4", &[OUT, 0, 0, 0]);
        cuda.alloc(8 * MIB);
        let gone = cuda.alloc(200);
        let pinned = cuda.get("cuMemHostAlloc", &[OUT, 300, 0]);
        let descriptor = [16_u64, 16, 4 << 32 | 0x20];
        cuda.get("cuArrayCreate_v2", &[OUT, descriptor.as_ptr() as u64]);
        assert_eq!(cuda.call("cuCtxDestroy_v2", &[context]), OK);
        assert_eq!(cuda.free(gone), INVALID_VALUE);
        assert_eq!(cuda.call("cuMemFreeHost", &[pinned]), INVALID_VALUE);
        assert_eq!(cuda.free(kept), OK, "the context below is the thread's again");
    });
    assert_eq!((&oracle["released"], &oracle["frees"]), (&4.into(), &1.into()));
    assert_eq!(oracle["live_bytes"], 0);
    assert_eq!(oracle["peak_bytes"], 8 * MIB + 300 + 16 * 16 * 16);
}

#[test]
fn reset_or_last_release_ends_primary_context() {
    let oracle = oracle_of("reset_or_last_release_ends_primary_context", &[], |cuda| {
        let first = cuda.start(0);
        let active = || {
            let (mut flags, mut active) = (0_u32, 7_u32);
            let places = [0, &raw mut flags as u64, &raw mut active as u64];
            assert_eq!(cuda.call("cuDevicePrimaryCtxGetState", &places), OK);
            active
        };
        cuda.alloc(100);
        assert_eq!(cuda.call("cuDevicePrimaryCtxReset_v2", &[0]), OK);
        assert_eq!(active(), 0);
        assert_eq!(cuda.out("cuMemAlloc_v2", &[OUT, 4]).0, CONTEXT_DESTROYED);
        assert_eq!(cuda.get("cuDevicePrimaryCtxRetain", &[OUT, 0]), first);
        cuda.alloc(200);
        // Retained twice, so the second release is the last.
        assert_eq!(cuda.call("cuDevicePrimaryCtxRelease", &[0]), OK);
        cuda.alloc(300);
        assert_eq!(active(), 1);
        assert_eq!(cuda.call("cuDevicePrimaryCtxRelease_v2", &[0]), OK);
        assert_eq!(active(), 0);
        assert_eq!(cuda.call("cuDevicePrimaryCtxRelease_v2", &[0]), INVALID_CONTEXT);
    });
    assert_eq!(oracle["released"], 3);
    assert_eq!(oracle["live_bytes"], 0);
}

#[test]
fn green_context_uses_the_primary_one() {
    let oracle = oracle_of("green_context_uses_the_primary_one", &[], |cuda| {
        let primary = cuda.start(0);
        let descriptor = cuda.get("cuDevResourceGenerateDesc", &[OUT, 0, 1]);
        let green = cuda.get("cuGreenCtxCreate", &[OUT, descriptor, 0, 1]);
        let context = cuda.get("cuCtxFromGreenCtx", &[OUT, green]);
        assert_eq!(cuda.get("cuCtxFromGreenCtx", &[OUT, green]), context);
        assert_eq!(cuda.call("cuCtxSetCurrent", &[context]), OK);
        let pointer = cuda.alloc(100);
        assert_eq!(cuda.get("cuPointerGetAttribute", &[OUT, 1, pointer]), primary);
        assert_eq!(cuda.call("cuCtxSetCurrent", &[primary]), OK);
        assert_eq!(cuda.call("cuGreenCtxDestroy", &[green]), OK);
        assert_eq!(cuda.call("cuCtxSetCurrent", &[context]), INVALID_CONTEXT);
        cuda.alloc(200);
    });
    assert_eq!(oracle["released"], 0);
    assert_eq!(oracle["live_bytes"], 300);
}
