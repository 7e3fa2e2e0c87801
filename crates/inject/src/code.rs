//! Memory for code within reach of the driver, and jumps over the entries of its functions.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::arch::flush;
use crate::entry::native::{
    JUMP, MAX_DISTANCE, MAX_FUNCTION_BYTES, jump, move_entry, return_jump, stub,
};
use crate::entry::{Moved, Unmovable};
use crate::wrapper;

/// Bytes of code that can be written at once, if they are aligned.
const WORD: u64 = 8;
/// Lowest address that is used: the kernel reserves those below.
const MIN_ADDRESS: u64 = 1 << 16;
/// Size of the code for one function.
const FUNCTION_BYTES: usize = MAX_FUNCTION_BYTES.next_multiple_of(16);

/// Memory for moved entries and stubs within reach of a library.
pub(crate) struct NearbyCode {
    start: u64,
    bytes: u64,
    used: u64,
}

/// A function that is ready to be patched.
pub(crate) struct PreparedFunction {
    /// Address of the jump.
    address: u64,
    jump: [u8; JUMP],
}

impl PreparedFunction {
    /// Returns the address of the jump, and its code in the lowest bytes.
    pub(crate) fn jump(&self) -> (u64, u64) {
        let mut bytes = [0; 8];
        bytes[..JUMP].copy_from_slice(&self.jump);
        (self.address, u64::from_le_bytes(bytes))
    }

    /// Writes the jump.
    ///
    /// # Safety
    ///
    /// The aligned word with the jump is writable.
    unsafe fn write(&self) {
        let offset = self.address % WORD;
        // SAFETY: aligned and writable, as the caller guarantees.
        let word = unsafe { &*((self.address - offset) as *const AtomicU64) };
        let mut bytes = word.load(Ordering::Relaxed).to_le_bytes();
        for (to, from) in bytes.iter_mut().skip(offset as usize).zip(self.jump) {
            *to = from;
        }
        // One write, so a thread that enters sees either the old or the new code.
        word.store(u64::from_le_bytes(bytes), Ordering::SeqCst);
        flush(self.address, JUMP as u64);
    }
}

impl NearbyCode {
    /// Reserves memory for this many functions near the code from `low` to `high`.
    pub(crate) fn reserve(low: u64, high: u64, functions: usize) -> Option<Self> {
        let bytes = ((functions * FUNCTION_BYTES) as u64).next_multiple_of(page_size());
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        gaps(&maps, low, high, bytes).into_iter().find_map(|start| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: never replaces an existing mapping.
            let memory =
                unsafe { libc::mmap(start as *mut c_void, bytes as usize, access, flags, -1, 0) };
            // For kernels before 4.17 the address is only a hint.
            let is_exact = memory as u64 == start;
            if !is_exact && memory != libc::MAP_FAILED {
                // SAFETY: the mapping was just created.
                unsafe { libc::munmap(memory, bytes as usize) };
            }
            is_exact.then_some(Self { start, bytes, used: 0 })
        })
    }

    /// Writes the moved entry and the stub of a function. Returns the function with its new entry,
    /// and the address of the moved entry.
    pub(crate) fn prepare(
        &mut self,
        hook: usize,
        code: &[u8],
        address: u64,
    ) -> Result<(PreparedFunction, u64), Unmovable> {
        let at = self.start + self.used;
        let Moved { code: mut bytes, length, is_final, offset, undo } =
            move_entry(code, address, at)?;
        if !is_final {
            let back = return_jump(at + bytes.len() as u64, address + length as u64)?;
            bytes.extend_from_slice(&back);
        }
        let wrapped = at + bytes.len() as u64;
        bytes.extend_from_slice(&undo);
        bytes.extend_from_slice(&stub(hook as u32, wrapper::address()));
        let address = address + offset as u64;
        let jump = jump(address, wrapped)?;
        let space = (bytes.len() as u64).next_multiple_of(16);
        if self.used + space > self.bytes || address % WORD + JUMP as u64 > WORD {
            return Err(Unmovable::Unknown);
        }
        // SAFETY: the reserved memory has space, and no other code uses it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
        self.used += space;
        Ok((PreparedFunction { address, jump }, at))
    }

    /// Makes the memory executable and read-only.
    pub(crate) fn seal(&self) -> bool {
        flush(self.start, self.used);
        protect(self.start, self.bytes, libc::PROT_READ | libc::PROT_EXEC)
    }
}

/// Returns the page size, which depends on the kernel on arm64.
fn page_size() -> u64 {
    // SAFETY: takes a number and reads a constant of this process.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

fn protect(start: u64, bytes: u64, access: i32) -> bool {
    // SAFETY: changes the protection of whole pages that the caller owns or patches.
    unsafe { libc::mprotect(start as *mut c_void, bytes as usize, access) == 0 }
}

/// Writes the jumps. Returns false, without any change, if the code cannot be made writable.
pub(crate) fn patch(functions: &[PreparedFunction]) -> bool {
    let Some(low) = functions.iter().map(|function| function.address).min() else { return true };
    let Some(high) = functions.iter().map(|function| function.address).max() else { return true };
    let start = low / page_size() * page_size();
    let bytes = (high + WORD).next_multiple_of(page_size()) - start;
    // The code stays executable: other threads may run it.
    if !protect(start, bytes, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) {
        return false;
    }
    for function in functions {
        // SAFETY: the pages are writable now.
        unsafe { function.write() };
    }
    // Code that stays writable still works.
    let _ = protect(start, bytes, libc::PROT_READ | libc::PROT_EXEC);
    true
}

/// Returns free addresses for `bytes` bytes within reach of the code, nearest first.
fn gaps(maps: &str, low: u64, high: u64, bytes: u64) -> Vec<u64> {
    let range = |line: &str| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    };
    let mut found = Vec::new();
    let mut before = MIN_ADDRESS;
    for (start, end) in maps.lines().filter_map(range) {
        if start.saturating_sub(before) >= bytes {
            // Both ends of a gap: one of them is the nearer one.
            found.extend([before, start - bytes]);
        }
        before = end;
    }
    let reaches = |start: &u64| {
        start.abs_diff(high).max(start.abs_diff(low)) < MAX_DISTANCE
            && (start + bytes).abs_diff(low) < MAX_DISTANCE
    };
    found.retain(reaches);
    found.sort_by_key(|start| start.abs_diff(low));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_within_reach_are_sorted_by_distance() {
        let maps = "\
00400000-00500000 r-xp 00000000 00:00 0 program
7f0000000000-7f0000100000 r-xp 00000000 00:00 0 far below
7f0080000000-7f0080200000 r-xp 00000000 00:00 0 driver
7f0080300000-7f0080400000 rw-p 00000000 00:00 0
7fff00000000-7fff00001000 rw-p 00000000 00:00 0 [stack]
";
        let found = gaps(maps, 0x7f00_8000_0000, 0x7f00_8020_0000, 0x8000);
        assert_eq!(found, [0x7f00_7fff_8000, 0x7f00_8020_0000, 0x7f00_802f_8000, 0x7f00_8040_0000]);
    }
}
