//! Memory use of the processes that share the simulated devices: a file that all of them map.
//!
//! | offset | content (64-bit little-endian numbers) |
//! |---|---|
//! | 0 | the bytes `VSIMSTA1` |
//! | 8 | number of devices |
//! | 16 | bytes of memory of each device |
//! | 24 | number of slots |
//! | 32 | number of slots, from the first on, that may be in use |
//! | 4096 + 512·n | slot n |
//!
//! A slot: at 0 the process id (0: free), at 8 its start time in clock ticks after boot (field 22
//! of `/proc/PID/stat`), at 64 the bytes it uses of each of 16 devices, at 192 the bytes that its
//! contexts use in addition. The slot of a process that has exited is free. Slots are claimed and
//! freed only under an exclusive `flock` of the file.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::Code;
use crate::settings::{MAX_DEVICES, Settings};

const MAGIC: u64 = u64::from_le_bytes(*b"VSIMSTA1");
const MAX_PROCESSES: usize = 256;
const HEADER_BYTES: usize = 4096;

#[repr(C)]
struct Header {
    magic: AtomicU64,
    devices: AtomicU64,
    memory: AtomicU64,
    slots: AtomicU64,
    high: AtomicU64,
    rest: [u8; HEADER_BYTES - 40],
}

#[repr(C)]
struct Slot {
    pid: AtomicU64,
    start: AtomicU64,
    reserved: [AtomicU64; 6],
    used: [AtomicU64; MAX_DEVICES],
    overhead: [AtomicU64; MAX_DEVICES],
    rest: [AtomicU64; 24],
}

#[repr(C)]
struct Layout {
    header: Header,
    slots: [Slot; MAX_PROCESSES],
}

const _: () = assert!(size_of::<Header>() == HEADER_BYTES && size_of::<Slot>() == 512);

/// This process's entry in the shared file.
pub(crate) struct SharedDevices {
    file: File,
    layout: &'static Layout,
    slot: usize,
    memory: u64,
}

/// Returns the start time of a process, if it exists.
fn start_time(pid: u64) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything, so fields are counted from its end.
    stat.get(stat.rfind(')')? + 2..)?.split(' ').nth(19)?.parse().ok()
}

impl SharedDevices {
    /// Joins the processes that share a file, which is created if it does not exist.
    pub(crate) fn join(path: &Path, settings: &Settings) -> std::io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        file.lock()?;
        let layout = map(&file)?;
        let header = &layout.header;
        if header.magic.load(Ordering::Acquire) != MAGIC {
            header.devices.store(settings.devices as u64, Ordering::Relaxed);
            header.memory.store(settings.memory, Ordering::Relaxed);
            header.slots.store(MAX_PROCESSES as u64, Ordering::Relaxed);
            header.magic.store(MAGIC, Ordering::Release);
        }
        let slot = layout.claim();
        file.unlock()?;
        let slot = slot.ok_or_else(|| std::io::Error::other("all its slots are in use"))?;
        Ok(Self { file, layout, slot, memory: settings.memory })
    }

    fn own(&self) -> Option<&Slot> {
        self.layout.slots.get(self.slot)
    }

    /// Allocates device memory, if all processes together leave enough.
    pub(crate) fn charge(&self, device: usize, bytes: u64) -> Result<(), Code> {
        let counter = self.own().and_then(|slot| slot.used.get(device)).ok_or(Code::Unknown)?;
        self.add(counter, device, bytes)
    }

    fn add(&self, counter: &AtomicU64, device: usize, bytes: u64) -> Result<(), Code> {
        if bytes > self.memory {
            return Err(Code::OutOfMemory);
        }
        counter.fetch_add(bytes, Ordering::AcqRel);
        if self.used(device) > self.memory {
            self.reclaim();
            if self.used(device) > self.memory {
                counter.fetch_sub(bytes, Ordering::AcqRel);
                return Err(Code::OutOfMemory);
            }
        }
        Ok(())
    }

    /// Frees device memory.
    pub(crate) fn uncharge(&self, device: usize, bytes: u64) {
        if let Some(counter) = self.own().and_then(|slot| slot.used.get(device)) {
            counter.fetch_sub(bytes, Ordering::AcqRel);
        }
    }

    /// Returns the memory of a device that all processes use.
    pub(crate) fn used(&self, device: usize) -> u64 {
        self.layout.in_use().iter().map(|slot| slot.of_device(device)).sum()
    }

    /// Sets the memory that this process's contexts use on a device.
    pub(crate) fn set_overhead(&self, device: usize, bytes: u64) -> Result<(), Code> {
        let counter = self.own().and_then(|slot| slot.overhead.get(device)).ok_or(Code::Unknown)?;
        let before = counter.load(Ordering::Acquire);
        if bytes > before {
            return self.add(counter, device, bytes - before);
        }
        counter.store(bytes, Ordering::Release);
        Ok(())
    }

    /// Frees the slots of processes that have exited.
    fn reclaim(&self) {
        if self.file.lock().is_ok() {
            self.layout.clear_dead();
            // A failure shows at the next lock.
            let _ = self.file.unlock();
        }
    }

    /// Frees the slot of this process, and with it its memory.
    pub(crate) fn leave(&self) {
        if let Some(slot) = self.own() {
            slot.clear();
        }
    }
}

impl Layout {
    fn in_use(&self) -> &[Slot] {
        let high =
            usize::try_from(self.header.high.load(Ordering::Acquire)).unwrap_or(MAX_PROCESSES);
        self.slots.get(..high.min(MAX_PROCESSES)).unwrap_or_default()
    }

    fn clear_dead(&self) {
        for slot in self.in_use() {
            let pid = slot.pid.load(Ordering::Acquire);
            if pid != 0 && start_time(pid) != Some(slot.start.load(Ordering::Acquire)) {
                slot.clear();
            }
        }
    }

    /// Claims a free slot, or the one that this process had before an exec.
    fn claim(&self) -> Option<usize> {
        let pid = u64::from(std::process::id());
        self.clear_dead();
        let with = |pid| self.slots.iter().position(|slot| slot.pid.load(Ordering::Acquire) == pid);
        let index = with(pid).or_else(|| with(0))?;
        let slot = self.slots.get(index)?;
        slot.clear();
        slot.start.store(start_time(pid).unwrap_or(0), Ordering::Relaxed);
        slot.pid.store(pid, Ordering::Release);
        self.header.high.fetch_max(index as u64 + 1, Ordering::AcqRel);
        Some(index)
    }
}

impl Slot {
    fn of_device(&self, device: usize) -> u64 {
        let of = |counters: &[AtomicU64]| {
            counters.get(device).map_or(0, |counter| counter.load(Ordering::Acquire))
        };
        of(&self.used).saturating_add(of(&self.overhead))
    }

    fn clear(&self) {
        for counter in self.used.iter().chain(&self.overhead) {
            counter.store(0, Ordering::Release);
        }
        self.pid.store(0, Ordering::Release);
    }
}

/// Maps the file, at its full size.
fn map(file: &File) -> std::io::Result<&'static Layout> {
    let size = size_of::<Layout>();
    if file.metadata()?.len() < size as u64 {
        file.set_len(size as u64)?;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let descriptor = file.as_raw_fd();
    // SAFETY: a new shared mapping of a file that is at least this long.
    let memory = unsafe {
        libc::mmap(std::ptr::null_mut(), size, protection, libc::MAP_SHARED, descriptor, 0)
    };
    if memory == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the mapping is as large as `Layout`, page-aligned and never unmapped. `Layout`
    // consists of atomics and unread padding, so other processes may change it at any time.
    Ok(unsafe { &*memory.cast::<Layout>() })
}
