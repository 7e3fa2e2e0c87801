//! Who has the driver mapped, read from `/proc`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use engine::ids::Pid;

use super::is_driver_name;

/// A driver library mapped by a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The process.
    pub pid: Pid,
    /// The file's name as the process sees it.
    pub path: PathBuf,
    /// Device and inode, to recognise the same file quickly. Not an identity: overlay mounts show
    /// one file under several devices.
    pub device_inode: (String, u64),
    /// The address range, as `/proc/PID/map_files` names it.
    range: String,
}

impl Mapping {
    /// Paths through which the file can be opened from here, best first: `map_files` works for
    /// deleted files and in other mount namespaces, but needs more rights than `root`.
    #[must_use]
    pub fn openable(&self) -> [PathBuf; 2] {
        let pid = self.pid.0;
        let relative = self.path.strip_prefix("/").unwrap_or(&self.path);
        [
            PathBuf::from(format!("/proc/{pid}/map_files/{}", self.range)),
            Path::new(&format!("/proc/{pid}/root")).join(relative),
        ]
    }
}

/// The drivers mapped by any process. Processes that end meanwhile or may not be read are left out.
#[must_use]
pub fn scan_all() -> Vec<Mapping> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .flat_map(|pid| scan_process(Pid(pid)))
        .collect()
}

/// The drivers mapped by one process, each file once.
#[must_use]
pub fn scan_process(pid: Pid) -> Vec<Mapping> {
    let Ok(maps) = fs::read(format!("/proc/{}/maps", pid.0)) else { return Vec::new() };
    let mut found: Vec<Mapping> = Vec::new();
    for mapping in maps.split(|&b| b == b'\n').filter_map(|line| parse(pid, line)) {
        if !found.iter().any(|other| other.device_inode == mapping.device_inode) {
            found.push(mapping);
        }
    }
    found
}

/// `start-end perms offset dev inode   path`, where the path may hold blanks.
fn parse(pid: Pid, line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        let begin = rest.iter().position(|&b| b != b' ')?;
        let end = rest[begin..].iter().position(|&b| b == b' ').map_or(rest.len(), |n| begin + n);
        let word = std::str::from_utf8(&rest[begin..end]).ok()?;
        rest = &rest[end..];
        Some(word)
    };
    let (range, _permissions, _offset) = (field()?, field()?, field()?);
    let (device, inode) = (field()?, field()?.parse().ok()?);
    let begin = rest.iter().position(|&b| b != b' ')?;
    let path = Path::new(OsStr::from_bytes(&rest[begin..]));
    is_driver_name(path).then(|| Mapping {
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
    fn lines_of_maps_are_understood() {
        let line = b"7f00-7f10 r-xp 00001000 fe:00 1234                       /a b/libcuda.so.1";
        let mapping = parse(Pid(7), line).unwrap();
        assert_eq!(mapping.path, Path::new("/a b/libcuda.so.1"));
        assert_eq!(mapping.device_inode, ("fe:00".to_owned(), 1234));
        assert_eq!(mapping.openable()[0], Path::new("/proc/7/map_files/7f00-7f10"));
        assert_eq!(mapping.openable()[1], Path::new("/proc/7/root/a b/libcuda.so.1"));
    }

    #[test]
    fn other_lines_are_passed_over() {
        for line in [
            &b""[..],
            b"7f00-7f10 rw-p 00000000 00:00 0 ",
            b"7f00-7f10 rw-p 00000000 00:00 0                          [heap]",
            b"7f00-7f10 r-xp 00001000 fe:00 1234                       /usr/lib/libc.so.6",
            b"\xff\xfe",
        ] {
            assert!(parse(Pid(7), line).is_none());
        }
    }
}
