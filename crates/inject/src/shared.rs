//! Files shared with the collector.

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

use crate::area::{
    CONTROL_FILE, Control, FUNCTIONS, Header, LAYOUT_VERSION, MAGIC, MAX_SYMBOL, Sizes,
    StartFailure, mappings_file,
};
use crate::calls::emit;
use crate::wire::{Process, VS_PROCESS};
use crate::{allocators, process};

/// The collector's directory.
static DIRECTORY: OnceLock<CString> = OnceLock::new();

/// Descriptor that holds the lock on the area. Exec and exit close it, and forked children do not
/// inherit the lock.
static LOCK: AtomicI32 = AtomicI32::new(-1);

/// Minimum number of the descriptor that stays open.
const MIN_DESCRIPTOR: c_int = 500;

/// A new area.
pub(crate) struct NewArea {
    pub(crate) header: *mut Header,
    pub(crate) records: *mut u8,
    pub(crate) stacks: *mut u8,
    start: u64,
    uid: u32,
}

/// A descriptor that is closed when it is dropped.
struct Descriptor(c_int);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: this value owns the descriptor.
        unsafe { libc::close(self.0) };
    }
}

/// Maps new private memory of a whole number of pages.
pub(crate) fn map_anonymous(bytes: usize) -> Option<*mut u8> {
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: requests new memory.
    let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
    (memory != libc::MAP_FAILED).then_some(memory.cast())
}

fn map_file(file: &Descriptor, bytes: usize, at: *mut c_void, offset: usize) -> Option<*mut u8> {
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
    // SAFETY: at is null, or inside of a mapping that was reserved for this.
    let memory = unsafe {
        libc::mmap(
            at,
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | fixed,
            file.0,
            offset as libc::off_t,
        )
    };
    (memory != libc::MAP_FAILED).then_some(memory.cast())
}

/// Maps a part of a file twice in a row.
fn map_twice(file: &Descriptor, offset: usize, bytes: usize) -> Option<*mut u8> {
    // SAFETY: reserves addresses, without memory behind them.
    let reserved = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes * 2,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if reserved == libc::MAP_FAILED {
        return None;
    }
    map_file(file, bytes, reserved, offset)?;
    // SAFETY: the second half of the reservation.
    map_file(file, bytes, unsafe { reserved.byte_add(bytes) }, offset)?;
    // Populate all pages now instead of by faults inside calls. Kernels before 5.14 cannot.
    // SAFETY: the mapping was just created.
    unsafe { libc::madvise(reserved, bytes * 2, libc::MADV_POPULATE_WRITE) };
    Some(reserved.cast())
}

fn open(path: &CStr, flags: c_int) -> Option<Descriptor> {
    // SAFETY: the path is zero-terminated.
    let file = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o600) };
    (file >= 0).then_some(Descriptor(file))
}

fn path(name: &str) -> Option<CString> {
    let directory = DIRECTORY.get()?.to_bytes();
    CString::new([directory, b"/", name.as_bytes()].concat()).ok()
}

/// Maps the control file, if it has the layout of this build and its collector runs.
pub(crate) fn map_control(directory: &CStr) -> Option<*mut Control> {
    let directory = DIRECTORY.get_or_init(|| directory.to_owned());
    let file = open(&path(CONTROL_FILE)?, libc::O_RDWR)?;
    let mut status = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the structure is writable; zeroed is a valid value of it.
    let length = unsafe {
        (libc::fstat(file.0, status.as_mut_ptr()) == 0).then(|| status.assume_init().st_size)
    };
    if directory.is_empty() || length? < size_of::<Control>() as i64 || !is_locked(&file) {
        return None;
    }
    let control = map_file(&file, size_of::<Control>(), ptr::null_mut(), 0)?.cast::<Control>();
    // SAFETY: the file is as long as the structure, which is plain numbers.
    let (magic, layout, sizes): (u64, u32, Sizes) =
        unsafe { ((*control).magic, (*control).layout_version, (*control).sizes) };
    if magic == MAGIC && layout != own_layout() {
        // SAFETY: all builds have this field at the same place.
        let failures = unsafe { &(*control).failures };
        failures[StartFailure::OtherBuild as usize].fetch_add(1, Ordering::Relaxed);
        return None;
    }
    (magic == MAGIC && sizes.are_valid()).then_some(control)
}

/// Returns the layout that the file of this library names.
fn own_layout() -> u32 {
    // SAFETY: reads a static. Volatile, so that the value is that of the file.
    let mark = unsafe { (&raw const crate::VRAMSCOPE_LAYOUT).read_volatile() };
    mark.last_chunk().map_or(LAYOUT_VERSION, |version| u32::from_le_bytes(*version))
}

/// Returns whether another process holds a lock on a file.
fn is_locked(file: &Descriptor) -> bool {
    let mut lock = whole_file(libc::F_WRLCK);
    // SAFETY: a query into a structure of this frame.
    let answered = unsafe { libc::fcntl(file.0, libc::F_GETLK, &raw mut lock) } == 0;
    answered && lock.l_type != libc::F_UNLCK as i16
}

fn whole_file(kind: c_int) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Returns whether the collector still runs: it holds a lock on the control file.
pub(crate) fn is_collected() -> bool {
    path(CONTROL_FILE)
        .and_then(|path| open(&path, libc::O_RDWR))
        .is_some_and(|file| is_locked(&file))
}

/// Sleeps until the collector sets a word that is zero, at most this long.
pub(crate) fn sleep_while_zero(word: &AtomicU32, max: Duration) {
    let time = libc::timespec {
        tv_sec: max.as_secs() as libc::time_t,
        tv_nsec: max.subsec_nanos().into(),
    };
    // SAFETY: the word is in shared memory, and the time in this frame.
    unsafe {
        let word = (&raw const *word).cast::<u32>();
        libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, 0, &raw const time);
    }
}

/// Creates the area of this process; `None` if there is not enough space.
pub(crate) fn create(control: &Control, pid: u32) -> Option<NewArea> {
    let number = control.areas.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    let path = path(&number.to_string())?;
    let file = to_high_number(open(&path, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)?);
    let created = fill(&file, control, pid, number);
    let mut lock = whole_file(libc::F_WRLCK);
    // SAFETY: sets a lock that is described in this frame, on our own descriptor.
    let locked = unsafe { libc::fcntl(file.0, libc::F_SETLK, &raw mut lock) } == 0;
    if created.is_none() || !locked {
        // SAFETY: the path is zero-terminated.
        unsafe { libc::unlink(path.as_ptr()) };
        return None;
    }
    LOCK.store(file.0, Ordering::Relaxed);
    // Stays open: closing it would release the lock.
    std::mem::forget(file);
    created
}

/// Moves a descriptor out of the low numbers, which programs may expect to get.
fn to_high_number(file: Descriptor) -> Descriptor {
    // SAFETY: duplicates our own descriptor.
    let high = unsafe { libc::fcntl(file.0, libc::F_DUPFD_CLOEXEC, MIN_DESCRIPTOR) };
    if high < 0 { file } else { Descriptor(high) }
}

fn fill(file: &Descriptor, control: &Control, pid: u32, number: u32) -> Option<NewArea> {
    let sizes = control.sizes;
    let offsets = sizes.offsets();
    // Reserve the memory now: a write to a file that cannot grow would kill the program.
    // SAFETY: works on our own descriptor.
    if unsafe { libc::posix_fallocate(file.0, 0, offsets.end as libc::off_t) } != 0 {
        return None;
    }
    let header = map_file(file, offsets.records, ptr::null_mut(), 0)?.cast::<Header>();
    let records = map_twice(file, offsets.records, sizes.record_ring as usize)?;
    let stacks = match sizes.stack_ring {
        0 => ptr::null_mut(),
        bytes => map_twice(file, offsets.stacks, bytes as usize)?,
    };
    // SAFETY: takes nothing and cannot fail.
    let uid = unsafe { libc::getuid() };
    let start = start_time().unwrap_or(0);
    // SAFETY: the mapping is zeroed and as large as the structure; no other code has its address.
    unsafe {
        (*header).magic = MAGIC;
        (*header).layout_version = LAYOUT_VERSION;
        (*header).pid = pid;
        (*header).number = number;
        (*header).uid = uid;
        (*header).start = start;
        for (to, from) in (*header).allocators.iter().zip(allocators::states()) {
            to.since.store(from.since.load(Ordering::Relaxed), Ordering::Relaxed);
            to.state.store(from.state.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        for hook in 0..FUNCTIONS {
            let row = process::row_info(hook);
            (*header).rows[hook].store(row.state.load(Ordering::Relaxed) as u8, Ordering::Relaxed);
            let at = row.jump_address.load(Ordering::Relaxed);
            (*header).jump_addresses[hook].store(at, Ordering::Relaxed);
            (*header).jumps[hook].store(row.jump.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        for (index, name) in process::UNKNOWN.get().into_iter().flatten().enumerate() {
            let to = &mut (*header).unknown[index].name;
            for (to, from) in to.iter_mut().take(MAX_SYMBOL - 1).zip(name.to_bytes()) {
                *to = *from;
            }
        }
    }
    Some(NewArea { header, records, stacks, start, uid })
}

/// Writes the executable mappings for the collector: the process may exit before it reads them.
fn write_mappings(number: u32) {
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    let lines = maps.split_inclusive(|byte| *byte == b'\n');
    // The permissions are the second field: `r-xp`.
    let is_code = |line: &&[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        fields.nth(1).is_some_and(|permissions| permissions.contains(&b'x'))
    };
    let code: Vec<u8> = lines.filter(is_code).flatten().copied().collect();
    let path = path(&mappings_file(number));
    // Without the file, the collector reads the mappings itself.
    let _ = path.map(|path| std::fs::write(OsStr::from_bytes(path.to_bytes()), code));
}

/// Publishes the area to the collector; its first record is the process.
pub(crate) fn announce(created: &NewArea) {
    let mut name = [0; 16];
    let comm = std::fs::read("/proc/self/comm").unwrap_or_default();
    let comm = comm.trim_ascii_end();
    for (to, from) in name.iter_mut().take(15).zip(comm) {
        *to = *from;
    }
    // SAFETY: the area lives as long as the process.
    let header = unsafe { &*created.header };
    let mut head = emit::head(VS_PROCESS, process::pid());
    head.result = (header.number as u16).into();
    let NewArea { start, uid, .. } = *created;
    // The ring is empty, so the record fits.
    let _ = emit::write(&Process { head, start, uid, reserved: 0, name });
    write_mappings(header.number);
    header.ready.store(1, Ordering::Release);
    if let Some(control) = process::control() {
        control.ready.fetch_add(1, Ordering::Release);
    }
    emit::wake();
}

/// Returns the start time of this process in nanoseconds since boot, rounded down to the ticks of
/// `/proc`.
fn start_time() -> Option<u64> {
    start_in("/proc/self/stat")
}

/// Returns the start time of a thread of this process, likewise.
pub(crate) fn thread_start(tid: u32) -> Option<u64> {
    start_in(&format!("/proc/self/task/{tid}/stat"))
}

fn start_in(path: &str) -> Option<u64> {
    /// Nanoseconds per tick.
    const TICK: u64 = 10_000_000;
    let ticks: u64 = field(path, 22)?.parse().ok()?;
    Some(ticks.saturating_mul(TICK))
}

/// Returns the nanoseconds since boot.
pub(crate) fn boot_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: time is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Returns the address of the bottom of the main thread's stack.
pub(crate) fn main_stack_start() -> Option<u64> {
    field("/proc/self/stat", 28)?.parse().ok()
}

/// Returns a field of a `stat` file of `/proc`, counted from 1.
fn field(path: &str, number: usize) -> Option<String> {
    let stat = std::fs::read_to_string(path).ok()?;
    // The name, in parentheses, may contain anything; the third field follows it.
    let rest = stat.rsplit(')').next()?;
    rest.split_whitespace().nth(number.checked_sub(3)?).map(str::to_owned)
}

/// Returns an environment variable, zero-terminated.
pub(crate) fn variable(name: &str) -> Option<CString> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    CString::new(value.as_bytes()).ok()
}
