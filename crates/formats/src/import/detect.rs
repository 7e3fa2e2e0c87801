//! Detection of a file's format by its first bytes, never by its name. Errors for similar formats
//! say how to convert the file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use engine::model::FunctionId;

use super::nsys::sqlite::database::Database;
use super::{
    ImportError, ImportSink, ImportSummary, SourceFormat, compute_sanitizer, nsys, nvidia_smi,
    recording, torch,
};
use crate::sanitize::sanitize;

/// Bytes of a file that are inspected. Reports may begin with output of the program.
const SNIFF_BYTES: u64 = 1 << 18;

/// Supported formats.
const SUPPORTED_FORMATS: &str = "recordings of vramscope, SQLite exports of Nsight Systems, memory \
                        snapshots of PyTorch, and leak reports of compute-sanitizer are read";

/// An empty file, or one of procfs.
const NO_LENGTH: &str = "the file is empty or has no length (as in /proc); wait for the program that writes it, \
                         or save its content first";

/// Reads a file of any supported format. `function` looks up driver functions by name.
///
/// # Errors
///
/// The file cannot be read, has an unknown format, or is damaged.
pub fn open(
    path: &Path,
    sink: &mut dyn ImportSink,
    function: fn(&str) -> Option<FunctionId>,
) -> Result<ImportSummary, ImportError> {
    match detect(path)? {
        SourceFormat::Recording => recording::read(path, sink, function),
        SourceFormat::Nsys => nsys::read(path, sink),
        SourceFormat::Torch => torch::read(path, sink),
        SourceFormat::Sanitizer => compute_sanitizer::read(path, sink),
    }
}

/// Detects the format of a file by its first bytes.
///
/// # Errors
///
/// The file cannot be read, or has an unknown format; the error says what it looks like and what to
/// do next.
pub fn detect(path: &Path) -> Result<SourceFormat, ImportError> {
    check_file(path)?;
    let io = |source| ImportError::Io { path: path.into(), source };
    let mut head = Vec::new();
    File::open(path).map_err(io)?.take(SNIFF_BYTES).read_to_end(&mut head).map_err(io)?;
    match detect_head(&head) {
        DetectedFormat::Is(source) => Ok(source),
        DetectedFormat::Database => detect_database(path),
        DetectedFormat::No(reason) => Err(ImportError::NotRecognized { path: path.into(), reason }),
    }
}

/// Rejects anything but a regular file with content, without opening it: reading a pipe or a device
/// might never end.
///
/// # Errors
///
/// The path does not exist, or is a directory, pipe, device, or file without length.
pub fn check_file(path: &Path) -> Result<(), ImportError> {
    let metadata =
        std::fs::metadata(path).map_err(|source| ImportError::Io { path: path.into(), source })?;
    let reason = if metadata.is_dir() {
        "it is a directory; name a file in it"
    } else if !metadata.is_file() {
        "not a regular file; save it to disk first"
    } else if metadata.len() == 0 {
        // Files of procfs are generated when they are read, and some wait for the next event.
        NO_LENGTH
    } else {
        return Ok(());
    };
    Err(ImportError::NotRecognized { path: path.into(), reason: reason.into() })
}

#[derive(PartialEq, Eq, Debug)]
enum DetectedFormat {
    Is(SourceFormat),
    /// SQLite: its tables have to be checked.
    Database,
    /// Unsupported, with the reason.
    No(String),
}

fn detect_head(head: &[u8]) -> DetectedFormat {
    if head.is_empty() {
        return DetectedFormat::No(NO_LENGTH.into());
    }
    detect_binary(head).or_else(|| detect_text(head)).unwrap_or_else(|| {
        let start = String::from_utf8_lossy(head.get(..16).unwrap_or(head)).into_owned();
        DetectedFormat::No(format!(
            "unknown file format (starts with \"{}\"); {SUPPORTED_FORMATS}",
            sanitize(&start)
        ))
    })
}

fn detect_binary(head: &[u8]) -> Option<DetectedFormat> {
    let no = |reason: &str| Some(DetectedFormat::No(reason.into()));
    let packed = |format: &str, unpack: &str| {
        Some(DetectedFormat::No(format!(
            "it is compressed with {format}; unpack it first: {unpack} FILE"
        )))
    };
    match head {
        [b'S', b'Q', b'L', b'i', b't', b'e', b' ', ..]
            if head.starts_with(b"SQLite format 3\0") =>
        {
            Some(DetectedFormat::Database)
        }
        [0xff, 0xff, 0xff, 0xff, a, b, c, d, ..] => {
            let length = u32::from_le_bytes([*a, *b, *c, *d]);
            (8..1 << 24).contains(&length).then_some(DetectedFormat::Is(SourceFormat::Recording))
        }
        [b'A', b'R', b'R', b'O', b'W', b'1', ..] => no(
            "it is an Arrow file, and recordings are Arrow streams; record it again, or write it \
                as a stream with pyarrow.ipc.new_stream",
        ),
        [b'P', b'A', b'R', b'1', ..] => {
            no("it is a Parquet file, which is written but not read; use the recording it is from")
        }
        [0x1f, 0x8b, ..] => packed("gzip", "gunzip"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => packed("zstd", "unzstd"),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => packed("xz", "unxz"),
        [b'B', b'Z', b'h', ..] => packed("bzip2", "bunzip2"),
        [b'P', b'K', 3, 4, ..] => Some(detect_zip(head)),
        // The opcode that starts a pickle, and its protocol.
        [0x80, 0..=5, ..] => Some(DetectedFormat::Is(SourceFormat::Torch)),
        _ if contains(head.get(..512).unwrap_or(head), b"QuadD") => {
            no("it is a report of Nsight Systems; export it: nsys export --type sqlite FILE")
        }
        _ if head.contains(&0) && contains(head, b"anitizer") => {
            no("it seems to be compute-sanitizer's own format; save it again with --xml --save \
                FILE, or turn it into text: compute-sanitizer --read FILE > report.txt")
        }
        _ => None,
    }
}

/// Detects archives of `torch.save`: mostly models, sometimes a snapshot.
fn detect_zip(head: &[u8]) -> DetectedFormat {
    match (contains(head, b"data.pkl"), contains(head, b"segments")) {
        (true, true) => DetectedFormat::Is(SourceFormat::Torch),
        (true, false) => DetectedFormat::No(
            "a torch.save archive, but not a memory snapshot; make one with \
             torch.cuda.memory._dump_snapshot(FILE)"
                .into(),
        ),
        (false, _) => DetectedFormat::No("it is a zip archive; unpack it first: unzip FILE".into()),
    }
}

fn detect_text(head: &[u8]) -> Option<DetectedFormat> {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    let start = head.trim_ascii_start();
    let starts = |prefix: &[u8]| {
        start.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    if starts(b"<!doctype html") || starts(b"<html") || starts(b"<head") {
        return Some(DetectedFormat::Is(SourceFormat::Torch));
    }
    if starts(b"<") {
        return Some(if contains(head, b"<ComputeSanitizerOutput") {
            DetectedFormat::Is(SourceFormat::Sanitizer)
        } else {
            DetectedFormat::No(format!(
                "it is XML, but not of compute-sanitizer; {SUPPORTED_FORMATS}"
            ))
        });
    }
    if compute_sanitizer::is_text(head) {
        return Some(DetectedFormat::Is(SourceFormat::Sanitizer));
    }
    if nvidia_smi::looks_like(head) {
        return Some(DetectedFormat::No(
            "an nvidia-smi log has no allocations; overlay it on another file with --smi-log"
                .into(),
        ));
    }
    if starts(b"{") || starts(b"[") {
        return Some(DetectedFormat::No(format!("it is JSON; {SUPPORTED_FORMATS}")));
    }
    None
}

fn detect_database(path: &Path) -> Result<SourceFormat, ImportError> {
    let tables = Database::open(path)?.tables()?;
    let has = |name: &str| tables.iter().any(|table| table.eq_ignore_ascii_case(name));
    let has_prefix = |prefix: &str| tables.iter().any(|table| table.starts_with(prefix));
    if has(nsys::EVENTS)
        || has("META_DATA_EXPORT")
        || has("EXPORT_META_DATA")
        || has("StringIds") && has_prefix("TARGET_INFO_")
    {
        return Ok(SourceFormat::Nsys);
    }
    let reason = if has_prefix("CUPTI_ACTIVITY_KIND_") {
        "it is a SQLite file of nvprof, which has no memory events; profile with nsys profile \
         --cuda-memory-usage=true"
            .into()
    } else {
        let names: Vec<_> = tables.iter().take(3).map(|name| sanitize(name)).collect();
        let names = if names.is_empty() { "none".into() } else { names.join(", ") };
        format!(
            "it is a SQLite file, but not of Nsight Systems (its tables: {names}); {SUPPORTED_FORMATS}"
        )
    };
    Err(ImportError::NotRecognized { path: path.into(), reason })
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
