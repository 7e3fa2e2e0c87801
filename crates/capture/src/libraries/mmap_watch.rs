//! Detects processes that map another copy of the driver, within milliseconds: a dummy perf
//! event per CPU reports every executable mapping. Costs nothing while no code is mapped, and needs
//! no probe.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::model::ids::Pid;
use perf_event_open_sys as perf;

use super::{AllocatorFile, is_driver_name, is_ignored};
use crate::files::{Mapping, MappingKind};

/// Data pages of each CPU's buffer: a few hundred mappings between two polls.
const PERF_BUFFER_PAGES: usize = 16;

/// New mappings.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MmapBatch {
    /// Processes that mapped a driver library.
    pub pids: Vec<Pid>,
    /// Processes that mapped a library with an allocator.
    pub allocators: Vec<Pid>,
    /// Executable mappings of files.
    pub mapped: Vec<Mapping>,
    /// Records are missing: a buffer overflowed, or contains an invalid record. Only a scan of
    /// all processes finds what they had.
    pub overflowed: bool,
}

/// Watches the mappings on all CPUs.
#[derive(Debug)]
pub struct MmapWatcher {
    buffers: Vec<PerfBuffer>,
}

impl MmapWatcher {
    /// Opens the event on every online CPU.
    pub fn new() -> io::Result<Self> {
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
        let buffers = cpus(&online).into_iter().map(PerfBuffer::open).collect::<io::Result<_>>()?;
        Ok(Self { buffers })
    }

    /// Returns descriptors that become ready with new mappings.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.buffers.iter().map(|buffer| buffer.event.as_fd())
    }

    /// Adds the mappings since the last call.
    pub fn poll(&self, batch: &mut MmapBatch) {
        for buffer in &self.buffers {
            buffer.drain(batch);
        }
    }
}

/// Parses `0-3,8` to 0, 1, 2, 3, 8.
fn cpus(online: &str) -> Vec<i32> {
    let range = |part: &str| {
        let (from, to) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        Some(from.parse::<i32>().ok()?..=to.parse::<i32>().ok()?)
    };
    online.split(',').filter_map(range).flatten().collect()
}

/// Reads a perf record, including its header.
fn inspect(record: &[u8], batch: &mut MmapBatch) {
    let Some(kind) = record.first_chunk::<4>().map(|b| u32::from_ne_bytes(*b)) else { return };
    match kind {
        perf::bindings::PERF_RECORD_LOST => batch.overflowed = true,
        perf::bindings::PERF_RECORD_MMAP2 => {
            // header 8, pid 4, tid 4, addr 8, len 8, pgoff 8, maj 4, min 4, ino 8, generation 8,
            // prot 4, flags 4, then the name.
            let Some(name) = record.get(72..) else {
                batch.overflowed = true;
                return;
            };
            let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
            let path = Path::new(OsStr::from_bytes(&name[..end]));
            let u32_at = |at: usize| {
                let bytes = record.get(at..).and_then(<[u8]>::first_chunk::<4>);
                bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
            };
            let u64_at = |at| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
            let pid = Pid(u32_at(8));
            if is_driver_name(path) && !is_ignored(path) {
                batch.pids.push(pid);
            }
            if AllocatorFile::of(path).is_some() && !is_ignored(path) {
                batch.allocators.push(pid);
            }
            // Skips anonymous memory and mappings of the kernel, such as the vDSO.
            if path.is_absolute() && !path.starts_with("//anon") {
                let (start, length) = (u64_at(16), u64_at(24));
                batch.mapped.push(Mapping {
                    pid,
                    start,
                    end: start.saturating_add(length),
                    offset: u64_at(32),
                    device: (u32_at(40), u32_at(44)),
                    inode: u64_at(48),
                    executable: true,
                    kind: MappingKind::File,
                    path: path.to_owned(),
                    deleted: false,
                });
            }
        }
        _ => {}
    }
}

/// The event of one CPU and its mapped buffer.
#[derive(Debug)]
struct PerfBuffer {
    base: NonNull<u8>,
    page: usize,
    event: OwnedFd,
}

impl PerfBuffer {
    fn open(cpu: i32) -> io::Result<Self> {
        let mut attr = perf::bindings::perf_event_attr {
            type_: perf::bindings::PERF_TYPE_SOFTWARE,
            size: size_of::<perf::bindings::perf_event_attr>() as u32,
            config: u64::from(perf::bindings::PERF_COUNT_SW_DUMMY),
            ..Default::default()
        };
        attr.set_mmap(1);
        attr.set_mmap2(1);
        // The descriptor is ready after each record.
        attr.set_watermark(1);
        attr.__bindgen_anon_2.wakeup_watermark = 1;
        // SAFETY: attr is a valid, fully initialized structure of the size it states.
        let fd = unsafe {
            perf::perf_event_open(
                &raw mut attr,
                -1,
                cpu,
                -1,
                perf::bindings::PERF_FLAG_FD_CLOEXEC.into(),
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above returned a new descriptor that we own.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: only a query.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        // SAFETY: maps new memory at an address that the kernel chooses.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                (PERF_BUFFER_PAGES + 1) * page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { base, page, event })
    }

    /// Returns the page shared with the kernel. Not a reference: the kernel can write to it at any
    /// time.
    const fn control(&self) -> *mut perf::bindings::perf_event_mmap_page {
        self.base.as_ptr().cast()
    }

    /// Position up to which the kernel has written.
    fn head(&self) -> u64 {
        // SAFETY: an aligned field of the shared page, which is mapped as long as self lives. The
        // kernel writes it atomically, after the records (a release).
        let head = unsafe { AtomicU64::from_ptr(&raw mut (*self.control()).data_head) };
        head.load(Ordering::Acquire)
    }

    /// Position up to which we have read; the kernel does not overwrite records after it.
    fn tail(&self) -> &AtomicU64 {
        // SAFETY: as in `head`; only user space writes it.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.control()).data_tail) }
    }

    /// Reads the records since the last call.
    fn drain(&self, batch: &mut MmapBatch) {
        let (head, tail) = (self.head(), self.tail().load(Ordering::Relaxed));
        let copy = |from, length, out: &mut Vec<u8>| self.copy(from, length, out);
        batch.overflowed |= !walk(tail, head, copy, |record| inspect(record, batch));
        self.tail().store(head, Ordering::Release);
    }

    /// Copies bytes between tail and head; they may wrap around.
    fn copy(&self, from: u64, length: usize, out: &mut Vec<u8>) {
        let size = PERF_BUFFER_PAGES * self.page;
        let length = length.min(size);
        let begin = (from % size as u64) as usize;
        let first = length.min(size - begin);
        out.clear();
        out.reserve(length);
        // SAFETY: the data area follows the first page and is `size` bytes long: the first piece
        // ends at its end or before, the second begins at its start and is shorter than it. The
        // kernel does not write between tail and head. `out` is other memory, has room for both,
        // and all of it is written. No reference to the area is made.
        unsafe {
            let data = self.base.as_ptr().add(self.page).cast_const();
            std::ptr::copy_nonoverlapping(data.add(begin), out.as_mut_ptr(), first);
            let rest = out.as_mut_ptr().add(first);
            std::ptr::copy_nonoverlapping(data, rest, length - first);
            out.set_len(length);
        }
    }
}

/// Size of a record's header: kind 4, flags 2, length 2.
const HEADER: usize = 8;

/// Passes each record between two positions to `each`. Returns false if a record is invalid: the
/// records after it cannot be found and are missing.
fn walk(
    mut tail: u64,
    head: u64,
    copy: impl Fn(u64, usize, &mut Vec<u8>),
    mut each: impl FnMut(&[u8]),
) -> bool {
    let mut record = Vec::new();
    while tail < head {
        copy(tail, HEADER, &mut record);
        let length = record.get(6..).and_then(<[u8]>::first_chunk).map(|b| u16::from_ne_bytes(*b));
        let length = length.map_or(0, usize::from);
        if length < HEADER || length as u64 > head - tail {
            return false;
        }
        copy(tail, length, &mut record);
        each(&record);
        tail += length as u64;
    }
    true
}

impl Drop for PerfBuffer {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `open` mapped; no reference to it outlives self.
        unsafe { libc::munmap(self.base.as_ptr().cast(), (PERF_BUFFER_PAGES + 1) * self.page) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_parsed() {
        assert_eq!(cpus("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(cpus("0\n"), [0]);
        assert!(cpus("").is_empty());
    }

    #[test]
    fn perf_records_of_any_length_are_handled() {
        for length in 0..100 {
            for kind in [0_u32, 2, 10, 99] {
                let mut record = vec![0xff; length];
                if length >= 4 {
                    record[..4].copy_from_slice(&kind.to_ne_bytes());
                }
                inspect(&record, &mut MmapBatch::default());
            }
        }
    }

    /// A record of `length` bytes whose header says `claimed`.
    fn record(kind: u32, length: usize, claimed: u16) -> Vec<u8> {
        let mut record = vec![0; length];
        record[..4].copy_from_slice(&kind.to_ne_bytes());
        record[6..8].copy_from_slice(&claimed.to_ne_bytes());
        record
    }

    /// Walks over the bytes; returns the lengths of the records, and whether they are complete.
    fn walked(bytes: &[u8]) -> (Vec<usize>, bool) {
        let mut found = Vec::new();
        let copy = |from: u64, length: usize, out: &mut Vec<u8>| {
            out.clear();
            out.extend(bytes.iter().skip(from as usize).take(length));
        };
        let all = walk(0, bytes.len() as u64, copy, |record| found.push(record.len()));
        (found, all)
    }

    #[test]
    fn records_after_a_bad_length_count_as_missing() {
        let good = record(10, 80, 80);
        assert_eq!(walked(&[&good[..], &good].concat()), (vec![80, 80], true));
        for claimed in [0, 7, 81, u16::MAX] {
            let bad = record(10, 80, claimed);
            assert_eq!(walked(&[&good[..], &bad].concat()), (vec![80], false), "{claimed}");
        }
        assert_eq!(walked(&good[..4]), (Vec::new(), false));
    }

    #[test]
    fn truncated_mmap_record_counts_as_missing() {
        let mut batch = MmapBatch::default();
        inspect(&record(perf::bindings::PERF_RECORD_MMAP2, 40, 40), &mut batch);
        assert!(batch.overflowed);
    }

    #[test]
    fn mappings_of_this_process_are_reported() {
        let Ok(watch) = MmapWatcher::new() else { panic!("perf events need root") };
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let pid = Pid(std::process::id());
        // Often enough that the buffer wraps around.
        for _ in 0..2000 {
            // SAFETY: maps a page of this program's own file and unmaps it again.
            unsafe {
                let (protection, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE);
                let fd = file.as_raw_fd();
                let page = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, fd, 0);
                assert_ne!(page, libc::MAP_FAILED);
                libc::munmap(page, 4096);
            }
            let mut batch = MmapBatch::default();
            watch.poll(&mut batch);
            if !batch.overflowed {
                assert!(batch.mapped.iter().any(|mmap| mmap.pid == pid), "{batch:?}");
            }
        }
    }
}
