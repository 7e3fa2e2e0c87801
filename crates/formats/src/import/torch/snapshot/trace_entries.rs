//! Entries of traces, 32 bytes each. They are replayed only after the whole file was read, because
//! only its end shows which blocks were live at the start.

/// Action of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum TraceAction {
    /// A block was allocated.
    Alloc,
    /// A block was freed.
    FreeRequested,
    /// No stream uses the block any more.
    FreeCompleted,
    /// The cache reserved memory of the device: a segment, or a part of an expandable one.
    Reserved,
    /// The cache returned memory to the device.
    Returned,
    /// A request failed.
    Oom,
}

/// An entry of a trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceEntry {
    /// Address; for a failed request, the free memory of the device.
    pub(crate) address: u64,
    /// Requested size. For a paired free, the index of its allocation.
    pub(crate) size: u64,
    /// Time in microseconds since 1970, or [`NO_TIME`].
    pub(crate) time: u64,
    /// Stack, or [`NO_SITE`].
    pub(crate) site: u32,
    /// Stream, as an index into the list of streams.
    pub(crate) stream: u16,
    /// Action.
    pub(crate) action: TraceAction,
    /// Results of pairing and replay.
    pub(crate) flags: u8,
}

/// The entry has no time.
pub(crate) const NO_TIME: u64 = u64::MAX;
/// The entry has no stack.
pub(crate) const NO_SITE: u32 = u32::MAX;
/// The entry has no stream, or there are too many.
pub(crate) const NO_STREAM: u16 = u16::MAX;

/// The streams released the block of this free at the same time.
pub(crate) const COMPLETED: u8 = 1;
/// `size` of this free is the index of the block's allocation.
pub(crate) const PAIRED: u8 = 2;
/// `size` of this free is the index among the blocks from before the trace.
pub(crate) const PAIRED_OLDER: u8 = 4;
/// The block of this allocation is live at the end.
pub(crate) const LIVE: u8 = 8;
/// Another block was live at this address.
pub(crate) const REPLACES: u8 = 16;
/// The memory grows in place: an expandable segment.
pub(crate) const EXPANDABLE: u8 = 32;
/// The size of the block differs from the rounded request; see the table of sizes.
pub(crate) const ODD_SIZE: u8 = 64;

const CHUNK: usize = 1 << 16;

/// All entries. It grows by chunks, so that growing does not copy.
#[derive(Default)]
pub(crate) struct TraceEntries {
    chunks: Vec<Vec<TraceEntry>>,
    len: u32,
}

impl TraceEntries {
    /// Returns the index of the next entry.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Adds an entry; a trace is truncated at 4 billion entries.
    #[inline]
    pub(crate) fn push(&mut self, entry: TraceEntry) {
        if self.len == u32::MAX {
            return;
        }
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK => chunk.push(entry),
            // The first chunk grows on demand, so that small files use little memory.
            None => self.chunks.push(vec![entry]),
            Some(_) => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(entry);
                self.chunks.push(chunk);
            }
        }
        self.len += 1;
    }

    #[inline]
    pub(crate) fn get(&self, at: u32) -> Option<&TraceEntry> {
        let at = at as usize;
        self.chunks.get(at / CHUNK)?.get(at % CHUNK)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut TraceEntry> {
        let at = at as usize;
        self.chunks.get_mut(at / CHUNK)?.get_mut(at % CHUNK)
    }

    /// Returns the last entry.
    #[inline]
    pub(crate) fn last_mut(&mut self) -> Option<&mut TraceEntry> {
        self.chunks.last_mut()?.last_mut()
    }
}

/// Streams by index.
#[derive(Default)]
pub(crate) struct StreamTable(Vec<u64>);

impl StreamTable {
    /// Returns the index of a stream.
    #[inline]
    pub(crate) fn index(&mut self, stream: u64) -> u16 {
        // Programs have few streams, and mostly use recent ones.
        if let Some(at) = self.0.iter().rev().take(64).position(|&known| known == stream) {
            return u16::try_from(self.0.len() - 1 - at).unwrap_or(NO_STREAM);
        }
        match u16::try_from(self.0.len()) {
            Ok(index) if index != NO_STREAM => {
                self.0.push(stream);
                index
            }
            _ => NO_STREAM,
        }
    }

    pub(crate) fn get(&self, index: u16) -> Option<u64> {
        self.0.get(usize::from(index)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_is_half_a_cache_line() {
        assert_eq!(size_of::<TraceEntry>(), 32);
    }
}
