//! Stream-ordered memory, pools, and graphs that allocate.

use std::ffi::c_int;

use crate::common::{
    CAPTURE_UNSUPPORTED, INVALID_VALUE, Library, MIB, NOT_SUPPORTED, OK, OUT, OUT_OF_MEMORY, live,
    oracle_of,
};

fn attribute(cuda: Library, pool: u64, attribute: u64) -> u64 {
    cuda.get("cuMemPoolGetAttribute", &[pool, attribute, OUT])
}

/// Returns reserved and used memory of a pool, in MiB.
fn levels(cuda: Library, pool: u64) -> (u64, u64) {
    (attribute(cuda, pool, 5) / MIB, attribute(cuda, pool, 7) / MIB)
}

fn alloc(cuda: Library, mib: u64) -> u64 {
    cuda.get("cuMemAllocAsync", &[OUT, mib * MIB, 0])
}

fn free(cuda: Library, pointer: u64) -> c_int {
    cuda.call("cuMemFreeAsync", &[pointer, 0])
}

fn synchronize(cuda: Library) {
    assert_eq!(cuda.call("cuCtxSynchronize", &[]), OK);
}

#[test]
fn pool_grows_in_chunks_and_shrinks_at_synchronization() {
    let test = "pool_grows_in_chunks_and_shrinks_at_synchronization";
    let oracle = oracle_of(test, &[], |cuda| {
        cuda.start(0);
        let pool = cuda.get("cuDeviceGetDefaultMemPool", &[OUT, 0]);
        let first = alloc(cuda, 40);
        assert_eq!(levels(cuda, pool), (64, 40));
        let second = alloc(cuda, 20);
        assert_eq!(levels(cuda, pool), (64, 60));
        assert_eq!(free(cuda, first), OK);
        assert_eq!(free(cuda, first), INVALID_VALUE);
        assert_eq!(levels(cuda, pool), (64, 20));
        // Not before a synchronization.
        assert_eq!(cuda.call("cuMemPoolTrimTo", &[pool, 0]), OK);
        assert_eq!(levels(cuda, pool), (64, 20));
        synchronize(cuda);
        assert_eq!(levels(cuda, pool), (32, 20));
        assert_eq!(cuda.free(second), OK, "an ordinary free waits for the device");
        assert_eq!(levels(cuda, pool), (0, 0));
        assert_eq!((attribute(cuda, pool, 6), attribute(cuda, pool, 8)), (64 * MIB, 60 * MIB));
        // An allocation of 0 bytes succeeds and returns null.
        assert_eq!(cuda.get("cuMemAllocAsync_ptsz", &[OUT, 0, 0]), 0);
        alloc(cuda, 1);
    });
    assert_eq!((&oracle["allocations"], &oracle["frees"]), (&3.into(), &2.into()));
    assert_eq!(live(&oracle, "async"), [MIB]);
    assert_eq!((&oracle["live_bytes"], &oracle["peak_bytes"]), (&MIB.into(), &(60 * MIB).into()));
    assert_eq!(
        (&oracle["device_bytes"], &oracle["device_peak_bytes"]),
        (&(32 * MIB).into(), &(64 * MIB).into())
    );
    assert_eq!(oracle["pools"][0]["used"], MIB);
}

#[test]
fn release_threshold_keeps_memory_in_the_pool() {
    oracle_of("release_threshold_keeps_memory_in_the_pool", &[], |cuda| {
        cuda.start(0);
        let pool = cuda.get("cuDeviceGetDefaultMemPool", &[OUT, 0]);
        let mut threshold = 100 * MIB;
        let place = &raw mut threshold as u64;
        assert_eq!(cuda.call("cuMemPoolSetAttribute", &[pool, 4, place]), OK);
        let pointer = alloc(cuda, 200);
        assert_eq!(free(cuda, pointer), OK);
        synchronize(cuda);
        assert_eq!(levels(cuda, pool), (96, 0));
        assert_eq!(cuda.call("cuMemPoolTrimTo", &[pool, 40 * MIB]), OK);
        assert_eq!(levels(cuda, pool), (64, 0));
        assert_eq!(cuda.call("cuMemPoolTrimTo", &[pool, 0]), OK);
        assert_eq!(levels(cuda, pool), (0, 0));
    });
}

#[test]
fn pools_outlive_contexts_until_their_memory_is_freed() {
    let test = "pools_outlive_contexts_until_their_memory_is_freed";
    let oracle = oracle_of(test, &[], |cuda| {
        cuda.start(0);
        let default = cuda.get("cuDeviceGetDefaultMemPool", &[OUT, 0]);
        let context = cuda.get("cuCtxCreate_v2", &[OUT, 0, 0]);
        let pointer = alloc(cuda, 1);
        assert_eq!(cuda.call("cuCtxDestroy_v2", &[context]), OK);
        assert_eq!(cuda.call("cuDevicePrimaryCtxReset_v2", &[0]), OK);
        cuda.start(0);
        assert_eq!(levels(cuda, default), (32, 1));
        assert_eq!(free(cuda, pointer), OK);

        let props = [1_u64, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let pool = cuda.get("cuMemPoolCreate", &[OUT, props.as_ptr() as u64]);
        assert_eq!(cuda.call("cuDeviceSetMemPool", &[0, pool]), OK);
        let pointer = alloc(cuda, 10);
        let arguments = [OUT, 2 * MIB, pool, 0];
        cuda.get("cuMemAllocFromPoolAsync", &arguments);
        assert_eq!(levels(cuda, pool), (32, 12));
        assert_eq!(cuda.call("cuMemPoolDestroy", &[pool]), OK);
        assert_eq!(cuda.get("cuDeviceGetMemPool", &[OUT, 0]), default);
        assert_eq!(cuda.out("cuMemAllocFromPoolAsync", &arguments).0, INVALID_VALUE);
        assert_eq!(cuda.call("cuMemPoolDestroy", &[pool]), INVALID_VALUE);
        assert_eq!(cuda.call("cuMemPoolDestroy", &[default]), INVALID_VALUE);
        assert_eq!(free(cuda, pointer), OK);
        synchronize(cuda);
    });
    assert_eq!(oracle["released"], 0);
    assert_eq!(live(&oracle, "async"), [2 * MIB]);
    assert_eq!(oracle["device_bytes"], 32 * MIB);
    assert_eq!(oracle["pools"][1]["destroyed"], true);
}

#[test]
fn pool_on_full_device_returns_out_of_memory() {
    let test = "pool_on_full_device_returns_out_of_memory";
    let oracle = oracle_of(test, &[("SIM_MEMORY", "100M")], |cuda| {
        cuda.start(0);
        alloc(cuda, 60);
        cuda.alloc(30 * MIB);
        assert_eq!(cuda.out("cuMemAllocAsync", &[OUT, 5 * MIB, 0]).0, OUT_OF_MEMORY);
        alloc(cuda, 4);
    });
    assert_eq!(oracle["failed_allocations"], 1);
    assert_eq!(oracle["live_bytes"], 94 * MIB);
    assert_eq!(oracle["device_bytes"], 94 * MIB);
}

/// Adds an allocation node; returns its handle and address.
fn alloc_node(cuda: Library, graph: u64, mib: u64) -> (u64, u64) {
    let mut params = [0_u64; 15];
    params[0] = 1;
    params[1] = 1;
    params[13] = mib * MIB;
    let place = params.as_mut_ptr() as u64;
    let node = cuda.get("cuGraphAddMemAllocNode", &[OUT, graph, 0, 0, place]);
    (node, params[14])
}

fn instantiate(cuda: Library, graph: u64, flags: u64) -> (c_int, u64) {
    cuda.out("cuGraphInstantiateWithFlags", &[OUT, graph, flags])
}

/// Returns the reserved graph memory of the device, in MiB.
fn reserved(cuda: Library) -> u64 {
    cuda.get("cuDeviceGetGraphMemAttribute", &[0, 2, OUT]) / MIB
}

#[test]
fn graph_memory_is_kept_from_launch_until_trim() {
    let test = "graph_memory_is_kept_from_launch_until_trim";
    let oracle = oracle_of(test, &[], |cuda| {
        cuda.start(0);
        let graph = cuda.get("cuGraphCreate", &[OUT, 0]);
        let (_, freed) = alloc_node(cuda, graph, 64);
        let (_, left) = alloc_node(cuda, graph, 32);
        let arguments = [OUT, graph, 0, 0, freed];
        cuda.get("cuGraphAddMemFreeNode", &arguments);
        assert_eq!(cuda.out("cuGraphAddMemFreeNode", &arguments).0, INVALID_VALUE);
        let exec = instantiate(cuda, graph, 0).1;
        assert_eq!(instantiate(cuda, graph, 0).0, NOT_SUPPORTED, "one at a time frees nothing");
        assert_eq!(reserved(cuda), 0);
        assert_eq!(cuda.free(left), INVALID_VALUE, "it is not allocated yet");
        assert_eq!(cuda.call("cuGraphLaunch", &[exec, 0]), OK);
        assert_eq!(reserved(cuda), 96);
        assert_eq!(cuda.call("cuGraphLaunch", &[exec, 0]), INVALID_VALUE, "32 MiB are not freed");
        assert_eq!(cuda.free(left), OK);
        assert_eq!(cuda.free(left), INVALID_VALUE);
        assert_eq!(cuda.call("cuGraphLaunch_ptsz", &[exec, 0]), OK);
        assert_eq!(cuda.call("cuDeviceGraphMemTrim", &[0]), OK);
        assert_eq!(reserved(cuda), 32, "what is in use is not trimmed");
        assert_eq!(cuda.call("cuGraphExecDestroy", &[exec]), OK);
        assert_eq!(cuda.call("cuGraphDestroy", &[graph]), OK);
        assert_eq!(free(cuda, left), OK);
        assert_eq!(reserved(cuda), 32);
        assert_eq!(cuda.call("cuDeviceGraphMemTrim", &[0]), OK);

        let graph = cuda.get("cuGraphCreate", &[OUT, 0]);
        alloc_node(cuda, graph, 8);
        let exec = instantiate(cuda, graph, 1).1;
        for _ in 0..2 {
            assert_eq!(cuda.call("cuGraphLaunch", &[exec, 0]), OK, "it frees automatically");
        }
    });
    assert_eq!(live(&oracle, "graph"), [8 * MIB]);
    assert_eq!(oracle["peak_bytes"], 32 * MIB, "what it frees itself is never the program's");
    assert_eq!(oracle["device_peak_bytes"], 96 * MIB);
    assert_eq!((&oracle["allocations"], &oracle["frees"]), (&4.into(), &3.into()));
}

#[test]
fn captured_allocations_become_graph_nodes() {
    let oracle = oracle_of("captured_allocations_become_graph_nodes", &[], |cuda| {
        cuda.start(0);
        let stream = cuda.get("cuStreamCreate", &[OUT, 1]);
        let status = || cuda.get("cuStreamIsCapturing", &[stream, OUT]);
        assert_eq!(cuda.call("cuStreamBeginCapture_v2", &[stream, 2]), OK);
        assert_eq!(status(), 1);
        let pointer = cuda.get("cuMemAllocAsync", &[OUT, 16 * MIB, stream]);
        assert_eq!(cuda.call("cuMemFreeAsync", &[pointer, stream]), OK);
        cuda.alloc(100);
        let graph = cuda.get("cuStreamEndCapture", &[stream, OUT]);
        assert_eq!(cuda.get("cuGraphGetNodes", &[graph, 0, OUT]), 2);
        assert_eq!(reserved(cuda), 0);
        let exec = instantiate(cuda, graph, 0).1;
        assert_eq!(cuda.call("cuGraphLaunch", &[exec, stream]), OK);
        assert_eq!(reserved(cuda), 16);

        // A capture in global mode forbids calls that cannot be captured.
        assert_eq!(cuda.call("cuStreamBeginCapture_v2", &[stream, 0]), OK);
        assert_eq!(cuda.out("cuMemAlloc_v2", &[OUT, 100]).0, CAPTURE_UNSUPPORTED);
        assert_eq!(status(), 2);
        assert_eq!(cuda.out("cuStreamEndCapture", &[stream, OUT]), (901, 0));
        assert_eq!(cuda.out("cuStreamEndCapture", &[stream, OUT]).0, 401);
    });
    assert_eq!(live(&oracle, "device"), [100]);
    assert!(live(&oracle, "graph").is_empty());
    assert_eq!(oracle["device_bytes"], 16 * MIB + 100);
    assert_eq!(oracle["failed_allocations"], 1);
}
