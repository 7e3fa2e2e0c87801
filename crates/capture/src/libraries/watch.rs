//! Notices processes that map another copy of the driver, within the reader's polling interval: a
//! dummy perf event per CPU whose side band tells every executable mapping. Costs nothing while
//! nobody maps anything, and needs no probe.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use engine::ids::Pid;
use perf_event_open_sys as perf;

use super::{TorchPart, is_driver_name};

/// Data pages of each CPU's buffer: some hundred mappings between two polls.
const PAGES: usize = 16;

/// What happened since the last look.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Processes that mapped a driver library.
    pub pids: Vec<Pid>,
    /// Processes that mapped a part of PyTorch.
    pub torch: Vec<Pid>,
    /// Code of files that processes mapped.
    pub mapped: Vec<MappedCode>,
    /// The side band overflowed: only a scan of all processes can tell.
    pub overflowed: bool,
}

/// A process mapped code of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MappedCode {
    /// The process.
    pub pid: Pid,
    /// Where.
    pub start: u64,
    /// Up to where.
    pub end: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// Major and minor number of the file's device.
    pub device: (u32, u32),
    /// The file.
    pub inode: u64,
    /// Its path as the process sees it.
    pub path: PathBuf,
}

/// The watch over all CPUs.
#[derive(Debug)]
pub struct Watch {
    buffers: Vec<Buffer>,
}

impl Watch {
    /// Opens the event on every CPU that is online.
    pub fn new() -> io::Result<Self> {
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
        let buffers = cpus(&online).into_iter().map(Buffer::open).collect::<io::Result<_>>()?;
        Ok(Self { buffers })
    }

    /// What happened since the last call.
    pub fn look(&mut self) -> Seen {
        let mut seen = Seen::default();
        for buffer in &mut self.buffers {
            buffer.drain(|record| inspect(record, &mut seen));
        }
        seen
    }
}

/// `0-3,8` → 0, 1, 2, 3, 8.
fn cpus(online: &str) -> Vec<i32> {
    let range = |part: &str| {
        let (from, to) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        Some(from.parse::<i32>().ok()?..=to.parse::<i32>().ok()?)
    };
    online.split(',').filter_map(range).flatten().collect()
}

/// A record of the side band, header included.
fn inspect(record: &[u8], seen: &mut Seen) {
    let Some(kind) = record.first_chunk::<4>().map(|b| u32::from_ne_bytes(*b)) else { return };
    match kind {
        perf::bindings::PERF_RECORD_LOST => seen.overflowed = true,
        perf::bindings::PERF_RECORD_MMAP2 => {
            // header 8, pid 4, tid 4, addr 8, len 8, pgoff 8, maj 4, min 4, ino 8, generation 8,
            // prot 4, flags 4, then the name.
            let Some(name) = record.get(72..) else { return };
            let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
            let path = Path::new(OsStr::from_bytes(&name[..end]));
            let half = |at: usize| {
                let bytes = record.get(at..).and_then(<[u8]>::first_chunk::<4>);
                bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
            };
            let word = |at| u64::from(half(at)) | u64::from(half(at + 4)) << 32;
            let pid = Pid(half(8));
            if is_driver_name(path) {
                seen.pids.push(pid);
            }
            if TorchPart::of(path).is_some() {
                seen.torch.push(pid);
            }
            // Neither memory without a file, nor what the kernel has mapped.
            if path.is_absolute() && !path.starts_with("//anon") {
                let (start, length) = (word(16), word(24));
                seen.mapped.push(MappedCode {
                    pid,
                    start,
                    end: start.saturating_add(length),
                    offset: word(32),
                    device: (half(40), half(44)),
                    inode: word(48),
                    path: path.to_owned(),
                });
            }
        }
        _ => {}
    }
}

/// One CPU's event and its mapped buffer.
#[derive(Debug)]
struct Buffer {
    base: NonNull<u8>,
    page: usize,
    _event: OwnedFd,
    scratch: Vec<u8>,
}

impl Buffer {
    fn open(cpu: i32) -> io::Result<Self> {
        let mut attr = perf::bindings::perf_event_attr {
            type_: perf::bindings::PERF_TYPE_SOFTWARE,
            size: size_of::<perf::bindings::perf_event_attr>() as u32,
            config: u64::from(perf::bindings::PERF_COUNT_SW_DUMMY),
            ..Default::default()
        };
        attr.set_mmap(1);
        attr.set_mmap2(1);
        attr.set_watermark(1);
        // Never wake anybody: the reader polls.
        attr.__bindgen_anon_2.wakeup_watermark = u32::MAX;
        // SAFETY: attr is a valid, fully initialised structure of the size it states.
        let fd = unsafe {
            perf::perf_event_open(
                &mut attr,
                -1,
                cpu,
                -1,
                perf::bindings::PERF_FLAG_FD_CLOEXEC.into(),
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above returned a descriptor that nobody else owns.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: a plain query.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        // SAFETY: maps new memory, at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                (PAGES + 1) * page,
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
        Ok(Self { base, page, _event: event, scratch: Vec::new() })
    }

    fn control(&mut self) -> &mut perf::bindings::perf_event_mmap_page {
        // SAFETY: the first page of the mapping is this structure, page-aligned, and lives as long
        // as self; the kernel writes only data_head concurrently, which is read as volatile.
        unsafe { self.base.cast().as_mut() }
    }

    /// Hands over every record since the last call.
    fn drain(&mut self, mut each: impl FnMut(&[u8])) {
        let size = PAGES * self.page;
        // SAFETY: a valid, aligned field; volatile because the kernel writes it.
        let head = unsafe { (&raw const self.control().data_head).read_volatile() };
        // Pairs with the kernel's barrier after writing records and before moving data_head.
        fence(Ordering::Acquire);
        let mut tail = self.control().data_tail;
        while tail < head {
            let header = self.copy(tail, 8, size);
            let length = usize::from(u16::from_ne_bytes([header[6], header[7]]));
            if length < 8 || length as u64 > head - tail {
                break; // not a record: skip the rest rather than trust it
            }
            let record = self.copy(tail, length, size);
            each(&record);
            self.scratch = record;
            tail += length as u64;
        }
        fence(Ordering::Release);
        // SAFETY: a valid, aligned field that only this side writes.
        unsafe { (&raw mut self.control().data_tail).write_volatile(head) };
    }

    /// Bytes of the ring, joined where they wrap around.
    fn copy(&mut self, from: u64, length: usize, size: usize) -> Vec<u8> {
        let mut out = std::mem::take(&mut self.scratch);
        out.clear();
        // SAFETY: the data area follows the first page and is `size` bytes long; nobody writes the
        // part between tail and head while it is being read.
        let data = unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(self.page), size) };
        let begin = (from % size as u64) as usize;
        let first = length.min(size - begin);
        out.extend_from_slice(&data[begin..begin + first]);
        out.extend_from_slice(&data[..length - first]);
        out
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `open` mapped; no reference to it outlives self.
        unsafe { libc::munmap(self.base.as_ptr().cast(), (PAGES + 1) * self.page) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_understood() {
        assert_eq!(cpus("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(cpus("0\n"), [0]);
        assert!(cpus("").is_empty());
    }

    #[test]
    fn records_of_any_shape_are_survived() {
        for length in 0..100 {
            for kind in [0_u32, 2, 10, 99] {
                let mut record = vec![0xff; length];
                if length >= 4 {
                    record[..4].copy_from_slice(&kind.to_ne_bytes());
                }
                inspect(&record, &mut Seen::default());
            }
        }
    }
}
