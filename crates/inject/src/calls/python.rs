//! The Python stack of the calling thread, read from the interpreter's structures as in `python.h`.
//! The collector validates their layout in the running process and publishes it.
//!
//! Only the calling thread's own frames are read: they cannot change during its call, whether it
//! holds the interpreter's lock or not.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use super::emit;
use super::stack::{mark_sent, mix, was_sent};
use super::thread::ThreadState;
use crate::arch::MAX_ADDRESS;
use crate::process::Area;
use crate::wire::{
    PythonFrame, PythonStack, VS_NO_FIELD, VS_NONE, VS_PYTHON, VS_PYTHON_CODE, VS_PYTHON_FRAME,
    VS_PYTHON_FRAME_OBJECT, VS_PYTHON_MAX, WirePython,
};

/// Not resolved yet.
const UNRESOLVED: usize = 0;
/// The process has no such function.
const MISSING: usize = 1;
/// `PyGILState_GetThisThreadState`, which needs no lock.
static THREAD_STATE: AtomicUsize = AtomicUsize::new(UNRESOLVED);

/// Returns whether this process has loaded an interpreter. It may still load one later.
pub(crate) fn is_loaded() -> bool {
    find_thread_state() != 0
}

fn find_thread_state() -> usize {
    let name = c"PyGILState_GetThisThreadState";
    // SAFETY: the name is zero-terminated.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) as usize }
}

/// Returns Python's state of the calling thread; 0 if it has none.
fn thread_state() -> u64 {
    let mut function = THREAD_STATE.load(Ordering::Relaxed);
    if function == UNRESOLVED {
        let found = find_thread_state();
        function = if found == 0 { MISSING } else { found };
        THREAD_STATE.store(function, Ordering::Relaxed);
    }
    if function == MISSING {
        return 0;
    }
    // SAFETY: the interpreter's function of that name has this type in every version.
    let function: extern "C" fn() -> *mut c_void = unsafe { std::mem::transmute(function) };
    function() as u64
}

/// Returns the offsets in the interpreter's structures; `None` if the process does not run Python.
fn published(area: &Area) -> Option<WirePython> {
    let version = &area.header.python_version;
    let before = version.load(Ordering::Acquire);
    if before == 0 || !before.is_multiple_of(2) {
        return None;
    }
    // SAFETY: the structure is plain numbers in the mapped header; a change is detected below.
    let python = unsafe { (&raw const area.header.python).read_volatile() };
    fence(Ordering::Acquire);
    (version.load(Ordering::Relaxed) == before && python.interpreters != 0).then_some(python)
}

/// A structure of the interpreter that belongs to the calling thread: it cannot change during the
/// thread's call. Only the fields that are needed are read.
#[derive(Clone, Copy)]
struct Structure {
    address: u64,
    bytes: usize,
}

impl Structure {
    /// Returns the structure at an address; `None` if there cannot be one.
    fn at(address: u64, bytes: usize) -> Option<Self> {
        is_plausible(address).then_some(Self { address, bytes })
    }

    /// Reads the `index`th value of its size; 0 outside of the structure.
    fn read<T: Copy + Default>(self, index: u8) -> T {
        let end = (usize::from(index) + 1) * size_of::<T>();
        if end > self.bytes {
            return T::default();
        }
        // SAFETY: inside of the structure, and aligned as the structure is.
        unsafe { (self.address as *const T).add(index.into()).read() }
    }
}

const fn is_plausible(address: u64) -> bool {
    address >= 4096 && address < MAX_ADDRESS && address.is_multiple_of(8)
}

fn word(address: u64) -> u64 {
    Structure::at(address, 8).map_or(0, |structure| structure.read(0))
}

/// Returns the innermost frame of the calling thread; 0 if it does not run Python now.
fn first_frame(python: &WirePython) -> u64 {
    let state = thread_state();
    if state == 0 {
        return 0;
    }
    let frame = word(state + u64::from(python.thread_frame));
    if frame != 0 && usize::from(python.frame_of) != VS_NO_FIELD {
        return word(frame + u64::from(python.frame_of));
    }
    frame
}

/// Reads a frame and the address of the calling one.
#[inline]
fn read_frame(python: &WirePython, frame: u64) -> Option<(PythonFrame, u64)> {
    let bytes = if python.every_is_entry != 0 { VS_PYTHON_FRAME_OBJECT } else { VS_PYTHON_FRAME };
    let frame = Structure::at(frame, bytes)?;
    let previous = frame.read(python.frame_previous);
    let mut found =
        PythonFrame { code: 0, instruction: 0, name: 0, lines: 0, first_line: 0, entry: 1 };
    if frame.read::<u8>(python.frame_owner) >= python.owner_entry {
        return Some((found, previous));
    }
    found.code = frame.read::<u64>(python.frame_code) & !7;
    found.instruction = frame.read(python.frame_instruction);
    found.entry = python.every_is_entry.into();
    if usize::from(python.frame_is_entry) != VS_NONE {
        found.entry = (frame.read::<u8>(python.frame_is_entry) & 1).into();
    }
    if let Some(code) =
        Structure::at(found.code.wrapping_add(python.code_from.into()), VS_PYTHON_CODE)
    {
        found.name = code.read(python.code_name);
        found.lines = code.read(python.code_lines);
        found.first_line = code.read(python.code_first_line);
    }
    Some((found, previous))
}

/// Captures the Python stack of the calling thread. Returns whether it could not be sent.
pub(crate) fn capture(area: &Area, thread: &ThreadState, token: &mut u64) -> bool {
    let Some(python) = published(area) else { return false };
    let first = first_frame(&python);
    if first == 0 {
        return false;
    }
    let (mut frame, mut hash) = (first, u64::from(VS_PYTHON));
    for _ in 0..VS_PYTHON_MAX {
        let Some((found, previous)) = read_frame(&python, frame) else { break };
        // Each step waits for the one before. The name and the lines only distinguish code objects
        // that had the same address one after the other.
        hash = mix(hash, found.code ^ found.name.rotate_left(20));
        hash =
            mix(hash, found.instruction ^ (found.lines ^ u64::from(found.entry)).rotate_left(40));
        frame = previous;
    }
    if !was_sent(area, hash) {
        if !send(area, &python, thread, first, hash) {
            return true;
        }
        mark_sent(area, hash);
    }
    *token = hash;
    false
}

fn send(area: &Area, python: &WirePython, thread: &ThreadState, first: u64, token: u64) -> bool {
    let frames = || {
        let mut frame = first;
        std::iter::from_fn(move || {
            let (found, previous) = read_frame(python, frame)?;
            frame = previous;
            Some((found, previous))
        })
        .take(VS_PYTHON_MAX)
    };
    let (count, last) =
        frames().fold((0, first), |(count, _), (_, previous)| (count + 1, previous));
    let fixed = std::mem::offset_of!(PythonStack, frames);
    let bytes = fixed + count * size_of::<PythonFrame>();
    let Some(reserved) = emit::reserve(&area.header.stacks, area.stacks, bytes) else {
        return false;
    };
    let mut head = emit::head(VS_PYTHON, thread.tid);
    head.result = (area.header.number as u16).into();
    let record = reserved.data().cast::<PythonStack>();
    // SAFETY: the reservation has room for the fields before the frames, and for `count` frames.
    unsafe {
        (&raw mut (*record).head).write(head);
        (&raw mut (*record).token).write(token);
        (&raw mut (*record).count).write(count as u32);
        (&raw mut (*record).truncated).write(u32::from(last != 0));
        let list = (&raw mut (*record).frames).cast::<PythonFrame>();
        for (index, (frame, _)) in frames().take(count).enumerate() {
            list.add(index).write(frame);
        }
    }
    reserved.complete();
    // Symbolization needs the process, which may exit soon.
    emit::wake();
    true
}
