//! The bytes of a pickle through a window: memory use does not depend on the file's length.

use std::io;

use super::error::ReadError;
use super::strings::MAX_STRING_BYTES;

/// Length of a block with its head room. Fits into the L2 cache of a CPU.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;

/// Unused bytes at the start of a block: what is left of the block before, less than a value, is
/// copied there.
pub(crate) const HEAD_ROOM: usize = MAX_STRING_BYTES;

/// Returns the next block of the input: head room and bytes, none at the end. The argument is a block
/// to use again.
pub(crate) type NextBlock<'a> = Box<dyn FnMut(Vec<u8>) -> io::Result<Vec<u8>> + 'a>;

/// A reader that tracks its offset and the maximum remaining length.
pub(crate) struct ByteWindow<'a> {
    next_block: NextBlock<'a>,
    window: Vec<u8>,
    at: usize,
    /// Offset of the end of the window.
    end: u64,
    /// Maximum total length.
    max: u64,
}

impl<'a> ByteWindow<'a> {
    /// Reads an input that has at most `max` bytes.
    pub(crate) fn new(next_block: NextBlock<'a>, max: u64) -> Self {
        Self { next_block, window: Vec::new(), at: 0, end: 0, max }
    }

    /// Returns the number of consumed bytes.
    pub(crate) fn offset(&self) -> u64 {
        self.end.saturating_sub((self.window.len() - self.at) as u64)
    }

    /// Returns the maximum number of remaining bytes.
    pub(crate) fn remaining(&self) -> u64 {
        self.max.saturating_sub(self.offset())
    }

    /// Returns the next byte if it is in the window. If not, the caller reports progress before the
    /// window is refilled.
    #[inline]
    pub(crate) fn next_in_window(&mut self) -> Option<u8> {
        let byte = self.window.get(self.at).copied();
        self.at += usize::from(byte.is_some());
        byte
    }

    /// Returns the following bytes of the window, without consuming them.
    #[inline]
    pub(crate) fn ahead(&self) -> &[u8] {
        self.window.get(self.at..).unwrap_or_default()
    }

    /// Consumes bytes of the window.
    #[inline]
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.at = self.at.saturating_add(bytes).min(self.window.len());
    }

    /// Consumes the next bytes, as many as an operand has.
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], ReadError> {
        if let Some(bytes) = self.window.get(self.at..).and_then(<[u8]>::first_chunk::<N>) {
            self.at += N;
            return Ok(*bytes);
        }
        self.fill(N)?;
        let bytes = self.window.get(self.at..).and_then(<[u8]>::first_chunk::<N>).copied();
        let bytes = bytes.ok_or_else(|| self.truncated())?;
        self.at += N;
        Ok(bytes)
    }

    /// Calls `use_it` with the next `length` bytes, or with the first `keep` of them if there are
    /// more. All are consumed.
    pub(crate) fn text<T>(
        &mut self,
        length: u64,
        keep: usize,
        use_it: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, ReadError> {
        if length > self.remaining() {
            return Err(ReadError::broken(
                format!("a value of {length} bytes is longer than what is left of the file"),
                self.offset(),
            ));
        }
        let kept = usize::try_from(length).map_or(keep, |length| length.min(keep)).min(HEAD_ROOM);
        if self.window.len().saturating_sub(self.at) < kept {
            self.fill(kept)?;
        }
        let bytes = self.window.get(self.at..self.at + kept).ok_or_else(|| self.truncated())?;
        let value = use_it(bytes);
        self.at += kept;
        self.skip(length - kept as u64)?;
        Ok(value)
    }

    fn skip(&mut self, mut bytes: u64) -> Result<(), ReadError> {
        while bytes > 0 {
            let here = (self.window.len() - self.at) as u64;
            if here >= bytes {
                self.at += usize::try_from(bytes).unwrap_or(0);
                return Ok(());
            }
            bytes -= here;
            self.at = self.window.len();
            self.fill(1)?;
        }
        Ok(())
    }

    /// Makes at least `wanted` bytes available, or fails.
    #[cold]
    fn fill(&mut self, wanted: usize) -> Result<(), ReadError> {
        while self.ahead().len() < wanted {
            // Less than a value, so it fits into the head room.
            let rest = self.ahead().to_vec();
            self.at = 0;
            let used = std::mem::take(&mut self.window);
            self.window = (self.next_block)(used).map_err(ReadError::io)?;
            let more = self.window.len().saturating_sub(HEAD_ROOM);
            self.end = self.end.saturating_add(more as u64);
            self.at = HEAD_ROOM.saturating_sub(rest.len()).min(self.window.len());
            let begin = self.window.iter_mut().skip(self.at);
            begin.zip(rest).for_each(|(to, from)| *to = from);
            if more == 0 {
                return Err(self.truncated());
            }
        }
        Ok(())
    }

    #[cold]
    fn truncated(&self) -> ReadError {
        ReadError::broken("the pickle ends in the middle of a value", self.end)
    }
}
