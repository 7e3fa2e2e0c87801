//! Physical memory: references, mappings, reserved addresses.

use super::*;

const MAPPED: &str = "1.1 vmm create h0x10 8M gpu1 site4
                      1.1 vmm reserve 0x100000 64M
                      1.1 vmm map 0x100000 8M h0x10";

#[test]
fn physical_memory_is_live_on_its_own_device() {
    let snapshot = after(&format!("1.1 ctx create C1 gpu0 \n {MAPPED}"));
    let process = only(&snapshot);
    assert_eq!((live(process), devices(process)), ((8, 1), vec![(1, 8, 8)]));
    assert_eq!((process.allocations_total, process.kinds[0].kind), (1, MemoryKind::Physical));
    let allocation = process.threads[0].allocations[0];
    assert_eq!((allocation.key.space, allocation.key.value), (AddressType::Handle, 0x10));
    assert_eq!(allocation.site.to_string(), "pending-4");
    assert_eq!(process.reserved_addresses, Bytes(64 * MIB));
}

#[test]
fn physical_host_memory_is_not_device_memory() {
    let snapshot = after("1.1 vmm create h0x10 8M host");
    assert_eq!(live(only(&snapshot)), (0, 1));
    assert_eq!(only(&snapshot).kinds[0].kind, MemoryKind::HostPhysical);
}

#[test]
fn unmapped_memory_ends_with_its_last_reference() {
    let trace = format!("{MAPPED}\n 1.1 vmm retain h0x10 \n 1.1 vmm unmap 0x100000 8M");
    assert_eq!(live(only(&after(&trace))), (8, 1));
    let trace = format!("{trace}\n 1.1 vmm release h0x10");
    assert_eq!(live(only(&after(&trace))), (8, 1));
    let snapshot = after(&format!("{trace}\n 1.1 vmm release h0x10"));
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (1, 0, 0, 0)));
    assert_eq!(only(&snapshot).api_misuse.released_while_mapped, 0);
}

#[test]
fn released_memory_ends_with_its_last_mapping() {
    let trace = format!(
        "{MAPPED}
         1.1 vmm map 0x900000 8M h0x10
         1.1 vmm release h0x10
         1.1 vmm unmap 0x100000 8M"
    );
    let snapshot = after(&trace);
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((8, 1), (0, 0, 0, 0)));
    assert_eq!(only(&snapshot).api_misuse.released_while_mapped, 1);
    let snapshot = after(&format!("{trace}\n 1.1 vmm unmap 0x900000 8M"));
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (1, 0, 0, 0)));
}

#[test]
fn retain_after_the_last_release_keeps_mapped_memory() {
    let snapshot = after(&format!(
        "{MAPPED}
         1.1 vmm release h0x10
         1.1 vmm retain h0x10
         1.1 vmm unmap 0x100000 8M"
    ));
    assert_eq!(live(only(&snapshot)), (8, 1));
}

#[test]
fn one_unmap_can_end_several_handles() {
    let snapshot = after(
        "1.1 vmm create h0x10 2M gpu0
         1.1 vmm create h0x20 2M gpu0
         1.1 vmm create h0x30 2M gpu0
         1.1 vmm map 0x000000 2M h0x10
         1.1 vmm map 0x200000 2M h0x20
         1.1 vmm map 0x600000 2M h0x30
         1.1 vmm release h0x10
         1.1 vmm release h0x20
         1.1 vmm release h0x30
         1.1 vmm unmap 0x0 6M",
    );
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((2, 1), (2, 0, 0, 0)));
}

#[test]
fn end_of_a_context_keeps_physical_memory() {
    let snapshot = after(&format!(
        "1.1 process 100
         1.1 ctx retain C1 gpu1
         {MAPPED}
         1.1 ctx reset gpu1
         1.1 ctx release gpu1"
    ));
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((8, 1), (0, 0, 0, 0)));
}

#[test]
fn imported_memory_has_the_size_of_its_largest_mapping() {
    let trace = "1.1 vmm import h0x10 \n 1.1 vmm map 0x100000 2M h0x10";
    let snapshot = after(&format!("{trace}\n 1.1 vmm map 0x900000 8M h0x10"));
    let process = only(&snapshot);
    assert_eq!((live(process), process.allocations_total), ((0, 1), 1));
    assert_eq!(
        (process.kinds[0].kind, process.kinds[0].live_bytes),
        (MemoryKind::Imported, Bytes(8 * MIB))
    );
    assert_eq!(process.threads[0].allocations[0].bytes, Bytes(8 * MIB));
    let snapshot = after(&format!("{trace}\n 1.1 vmm release h0x10 \n 1.1 vmm unmap 0x100000 2M"));
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (1, 0, 0, 0)));
}

#[test]
fn multicast_object_is_not_memory() {
    let snapshot = after(
        "1.1 vmm multicast h0x10
         1.1 vmm map 0x100000 8M h0x10
         1.1 vmm release h0x10
         1.1 vmm unmap 0x100000 8M
         1.1 vmm multicast h0x10
         1.1 vmm release h0x10",
    );
    let process = only(&snapshot);
    assert_eq!((live(process), process.allocations_total), ((0, 0), 0));
    assert_eq!((ends(process), process.api_misuse.released_while_mapped), ((0, 0, 0, 0), 0));
}

#[test]
fn handles_from_before_the_trace_are_ignored() {
    let snapshot = after(
        "1.1 vmm map 0x100000 8M h0x10
         1.1 vmm retain h0x10
         1.1 vmm unmap 0x100000 8M
         1.1 vmm unreserve 0x100000 64M
         1.1 vmm release h0x10",
    );
    let process = only(&snapshot);
    assert_eq!((live(process), ends(process)), ((0, 0), (0, 1, 0, 0)));
    assert_eq!(process.reserved_addresses, Bytes(0));
}

#[test]
fn handle_reused_before_its_release_is_new_memory() {
    let trace = "1.1 vmm create h0x10 8M gpu0 @10-20
                 1.2 vmm create h0x10 4M gpu0 @40-60";
    let snapshot = after(trace);
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((4, 1), (0, 0, 0, 1)));
    let snapshot = after(&format!("{trace}\n 1.1 vmm release h0x10 @50-70"));
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((4, 1), (1, 0, 0, 0)));
    let snapshot =
        after(&format!("{trace}\n 1.1 vmm release h0x10 @50-70 \n 1.2 vmm release h0x10 @65-75"));
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (2, 0, 0, 0)));
}

#[test]
fn handle_reused_before_its_last_unmap_is_new_memory() {
    let snapshot = after(
        "1.1 vmm create h0x10 8M gpu0 @10-20
         1.1 vmm map 0x100000 8M h0x10 @21-22
         1.2 vmm create h0x10 4M gpu0 @40-60
         1.1 vmm unmap 0x100000 8M @30-70
         1.3 vmm release h0x10 @50-71",
    );
    // The release of the old handle arrived second: no release is pending any more.
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((4, 1), (1, 0, 0, 0)));
}

#[test]
fn address_mapped_before_its_unmap_belongs_to_new_memory() {
    let trace = "1.1 vmm create h0x10 8M gpu0 @1-2
                 1.1 vmm create h0x20 8M gpu0 @3-4
                 1.1 vmm map 0x100000 8M h0x10 @5-6
                 1.1 vmm release h0x10 @7-8
                 1.2 vmm map 0x100000 8M h0x20 @40-60
                 1.2 vmm release h0x20 @61-62";
    let snapshot = after(trace);
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((8, 1), (1, 0, 0, 0)));
    let snapshot = after(&format!("{trace}\n 1.1 vmm unmap 0x100000 8M @30-70"));
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((8, 1), (1, 0, 0, 0)));
    let snapshot = after(&format!("{trace}\n 1.1 vmm unmap 0x100000 8M @65-70"));
    assert_eq!((live(only(&snapshot)), ends(only(&snapshot))), ((0, 0), (2, 0, 0, 0)));
}

#[test]
fn reserved_addresses_are_not_memory() {
    let trace = "1.1 vmm reserve 0x100000 64M \n 1.1 vmm reserve 0x8000000 2M";
    let snapshot = after(trace);
    assert_eq!((live(only(&snapshot)), only(&snapshot).allocations_total), ((0, 0), 0));
    assert_eq!(only(&snapshot).reserved_addresses, Bytes(66 * MIB));
    let snapshot = after(&format!("{trace}\n 1.1 vmm unreserve 0x100000 64M"));
    assert_eq!(only(&snapshot).reserved_addresses, Bytes(2 * MIB));
}
