//! Mapped files of a process that may contain a Python interpreter.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use engine::model::ids::Pid;

use crate::libraries::open_regular;

/// A mapping of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mapping {
    pub(super) range: Range<u64>,
    /// Offset in the file.
    pub(super) offset: u64,
    pub(super) executable: bool,
    /// As the process sees it.
    pub(super) path: PathBuf,
}

/// A file that may contain an interpreter, with all its mappings, lowest first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MappedFile {
    pub(super) path: PathBuf,
    pub(super) mappings: Vec<Mapping>,
}

impl MappedFile {
    /// Opens the file. `map_files` works for deleted files and in other mount namespaces, but needs
    /// more capabilities than `root`.
    pub(super) fn open(&self, pid: Pid) -> io::Result<File> {
        let pid = pid.0;
        let relative = self.path.strip_prefix("/").unwrap_or(&self.path);
        let by_name = Path::new(&format!("/proc/{pid}/root")).join(relative);
        let by_range = self.mappings.first().map(|mapping| {
            let Range { start, end } = mapping.range;
            PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}"))
        });
        by_range
            .and_then(|path| open_regular(&path).ok())
            .map_or_else(|| open_regular(&by_name), Ok)
    }

    /// Returns the file name.
    pub(super) fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }
}

/// Returns the files of a process that may contain an interpreter, most likely first: the program
/// itself, then `libpython…`, then `python…` (a program started through a loader).
pub(super) fn candidates(pid: Pid) -> io::Result<Vec<MappedFile>> {
    let maps = fs::read(format!("/proc/{}/maps", pid.0))?;
    let program = fs::read_link(format!("/proc/{}/exe", pid.0)).ok();
    Ok(candidates_in(&maps, program.as_deref()))
}

fn candidates_in(maps: &[u8], program: Option<&Path>) -> Vec<MappedFile> {
    let mut found: Vec<(u8, MappedFile)> = Vec::new();
    for mapping in maps.split(|&b| b == b'\n').filter_map(parse) {
        let Some(rank) = rank(&mapping.path, program) else { continue };
        match found.iter_mut().find(|(_, mapped)| mapped.path == mapping.path) {
            Some((_, mapped)) => mapped.mappings.push(mapping),
            None => {
                let path = mapping.path.clone();
                found.push((rank, MappedFile { path, mappings: vec![mapping] }));
            }
        }
    }
    found.sort_by_key(|(rank, _)| *rank);
    found.into_iter().map(|(_, mapped)| mapped).collect()
}

fn rank(path: &Path, program: Option<&Path>) -> Option<u8> {
    let name = path.file_name()?.as_bytes();
    if program == Some(path) {
        Some(0)
    } else if name.starts_with(b"libpython") {
        Some(1)
    } else if name.starts_with(b"python") {
        Some(2)
    } else {
        None
    }
}

/// Parses `start-end perms offset dev inode   path`; the path may contain blanks.
fn parse(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        let begin = rest.iter().position(|&b| b != b' ')?;
        let word = rest.get(begin..)?;
        let end = word.iter().position(|&b| b == b' ').unwrap_or(word.len());
        let (word, after) = word.split_at_checked(end)?;
        rest = after;
        std::str::from_utf8(word).ok()
    };
    let (range, permissions, offset) = (field()?, field()?, field()?);
    let (_device, _inode) = (field()?, field()?);
    let (start, end) = range.split_once('-')?;
    let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
    let begin = rest.iter().position(|&b| b != b' ')?;
    let path = rest.get(begin..)?;
    path.starts_with(b"/").then_some(())?;
    Some(Mapping {
        range: hexadecimal(start)?..hexadecimal(end)?,
        offset: hexadecimal(offset)?,
        executable: permissions.contains('x'),
        path: PathBuf::from(OsStr::from_bytes(path)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"\
400000-401000 r--p 00000000 fe:00 1                     /usr/bin/run me
401000-402000 r-xp 00001000 fe:00 1                     /usr/bin/run me
500000-501000 rw-p 00000000 00:00 0                     [heap]
7f0000-7f1000 r--p 00000000 fe:00 2                     /usr/lib/libc.so.6
7f1000-7f2000 r-xp 00000000 fe:00 3                     /usr/bin/python3.14
7f2000-7f3000 r--p 00000000 fe:00 4                     /usr/lib/libpython3.9.so.1.0 (deleted)
7f3000-7f4000 rw-p 00000000 00:00 0
nonsense\xff
7f5000-7f6000 r--p zzz fe:00 4                     /usr/lib/libpython3.9.so.1.0";

    #[test]
    fn interpreter_candidates_are_sorted_by_likelihood() {
        let found = candidates_in(MAPS, Some(Path::new("/usr/bin/run me")));
        let paths: Vec<_> = found.iter().map(|mapped| mapped.path.to_str().unwrap()).collect();
        assert_eq!(
            paths,
            ["/usr/bin/run me", "/usr/lib/libpython3.9.so.1.0 (deleted)", "/usr/bin/python3.14"]
        );
        assert_eq!(
            found[0].mappings[1],
            Mapping {
                range: 0x401000..0x402000,
                offset: 0x1000,
                executable: true,
                path: "/usr/bin/run me".into()
            }
        );
        assert_eq!(found[0].mappings.len(), 2);
    }

    #[test]
    fn deleted_file_is_opened() {
        let mut path = std::env::temp_dir();
        path.push(format!("python-maps-{}", std::process::id()));
        fs::write(&path, vec![7; 4096]).unwrap();
        let file = File::open(&path).unwrap();
        // SAFETY: only this test knows the file, and does not change it.
        let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        fs::remove_file(&path).unwrap();
        drop(file);
        let start = map.as_ptr() as u64;
        let mapping = Mapping {
            range: start..start + 4096,
            offset: 0,
            executable: false,
            path: path.clone(),
        };
        let mapped = MappedFile { path, mappings: vec![mapping] };
        let opened = mapped.open(Pid(std::process::id())).unwrap();
        assert_eq!(opened.metadata().unwrap().len(), 4096);
    }
}
