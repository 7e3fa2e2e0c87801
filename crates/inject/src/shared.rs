//! The files that are shared with the collector.

use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::area::{CONTROL, Control, Header, LAYOUT, MAGIC, Sizes};
use crate::emit;
use crate::process;
use crate::wire::{Process, VS_MAX_HOOKS, VS_PROCESS};

/// The collector's directory.
static DIRECTORY: OnceLock<CString> = OnceLock::new();

/// The descriptor that holds the lock on the area. It is closed by exec and by the end of the
/// process, and the lock does not pass to forked children.
static LOCK: AtomicI32 = AtomicI32::new(-1);

/// Lowest number of the descriptor that stays open.
const LOWEST_DESCRIPTOR: c_int = 500;

/// The parts of a new area.
pub(crate) struct Created {
    pub(crate) header: *mut Header,
    pub(crate) records: *mut u8,
    pub(crate) stacks: *mut u8,
    start: u64,
    uid: u32,
}

/// A descriptor that is closed at the end.
struct Descriptor(c_int);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this value's own.
        unsafe { libc::close(self.0) };
    }
}

/// New private memory of a whole number of pages.
pub(crate) fn map_anonymous(bytes: usize) -> Option<*mut u8> {
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: asks for new memory.
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
    let place = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes * 2,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if place == libc::MAP_FAILED {
        return None;
    }
    map_file(file, bytes, place, offset)?;
    // SAFETY: the second half of the reservation.
    map_file(file, bytes, unsafe { place.byte_add(bytes) }, offset)?;
    // Faults in all pages now instead of one after the other in calls; kernels before 5.14 do not.
    // SAFETY: the mapping was made just now.
    unsafe { libc::madvise(place, bytes * 2, libc::MADV_POPULATE_WRITE) };
    Some(place.cast())
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

/// Maps the control file, where it has the layout that this library knows and its collector runs.
pub(crate) fn map_control(directory: &CStr) -> Option<*mut Control> {
    let directory = DIRECTORY.get_or_init(|| directory.to_owned());
    let file = open(&path(CONTROL)?, libc::O_RDWR)?;
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
        unsafe { ((*control).magic, (*control).layout, (*control).sizes) };
    (magic == MAGIC && layout == LAYOUT && sizes.are_valid()).then_some(control)
}

/// Whether another process holds a lock on a file.
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

/// Whether the collector still runs: it holds a lock on the control file.
pub(crate) fn is_collected() -> bool {
    path(CONTROL).and_then(|path| open(&path, libc::O_RDWR)).is_some_and(|file| is_locked(&file))
}

/// Creates the area of this process. `None` where there is no space for it.
pub(crate) fn create(control: &Control, pid: u32) -> Option<Created> {
    let number = control.areas.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    let path = path(&number.to_string())?;
    let file = away(open(&path, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)?);
    let created = fill(&file, control, pid, number);
    let mut lock = whole_file(libc::F_WRLCK);
    // SAFETY: sets a lock that is described in this frame, on a descriptor of ours.
    let locked = unsafe { libc::fcntl(file.0, libc::F_SETLK, &raw mut lock) } == 0;
    if created.is_none() || !locked {
        // SAFETY: the path is zero-terminated.
        unsafe { libc::unlink(path.as_ptr()) };
        return None;
    }
    LOCK.store(file.0, Ordering::Relaxed);
    // Stays open: to close it would release the lock.
    std::mem::forget(file);
    created
}

/// Moves a descriptor away from the low numbers, which programs use by convention.
fn away(file: Descriptor) -> Descriptor {
    // SAFETY: duplicates a descriptor of ours.
    let high = unsafe { libc::fcntl(file.0, libc::F_DUPFD_CLOEXEC, LOWEST_DESCRIPTOR) };
    if high < 0 { file } else { Descriptor(high) }
}

fn fill(file: &Descriptor, control: &Control, pid: u32, number: u32) -> Option<Created> {
    let sizes = control.sizes;
    let offsets = sizes.offsets();
    // Memory is reserved now: a write to a file that cannot grow would end the program.
    // SAFETY: a plain request on a descriptor of ours.
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
    // SAFETY: the mapping is zeroed and as large as the structure; no other code has seen it.
    unsafe {
        (*header).magic = MAGIC;
        (*header).layout = LAYOUT;
        (*header).pid = pid;
        (*header).number = number;
        (*header).uid = uid;
        (*header).start = start;
        for hook in 0..VS_MAX_HOOKS {
            let facts = process::row_facts(hook);
            (*header).rows[hook]
                .store(facts.state.load(Ordering::Relaxed) as u8, Ordering::Relaxed);
            (*header).jump_addresses[hook] = facts.jump_address.load(Ordering::Relaxed);
            (*header).jumps[hook] = facts.jump.load(Ordering::Relaxed);
        }
    }
    Some(Created { header, records, stacks, start, uid })
}

/// Shows the area to the collector; its first record is the process.
pub(crate) fn announce(created: &Created) {
    let mut name = [0; 16];
    let comm = std::fs::read("/proc/self/comm").unwrap_or_default();
    let comm = comm.trim_ascii_end();
    for (to, from) in name.iter_mut().take(15).zip(comm) {
        *to = *from;
    }
    // SAFETY: the area exists as long as the process.
    let header = unsafe { &*created.header };
    let mut head = emit::head(VS_PROCESS, process::pid());
    head.result = (header.number as u16).into();
    let Created { start, uid, .. } = *created;
    // The ring is empty, so there is room.
    let _ = emit::write(&Process { head, start, uid, reserved: 0, name });
    header.ready.store(1, Ordering::Release);
    if let Some(control) = process::control() {
        control.ready.fetch_add(1, Ordering::Release);
    }
    emit::wake();
}

/// Start of this process in nanoseconds since boot, rounded to the ticks of `/proc`.
fn start_time() -> Option<u64> {
    const TICK: u64 = 10_000_000;
    let ticks: u64 = field(22)?.parse().ok()?;
    Some(ticks.saturating_mul(TICK))
}

/// A field of `/proc/self/stat`, counted from 1.
pub(crate) fn field(number: usize) -> Option<String> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name, in parentheses, may hold anything; the third field follows it.
    let rest = stat.rsplit(')').next()?;
    rest.split_whitespace().nth(number.checked_sub(3)?).map(str::to_owned)
}

/// An environment variable, zero-terminated.
pub(crate) fn variable(name: &str) -> Option<CString> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    CString::new(value.as_bytes()).ok()
}
