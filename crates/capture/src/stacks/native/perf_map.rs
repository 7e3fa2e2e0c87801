//! Names that programs tell of code they make at run time, in `perf-PID.map` files.
//!
//! A line is `START SIZE NAME`, the numbers in hexadecimal. Lines are only ever added; a later one
//! tells better.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use engine::ids::Pid;
use hashbrown::HashMap;

use super::demangle::{demangle, truncate};

/// Bytes that are read of one file.
const MOST_BYTES: u64 = 64 << 20;
/// Functions of one process.
const MOST_FUNCTIONS: usize = 1 << 20;
/// Processes; when there are more, all are forgotten.
const MOST_PROCESSES: usize = 64;

/// The files of all processes.
#[derive(Default)]
pub(super) struct PerfMaps(HashMap<Pid, PerfMap>);

impl PerfMaps {
    /// The function at an address of a process.
    pub(super) fn find(&mut self, pid: Pid, address: u64) -> Option<Arc<str>> {
        if self.0.len() >= MOST_PROCESSES && !self.0.contains_key(&pid) {
            self.0.clear();
        }
        let map = self.0.entry(pid).or_default();
        // A process that has ended tells nothing new; what it told stays.
        let _ = map.catch_up(pid);
        map.find(address)
    }
}

#[derive(Default)]
struct PerfMap {
    functions: BTreeMap<u64, (u64, Arc<str>)>,
    /// Which file was read, and how far: to the end of the last whole line.
    file: (u64, u64),
    read: u64,
}

impl PerfMap {
    fn find(&self, address: u64) -> Option<Arc<str>> {
        let (start, (bytes, name)) = self.functions.range(..=address).next_back()?;
        (address.checked_sub(*start)? < *bytes).then(|| Arc::clone(name))
    }

    /// Reads what was added to the file.
    fn catch_up(&mut self, pid: Pid) -> io::Result<()> {
        // The last part of the name could be a link to somebody else's file.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let path = path(pid)?;
        if !fs::symlink_metadata(&path)?.is_file() {
            return Ok(());
        }
        let mut file = File::options().read(true).custom_flags(flags).open(path)?;
        let about = file.metadata()?;
        let which = (about.dev(), about.ino());
        if which != self.file || about.size() < self.read {
            *self = Self { file: which, ..Self::default() };
        }
        let size = about.size().min(MOST_BYTES);
        if !about.is_file() || size <= self.read {
            return Ok(());
        }
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = Vec::new();
        file.take(size - self.read).read_to_end(&mut text)?;
        let Some(last) = text.iter().rposition(|&byte| byte == b'\n') else { return Ok(()) };
        let (whole, _) = text.split_at(last.saturating_add(1));
        self.read = self.read.saturating_add(whole.len() as u64);
        for line in whole.split(|&byte| byte == b'\n') {
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
        // Older code that was there, or reached into it.
        while let Some((&old, _)) = self.functions.range(start..end).next() {
            self.functions.remove(&old);
        }
        if let Some((&before, (length, _))) = self.functions.range_mut(..start).next_back() {
            *length = (*length).min(start - before);
        }
        if self.functions.len() < MOST_FUNCTIONS && !name.trim().is_empty() {
            self.functions.insert(start, (bytes, demangle(truncate(name.trim())).into()));
        }
        Some(())
    }
}

/// The file of a process, named by the pid that the process itself knows.
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
    fn the_last_line_about_an_address_counts() {
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
        let covered = map_of_covered();
        assert_eq!(covered.find(0x1010).as_deref(), Some("all"));
    }

    fn map_of_covered() -> PerfMap {
        map("1000 8 a\n1010 8 b\n1020 8 c\n1000 100 all\n")
    }

    #[test]
    fn lines_that_are_nonsense_are_passed_over() {
        let nonsense = "\n1000\n1000 10\nxyz 10 a\nffffffffffffffff 10 a\n1000 zz a\n1000 10  \n";
        assert!(map(nonsense).functions.is_empty());
    }
}
