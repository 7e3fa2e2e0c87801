//! Texts of a snapshot, each stored once, so that keys compare as numbers.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// Id of a text in the table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct StringId(pub(crate) u32);

/// Maximum length of a text; longer ones are truncated.
pub(crate) const MAX_STRING_BYTES: usize = 4096;

macro_rules! known_strings {
    ($($name:ident = $text:literal,)*) => {
        /// Known texts. Their discriminants are their ids.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum KnownString { $($name,)* }

        const KNOWN_STRINGS: &[(KnownString, &str)] = &[$((KnownString::$name, $text),)*];
    };
}

known_strings! {
    Action = "action", Addr = "addr", Size = "size", Stream = "stream", TimeUs = "time_us",
    Frames = "frames", CppFrames = "cpp_frames", DeviceFree = "device_free", Category = "category",
    CompileContext = "compile_context", UserMetadata = "user_metadata",
    Name = "name", Filename = "filename", Line = "line",
    Address = "address", RequestedSize = "requested_size", State = "state", History = "history",
    RealSize = "real_size", Device = "device", TotalSize = "total_size",
    SegmentType = "segment_type", SegmentPoolId = "segment_pool_id",
    IsExpandable = "is_expandable", Blocks = "blocks",
    Segments = "segments", DeviceTraces = "device_traces", HostSegments = "host_segments",
    HostTraces = "host_traces", AllocatorSettings = "allocator_settings",
    Conf = "PYTORCH_CUDA_ALLOC_CONF", AllocConf = "PYTORCH_ALLOC_CONF",
    MaxSplitSize = "max_split_size", GcThreshold = "garbage_collection_threshold",
    ExpandableSegments = "expandable_segments", Divisions = "roundup_power2_divisions",
    Alloc = "alloc", Free = "free", FreeRequested = "free_requested",
    FreeCompleted = "free_completed", SegmentAlloc = "segment_alloc",
    SegmentFree = "segment_free", SegmentMap = "segment_map", SegmentUnmap = "segment_unmap",
    Snapshot = "snapshot", Annotate = "annotate", Oom = "oom",
    ActiveAllocated = "active_allocated", ActivePendingFree = "active_pending_free",
    ActiveAwaitingFree = "active_awaiting_free", Inactive = "inactive",
    Small = "small", Large = "large",
}

impl KnownString {
    /// Returns the known text of an id, if it is one.
    #[inline]
    pub(crate) fn of(id: StringId) -> Option<Self> {
        KNOWN_STRINGS.get(id.0 as usize).map(|(word, _)| *word)
    }
}

/// Table of texts.
pub(crate) struct StringTable {
    text: String,
    /// End of each text in `text`.
    ends: Vec<u32>,
    ids: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// Recently used short texts: the same two are written with every entry.
    recent: [(u64, u32); 16],
}

/// The table is full: a snapshot has less text.
pub(crate) struct StringTableFull;

impl StringTable {
    pub(crate) fn new() -> Self {
        let mut strings = Self {
            text: String::new(),
            ends: Vec::new(),
            ids: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            recent: [(0, u32::MAX); 16],
        };
        for (_, text) in KNOWN_STRINGS {
            // The table is empty, so it cannot be full.
            let _ = strings.add(text);
        }
        strings
    }

    /// Returns the id of a text; bytes that are not UTF-8 are replaced.
    #[inline]
    pub(crate) fn id(&mut self, bytes: &[u8]) -> Result<StringId, StringTableFull> {
        let packed = pack(bytes);
        let slot = (packed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize;
        if packed != 0
            && let Some(&(same, id)) = self.recent.get(slot)
            && same == packed
        {
            return Ok(StringId(id));
        }
        let text = String::from_utf8_lossy(bytes);
        let id = self.add(&text)?;
        if packed != 0
            && let Some(recent) = self.recent.get_mut(slot)
        {
            *recent = (packed, id.0);
        }
        Ok(id)
    }

    fn add(&mut self, text: &str) -> Result<StringId, StringTableFull> {
        let hash = self.hasher.hash_one(text);
        if let Some(&id) = self.ids.find(hash, |&id| self.get(StringId(id)) == text) {
            return Ok(StringId(id));
        }
        let id = u32::try_from(self.ends.len()).map_err(|_| StringTableFull)?;
        let end = u32::try_from(self.text.len() + text.len()).map_err(|_| StringTableFull)?;
        self.text.push_str(text);
        self.ends.push(end);
        let (all, ends, hasher) = (&self.text, &self.ends, &self.hasher);
        self.ids.insert_unique(hash, id, |&id| hasher.hash_one(slice(all, ends, id)));
        Ok(StringId(id))
    }

    /// Returns a text of the table.
    pub(crate) fn get(&self, id: StringId) -> &str {
        slice(&self.text, &self.ends, id.0)
    }
}

fn slice<'a>(text: &'a str, ends: &[u32], id: u32) -> &'a str {
    let end = ends.get(id as usize).copied().unwrap_or(0) as usize;
    let start = id.checked_sub(1).and_then(|id| ends.get(id as usize)).map_or(0, |&at| at as usize);
    text.get(start..end).unwrap_or("")
}

/// Packs up to seven bytes and their number into one integer; 0 for longer texts.
#[inline]
fn pack(bytes: &[u8]) -> u64 {
    if bytes.len() > 7 {
        return 0;
    }
    bytes.iter().fold(bytes.len() as u64 + 1, |packed, &byte| packed << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_deduplicated_and_known_ones_detected() {
        let mut strings = StringTable::new();
        let ids: Vec<_> = ["N/A", "", "N/A", "action", "a much longer text", "", "inactive"]
            .iter()
            .map(|text| strings.id(text.as_bytes()).ok().unwrap())
            .collect();
        assert_eq!(ids[0], ids[2]);
        assert_eq!(ids[1], ids[5]);
        assert_eq!(KnownString::of(ids[3]), Some(KnownString::Action));
        assert_eq!(KnownString::of(ids[6]), Some(KnownString::Inactive));
        assert_eq!(KnownString::of(ids[0]), None);
        assert_eq!(strings.get(ids[4]), "a much longer text");
        assert_eq!(strings.get(ids[1]), "");
        assert_eq!(strings.get(StringId(999)), "");
    }

    #[test]
    fn short_texts_of_different_length_are_distinct() {
        let mut strings = StringTable::new();
        let ids =
            [b"\0".as_slice(), b"\0\0", b"\x01", b"\x01\0"].map(|b| strings.id(b).ok().unwrap().0);
        let mut unique = ids.to_vec();
        unique.dedup();
        assert_eq!(unique.len(), 4);
    }
}
