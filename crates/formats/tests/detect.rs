//! Files are detected by content, whatever their name; errors for similar formats have advice.

use formats::import::{SourceFormat, detect};
use proptest::prelude::*;
use tempfile::TempDir;

use crate::collect::{file, fixture};
use crate::random;

#[test]
fn formats_are_detected_under_any_name() {
    let dir = TempDir::new().unwrap();
    let arrow = [&[0xff; 4][..], &[0x78, 2, 0, 0], &[0x10; 64]].concat();
    let nsys = std::fs::read(fixture("nsys/h200-2024.2.3.sqlite")).unwrap();
    let report = std::fs::read(fixture("sanitizer/2025.3.1.txt")).unwrap();
    let late = ["program output\n".repeat(1000).into_bytes(), report.clone()].concat();
    for (content, source) in [
        (nsys, SourceFormat::Nsys),
        (arrow, SourceFormat::Recording),
        (b"\x80\x04\x95\x10\0\0\0\0\0\0\0}\x94".to_vec(), SourceFormat::Torch),
        (b"\x80\x02}q\0".to_vec(), SourceFormat::Torch),
        (b"<!DOCTYPE html>\n<html><script>".to_vec(), SourceFormat::Torch),
        (
            b"PK\x03\x04................snapshot/data.pkl\x80\x02}X\x08\0\0\0segments".to_vec(),
            SourceFormat::Torch,
        ),
        (report, SourceFormat::Sanitizer),
        (late, SourceFormat::Sanitizer),
        (std::fs::read(fixture("sanitizer/2025.3.1.xml")).unwrap(), SourceFormat::Sanitizer),
        (b"\xef\xbb\xbf## COMPUTE-SANITIZER\r\n".to_vec(), SourceFormat::Sanitizer),
    ] {
        let path = file(&dir, "name.pickle", content);
        assert_eq!(detect(&path).unwrap(), source);
    }
}

#[test]
fn similar_formats_are_rejected_with_advice() {
    let dir = TempDir::new().unwrap();
    let smi = std::fs::read(fixture("smi/loop-ms10.csv")).unwrap();
    for (content, advice) in [
        (&b""[..], "the file is empty or has no length"),
        (b"\0\0\0\x08QuadD\0\0", "nsys export --type sqlite"),
        (b"ARROW1\0\0", "it is an Arrow file"),
        (b"PAR1....", "Parquet"),
        (b"\x1f\x8b\x08\0", "gunzip FILE"),
        (b"\x28\xb5\x2f\xfd\0", "unzstd FILE"),
        (b"PK\x03\x04................model/data.pkl\x80\x02", "torch.cuda.memory._dump_snapshot"),
        (b"PK\x03\x04................readme.txt", "unzip FILE"),
        (b"\x0a\x10\0\0ComputeSanitizer\0", "compute-sanitizer --read FILE"),
        (&smi, "--smi-log"),
        (b"timestamp, memory.used [MiB]\n", "--smi-log"),
        (b"{\"live_bytes\": 0}", "it is JSON"),
        (b"<svg></svg>", "it is XML"),
        (b"\x7fELF\x1b[2J", "starts with \"\\u{7f}ELF\\u{1b}[2J\""),
        (b"\xff\xff\xff\xff\0\0\0\0", "unknown file format"),
    ] {
        let path = file(&dir, "report.sqlite", content);
        let error = detect(&path).err().unwrap().to_string();
        assert!(error.contains(advice), "{error} does not contain {advice}");
        assert!(error.contains("report.sqlite"), "{error}");
    }
}

#[test]
fn foreign_sqlite_files_are_rejected_by_name() {
    let dir = TempDir::new().unwrap();
    for (name, statements, advice) in [
        (
            "a",
            "CREATE TABLE cookies (id); CREATE TABLE \"evil\x1b[2J\" (id)",
            "its tables: cookies, evil\\u{1b}[2J",
        ),
        (
            "b",
            "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (id); CREATE TABLE StringTable (id)",
            "nvprof",
        ),
        ("c", "PRAGMA user_version = 1; CREATE TABLE a (b); DROP TABLE a", "its tables: none"),
    ] {
        let path = dir.path().join(name);
        rusqlite::Connection::open(&path).unwrap().execute_batch(statements).unwrap();
        let error = detect(&path).err().unwrap().to_string();
        assert!(error.contains(advice), "{error} does not contain {advice}");
    }
}

#[test]
fn directories_devices_and_missing_files_are_rejected() {
    let dir = TempDir::new().unwrap();
    let error = |path: &std::path::Path| detect(path).err().unwrap().to_string();
    assert!(error(dir.path()).contains("it is a directory"));
    assert!(error(std::path::Path::new("/dev/zero")).contains("not a regular file"));
    assert!(error(&dir.path().join("missing")).contains("cannot read"));
}

proptest! {
    #![proptest_config(random::config(random::CASES))]

    #[test]
    fn any_file_header_is_handled(head: Vec<u8>, magic in 0_usize..6) {
        let magics: [&[u8]; 6] = [b"", b"SQLite format 3\0", b"\xff\xff\xff\xff", b"PK\x03\x04", b"<", b"\x80"];
        let dir = TempDir::new().unwrap();
        let _ = detect(&file(&dir, "any", [magics[magic], &head].concat()));
    }
}
