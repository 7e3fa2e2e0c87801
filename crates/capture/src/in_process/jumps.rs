//! Checks that the jumps in the wrapped functions of a process are intact. A probe of another tool
//! can replace one: calls of the function are then not recorded, and values of the process not
//! exact.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use engine::model::ids::Pid;

use super::area::Header;
use super::open_area::Area;
use super::source::is_wrapped;
use crate::plan::entry::native::JUMP;

/// How often the jumps of a process are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The jumps of one process.
#[derive(Debug)]
pub(super) struct Jumps {
    next: Instant,
    /// Functions whose jump was replaced.
    replaced: Vec<usize>,
}

impl Default for Jumps {
    fn default() -> Self {
        Self { next: Instant::now() + CHECK_INTERVAL, replaced: Vec::new() }
    }
}

impl Jumps {
    /// Returns the functions whose jump was replaced since the last call: of the driver, and of
    /// allocators. Checks once per [`CHECK_INTERVAL`].
    pub(super) fn replaced(&mut self, pid: Pid, header: &Header) -> [Vec<Box<str>>; 2] {
        if Instant::now() < self.next {
            return Default::default();
        }
        self.next = Instant::now() + CHECK_INTERVAL;
        [
            self.replaced_of(pid, header, Area::functions(header)),
            // Their libraries can be unloaded.
            self.replaced_of(pid, header, Area::block_functions()),
        ]
    }

    fn replaced_of(
        &mut self,
        pid: Pid,
        header: &Header,
        functions: impl Iterator<Item = (usize, Box<str>)>,
    ) -> Vec<Box<str>> {
        let functions: Vec<(usize, Box<str>)> =
            functions.filter(|(function, _)| is_wrapped(&header.rows[*function])).collect();
        let address = |function: usize| header.jump_addresses[function].load(Ordering::Relaxed);
        let addresses: Vec<u64> =
            functions.iter().map(|(function, _)| address(*function)).collect();
        let Some(found) = read(pid, &addresses) else { return Vec::new() };
        let mut names = Vec::new();
        for ((function, name), found) in functions.into_iter().zip(found) {
            let expected = header.jumps[function].load(Ordering::Relaxed).to_le_bytes();
            if found[..] != expected[..JUMP] && !self.replaced.contains(&function) {
                self.replaced.push(function);
                names.push(name);
            }
        }
        names
    }
}

/// Reads [`JUMP`] bytes at each address of a process; `None` if that is not permitted or the
/// process has exited.
fn read(pid: Pid, addresses: &[u64]) -> Option<Vec<[u8; JUMP]>> {
    let mut found = vec![[0_u8; JUMP]; addresses.len()];
    let local = libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: found.len() * JUMP };
    let remote: Vec<_> = addresses
        .iter()
        .map(|address| libc::iovec { iov_base: *address as *mut libc::c_void, iov_len: JUMP })
        .collect();
    // SAFETY: the local buffer has space for all remote parts; both lists outlive the call.
    let read = unsafe {
        let pid = libc::pid_t::try_from(pid.0).ok()?;
        let count = remote.len() as libc::c_ulong;
        libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), count, 0)
    };
    usize::try_from(read).is_ok_and(|read| read == found.len() * JUMP).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_are_read_in_address_list_order() {
        let code = [[0xe9; JUMP], [0xcc; JUMP]];
        let own = Pid(std::process::id());
        let addresses = [code[1].as_ptr() as u64, code[0].as_ptr() as u64];
        assert_eq!(read(own, &addresses), Some(vec![code[1], code[0]]));
        assert_eq!(read(own, &[8]), None);
        assert_eq!(read(Pid(u32::MAX), &addresses), None);
    }
}
