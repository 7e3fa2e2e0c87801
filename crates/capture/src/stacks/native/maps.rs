//! Parses the executable mappings in `/proc/PID/maps`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use engine::model::ids::Pid;

use crate::libraries::MmapEvent;

/// Maximum number of mappings kept per process; about the limit of the kernel for all mappings.
pub(super) const MAX_MAPPINGS: usize = 1 << 16;

/// Kind of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MappingKind {
    /// A file.
    File,
    /// The vDSO of the kernel.
    Vdso,
    /// The uprobes page, where functions with return probes return to.
    Probes,
    /// Anonymous memory: code that was generated at run time.
    Anonymous,
}

/// One executable mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Offset in the file.
    pub(super) offset: u64,
    /// Major and minor number of the device, as in `/proc`.
    pub(super) device: (u32, u32),
    pub(super) inode: u64,
    pub(super) kind: MappingKind,
    /// As the process sees it, without ` (deleted)`.
    pub(super) path: PathBuf,
    /// The file was deleted or replaced.
    pub(super) deleted: bool,
}

/// Returns the executable mappings, sorted by address.
pub(super) fn parse(text: &[u8]) -> Vec<Mapping> {
    let mut mappings: Vec<_> =
        text.split(|&byte| byte == b'\n').filter_map(line).take(MAX_MAPPINGS).collect();
    // The kernel sorts them, but a list that was read while the process changed may be unsorted.
    mappings.sort_by_key(|mapping| mapping.start);
    mappings
}

/// Returns the mappings of files, as events of a process that may have exited since.
pub(crate) fn mmap_events(pid: Pid, text: &[u8]) -> impl Iterator<Item = MmapEvent> {
    let files = parse(text).into_iter().filter(|mapping| mapping.kind == MappingKind::File);
    files.map(move |Mapping { start, end, offset, device, inode, path, .. }| MmapEvent {
        pid,
        start,
        end,
        offset,
        device,
        inode,
        path,
    })
}

/// Parses `start-end perms offset major:minor inode   path`; the path may contain blanks.
fn line(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let range = field(&mut rest)?;
    if field(&mut rest)?.as_bytes().get(2) != Some(&b'x') {
        return None;
    }
    let hex = |word: &str| u64::from_str_radix(word, 16).ok();
    let (start, end) = range.split_once('-')?;
    let (start, end) = (hex(start)?, hex(end)?);
    let offset = hex(field(&mut rest)?)?;
    let (major, minor) = field(&mut rest)?.split_once(':')?;
    let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode = field(&mut rest)?.parse().ok()?;
    let name = rest.trim_ascii_start();
    let plain = name.strip_suffix(b" (deleted)").unwrap_or(name);
    let kind = match name {
        b"[vdso]" => MappingKind::Vdso,
        name if name.starts_with(b"[uprobes") => MappingKind::Probes,
        name if name.starts_with(b"/") => MappingKind::File,
        // No function returns there.
        b"[vsyscall]" => return None,
        _ => MappingKind::Anonymous,
    };
    (start < end).then(|| Mapping {
        start,
        end,
        offset,
        device,
        inode,
        kind,
        path: OsString::from_vec(plain.to_vec()).into(),
        deleted: plain.len() < name.len(),
    })
}

/// Returns the next field.
fn field<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let trimmed = rest.trim_ascii_start();
    let end = trimmed.iter().position(|&byte| byte == b' ').unwrap_or(trimmed.len());
    let (word, after) = trimmed.split_at_checked(end)?;
    *rest = after;
    std::str::from_utf8(word).ok().filter(|word| !word.is_empty())
}

impl Mapping {
    /// Returns the path relative to the root of the process.
    pub(super) fn relative(&self) -> &Path {
        self.path.strip_prefix("/").unwrap_or(&self.path)
    }

    /// Returns the path as text.
    pub(super) fn name(&self) -> String {
        let bytes: &OsStr = self.path.as_os_str();
        String::from_utf8_lossy(bytes.as_bytes()).into_owned()
    }
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

    #[test]
    fn executable_lines_are_parsed() {
        let mappings = parse(TEXT);
        let kinds: Vec<_> = mappings.iter().map(|mapping| mapping.kind).collect();
        let expected = [
            MappingKind::File,
            MappingKind::File,
            MappingKind::Anonymous,
            MappingKind::Vdso,
            MappingKind::Probes,
        ];
        assert_eq!(kinds, expected);
        let library = &mappings[0];
        assert_eq!((library.start, library.end, library.offset), (0x7f0_0000, 0x7f1_0000, 0x1000));
        assert_eq!((library.device, library.inode), ((0xfe, 1), 1234));
        assert_eq!((library.name().as_str(), library.deleted), ("/a b/lib.so", false));
        assert_eq!(library.relative(), Path::new("a b/lib.so"));
        assert_eq!((mappings[1].name().as_str(), mappings[1].deleted), ("/memfd:jit", true));
    }

    #[test]
    fn truncated_and_malformed_lines_are_skipped() {
        for end in 0..TEXT.len() {
            assert!(parse(&TEXT[..end]).len() <= 6);
        }
        for line in [&b"-"[..], b"1-0 r-xp 0 0:0 0", b"\xff\xff-1 r-xp", b"1-2 r-xp 0 00 1 /x"] {
            assert!(parse(line).is_empty(), "{line:?}");
        }
    }
}
