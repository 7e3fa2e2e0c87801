//! Wraps the functions of allocators that see each block, in libraries that are loaded at any time.
//!
//! An allocator hands out blocks of memory that it gets from the driver. Libraries are therefore
//! searched in `cuInit` and, if others were loaded meanwhile, at the first call from a new call site
//! that allocates memory: a library that was just loaded has new call sites, and its functions are
//! wrapped before the memory is returned to it. Other threads may run these functions nevertheless:
//! only jumps that are safe for them are written, see [`crate::entry::JumpSite`].

#[path = "../../../capture/src/libraries/allocator_functions.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the capture crate")]
mod functions;
mod loaded;
mod symbols;

use std::cell::UnsafeCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use self::functions::{AllocatorFile, allocates, is_exported, required};
use self::loaded::{LoadedLibrary, with_library};
use self::symbols::{Function, LibraryFile};
use crate::area::{
    ALLOCATORS, AllocatorInfo, AllocatorState, BLOCK_CALLS, FIRST_BLOCK_FUNCTION, FUNCTIONS,
    RowState,
};
use crate::calls::emit;
use crate::code::{NearbyCode, PreparedFunction};
use crate::process;

/// The allocators, in the order of the engine's `Allocator`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Allocator {
    PyTorch,
    CuPy,
    Xla,
    Rmm,
    OnnxRuntime,
}

/// Maximum time for which a thread waits until another one has wrapped the functions.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Whether blocks are recorded, in this process and its forked children.
static STATES: [AllocatorInfo; ALLOCATORS] =
    [const { AllocatorInfo { since: AtomicU64::new(0), state: AtomicU32::new(0) } }; ALLOCATORS];

/// Number of libraries that were loaded before the last search.
static SEARCHED: AtomicU64 = AtomicU64::new(0);

/// Libraries that cannot be wrapped, used by one thread at a time.
struct Failures {
    /// Thread id of the user; 0: none.
    user: AtomicU32,
    list: UnsafeCell<Vec<(u64, AllocatorState)>>,
}

// SAFETY: only the user accesses the list.
unsafe impl Sync for Failures {}

static FAILURES: Failures = Failures { user: AtomicU32::new(0), list: UnsafeCell::new(Vec::new()) };

impl Failures {
    /// Calls a function with the list, unless another thread uses it for too long. The thread may be
    /// the user already, in a signal handler.
    fn lock(&self, run: impl FnOnce(&mut Vec<(u64, AllocatorState)>)) {
        let (own, deadline) = (process::tid(), Instant::now() + MAX_WAIT);
        while let Err(user) =
            self.user.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed)
        {
            // The limit is for a user that waits for this thread.
            if user == own || Instant::now() >= deadline {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: this thread is the only user.
        run(unsafe { &mut *self.list.get() });
        self.user.store(0, Ordering::Release);
    }
}

/// Forgets a thread of the parent that was wrapping functions.
pub(crate) fn reset_after_fork() {
    FAILURES.user.store(0, Ordering::Relaxed);
}

/// Returns the states of allocators, for the area of this process.
pub(crate) fn states() -> &'static [AllocatorInfo] {
    &STATES
}

/// Wraps the functions of libraries that were loaded since the last search. If that fails, driver
/// calls are still recorded.
#[cold]
pub(crate) fn search() {
    if process::control().is_none_or(|control| control.blocks == 0) {
        return;
    }
    let count = loaded::count();
    if SEARCHED.load(Ordering::Acquire) == count {
        return;
    }
    process::keep_errno(|| {
        FAILURES.lock(|failures| {
            if SEARCHED.load(Ordering::Acquire) != count {
                search_all(failures);
                SEARCHED.store(count, Ordering::Release);
            }
        });
    });
}

fn search_all(failures: &mut Vec<(u64, AllocatorState)>) {
    let libraries = loaded::allocator_libraries();
    release(|at| !loaded::is_code(at));
    let uses_torch = libraries.iter().any(|one| one.file == AllocatorFile::TorchCuda);
    let mut found = [None; ALLOCATORS];
    if uses_torch {
        found[Allocator::PyTorch as usize] = Some(AllocatorState::NoLibrary);
    }
    for library in &libraries {
        let AllocatorFile::Probed(allocator) = library.file else { continue };
        let outcome = wrap_library(allocator, library, failures);
        // `libc10.so` is common to all devices.
        if allocator == Allocator::PyTorch && !uses_torch {
            continue;
        }
        // One wrapped copy is enough: the allocator does not use the others.
        let known = &mut found[allocator as usize];
        if *known != Some(AllocatorState::Tracked) {
            *known = Some(outcome);
        }
    }
    for (index, state) in found.into_iter().enumerate() {
        if let Some(state) = state {
            publish(index, state);
        }
    }
}

/// Reports the state of an allocator to the collector.
fn publish(index: usize, state: AllocatorState) {
    let own = &STATES[index];
    if own.state.load(Ordering::Relaxed) == state as u32 {
        return;
    }
    own.since.store(emit::now(), Ordering::Relaxed);
    own.state.store(state as u32, Ordering::Release);
    if let Some(area) = process::area() {
        let shared = &area.header.allocators[index];
        shared.since.store(own.since.load(Ordering::Relaxed), Ordering::Relaxed);
        shared.state.store(state as u32, Ordering::Release);
    }
}

/// Wraps the functions of a library, unless they are.
fn wrap_library(
    allocator: Allocator,
    library: &LoadedLibrary,
    failures: &mut Vec<(u64, AllocatorState)>,
) -> AllocatorState {
    if is_wrapped(library) {
        return AllocatorState::Tracked;
    }
    // Jumps of an earlier library at the same address.
    release(|at| (library.start..library.end).contains(&at));
    let mut hasher = DefaultHasher::new();
    (library.base, library.path.as_bytes()).hash(&mut hasher);
    let key = hasher.finish();
    if let Some((_, state)) = failures.iter().find(|(known, _)| *known == key) {
        return *state;
    }
    match wrap(allocator, library) {
        Ok(()) => AllocatorState::Tracked,
        Err(state) => {
            failures.push((key, state));
            state
        }
    }
}

/// A function whose jump is not written yet.
struct Prepared {
    hook: usize,
    function: PreparedFunction,
    /// Address and code of the function.
    address: u64,
    code: Vec<u8>,
}

fn wrap(allocator: Allocator, library: &LoadedLibrary) -> Result<(), AllocatorState> {
    let calls = required(allocator);
    if calls.is_empty() {
        return Err(AllocatorState::NoSymbol);
    }
    let file = LibraryFile::open(&library.path).ok_or(AllocatorState::Unreadable)?;
    let mut functions =
        file.functions(allocator, is_exported(allocator)).ok_or(AllocatorState::Unreadable)?;
    if !calls.iter().all(|call| functions.iter().any(|function| function.call == *call)) {
        return Err(AllocatorState::NoSymbol);
    }
    functions.sort_by_key(|function| allocates(function.call));
    let prepared = prepare(library, functions).ok_or(AllocatorState::AttachFailed)?;
    let mut is_written = false;
    let is_patched = with_library(library.base, |loaded| {
        // Otherwise the file was replaced.
        let is_same = loaded.headers() == file.headers
            && prepared.iter().all(|one| {
                let memory = loaded.code(one.address, one.code.len());
                memory.is_some_and(|memory| one.function.is_in(memory, &one.code, one.address))
            });
        is_written = is_same;
        is_same && prepared.iter().all(|one| one.function.patch())
    });
    if is_written {
        // A function whose jump may be written keeps its number.
        let state = if is_patched { RowState::Wrapped } else { RowState::Foreign };
        prepared.iter().for_each(|one| set_state(one.hook, state));
    }
    if is_patched { Ok(()) } else { Err(AllocatorState::AttachFailed) }
}

/// Moves the entries of all functions of a library.
fn prepare(library: &LoadedLibrary, functions: Vec<Function>) -> Option<Vec<Prepared>> {
    let mut code = NearbyCode::reserve(library.start, library.end, functions.len())?;
    let mut all: Vec<Prepared> = Vec::new();
    for Function { call, address, code: bytes } in functions {
        let address = library.base.wrapping_add(address);
        if all.iter().any(|other| other.address == address) {
            continue;
        }
        let hook = unused_hook(call, &all)?;
        let arguments = crate::calls::block_arguments(call);
        let (function, moved) = code.prepare_running(hook, &bytes, address, arguments).ok()?;
        process::set_moved_entry(hook, moved);
        let info = process::row_info(hook);
        let (at, jump) = function.jump();
        info.jump_address.store(at, Ordering::Relaxed);
        info.jump.store(jump, Ordering::Relaxed);
        all.push(Prepared { hook, function, address, code: bytes });
    }
    code.seal().then_some(all)
}

/// Numbers of the functions that make a call known.
fn hooks(call: u32) -> impl Iterator<Item = usize> {
    (FIRST_BLOCK_FUNCTION + call as usize..FUNCTIONS).step_by(BLOCK_CALLS)
}

fn unused_hook(call: u32, prepared: &[Prepared]) -> Option<usize> {
    let is_unused = |hook: &usize| {
        process::row_info(*hook).state.load(Ordering::Relaxed) == RowState::Absent as u32
            && prepared.iter().all(|other| other.hook != *hook)
    };
    hooks(call).find(is_unused)
}

/// Sets the state of a function, in the area of this process as well.
fn set_state(hook: usize, state: RowState) {
    let info = process::row_info(hook);
    info.state.store(state as u32, Ordering::Relaxed);
    if let Some(area) = process::area() {
        let header = area.header;
        header.jump_addresses[hook]
            .store(info.jump_address.load(Ordering::Relaxed), Ordering::Relaxed);
        header.jumps[hook].store(info.jump.load(Ordering::Relaxed), Ordering::Relaxed);
        header.rows[hook].store(state as u8, Ordering::Release);
    }
}

/// Returns the wrapped functions, with the address and the code of their jumps.
fn wrapped() -> impl Iterator<Item = (usize, u64, u64)> {
    (FIRST_BLOCK_FUNCTION..FUNCTIONS).filter_map(|hook| {
        let info = process::row_info(hook);
        let is_wrapped = info.state.load(Ordering::Relaxed) == RowState::Wrapped as u32;
        let jump =
            || (info.jump_address.load(Ordering::Relaxed), info.jump.load(Ordering::Relaxed));
        is_wrapped.then(jump).map(|(at, jump)| (hook, at, jump))
    })
}

/// Returns whether functions of a library are wrapped: they may be those of an earlier library at the
/// same address.
fn is_wrapped(library: &LoadedLibrary) -> bool {
    let own = |at: u64| (library.start..library.end).contains(&at);
    let mut own = wrapped().filter(|(_, at, _)| own(*at)).peekable();
    own.peek().is_some()
        && with_library(library.base, |loaded| {
            own.all(|(_, at, jump)| {
                let code = loaded.code(at, crate::entry::native::JUMP);
                code.is_some_and(|code| code == &jump.to_le_bytes()[..code.len()])
            })
        })
}

/// Frees the numbers of functions whose jumps no longer exist.
fn release(is_gone: impl Fn(u64) -> bool) {
    for (hook, at, _) in wrapped() {
        if is_gone(at) {
            set_state(hook, RowState::Absent);
        }
    }
}
