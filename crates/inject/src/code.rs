//! Memory for code within reach of the driver, and jumps over the entries of its functions.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::patch::{JUMP, MAX_MOVED, Moved, Unmovable, distance, move_entry};
use crate::wrapper;

const PAGE: u64 = 4096;
/// Maximum distance from the driver's code: a 32-bit jump reaches 2 GiB, and moved instructions
/// access data next to the code.
const MAX_DISTANCE: u64 = 1 << 30;
/// `jmp *0(%rip)` and the address.
const LONG_JUMP: usize = 14;
/// `mov $hook, %r11d` and a long jump.
const STUB: usize = 6 + LONG_JUMP;
/// Maximum size of the code that undoes pushes.
const MAX_UNDO: usize = 16;
/// Size of the code for one function.
const FUNCTION_BYTES: usize = (MAX_MOVED + LONG_JUMP + MAX_UNDO + STUB).next_multiple_of(16);

/// Memory for moved entries and stubs within reach of a library.
pub(crate) struct NearbyCode {
    start: u64,
    bytes: u64,
    used: u64,
}

/// A function that is ready to be patched.
pub(crate) struct PreparedFunction {
    address: u64,
    /// Bytes before the jump.
    offset: usize,
    jump: [u8; JUMP],
}

impl PreparedFunction {
    /// Returns the address of the jump, and its code in the lowest bytes.
    pub(crate) fn jump(&self) -> (u64, u64) {
        let mut bytes = [0; 8];
        bytes[..JUMP].copy_from_slice(&self.jump);
        (self.address + self.offset as u64, u64::from_le_bytes(bytes))
    }

    /// Writes the jump.
    ///
    /// # Safety
    ///
    /// The first 8 bytes of the function are writable.
    unsafe fn write(&self) {
        // SAFETY: aligned and writable, as the caller guarantees.
        let entry = unsafe { &*(self.address as *const AtomicU64) };
        let mut bytes = entry.load(Ordering::Relaxed).to_le_bytes();
        for (to, from) in bytes.iter_mut().skip(self.offset).zip(self.jump) {
            *to = from;
        }
        // One write, so a thread that enters sees either the old or the new code.
        entry.store(u64::from_le_bytes(bytes), Ordering::SeqCst);
    }
}

impl NearbyCode {
    /// Reserves memory for this many functions near the code from `low` to `high`.
    pub(crate) fn reserve(low: u64, high: u64, functions: usize) -> Option<Self> {
        let bytes = ((functions * FUNCTION_BYTES) as u64).next_multiple_of(PAGE);
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
            bytes.extend_from_slice(&long_jump(address + length as u64));
        }
        let stub = at + bytes.len() as u64;
        bytes.extend_from_slice(&undo);
        bytes.extend_from_slice(&[0x41, 0xbb]);
        bytes.extend_from_slice(&(hook as u32).to_le_bytes());
        bytes.extend_from_slice(&long_jump(wrapper::address()));
        let reach = distance(address + (offset + JUMP) as u64, stub)?;
        let mut jump = [0xe9, 0, 0, 0, 0];
        jump[1..].copy_from_slice(&reach.to_le_bytes());
        let space = (bytes.len() as u64).next_multiple_of(16);
        if self.used + space > self.bytes || !address.is_multiple_of(8) || offset + JUMP > 8 {
            // Only 8 aligned bytes can be written at once.
            return Err(Unmovable::Unknown);
        }
        // SAFETY: the reserved memory has space, and no other code uses it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
        self.used += space;
        Ok((PreparedFunction { address, offset, jump }, at))
    }

    /// Makes the memory executable and read-only.
    pub(crate) fn seal(&self) -> bool {
        protect(self.start, self.bytes, libc::PROT_READ | libc::PROT_EXEC)
    }
}

fn long_jump(target: u64) -> [u8; LONG_JUMP] {
    let mut code = [0xff, 0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    code[6..].copy_from_slice(&target.to_le_bytes());
    code
}

fn protect(start: u64, bytes: u64, access: i32) -> bool {
    // SAFETY: changes the protection of whole pages that the caller owns or patches.
    unsafe { libc::mprotect(start as *mut c_void, bytes as usize, access) == 0 }
}

/// Writes the jumps. Returns false, without any change, if the code cannot be made writable.
pub(crate) fn patch(functions: &[PreparedFunction]) -> bool {
    let Some(low) = functions.iter().map(|function| function.address).min() else { return true };
    let Some(high) = functions.iter().map(|function| function.address).max() else { return true };
    let start = low / PAGE * PAGE;
    let bytes = (high + 8).next_multiple_of(PAGE) - start;
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
    let mut before = PAGE * 16;
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
