//! Mappings of a process, and the files behind them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use engine::model::ids::Pid;

/// Maximum number of mappings kept per process; about the limit of the kernel for all mappings.
const MAX_MAPPINGS: usize = 1 << 16;
/// Maximum size of a list of mappings.
const MAX_MAPS_BYTES: u64 = 32 << 20;

/// Device and inode of a file, for quick comparisons. Not an identity: overlay mounts show one file
/// under several devices.
pub(crate) type FileId = ((u32, u32), u64);

/// Kind of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MappingKind {
    /// A file.
    File,
    /// The vDSO of the kernel.
    Vdso,
    /// The uprobes page, where functions with return probes return to.
    Probes,
    /// Anonymous memory; if it is executable, code that was generated at run time.
    Anonymous,
}

/// A mapping of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The process.
    pub pid: Pid,
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Offset in the file.
    pub(crate) offset: u64,
    /// Major and minor number of the device, as in `/proc`.
    pub(crate) device: (u32, u32),
    pub(crate) inode: u64,
    pub(crate) executable: bool,
    pub(crate) kind: MappingKind,
    /// As the process sees it, without ` (deleted)`.
    pub path: PathBuf,
    /// The file was deleted or replaced.
    pub(crate) deleted: bool,
}

impl Mapping {
    pub(crate) const fn file_id(&self) -> FileId {
        (self.device, self.inode)
    }

    /// Opens the file through its mapping, which works for deleted files and in other mount
    /// namespaces.
    pub(crate) fn open_mapped(&self) -> io::Result<File> {
        let Self { pid, start, end, .. } = self;
        open_regular(Path::new(&format!("/proc/{pid}/map_files/{start:x}-{end:x}")))
    }

    /// Opens what has the path of the file now, as the process sees it. Needs fewer capabilities.
    pub(crate) fn open_by_path(&self) -> io::Result<File> {
        let relative = self.path.strip_prefix("/").unwrap_or(&self.path);
        open_regular(&Path::new(&format!("/proc/{}/root", self.pid)).join(relative))
    }

    /// Opens the file.
    pub fn open(&self) -> io::Result<File> {
        self.open_mapped().or_else(|error| match self.deleted {
            true => {
                let message = format!("deleted or replaced while it is in use ({error})");
                Err(io::Error::new(error.kind(), message))
            }
            false => self.open_by_path(),
        })
    }
}

/// Opens a regular file and nothing else: a process can replace a file that it has mapped by a pipe,
/// which would block forever, or by a device, whose opening can have side effects.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let found = File::options().read(true).custom_flags(libc::O_PATH).open(path)?;
    if !found.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

/// Returns the mappings of a process that are wanted, by whether they are executable and by path.
/// Those of a process that has exited are empty.
pub(crate) fn mappings(
    pid: Pid,
    is_wanted: impl Fn(bool, &Path) -> bool,
) -> io::Result<Vec<Mapping>> {
    let mut text = Vec::new();
    let file = File::open(format!("/proc/{pid}/maps"))?;
    file.take(MAX_MAPS_BYTES).read_to_end(&mut text)?;
    Ok(parse(pid, &text, is_wanted).collect())
}

/// Returns the mappings in the text of `/proc/PID/maps` that are wanted.
pub(crate) fn parse(
    pid: Pid,
    text: &[u8],
    is_wanted: impl Fn(bool, &Path) -> bool,
) -> impl Iterator<Item = Mapping> {
    let lines = text.split(|&byte| byte == b'\n');
    lines.filter_map(move |text| line(pid, text, &is_wanted)).take(MAX_MAPPINGS)
}

/// Parses `start-end perms offset major:minor inode   path`; the path may contain blanks.
fn line(pid: Pid, line: &[u8], is_wanted: impl Fn(bool, &Path) -> bool) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        let trimmed = rest.trim_ascii_start();
        let end = trimmed.iter().position(|&byte| byte == b' ').unwrap_or(trimmed.len());
        let (word, after) = trimmed.split_at_checked(end)?;
        rest = after;
        std::str::from_utf8(word).ok()
    };
    let (range, permissions, offset) = (field()?, field()?, field()?);
    let (device, inode) = (field()?, field()?);
    let name = rest.trim_ascii_start();
    let plain = name.strip_suffix(b" (deleted)").unwrap_or(name);
    let (executable, path) = (permissions.contains('x'), Path::new(OsStr::from_bytes(plain)));
    if !is_wanted(executable, path) {
        return None;
    }
    let kind = match name {
        b"[vdso]" => MappingKind::Vdso,
        // No function returns there.
        b"[vsyscall]" => return None,
        name if name.starts_with(b"[uprobes") => MappingKind::Probes,
        name if name.starts_with(b"/") => MappingKind::File,
        _ => MappingKind::Anonymous,
    };
    let hex = |word| u64::from_str_radix(word, 16).ok();
    let number = |word| u32::from_str_radix(word, 16).ok();
    let ((start, end), (major, minor)) = (range.split_once('-')?, device.split_once(':')?);
    let (start, end) = (hex(start)?, hex(end)?);
    (start < end).then_some(Mapping {
        pid,
        start,
        end,
        offset: hex(offset)?,
        device: (number(major)?, number(minor)?),
        inode: inode.parse().ok()?,
        executable,
        kind,
        path: path.to_owned(),
        deleted: plain.len() < name.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
7f00000-7f10000 r-xp 00001000 fe:01 1234                       /a b/lib.so\n\
7f10000-7f11000 rw-p 00002000 fe:01 1234                       /a b/lib.so\n\
7f20000-7f21000 r-xp 00000000 00:01 99                         /memfd:jit (deleted)\n\
7f30000-7f31000 rwxp 00000000 00:00 0 \n\
7f40000-7f42000 r-xp 00000000 00:00 0                          [vdso]\n\
7f50000-7f51000 --xp 00000000 00:00 0                          [uprobes]\n\
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0        [vsyscall]\n";

    fn executable(text: &[u8]) -> Vec<Mapping> {
        parse(Pid(7), text, |executable, _| executable).collect()
    }

    #[test]
    fn executable_lines_are_parsed() {
        let mappings = executable(TEXT);
        let kinds: Vec<_> = mappings.iter().map(|mapping| mapping.kind).collect();
        let expected = [
            MappingKind::File,
            MappingKind::File,
            MappingKind::Anonymous,
            MappingKind::Vdso,
            MappingKind::Probes,
        ];
        assert_eq!(kinds, expected);
        let library = Mapping {
            pid: Pid(7),
            start: 0x7f0_0000,
            end: 0x7f1_0000,
            offset: 0x1000,
            device: (0xfe, 1),
            inode: 1234,
            executable: true,
            kind: MappingKind::File,
            path: "/a b/lib.so".into(),
            deleted: false,
        };
        assert_eq!(mappings[0], library);
        assert_eq!(
            (mappings[1].path.as_path(), mappings[1].deleted),
            ("/memfd:jit".as_ref(), true)
        );
        let all = parse(Pid(7), TEXT, |_, path| path == Path::new("/a b/lib.so"));
        assert_eq!(all.map(|mapping| mapping.executable).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn truncated_and_malformed_lines_are_skipped() {
        for end in 0..TEXT.len() {
            assert!(executable(&TEXT[..end]).len() <= 6);
        }
        for line in [&b"-"[..], b"1-0 r-xp 0 0:0 0", b"\xff\xff-1 r-xp", b"1-2 r-xp 0 00 1 /x"] {
            assert!(executable(line).is_empty(), "{line:?}");
        }
    }

    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, link) = (dir.path().join("libcuda.so.1"), dir.path().join("link"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        for path in [&pipe, &link, dir.path()] {
            let error = open_regular(path).unwrap_err();
            assert_eq!(error.to_string(), "not a regular file", "{}", path.display());
        }
    }

    #[test]
    fn deleted_file_is_opened_through_its_mapping_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("library");
        std::fs::write(&path, vec![7; 4096]).unwrap();
        // SAFETY: only this test knows the file, and does not change it.
        let map = unsafe { memmap2::Mmap::map(&File::open(&path).unwrap()) }.unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another file").unwrap();
        let start = map.as_ptr() as u64;
        let found = mappings(Pid(std::process::id()), |_, found| found == path).unwrap();
        let [mapping] = &found[..] else { panic!("{found:?}") };
        assert_eq!((mapping.start, mapping.deleted), (start, true));
        assert_eq!(mapping.open().unwrap().metadata().unwrap().len(), 4096);
        let gone = Mapping { end: mapping.end + 4096, ..mapping.clone() };
        assert!(gone.open().is_err());
    }
}
