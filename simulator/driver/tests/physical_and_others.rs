//! Virtual memory management, arrays, and imported memory.

use std::ffi::c_int;

use crate::common::{
    INVALID_DEVICE, INVALID_VALUE, Library, MIB, NOT_SUPPORTED, OK, OUT, live, oracle_of,
};

/// The properties of physical memory: location, and whether it can be shared.
fn prop(location: u64, id: u64, shareable: u64) -> [u64; 4] {
    [1 | shareable << 32, location | id << 32, 0, 0]
}

fn create(cuda: Library, mib: u64, prop: [u64; 4]) -> (c_int, u64) {
    cuda.out("cuMemCreate", &[OUT, mib * MIB, prop.as_ptr() as u64, 0])
}

fn map(cuda: Library, address: u64, mib: u64, handle: u64) -> c_int {
    cuda.call("cuMemMap", &[address, mib * MIB, 0, handle, 0])
}

fn unmap(cuda: Library, address: u64, mib: u64) -> c_int {
    cuda.call("cuMemUnmap", &[address, mib * MIB])
}

fn release(cuda: Library, handle: u64) -> c_int {
    cuda.call("cuMemRelease", &[handle])
}

#[test]
fn physical_memory_lives_until_last_handle_and_mapping() {
    let test = "physical_memory_lives_until_last_handle_and_mapping";
    let oracle = oracle_of(test, &[], |cuda| {
        assert_eq!(cuda.call("cuInit", &[0]), OK);
        let on_device = prop(1, 1, 0);
        let first = create(cuda, 4, on_device).1;
        let range = cuda.get("cuMemAddressReserve", &[OUT, 64 * MIB, 0, 0, 0]);
        let at = |mib: u64| range + mib * MIB;
        assert_eq!(map(cuda, at(0), 4, first), OK);
        assert_eq!(map(cuda, at(8), 4, first), OK, "once more, elsewhere");
        assert_eq!(map(cuda, at(2), 4, first), INVALID_VALUE, "over another map");
        assert_eq!(map(cuda, at(62), 4, first), INVALID_VALUE, "beyond the range");
        assert_eq!(map(cuda, at(20), 2, first), NOT_SUPPORTED, "a part of it");
        assert_eq!(release(cuda, first), OK);
        assert_eq!(release(cuda, first), INVALID_VALUE);
        assert_eq!(cuda.get("cuMemRetainAllocationHandle", &[OUT, at(1)]), first);
        assert_eq!(release(cuda, first), OK);
        assert_eq!(unmap(cuda, at(0), 2), INVALID_VALUE, "a part of a map");
        assert_eq!(cuda.call("cuMemAddressFree", &[range, 64 * MIB]), INVALID_VALUE);
        assert_eq!(unmap(cuda, at(0), 4), OK);
        // Several mappings at once, and the hole between them.
        let second = create(cuda, 2, on_device).1;
        assert_eq!(map(cuda, at(4), 2, second), OK);
        assert_eq!(release(cuda, second), OK);
        assert_eq!(unmap(cuda, at(4), 8), OK);
        assert_eq!(cuda.call("cuMemAddressFree", &[range, 32 * MIB]), INVALID_VALUE);
        assert_eq!(cuda.call("cuMemAddressFree", &[range, 64 * MIB]), OK);

        assert_eq!(create(cuda, 3, on_device).0, INVALID_VALUE, "not whole granules");
        assert_eq!(create(cuda, 2, prop(1, 7, 0)).0, INVALID_DEVICE);
        assert_eq!(create(cuda, 2, prop(2, 0, 0)).0, OK);
        let kept = create(cuda, 6, on_device).1;
        assert_eq!(map(cuda, range, 6, kept), INVALID_VALUE, "nothing is reserved any more");
    });
    assert_eq!((&oracle["allocations"], &oracle["frees"]), (&4.into(), &2.into()));
    assert_eq!(live(&oracle, "physical"), [6 * MIB]);
    assert_eq!(live(&oracle, "host_physical"), [2 * MIB]);
    assert_eq!(oracle["live_bytes_by_device"][1], 6 * MIB);
    assert_eq!(oracle["failed_allocations"], 2);
}

#[test]
fn physical_memory_outlives_contexts() {
    let oracle = oracle_of("physical_memory_outlives_contexts", &[], |cuda| {
        cuda.start(0);
        create(cuda, 4, prop(1, 0, 0));
        assert_eq!(cuda.call("cuDevicePrimaryCtxReset_v2", &[0]), OK);
    });
    assert_eq!(live(&oracle, "physical"), [4 * MIB]);
    assert_eq!(oracle["released"], 0);
}

#[test]
fn imported_memory_is_counted_for_the_exporter() {
    let oracle = oracle_of("imported_memory_is_counted_for_the_exporter", &[], |cuda| {
        cuda.start(0);
        let handle = create(cuda, 4, prop(1, 1, 1)).1;
        let mut descriptor: c_int = -1;
        let place = &raw mut descriptor as u64;
        assert_eq!(cuda.call("cuMemExportToShareableHandle", &[place, handle, 1, 0]), OK);
        let number = u64::try_from(descriptor).unwrap();
        let imported = cuda.get("cuMemImportFromShareableHandle", &[OUT, number, 1]);
        assert_ne!(imported, handle);
        assert_eq!(release(cuda, handle), OK);
        let private = create(cuda, 2, prop(1, 0, 0)).1;
        let refused = cuda.call("cuMemExportToShareableHandle", &[place, private, 1, 0]);
        assert_eq!(refused, INVALID_VALUE);
        assert_eq!(cuda.out("cuMemImportFromShareableHandle", &[OUT, 0, 1]).0, INVALID_VALUE);
        assert_eq!(release(cuda, private), OK);
        // A multicast object has no memory of its own.
        let group = [2_u64, 2 * MIB, 0, 0];
        let group = cuda.get("cuMulticastCreate", &[OUT, group.as_ptr() as u64]);
        assert_eq!(cuda.call("cuMulticastAddDevice", &[group, 1]), OK);
        assert_eq!(cuda.call("cuMulticastBindMem", &[group, 0, imported, 0, 2 * MIB, 0]), OK);
        assert_eq!(release(cuda, group), OK);

        let external = [1_u64, 0, 0, 100 * MIB, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        // A separate descriptor, which the driver owns from now on.
        // SAFETY: duplicates standard input.
        let own = unsafe { libc::dup(0) };
        let external = [external[0], u64::try_from(own).unwrap(), 0, external[3], 0, 0, 0, 0, 0];
        let memory = cuda.get("cuImportExternalMemory", &[OUT, external.as_ptr() as u64]);
        let buffer = [MIB, 2 * MIB, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let arguments = [OUT, memory, buffer.as_ptr() as u64];
        let first = cuda.get("cuExternalMemoryGetMappedBuffer", &arguments);
        cuda.get("cuExternalMemoryGetMappedBuffer", &arguments);
        assert_eq!(cuda.free(first), OK);
        assert_eq!(cuda.call("cuDestroyExternalMemory", &[memory]), OK);
    });
    let mut imported = live(&oracle, "imported");
    imported.sort_unstable();
    assert_eq!(imported, [2 * MIB, 4 * MIB]);
    assert_eq!(oracle["live_bytes"], 0);
    assert_eq!(oracle["peak_bytes"], 4 * MIB);
}

/// Width, height, depth, format and channels, flags.
fn array(width: u64, height: u64, depth: u64, flags: u64) -> [u64; 5] {
    const FLOAT: u64 = 0x20;
    [width, height, depth, FLOAT | 2 << 32, flags]
}

#[test]
fn array_bytes_follow_the_descriptor() {
    let oracle = oracle_of("array_bytes_follow_the_descriptor", &[], |cuda| {
        cuda.start(0);
        let create = |descriptor: [u64; 5]| {
            cuda.out("cuArray3DCreate_v2", &[OUT, descriptor.as_ptr() as u64])
        };
        let flat = [1000_u64, 0, 0x01 | 1 << 32];
        cuda.get("cuArrayCreate_v2", &[OUT, flat.as_ptr() as u64]);
        let gone = create(array(64, 64, 64, 0)).1;
        assert_eq!(cuda.call("cuArrayDestroy", &[gone]), OK);
        assert_eq!(create(array(64, 64, 0, 0x40)).0, OK, "sparse: no memory yet");
        assert_eq!(create(array(0, 64, 0, 0)).0, INVALID_VALUE);
        let levels = array(64, 32, 0, 0);
        let levels = [OUT, levels.as_ptr() as u64, 3];
        let mipmapped = cuda.get("cuMipmappedArrayCreate", &levels);
        let level = cuda.get("cuMipmappedArrayGetLevel", &[OUT, mipmapped, 1]);
        assert_eq!(cuda.get("cuMipmappedArrayGetLevel", &[OUT, mipmapped, 1]), level);
        let refused = cuda.out("cuMipmappedArrayGetLevel", &[OUT, mipmapped, 3]).0;
        assert_eq!(refused, INVALID_VALUE);
        let mut descriptor = [0_u64; 3];
        let place = descriptor.as_mut_ptr() as u64;
        assert_eq!(cuda.call("cuArrayGetDescriptor_v2", &[place, level]), OK);
        assert_eq!(descriptor, [32, 16, 0x20 | 2 << 32]);
        let other = cuda.get("cuMipmappedArrayCreate", &levels);
        assert_eq!(cuda.call("cuMipmappedArrayDestroy", &[other]), OK);
    });
    let mut arrays = live(&oracle, "array");
    arrays.sort_unstable();
    // The sparse array has no memory of its own.
    assert_eq!(arrays, [0, 1000, (64 * 32 + 32 * 16 + 16 * 8) * 8]);
    assert_eq!((&oracle["allocations"], &oracle["frees"]), (&5.into(), &2.into()));
}
