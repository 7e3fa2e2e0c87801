//! Reports of compute-sanitizer: a real one as text and XML with equal content, and others of older
//! versions.

use engine::model::ids::{AddressType, AllocationKey};
use engine::model::memory_kind::MemoryKind;
use proptest::prelude::*;
use tempfile::TempDir;

use crate::collect::{Collected, file, fixture};
use crate::random;

fn read(text: &str) -> Collected {
    let dir = TempDir::new().unwrap();
    Collected::read(&file(&dir, "report", text)).unwrap().0
}

/// Returns the functions and lines of a leak's frames that have a line.
fn lines(found: &Collected, at: usize) -> Vec<(String, u32)> {
    let frames = found.stacks.frames(found.changes[at].site.unwrap());
    let name = |function: &str| function.split('(').next().unwrap_or_default().to_owned();
    frames.filter(|frame| frame.line > 0).map(|frame| (name(&frame.function), frame.line)).collect()
}

#[test]
fn text_and_xml_of_one_run_agree() {
    let (text, about) = Collected::read(&fixture("sanitizer/2025.3.1.txt")).unwrap();
    let (xml, _) = Collected::read(&fixture("sanitizer/2025.3.1.xml")).unwrap();
    assert_eq!(about.events, 5);
    let changes = |found: &Collected| -> Vec<_> {
        found.changes.iter().map(|change| (change.bytes, change.kind, change.key)).collect()
    };
    assert_eq!(changes(&text), changes(&xml));
    assert_eq!(text.warnings, xml.warnings);
    for at in 0..5 {
        assert_eq!(lines(&text, at), lines(&xml, at));
        // Both begin with the call that the program made.
        let first = |found: &Collected| found.frames(found.changes[at].site)[0].clone();
        assert_eq!(first(&text), first(&xml));
    }
    assert_eq!(
        lines(&text, 0),
        [
            ("cudaError cudaMalloc<float>".into(), 879),
            ("leak_path".into(), 12),
            ("main".into(), 51)
        ]
    );
}

#[test]
fn memory_kind_follows_from_the_allocating_function() {
    let (found, _) = Collected::read(&fixture("sanitizer/2025.3.1.txt")).unwrap();
    let leaks: Vec<_> = found.changes.iter().map(|change| (change.bytes, change.kind)).collect();
    assert_eq!(
        leaks,
        [
            (8 << 20, MemoryKind::Device),
            (4096, MemoryKind::Pinned),
            (4096, MemoryKind::Device),
            (2 << 20, MemoryKind::Async),
            (4096, MemoryKind::Device)
        ]
    );
    assert_eq!(found.warned("the context's own"), 2);
    assert_eq!(found.warned("calls of the CUDA API failed"), 2);
    assert!(found.warnings.iter().all(|warning| !warning.inexact));
}

const OLDER: &str = "\
## COMPUTE-SANITIZER
starting up
no line end## Leaked 64 bytes at 0x7f0000000000
##     Saved host backtrace up to driver entry point at cudaMalloc time
##     Host Frame: [0x32b91f]
##                in /usr/lib/x86_64-linux-gnu/libcuda.so.1
##     Host Frame:cudaMallocManaged [0x51006]
##                in /srv/app
##     Host Frame:/src/a.cu:12:ns::grow(int) [0x9dd8]
##                in /srv/app
##
## Leaked 16384 bytes from CUDA array 0x55d0
##     Saved host backtrace up to driver entry point at allocation time
##     Host Frame:cudaMallocMipmappedArray [0x51006]
##                in /srv/app
##
## Leaked 4096 bytes from CUDA array 0x55e0
##     Host Frame:cudaMallocMipmappedArray [0x51006]
##
## Leaked 32 bytes at 0x30 on the device heap
##
## Leaked an OptixModule with handle 0x77
##
## Invalid __global__ read of size 4 bytes
##     at 0x70 in kernel(float*)
##     Host Frame:main [0x1]
##                in /srv/app
##
## Program hit out of memory (error 2) on CUDA API call to cudaMalloc.
##     Host Frame:main [0x1]
##
## LEAK SUMMARY: 20576 bytes leaked in 4 allocations
## ERROR SUMMARY: 1,234 errors were not printed. Use --print-limit option to adjust the number of printed errors
";

#[test]
fn reports_of_older_versions_are_supported() {
    let found = read(OLDER);
    let leaks: Vec<_> =
        found.changes.iter().map(|change| (change.bytes, change.kind, change.key)).collect();
    let array = |value| AllocationKey { space: AddressType::Array, value };
    assert_eq!(
        leaks,
        [
            (64, MemoryKind::Managed, AllocationKey::address(0x7f00_0000_0000)),
            (16384, MemoryKind::Array, array(0x55d0)),
            (4096, MemoryKind::Array, array(0x55e0)),
            (32, MemoryKind::Device, AllocationKey::address(0x30)),
        ]
    );
    let site = found.changes[0].site.unwrap();
    let frames: Vec<_> = found.stacks.frames(site).cloned().collect();
    assert_eq!(&*frames[0].function, "cudaMallocManaged");
    assert_eq!((&*frames[1].function, frames[1].line), ("ns::grow(int)", 12));
    assert_eq!(frames[1].file.as_deref(), Some("/src/a.cu"));
    assert_eq!(frames[1].module.as_deref(), Some("/srv/app"));
    assert_eq!(found.frames(found.changes[3].site), ["= device heap (malloc in a kernel)"]);
    assert_eq!(found.warned("calls of the CUDA API failed"), 1);
    assert_eq!(found.warned("errors of other sorts"), 2);
    assert_eq!(found.warned("not printed"), 1234);
    assert_eq!(found.warned("summary"), 0);
}

#[test]
fn incomplete_report_has_a_warning() {
    let found = read(
        "========= COMPUTE-SANITIZER\n\
         ========= Leaked 64 bytes at 0x10\n\
         =========\n\
         ========= LEAK SUMMARY: 1064 bytes leaked in 3 allocations\n",
    );
    assert_eq!(found.warned("in the summary and not in the report"), 2);
    assert_eq!(found.warned("bytes differ"), 1000);
    assert!(found.warnings.iter().all(|warning| warning.inexact));

    let found = read("========= COMPUTE-SANITIZER\n========= Leaked 64 bytes at 0x10\n");
    assert_eq!((found.changes.len(), found.warned("no LEAK SUMMARY")), (1, 1));

    let two = "========= COMPUTE-SANITIZER\n========= Leaked 1 bytes at 0x10\n";
    let found = read(&format!(
        "{two}========= LEAK SUMMARY: 1 bytes leaked in 1 allocations\n{two}\
                               ========= LEAK SUMMARY: 1 bytes leaked in 1 allocations\n"
    ));
    assert_eq!(found.changes.len(), 2, "one address in two processes is two leaks");
    assert_eq!(found.warnings, [], "totals are added");

    let xml = std::fs::read_to_string(fixture("sanitizer/2025.3.1.xml")).unwrap();
    let cut = &xml[..xml.len() * 2 / 3];
    let complete = cut.rsplit("</record>").skip(1).filter(|record| record.contains("Leak")).count();
    let found = read(cut);
    assert_eq!(found.warned("ends in the middle"), 1);
    assert_eq!(found.changes.len(), complete);
    assert!((1..5).contains(&complete));
}

#[test]
fn xml_with_entity_declarations_is_rejected() {
    let dir = TempDir::new().unwrap();
    let bomb = "<?xml version=\"1.0\"?><!DOCTYPE x [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]>\
                <ComputeSanitizerOutput><record><kind>&b;</kind></record></ComputeSanitizerOutput>";
    let error = Collected::read(&file(&dir, "bomb", bomb)).err().unwrap().to_string();
    assert!(error.contains("declares a type"), "{error}");
    let deep = format!("<ComputeSanitizerOutput>{}", "<a>".repeat(100_000));
    let error = Collected::read(&file(&dir, "deep", deep)).err().unwrap().to_string();
    assert!(error.contains("too deep"), "{error}");
}

proptest! {
    #![proptest_config(random::config(random::CASES))]

    /// Any result is allowed, but no hang and no panic.
    #[test]
    fn damaged_reports_do_not_panic(
        xml: bool,
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..60),
        cut: prop::sample::Index,
    ) {
        let name = if xml { "sanitizer/2025.3.1.xml" } else { "sanitizer/2025.3.1.txt" };
        let mut bytes = std::fs::read(fixture(name)).unwrap();
        for (at, byte) in flips {
            let at = at.index(bytes.len() - 60) + 60;
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len()).max(200));
        let dir = TempDir::new().unwrap();
        let _ = Collected::read(&file(&dir, "damaged", bytes));
    }
}
