//! Memory for code within reach of a library, and jumps over the entries of its functions.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::arch::{MAX_ADDRESS, flush};
use crate::entry::native::{
    JUMP, MAX_DISTANCE, MAX_FUNCTION_BYTES, PROBE, block_stub, jump, jump_sites, move_entry,
    move_to_site, return_jump, stub,
};
use crate::entry::{JumpSite, Moved, Unmovable};
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
    /// Bytes of the jump that differ from the code.
    changed: usize,
}

impl PreparedFunction {
    /// Returns the address of the jump, and its code in the lowest bytes.
    pub(crate) fn jump(&self) -> (u64, u64) {
        let mut bytes = [0; 8];
        bytes[..JUMP].copy_from_slice(&self.jump);
        (self.address, u64::from_le_bytes(bytes))
    }

    /// Writes the jump. Returns false, without any change, if the code cannot be made writable.
    pub(crate) fn patch(&self) -> bool {
        patch(std::slice::from_ref(self))
    }

    /// Returns whether `memory` is the code of the function at `address`, except for probes outside of
    /// the bytes that change.
    pub(crate) fn is_in(&self, memory: &[u8], code: &[u8], address: u64) -> bool {
        let first = self.address.wrapping_sub(address) as usize;
        let changes = |at: usize| first < at + PROBE.len() && at < first + self.changed;
        let mut parts = memory.chunks(PROBE.len()).zip(code.chunks(PROBE.len())).enumerate();
        memory.len() == code.len()
            && parts.all(|(index, (found, expected))| {
                found == expected || found == PROBE && !changes(index * PROBE.len())
            })
    }

    /// Writes the jump.
    ///
    /// # Safety
    ///
    /// The aligned word with the changed bytes is writable, and has all of them.
    unsafe fn write(&self) {
        let offset = self.address % WORD;
        // SAFETY: aligned and writable, as the caller guarantees.
        let word = unsafe { &*((self.address - offset) as *const AtomicU64) };
        let mut bytes = word.load(Ordering::Relaxed).to_le_bytes();
        let changed = self.jump.iter().take(self.changed);
        for (to, from) in bytes.iter_mut().skip(offset as usize).zip(changed) {
            *to = *from;
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
        gaps(&maps, low, high, bytes)
            .into_iter()
            .find_map(|start| map_at(start, bytes).then_some(Self { start, bytes, used: 0 }))
    }

    /// Writes the moved entry and the stub of a function that no thread runs yet. Returns the function
    /// with its new entry, and the address of the moved entry.
    pub(crate) fn prepare(
        &mut self,
        hook: usize,
        code: &[u8],
        address: u64,
    ) -> Result<(PreparedFunction, u64), Unmovable> {
        let moved = move_entry(code, address, self.next())?;
        let jump_address = address + moved.offset as u64;
        if jump_address % WORD + JUMP as u64 > WORD {
            return Err(Unmovable::Unknown);
        }
        let stub = [&moved.undo[..], &stub(hook as u32, wrapper::address())].concat();
        let at = self.add_moved(moved, address)?;
        let wrapped = self.add(&stub)?;
        let jump = jump(jump_address, wrapped)?;
        Ok((PreparedFunction { address: jump_address, jump, changed: JUMP }, at))
    }

    /// Writes the moved entry and the stub of a function of an allocator, which threads may run; see
    /// [`JumpSite`].
    pub(crate) fn prepare_running(
        &mut self,
        hook: usize,
        code: &[u8],
        address: u64,
        arguments: usize,
    ) -> Result<(PreparedFunction, u64), Unmovable> {
        let used = self.used;
        let mut outcome = Err(Unmovable::Unknown);
        for site in jump_sites(code, address, arguments) {
            outcome = self.prepare_site(hook, code, address, &site);
            if outcome.is_ok() {
                break;
            }
            self.used = used;
        }
        outcome
    }

    fn prepare_site(
        &mut self,
        hook: usize,
        code: &[u8],
        address: u64,
        site: &JumpSite,
    ) -> Result<(PreparedFunction, u64), Unmovable> {
        let moved = move_to_site(code, address, self.next(), site)?;
        let at = self.add_moved(moved, address)?;
        let jump_address = address + site.offset as u64;
        let stub = [&site.undo[..], &block_stub(hook as u32, wrapper::block_address())].concat();
        let jump = if site.changed == JUMP {
            jump(jump_address, self.add(&stub)?)?
        } else {
            let old = code.get(site.offset..site.offset + JUMP).ok_or(Unmovable::Unknown)?;
            distant_jump(jump_address, old, site.changed, &stub).ok_or(Unmovable::TooFar)?
        };
        Ok((PreparedFunction { address: jump_address, jump, changed: site.changed }, at))
    }

    /// Address of the next code.
    const fn next(&self) -> u64 {
        self.start + self.used
    }

    /// Adds a moved entry, with a jump back to the function at `address`. Returns its address.
    fn add_moved(&mut self, moved: Moved, address: u64) -> Result<u64, Unmovable> {
        let Moved { mut code, length, is_final, .. } = moved;
        if !is_final {
            let back = return_jump(self.next() + code.len() as u64, address + length as u64)?;
            code.extend_from_slice(&back);
        }
        self.add(&code)
    }

    /// Adds code. Returns its address.
    fn add(&mut self, code: &[u8]) -> Result<u64, Unmovable> {
        let (at, space) = (self.next(), (code.len() as u64).next_multiple_of(16));
        if self.used + space > self.bytes {
            return Err(Unmovable::Unknown);
        }
        // SAFETY: the reserved memory has space, and no other code uses it.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), at as *mut u8, code.len()) };
        self.used += space;
        Ok(at)
    }

    /// Makes the memory executable and read-only.
    pub(crate) fn seal(&self) -> bool {
        flush(self.start, self.used);
        protect(self.start, self.bytes, libc::PROT_READ | libc::PROT_EXEC)
    }
}

/// Attempts to map memory for a stub.
const DISTANT_ATTEMPTS: u64 = 64;

/// Maps memory with a stub where a jump leads of which only the first `changed` bytes can be chosen.
fn distant_jump(address: u64, old: &[u8], changed: usize, stub: &[u8]) -> Option<[u8; JUMP]> {
    // The lowest target: its bytes of the displacement are zero.
    let mut lowest = jump(address, address).ok()?;
    lowest.iter_mut().skip(1).for_each(|byte| *byte = 0);
    for (to, from) in lowest.iter_mut().zip(old).skip(changed) {
        *to = *from;
    }
    let distance = lowest.get(1..)?.try_into().map(i32::from_le_bytes).ok()?;
    let low = (address + JUMP as u64).wrapping_add_signed(distance.into());
    let targets = 1_u64 << (8 * (changed - 1));
    let step = (targets / DISTANT_ATTEMPTS).max(1);
    (0..targets).step_by(step as usize).take(DISTANT_ATTEMPTS as usize).find_map(|offset| {
        let target = low.wrapping_add(offset);
        map_stub(target, stub).then(|| jump(address, target).ok())?
    })
}

/// Maps the pages of a stub, if they are free.
fn map_stub(target: u64, stub: &[u8]) -> bool {
    if !(MIN_ADDRESS..MAX_ADDRESS).contains(&target) {
        return false;
    }
    let start = target / page_size() * page_size();
    let bytes = (target + stub.len() as u64).next_multiple_of(page_size()) - start;
    if !map_at(start, bytes) {
        return false;
    }
    // SAFETY: the memory was just mapped, and no other code uses it.
    unsafe { std::ptr::copy_nonoverlapping(stub.as_ptr(), target as *mut u8, stub.len()) };
    flush(target, stub.len() as u64);
    protect(start, bytes, libc::PROT_READ | libc::PROT_EXEC)
}

/// Maps writable memory at an address. Returns false if it is not free.
fn map_at(start: u64, bytes: u64) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: never replaces an existing mapping.
    let memory = unsafe { libc::mmap(start as *mut c_void, bytes as usize, access, flags, -1, 0) };
    // For kernels before 4.17 the address is only a hint.
    let is_exact = memory as u64 == start;
    if !is_exact && memory != libc::MAP_FAILED {
        // SAFETY: the mapping was just created.
        unsafe { libc::munmap(memory, bytes as usize) };
    }
    is_exact
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

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn distant_jumps_keep_the_bytes_of_other_instructions() {
        // push %rbx; mov %rdi,%rbx; sub $16,%rsp; mov 24(%rsi),%rcx
        let code = [0x53, 0x48, 0x89, 0xfb, 0x48, 0x83, 0xec, 0x10, 0x48, 0x8b, 0x4e, 0x18];
        // A gap of 4 GiB below the code of this program.
        let address = wrapper::address() - (4 << 30);
        for (offset, changed) in [(0, 1), (1, 3), (4, 4)] {
            let (at, old) = (address + offset as u64, &code[offset..offset + JUMP]);
            let jump = distant_jump(at, old, changed, &[0xc3; 40]).unwrap();
            assert_eq!((jump[0], &jump[changed..]), (0xe9, &old[changed..]), "{changed}");
            let distance = i32::from_le_bytes(jump[1..].try_into().unwrap());
            let target = at.wrapping_add(JUMP as u64).wrapping_add_signed(distance.into());
            // SAFETY: the stub was mapped there.
            assert_eq!(unsafe { (target as *const [u8; 40]).read_unaligned() }, [0xc3; 40]);
        }
        // The address of the first one is in use now.
        assert_eq!(distant_jump(address, &code[..JUMP], 1, &[0xc3; 40]), None);
    }

    #[test]
    fn only_probes_outside_of_the_jump_are_ignored() {
        let (code, at) = ([0x11; 16], 0x1000);
        let function = PreparedFunction { address: at + 4, jump: [0; JUMP], changed: 2 };
        let with_probe = |offset: usize| {
            let mut memory = code;
            memory[offset..offset + PROBE.len()].copy_from_slice(&PROBE);
            function.is_in(&memory, &code, at)
        };
        assert!(function.is_in(&code, &code, at) && with_probe(0) && with_probe(8));
        assert!(!with_probe(4));
        assert!(!function.is_in(&[0x12; 16], &code, at) && !function.is_in(&code[1..], &code, at));
    }

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
