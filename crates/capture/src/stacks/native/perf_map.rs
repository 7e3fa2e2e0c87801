//! Names of code generated at run time, from the `perf-PID.map` files of programs.
//!
//! A line is `START SIZE NAME`, with hexadecimal numbers. Lines are only appended; later ones take
//! precedence.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use engine::model::ids::Pid;

use super::demangle::{demangle, truncate};

/// Maximum bytes read of one file.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Maximum number of functions per process.
const MAX_FUNCTIONS: usize = 1 << 20;
/// Identifies the code that one program generates. Never used again, unlike a pid.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct GeneratedCodeId(u64);

/// The code that one program generates at run time.
#[derive(Debug)]
pub(crate) struct GeneratedCode {
    pub(super) id: GeneratedCodeId,
    pid: Pid,
    map: Mutex<PerfMap>,
}

impl GeneratedCode {
    pub(super) fn new(pid: Pid) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = GeneratedCodeId(NEXT.fetch_add(1, Ordering::Relaxed));
        Self { id, pid, map: Mutex::default() }
    }

    /// Returns the function at an address.
    pub(super) fn find(&self, address: u64) -> Option<Arc<str>> {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        // Fails for a process that has exited; what was read before stays.
        let _ = map.catch_up(self.pid);
        map.find(address)
    }
}

#[derive(Debug, Default)]
struct PerfMap {
    functions: BTreeMap<u64, (u64, Arc<str>)>,
    /// Device and inode of the file.
    file: (u64, u64),
    /// Bytes read, up to the end of the last complete line.
    read: u64,
}

impl PerfMap {
    fn find(&self, address: u64) -> Option<Arc<str>> {
        let (start, (bytes, name)) = self.functions.range(..=address).next_back()?;
        (address.checked_sub(*start)? < *bytes).then(|| Arc::clone(name))
    }

    /// Reads the lines that were appended to the file.
    fn catch_up(&mut self, pid: Pid) -> io::Result<()> {
        // The last component could be a link to a file of another user.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let path = path(pid)?;
        if !fs::symlink_metadata(&path)?.is_file() {
            return Ok(());
        }
        let mut file = File::options().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        let file_id = (metadata.dev(), metadata.ino());
        if file_id != self.file || metadata.size() < self.read {
            *self = Self { file: file_id, ..Self::default() };
        }
        let size = metadata.size().min(MAX_FILE_BYTES);
        if !metadata.is_file() || size <= self.read {
            return Ok(());
        }
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = Vec::new();
        file.take(size - self.read).read_to_end(&mut text)?;
        let Some(last) = text.iter().rposition(|&byte| byte == b'\n') else { return Ok(()) };
        let (lines, _) = text.split_at(last.saturating_add(1));
        self.read = self.read.saturating_add(lines.len() as u64);
        for line in lines.split(|&byte| byte == b'\n') {
            self.add(line);
        }
        Ok(())
    }

    fn add(&mut self, line: &[u8]) -> Option<()> {
        let text = String::from_utf8_lossy(line);
        let (start, rest) = text.trim_start().split_once(' ')?;
        let (bytes, name) = rest.trim_start().split_once(' ')?;
        let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
        let (start, bytes) = (hex(start)?, hex(bytes)?.max(1));
        let end = start.checked_add(bytes)?;
        // Removes older functions in the range and shortens one that reaches into it.
        while let Some((&old, _)) = self.functions.range(start..end).next() {
            self.functions.remove(&old);
        }
        if let Some((&before, (length, _))) = self.functions.range_mut(..start).next_back() {
            *length = (*length).min(start - before);
        }
        if self.functions.len() < MAX_FUNCTIONS && !name.trim().is_empty() {
            self.functions.insert(start, (bytes, demangle(truncate(name.trim())).into()));
        }
        Some(())
    }
}

/// Returns the file of a process, named by its pid in the innermost namespace.
fn path(pid: Pid) -> io::Result<PathBuf> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let inner =
        status.lines().find_map(|line| line.strip_prefix("NSpid:")?.split('\t').next_back());
    let inner = inner.and_then(|inner| inner.trim().parse().ok()).unwrap_or(pid.0);
    Ok(PathBuf::from(format!("/proc/{pid}/root/tmp/perf-{inner}.map")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(text: &str) -> PerfMap {
        let mut map = PerfMap::default();
        for line in text.lines() {
            map.add(line.as_bytes());
        }
        map
    }

    #[test]
    fn last_line_of_an_address_wins() {
        let map = map("1000 100 old\n10c0 80 new one\n0x2000 10 _ZN1a1bEv\n");
        for (address, name) in [
            (0xfff, None),
            (0x1000, Some("old")),
            (0x10bf, Some("old")),
            (0x10c0, Some("new one")),
            (0x113f, Some("new one")),
            (0x1140, None),
            (0x2000, Some("a::b()")),
        ] {
            assert_eq!(map.find(address).as_deref(), name, "{address:#x}");
        }
        let covered = covered_map();
        assert_eq!(covered.find(0x1010).as_deref(), Some("all"));
    }

    fn covered_map() -> PerfMap {
        map("1000 8 a\n1010 8 b\n1020 8 c\n1000 100 all\n")
    }

    #[test]
    fn malformed_lines_are_skipped() {
        let malformed = "\n1000\n1000 10\nxyz 10 a\nffffffffffffffff 10 a\n1000 zz a\n1000 10  \n";
        assert!(map(malformed).functions.is_empty());
    }
}
