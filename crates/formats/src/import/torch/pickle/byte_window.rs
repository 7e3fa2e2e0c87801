//! The bytes of a pickle through a window: memory use does not depend on the file's length.

use std::io::{ErrorKind, Read};

use super::error::ReadError;

/// Fits into the L2 cache of a CPU.
const WINDOW: usize = 256 << 10;

/// A reader that tracks its offset and the maximum remaining length.
pub(crate) struct ByteWindow {
    reader: Box<dyn Read>,
    window: Vec<u8>,
    at: usize,
    /// Bytes before the window.
    before: u64,
    /// Maximum total length.
    max: u64,
}

impl ByteWindow {
    /// Reads from `reader`, which has at most `max` bytes.
    pub(crate) fn new(reader: Box<dyn Read>, max: u64) -> Self {
        Self { reader, window: Vec::with_capacity(WINDOW), at: 0, before: 0, max }
    }

    /// Returns the number of consumed bytes.
    pub(crate) fn offset(&self) -> u64 {
        self.before.saturating_add(self.at as u64)
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
        let kept = usize::try_from(length).map_or(keep, |length| length.min(keep)).min(WINDOW);
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
        let rest = self.window.len() - self.at;
        self.window.copy_within(self.at.., 0);
        self.before = self.before.saturating_add(self.at as u64);
        self.at = 0;
        self.window.resize(WINDOW, 0);
        let mut end = rest;
        while end < wanted {
            let Some(space) = self.window.get_mut(end..) else { break };
            match self.reader.read(space) {
                Ok(0) => break,
                Ok(more) => end = end.saturating_add(more).min(WINDOW),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.window.truncate(end);
                    return Err(ReadError::io(error));
                }
            }
        }
        self.window.truncate(end);
        if end < wanted { Err(self.truncated()) } else { Ok(()) }
    }

    #[cold]
    fn truncated(&self) -> ReadError {
        let end = self.before.saturating_add(self.window.len() as u64);
        ReadError::broken("the pickle ends in the middle of a value", end)
    }
}
