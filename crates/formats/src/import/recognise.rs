//! Which reader a file is for: by its first bytes, never by its name. Files that are nearly right
//! are told what to do about it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use engine::ids::FunctionId;

use super::nsys::database::Database;
use super::{Error, Imported, Sink, Source, nsys, recording, sanitizer, smi, torch};
use crate::plain::plain;

/// How much of a file is looked at. Reports may begin with output of the program.
const HEAD: u64 = 1 << 18;

/// What would be accepted.
const ACCEPTED: &str = "recordings of this program, SQLite exports of Nsight Systems, memory \
                        snapshots of PyTorch, and leak reports of compute-sanitizer are read";

/// An empty file, or one that the kernel makes.
const NO_LENGTH: &str = "the file is empty or has no length (as in /proc); wait for the program that writes it, \
                         or save its content first";

/// Reads a file, whatever it is. `function` knows the driver functions by name.
///
/// # Errors
///
/// The file cannot be read, is of no known sort, or is broken.
pub fn open(
    path: &Path,
    sink: &mut dyn Sink,
    function: fn(&str) -> Option<FunctionId>,
) -> Result<Imported, Error> {
    match recognise(path)? {
        Source::Recording => recording::read(path, sink, function),
        Source::Nsys => nsys::read(path, sink),
        Source::Torch => torch::read(path, sink),
        Source::Sanitizer => sanitizer::read(path, sink),
    }
}

/// Who made a file, from what it begins with.
///
/// # Errors
///
/// The file cannot be read, or is of no known sort; the error says what it looks like and what to
/// do next.
pub fn recognise(path: &Path) -> Result<Source, Error> {
    check_file(path)?;
    let io = |source| Error::Io { path: path.into(), source };
    let mut head = Vec::new();
    File::open(path).map_err(io)?.take(HEAD).read_to_end(&mut head).map_err(io)?;
    match of_head(&head) {
        Guess::Is(source) => Ok(source),
        Guess::Database => of_database(path),
        Guess::No(why) => Err(Error::NotRecognised { path: path.into(), why }),
    }
}

/// Refuses what is not a regular file with content, without opening it: a pipe or a device might never end.
///
/// # Errors
///
/// The path cannot be found, or is a folder, pipe, device, or file without length.
pub fn check_file(path: &Path) -> Result<(), Error> {
    let about =
        std::fs::metadata(path).map_err(|source| Error::Io { path: path.into(), source })?;
    let why = if about.is_dir() {
        "it is a directory; name a file in it"
    } else if !about.is_file() {
        "not a regular file; save it to disk first"
    } else if about.len() == 0 {
        // Files of procfs are made while they are read, and some wait for what comes next.
        NO_LENGTH
    } else {
        return Ok(());
    };
    Err(Error::NotRecognised { path: path.into(), why: why.into() })
}

#[derive(PartialEq, Eq, Debug)]
enum Guess {
    Is(Source),
    /// SQLite: its tables tell.
    Database,
    /// Why not.
    No(String),
}

fn of_head(head: &[u8]) -> Guess {
    if head.is_empty() {
        return Guess::No(NO_LENGTH.into());
    }
    of_binary(head).or_else(|| of_text(head)).unwrap_or_else(|| {
        let begin = String::from_utf8_lossy(head.get(..16).unwrap_or(head)).into_owned();
        Guess::No(format!("unknown file format (starts with \"{}\"); {ACCEPTED}", plain(&begin)))
    })
}

fn of_binary(head: &[u8]) -> Option<Guess> {
    let no = |why: &str| Some(Guess::No(why.into()));
    let packed = |how: &str, unpack: &str| {
        Some(Guess::No(format!("it is compressed with {how}; unpack it first: {unpack} FILE")))
    };
    match head {
        [b'S', b'Q', b'L', b'i', b't', b'e', b' ', ..]
            if head.starts_with(b"SQLite format 3\0") =>
        {
            Some(Guess::Database)
        }
        [0xff, 0xff, 0xff, 0xff, a, b, c, d, ..] => {
            let length = u32::from_le_bytes([*a, *b, *c, *d]);
            (8..1 << 24).contains(&length).then_some(Guess::Is(Source::Recording))
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
        [b'P', b'K', 3, 4, ..] => Some(of_zip(head)),
        // The opcode that begins a pickle, and its protocol.
        [0x80, 0..=5, ..] => Some(Guess::Is(Source::Torch)),
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

/// `torch.save` writes zip archives of a pickle: mostly of models, sometimes of a snapshot.
fn of_zip(head: &[u8]) -> Guess {
    match (contains(head, b"data.pkl"), contains(head, b"segments")) {
        (true, true) => Guess::Is(Source::Torch),
        (true, false) => Guess::No(
            "it is an archive of torch.save and no memory snapshot; make one with \
             torch.cuda.memory._dump_snapshot(FILE)"
                .into(),
        ),
        (false, _) => Guess::No("it is a zip archive; unpack it first: unzip FILE".into()),
    }
}

fn of_text(head: &[u8]) -> Option<Guess> {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    let begin = head.trim_ascii_start();
    let starts =
        |with: &[u8]| begin.get(..with.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(with));
    if starts(b"<!doctype html") || starts(b"<html") || starts(b"<head") {
        return Some(Guess::Is(Source::Torch));
    }
    if starts(b"<") {
        return Some(if contains(head, b"<ComputeSanitizerOutput") {
            Guess::Is(Source::Sanitizer)
        } else {
            Guess::No(format!("it is XML, but not of compute-sanitizer; {ACCEPTED}"))
        });
    }
    if sanitizer::is_text(head) {
        return Some(Guess::Is(Source::Sanitizer));
    }
    if smi::looks_like(head) {
        return Some(Guess::No(
            "an nvidia-smi log has no allocations; overlay it on another file with --smi-log"
                .into(),
        ));
    }
    if starts(b"{") || starts(b"[") {
        return Some(Guess::No(format!("it is JSON; {ACCEPTED}")));
    }
    None
}

fn of_database(path: &Path) -> Result<Source, Error> {
    let tables = Database::open(path)?.tables()?;
    let has = |name: &str| tables.iter().any(|table| table.eq_ignore_ascii_case(name));
    let begins = |with: &str| tables.iter().any(|table| table.starts_with(with));
    if has(nsys::EVENTS)
        || has("META_DATA_EXPORT")
        || has("EXPORT_META_DATA")
        || has("StringIds") && begins("TARGET_INFO_")
    {
        return Ok(Source::Nsys);
    }
    let why = if begins("CUPTI_ACTIVITY_KIND_") {
        "it is a SQLite file of nvprof, which has no memory events; profile with nsys profile \
         --cuda-memory-usage=true"
            .into()
    } else {
        let names: Vec<_> = tables.iter().take(3).map(|name| plain(name)).collect();
        let names = if names.is_empty() { "none".into() } else { names.join(", ") };
        format!("it is a SQLite file, but not of Nsight Systems (its tables: {names}); {ACCEPTED}")
    };
    Err(Error::NotRecognised { path: path.into(), why })
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
