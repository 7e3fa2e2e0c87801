//! Processes that have the driver or PyTorch mapped, from `/proc`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use engine::model::ids::Pid;

use super::{TorchLibrary, is_driver_name, is_ignored};

/// A driver library mapped by a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DriverMapping {
    /// The process.
    pub pid: Pid,
    /// The path of the file as the process sees it.
    pub path: PathBuf,
    /// Device and inode, for quick comparisons. Not an identity: overlay mounts show one file under
    /// several devices.
    pub device_inode: (String, u64),
    /// The address range, as `/proc/PID/map_files` names it.
    range: String,
}

impl DriverMapping {
    /// Returns paths through which the file can be opened, best first: `map_files` works for
    /// deleted files and in other mount namespaces, but needs more capabilities than `root`.
    #[must_use]
    pub fn paths_to_open(&self) -> [PathBuf; 2] {
        let pid = self.pid.0;
        let relative = self.path.strip_prefix("/").unwrap_or(&self.path);
        [
            PathBuf::from(format!("/proc/{pid}/map_files/{}", self.range)),
            Path::new(&format!("/proc/{pid}/root")).join(relative),
        ]
    }
}

/// Returns the drivers mapped by any process, except processes that exit or cannot be read.
#[must_use]
pub fn scan_all() -> Vec<DriverMapping> {
    all_processes().into_iter().flat_map(scan_process).collect()
}

/// Returns all processes.
#[must_use]
pub fn all_processes() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).map(Pid).collect()
}

/// Returns the drivers mapped by one process, each file once.
#[must_use]
pub fn scan_process(pid: Pid) -> Vec<DriverMapping> {
    scan(pid, is_driver_name)
}

/// PyTorch libraries that a process has mapped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TorchMappings {
    /// Copies of `libc10.so`.
    pub c10: Vec<DriverMapping>,
    /// Whether `libc10_cuda.so`, with the caching allocator, is mapped.
    pub cuda: bool,
}

/// Returns the PyTorch libraries that a process has mapped.
#[must_use]
pub fn scan_torch(pid: Pid) -> TorchMappings {
    let mut found = TorchMappings::default();
    for mapping in scan(pid, |path| TorchLibrary::of(path).is_some()) {
        match TorchLibrary::of(&mapping.path) {
            Some(TorchLibrary::C10) => found.c10.push(mapping),
            Some(TorchLibrary::Cuda) => found.cuda = true,
            None => {}
        }
    }
    found
}

/// Returns the mapped files of one process that are wanted, each once.
fn scan(pid: Pid, is_wanted: fn(&Path) -> bool) -> Vec<DriverMapping> {
    let Ok(maps) = fs::read(format!("/proc/{}/maps", pid.0)) else { return Vec::new() };
    let mut found: Vec<DriverMapping> = Vec::new();
    for mapping in maps.split(|&b| b == b'\n').filter_map(|line| parse(pid, line, is_wanted)) {
        if !found.iter().any(|other| other.device_inode == mapping.device_inode) {
            found.push(mapping);
        }
    }
    found
}

/// Parses `start-end perms offset dev inode   path`; the path may contain blanks.
fn parse(pid: Pid, line: &[u8], is_wanted: fn(&Path) -> bool) -> Option<DriverMapping> {
    let mut rest = line;
    let mut field = || {
        let begin = rest.iter().position(|&b| b != b' ')?;
        let end = rest[begin..].iter().position(|&b| b == b' ').map_or(rest.len(), |n| begin + n);
        let field = std::str::from_utf8(&rest[begin..end]).ok()?;
        rest = &rest[end..];
        Some(field)
    };
    let (range, _permissions, _offset) = (field()?, field()?, field()?);
    let (device, inode) = (field()?, field()?.parse().ok()?);
    let begin = rest.iter().position(|&b| b != b' ')?;
    let path = Path::new(OsStr::from_bytes(&rest[begin..]));
    (is_wanted(path) && !is_ignored(path)).then(|| DriverMapping {
        pid,
        path: path.to_owned(),
        device_inode: (device.to_owned(), inode),
        range: range.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_lines_are_parsed() {
        let line = b"7f00-7f10 r-xp 00001000 fe:00 1234                       /a b/libcuda.so.1";
        let mapping = parse(Pid(7), line, is_driver_name).unwrap();
        assert_eq!(mapping.path, Path::new("/a b/libcuda.so.1"));
        assert_eq!(mapping.device_inode, ("fe:00".to_owned(), 1234));
        assert_eq!(mapping.paths_to_open()[0], Path::new("/proc/7/map_files/7f00-7f10"));
        assert_eq!(mapping.paths_to_open()[1], Path::new("/proc/7/root/a b/libcuda.so.1"));
    }

    #[test]
    fn other_lines_are_skipped() {
        for line in [
            &b""[..],
            b"7f00-7f10 rw-p 00000000 00:00 0 ",
            b"7f00-7f10 rw-p 00000000 00:00 0                          [heap]",
            b"7f00-7f10 r-xp 00001000 fe:00 1234                       /usr/lib/libc.so.6",
            b"\xff\xfe",
        ] {
            assert!(parse(Pid(7), line, is_driver_name).is_none());
        }
    }
}
