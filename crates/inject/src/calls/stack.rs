//! Call stacks, captured after the driver function has returned, as in `stack.h`.
//!
//! Each stack is sent once. With frame pointers the addresses are sent if their hash is new.
//! Otherwise a copy of the stack is sent: the collector unwinds it and stores the slots of the
//! return addresses, so that a known stack is found by comparing those words.

use std::sync::atomic::Ordering;

use super::thread::ThreadState;
use super::{emit, loss, python};
use crate::arch::code_address;
use crate::area::{KnownStack, SENT_WAYS, known_chain};
use crate::process::{self, Area};
use crate::shared;
use crate::wire::{
    Addresses, HijackedReturn, Stack, VS_ADDRESSES, VS_ADDRESSES_MAX, VS_COPY_BIG,
    VS_HIJACKED_RETURNS, VS_PYTHON_LOST, VS_SLOTS, VS_STACK, VS_STACK_KNOWN, VS_STACK_LOST,
    VS_STACKS_COPY, VS_STACKS_OFF, VS_STACKS_PER_KEY,
};
use crate::wrapper::Frame;

/// Maximum part of the main thread's stack that is read. The kernel keeps 128 MiB below its top
/// free of other mappings, so closer addresses belong to it and not to the stack of a coroutine.
const MAX_MAIN_STACK: u64 = 100 << 20;

/// Reference from a call to its stack.
pub(crate) struct StackRef {
    pub(crate) stack: u64,
    pub(crate) python: u64,
    pub(crate) flags: u32,
    /// The same stack was captured before.
    pub(crate) is_known: bool,
}

impl StackRef {
    pub(crate) const NONE: Self = Self { stack: 0, python: 0, flags: 0, is_known: false };
}

/// Registers of the caller after the return.
struct Caller {
    ip: u64,
    sp: u64,
    bp: u64,
    /// End of the stack.
    end: u64,
}

/// Captures the stack of a call in the current stack mode.
#[inline]
pub(crate) fn capture(frame: &Frame, thread: &mut ThreadState) -> StackRef {
    match process::control().map_or(VS_STACKS_OFF, |c| c.stacks.load(Ordering::Relaxed)) {
        VS_STACKS_OFF => StackRef::NONE,
        mode => capture_in(mode, frame, thread),
    }
}

fn capture_in(mode: u32, frame: &Frame, thread: &mut ThreadState) -> StackRef {
    let mut stack_ref = StackRef::NONE;
    let Some(area) = process::area() else { return stack_ref };
    let mut lost = match caller(frame, thread) {
        None => true,
        Some(caller) if mode == VS_STACKS_COPY => {
            capture_stack_copy(&area, &caller, thread, &mut stack_ref)
        }
        Some(caller) => capture_fp_stack(&area, &caller, thread, &mut stack_ref),
    };
    if lost {
        stack_ref.stack = 0;
        stack_ref.flags |= VS_STACK_LOST;
    }
    if python::capture(&area, thread, &mut stack_ref.python) {
        stack_ref.flags |= VS_PYTHON_LOST;
        lost = true;
    }
    if lost {
        loss::count_stack();
    }
    stack_ref
}

/// Returns the caller; `None` if the thread runs on another stack than its own, whose end is
/// unknown.
fn caller(frame: &Frame, thread: &mut ThreadState) -> Option<Caller> {
    if thread.stack_high == 0 {
        (thread.stack_low, thread.stack_high) = bounds(thread.tid);
    }
    let sp = frame.base + 16;
    if !(thread.stack_low..thread.stack_high).contains(&sp) {
        return None;
    }
    // SAFETY: the wrapper's frame is complete: the caller's frame pointer and the return address.
    let (bp, ip) = unsafe {
        let base = frame.base as *const u64;
        (base.read(), base.add(1).read())
    };
    Some(Caller { ip, sp, bp, end: thread.stack_high })
}

/// Returns the bounds of the calling thread's stack: its lowest address and its end.
#[cold]
fn bounds(tid: u32) -> (u64, u64) {
    if tid == process::pid() {
        let start = shared::main_stack_start().unwrap_or(0);
        let high = if start == 0 { 1 } else { start + 16 };
        return (high.saturating_sub(MAX_MAIN_STACK.min(stack_limit())), high);
    }
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::zeroed();
    let (mut low, mut bytes) = (std::ptr::null_mut(), 0);
    // SAFETY: the functions fill the structure and the two out values.
    unsafe {
        let own = libc::pthread_self();
        if libc::pthread_getattr_np(own, attributes.as_mut_ptr()) != 0 {
            return (0, 1);
        }
        libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut low, &raw mut bytes);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        let (low, high) = (low as u64, low as u64 + bytes as u64);
        // The C library keeps the thread control block at the top.
        let end = if (low..high).contains(&own) { own } else { high };
        (low, end)
    }
}

/// Returns the maximum size of the main thread's stack.
fn stack_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is writable.
    unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) };
    limit.rlim_cur
}

/// Reads a word of the stack; `None` outside of it.
fn word(caller: &Caller, address: u64) -> Option<u64> {
    let inside =
        address >= caller.sp && address.is_multiple_of(8) && address.checked_add(8)? <= caller.end;
    // SAFETY: the stack is mapped from the stack pointer to its end.
    inside.then(|| unsafe { (address as *const u64).read() })
}

/// Returns whether the stack could not be sent.
fn capture_stack_copy(
    area: &Area,
    caller: &Caller,
    thread: &mut ThreadState,
    stack_ref: &mut StackRef,
) -> bool {
    if let Some(number) = find_known_stack(area, caller) {
        stack_ref.stack = number;
        stack_ref.flags |= VS_STACK_KNOWN;
        stack_ref.is_known = true;
        return false;
    }
    thread.stacks = thread.stacks.wrapping_add(1);
    stack_ref.stack = u64::from(thread.tid) << 32 | u64::from(thread.stacks);
    let bytes = ((caller.end - caller.sp) as usize).min(VS_COPY_BIG);
    let Some(reserved) =
        emit::reserve(&area.header.stacks, area.stacks, size_of::<Stack>() + bytes)
    else {
        return true;
    };
    let mut head = emit::head(VS_STACK, thread.tid);
    head.result = (area.header.number as u16).into();
    let record = Stack {
        head,
        token: stack_ref.stack,
        ip: caller.ip,
        sp: caller.sp,
        bp: caller.bp,
        bytes: bytes as u32,
        hijacked_count: 0,
        hijacked: [HijackedReturn { at: 0, address: 0 }; VS_HIJACKED_RETURNS],
    };
    // SAFETY: the reservation has room for both; the stack is mapped up to its end.
    unsafe {
        reserved.data().cast::<Stack>().write(record);
        let to = reserved.data().add(size_of::<Stack>());
        std::ptr::copy_nonoverlapping(caller.sp as *const u8, to, bytes);
    }
    reserved.complete();
    // Unwinding needs the process, which may exit soon.
    emit::wake();
    false
}

/// Returns the number of the stack if the collector already has it.
fn find_known_stack(area: &Area, caller: &Caller) -> Option<u64> {
    let header = area.header;
    let version = header.known_version.load(Ordering::Acquire);
    let size = process::control()?.sizes.known_stacks as usize;
    if !version.is_multiple_of(2) || size == 0 {
        return None;
    }
    // SAFETY: every area has the store at this offset.
    let store = unsafe { area.base.add(process::offsets()?.known_stacks) };
    let room = (caller.end - caller.sp).checked_sub(8);
    let max_offset = room.filter(|_| caller.sp.is_multiple_of(8))?;
    let is_at = |offset: u64, value: u64| {
        if offset > max_offset || !offset.is_multiple_of(8) {
            return false;
        }
        // SAFETY: the stack is mapped from the stack pointer to its end.
        let word = unsafe { ((caller.sp + offset) as *const u64).read() };
        word == value
    };
    let mut offset = header.known_heads[known_chain(caller.ip, caller.sp)].load(Ordering::Acquire);
    // Chains are short; the limit is for a store that changes meanwhile.
    for _ in 0..VS_STACKS_PER_KEY * 2 {
        let at = offset as usize;
        if at == 0 || !at.is_multiple_of(8) || at + size_of::<KnownStack>() > size {
            return None;
        }
        // SAFETY: the entry is inside of the store and aligned.
        let known = unsafe { &*store.add(at).cast::<KnownStack>() };
        let number = known.number.load(Ordering::Relaxed);
        if number != 0 && known.ip == caller.ip && known.sp == caller.sp {
            let count = usize::from(known.count).min(VS_SLOTS);
            let slots = at + size_of::<KnownStack>();
            if slots + count * 16 <= size {
                // SAFETY: the pairs are inside of the store and aligned.
                let slots = unsafe {
                    std::slice::from_raw_parts(store.add(slots).cast::<[u64; 2]>(), count)
                };
                let is_same = slots.iter().all(|[offset, value]| is_at(*offset, *value));
                std::sync::atomic::fence(Ordering::Acquire);
                let unchanged = header.known_version.load(Ordering::Relaxed) == version;
                if is_same && unchanged {
                    return Some(number);
                }
            }
        }
        offset = known.next;
    }
    None
}

/// Adds a word to the hash of a stack.
pub(crate) const fn mix(hash: u64, word: u64) -> u64 {
    let hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 29
}

/// Follows the frame pointers. Returns whether the stack could not be sent.
fn capture_fp_stack(
    area: &Area,
    caller: &Caller,
    thread: &ThreadState,
    stack_ref: &mut StackRef,
) -> bool {
    let mut addresses = [0_u64; VS_ADDRESSES_MAX];
    addresses[0] = caller.ip;
    let mut count = 1;
    let mut hash = mix(VS_ADDRESSES.into(), caller.ip);
    let (mut pointer, mut above) = (caller.bp, caller.sp);
    while count < VS_ADDRESSES_MAX && pointer >= above {
        let pair = word(caller, pointer).zip(word(caller, pointer.wrapping_add(8)));
        let Some((next, address)) = pair.filter(|(_, address)| *address != 0) else { break };
        let address = code_address(address);
        (above, pointer) = (pointer + 16, next);
        hash = mix(hash, address);
        addresses[count] = address;
        count += 1;
    }
    stack_ref.stack = hash;
    stack_ref.is_known = was_sent(area, hash);
    if stack_ref.is_known {
        return false;
    }
    let mut head = emit::head(VS_ADDRESSES, thread.tid);
    head.result = (area.header.number as u16).into();
    let record = Addresses {
        head,
        token: hash,
        count: count as u32,
        hijacked_count: 0,
        hijacked: [HijackedReturn { at: 0, address: 0 }; VS_HIJACKED_RETURNS],
        addresses,
    };
    let Some(reserved) = emit::reserve(&area.header.stacks, area.stacks, size_of::<Addresses>())
    else {
        return true;
    };
    // SAFETY: the reservation has the size of the structure.
    unsafe { reserved.data().cast::<Addresses>().write(record) };
    reserved.complete();
    emit::wake();
    mark_sent(area, hash);
    false
}

/// Returns the set of a token in the table of sent lists of frames.
fn sent_set(area: &Area, token: u64) -> Option<&'static [std::sync::atomic::AtomicU64]> {
    let entries = process::control()?.sizes.sent_frames as usize;
    if entries < SENT_WAYS {
        return None;
    }
    let first = token as usize & (entries - 1) & !(SENT_WAYS - 1);
    // SAFETY: every area has the table at this offset, and the set is inside of it.
    let set = unsafe { area.base.add(process::offsets()?.sent_frames + first * 8) };
    // SAFETY: as above; 8-byte aligned and used atomically everywhere.
    Some(unsafe { std::slice::from_raw_parts(set.cast(), SENT_WAYS) })
}

/// Returns whether a list of frames was sent and is still in the table.
pub(crate) fn was_sent(area: &Area, token: u64) -> bool {
    let set = sent_set(area, token).unwrap_or(&[]);
    set.iter().any(|entry| entry.load(Ordering::Relaxed) == token)
}

/// Adds a list of frames that was sent. If the set is full, an older list is replaced and sent
/// again.
pub(crate) fn mark_sent(area: &Area, token: u64) {
    let Some(set) = sent_set(area, token) else { return };
    let free = set.iter().find(|entry| entry.load(Ordering::Relaxed) == 0);
    let oldest = || set.get((token >> 40) as usize % SENT_WAYS);
    if let Some(entry) = free.or_else(oldest) {
        entry.store(token, Ordering::Relaxed);
    }
}
