//! Values on the stack and in the memo of the machine. Nothing is kept as a tree: a dictionary is
//! interpreted as soon as it is complete, and a list becomes a run of such items.

use super::strings::StringId;

/// No memo index.
pub(crate) const NO_MEMO: u32 = u32::MAX;

/// A value: 16 bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Value {
    /// Complete, but not needed.
    Ignored,
    /// `None`.
    None,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer that needs the 64th bit.
    Big(u64),
    /// A float.
    Float(f64),
    /// A text.
    Text(StringId),
    /// A dictionary without items so far, and its memo index.
    NewDict(u32),
    /// A list without items so far, and its memo index.
    NewList(u32),
    /// A growing dictionary.
    OpenDict(OpenContainerRef),
    /// A growing list.
    OpenList(OpenContainerRef),
    /// A complete list without items.
    EmptyList,
    /// A frame of a stack, by the number of the frame table.
    Frame(u32),
    /// A complete list of frames.
    Site(u32),
    /// Consecutive complete dictionaries on the stack.
    Items(ValueRun),
    /// A complete list of dictionaries.
    List(ValueRun),
    /// A list of lists of entries.
    Traces(u32),
    /// A tuple of two numbers.
    Pair(u32),
    /// Settings of the allocator.
    Settings,
    /// Rounding of sizes.
    Divisions,
    /// The whole snapshot.
    Snapshot,
}

/// A growing container: the slot of its items, and its memo index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpenContainerRef {
    pub(crate) slot: u32,
    pub(crate) memo: u32,
}

/// Consecutive items of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ValueRun {
    pub(crate) item: RunItem,
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// Kind of the items of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RunItem {
    /// Entries of a trace.
    Entry,
    /// Blocks of a segment.
    Block,
    /// Segments.
    Segment,
    /// History items of a block in files of torch 2.0.
    History,
}

impl ValueRun {
    /// Appends `next`, if it follows directly.
    #[inline]
    pub(crate) fn join(&mut self, next: Self) -> bool {
        let follows =
            self.item == next.item && self.first.checked_add(self.count) == Some(next.first);
        if follows {
            self.count = self.count.saturating_add(next.count);
        }
        follows
    }

    /// Returns the indices of its items in their table.
    pub(crate) fn range(self) -> std::ops::Range<usize> {
        let first = self.first as usize;
        first..first.saturating_add(self.count as usize)
    }
}

impl Value {
    /// Returns a non-negative number.
    #[inline]
    pub(crate) fn number(self) -> Option<u64> {
        match self {
            Self::Int(value) => u64::try_from(value).ok(),
            Self::Big(value) => Some(value),
            _ => None,
        }
    }

    /// Returns a pointer: writers differ in whether the highest bit is a sign.
    #[inline]
    pub(crate) fn pointer(self) -> Option<u64> {
        match self {
            Self::Int(value) => Some(value.cast_unsigned()),
            Self::Big(value) => Some(value),
            _ => None,
        }
    }
}

/// Content of a memo entry in four bytes: a tag and a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MemoCell(u32);

/// Maximum number next to a tag.
const MEMO_NUMBER_MASK: u32 = (1 << 29) - 1;

/// Content of a memo entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemoValue {
    /// Empty.
    Nothing,
    /// A container at this stack index, incomplete when it was stored.
    Pending(u32),
    /// A text.
    Text(u32),
    /// A frame.
    Frame(u32),
    /// A list of frames.
    Site(u32),
    /// A rare value, by its index in a list of such values.
    Other(u32),
    /// A value that a snapshot does not need.
    Ignored,
    /// A value that was consumed when it was complete.
    Used,
}

impl MemoCell {
    pub(crate) const NOTHING: Self = Self(0);

    /// Returns `None` if the number is too large.
    pub(crate) fn new(value: MemoValue) -> Option<Self> {
        let (tag, number) = match value {
            MemoValue::Nothing => (0, 0),
            MemoValue::Pending(number) => (1, number),
            MemoValue::Text(number) => (2, number),
            MemoValue::Frame(number) => (3, number),
            MemoValue::Site(number) => (4, number),
            MemoValue::Other(number) => (5, number),
            MemoValue::Ignored => (6, 0),
            MemoValue::Used => (7, 0),
        };
        (number <= MEMO_NUMBER_MASK).then_some(Self(tag << 29 | number))
    }

    #[inline(always)]
    pub(crate) fn value(self) -> MemoValue {
        let number = self.0 & MEMO_NUMBER_MASK;
        match self.0 >> 29 {
            0 => MemoValue::Nothing,
            1 => MemoValue::Pending(number),
            2 => MemoValue::Text(number),
            3 => MemoValue::Frame(number),
            4 => MemoValue::Site(number),
            5 => MemoValue::Other(number),
            6 => MemoValue::Ignored,
            _ => MemoValue::Used,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_small() {
        assert_eq!(size_of::<Value>(), 16);
        assert_eq!(size_of::<MemoCell>(), 4);
    }

    #[test]
    fn memo_cell_round_trips() {
        for value in [
            MemoValue::Nothing,
            MemoValue::Pending(5),
            MemoValue::Text(0),
            MemoValue::Frame(MEMO_NUMBER_MASK),
            MemoValue::Site(7),
            MemoValue::Other(1),
            MemoValue::Ignored,
            MemoValue::Used,
        ] {
            assert_eq!(MemoCell::new(value).map(MemoCell::value), Some(value));
        }
        assert_eq!(MemoCell::new(MemoValue::Text(MEMO_NUMBER_MASK + 1)), None);
    }
}
