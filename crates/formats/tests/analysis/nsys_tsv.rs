//! The three tables for scripts around Nsight Systems.

use std::collections::BTreeSet;

use formats::export::format_writer::FormatWriter;
use formats::export::nsys_tsv::NsysTables;

use super::fixture::FileFixture;

fn tables(fixture: &FileFixture) -> [Vec<Vec<String>>; 3] {
    let mut tables = [const { Vec::new() }; 3];
    let mut writer = Box::new(NsysTables::new(&mut tables).unwrap());
    for change in &fixture.changes {
        writer.change(change, &fixture.info).unwrap();
    }
    assert_eq!(writer.finish(&fixture.info).unwrap(), [""; 0]);
    let rows = |bytes: Vec<u8>| -> Vec<Vec<String>> {
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
    };
    tables.map(rows)
}

#[test]
fn every_allocation_is_in_exactly_one_table() {
    let [valid, invalid, driver] = tables(&FileFixture::rich());
    let columns = [
        "PID",
        "address",
        "start_time",
        "bytes",
        "mem_kind",
        "mem_op_type",
        "var_name",
        "call_stack",
    ];
    let addresses = |table: &[Vec<String>]| -> BTreeSet<String> {
        assert_eq!(table[0], columns);
        assert!(table.iter().all(|row| row.len() == columns.len()), "{table:?}");
        table[1..].iter().map(|row| row[1].clone()).collect()
    };
    let set = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<BTreeSet<_>>();
    assert_eq!(addresses(&valid), set(&[0x100, 0x200, 0x500, 0x700]));
    assert_eq!(addresses(&driver), set(&[0x300]));
    assert_eq!(addresses(&invalid), set(&[0x10, 0x11, 0x400, 0x600, 0x800]));
}

#[test]
fn rows_use_the_names_of_nsight_systems() {
    let [valid, invalid, driver] = tables(&FileFixture::rich());
    let first = [
        "7",
        "256",
        "2000000000",
        "8388608",
        "CUDA_MEMOPR_MEMORY_KIND_DEVICE",
        "CUDA_DEV_MEM_EVENT_OPR_ALLOCATION",
        "",
        "[cudaMalloc] (/usr/lib/libcudart.so.12) -> [make_buffer] (/opt/app/train) -> [main] (/opt/app/train)",
    ];
    assert_eq!(valid[1], first);
    assert_eq!(valid[3][5], "CUDA_DEV_MEM_EVENT_OPR_DEALLOCATION");
    // A hostile name stays in its field.
    assert!(valid[4][7].starts_with("[\\u{1b}[31mmalloc\\t\"x\"] (a\\nb) -> [Unknown] (libx.so)"));
    let variable = &invalid[1];
    assert_eq!((&*variable[4], &*variable[6]), ("CUDA_MEMOPR_MEMORY_KIND_DEVICE_STATIC", "table"));
    // Memory that the process left at its exit was not freed by a call.
    assert_eq!(driver.len(), 2);
    assert_eq!(driver[1][7], "cuMemAllocAsync");
}
