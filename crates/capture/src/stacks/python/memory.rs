//! Readers for the memory of another process.

use engine::model::ids::Pid;

/// Bytes that another process can change or unmap at any time.
pub(crate) trait MemoryReader {
    /// Fills `into` from `address` on. Returns false if not all of it can be read.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;

    /// Reads `N` bytes.
    fn bytes<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read(address, &mut bytes).then_some(bytes)
    }

    /// Reads 8 bytes.
    fn word(&self, address: u64) -> Option<u64> {
        self.bytes(address).map(u64::from_le_bytes)
    }

    /// Reads 8 bytes at an offset from an address.
    fn word_at(&self, address: u64, offset: u16) -> Option<u64> {
        self.word(address.checked_add(offset.into())?)
    }

    /// Reads `length` bytes, at most `max`.
    fn block(&self, address: u64, length: usize, max: usize) -> Option<Vec<u8>> {
        if length > max {
            return None;
        }
        let mut bytes = vec![0; length];
        self.read(address, &mut bytes).then_some(bytes)
    }
}

impl<M: MemoryReader + ?Sized> MemoryReader for &M {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        (**self).read(address, into)
    }
}

/// The memory of a running process, read without stopping it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessMemory(pub(crate) Pid);

impl MemoryReader for ProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let (Ok(pid), Ok(from)) = (libc::pid_t::try_from(self.0.0), usize::try_from(address))
        else {
            return false;
        };
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = libc::iovec { iov_base: from as *mut libc::c_void, iov_len: into.len() };
        // SAFETY: `local` is exactly the exclusively borrowed slice; the kernel checks `remote`,
        // which is never dereferenced here.
        let read =
            unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
        usize::try_from(read) == Ok(into.len())
    }
}

/// Reads a little-endian u64 of a block.
pub(super) fn u64_at(block: &[u8], offset: usize) -> Option<u64> {
    let bytes = block.get(offset..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

/// Reads a little-endian u32 of a block.
pub(super) fn u32_at(block: &[u8], offset: usize) -> Option<u32> {
    let bytes = block.get(offset..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_memory_is_read_and_unmapped_is_not() {
        let own = ProcessMemory(Pid(std::process::id()));
        let text = *b"something to read";
        assert_eq!(own.bytes(text.as_ptr() as u64), Some(text));
        assert_eq!(own.word(0), None);
        assert_eq!(own.word(u64::MAX - 3), None);
        assert_eq!(own.word_at(u64::MAX, 16), None);
        assert_eq!(own.block(text.as_ptr() as u64, 17, 16), None);
    }
}
