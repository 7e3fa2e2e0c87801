//! Values on the stack and in the memo of the machine. Nothing is kept as a tree: a dictionary is
//! interpreted as soon as it is complete, and a list becomes a run of such items.

use super::words::WordId;

/// No memo index.
pub(super) const NOWHERE: u32 = u32::MAX;

/// A value: 16 bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Value {
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
    Text(WordId),
    /// A dictionary without items so far, and its memo index.
    NewDict(u32),
    /// A list without items so far, and its memo index.
    NewList(u32),
    /// A growing dictionary.
    OpenDict(Open),
    /// A growing list.
    OpenList(Open),
    /// A complete list without items.
    EmptyList,
    /// A frame of a stack, by the number of the frame table.
    Frame(u32),
    /// A complete list of frames.
    Site(u32),
    /// Consecutive complete dictionaries on the stack.
    Items(Run),
    /// A complete list of dictionaries.
    List(Run),
    /// A list of lists of entries.
    Traces(u32),
    /// A tuple of two numbers.
    Pair(u32),
    /// Settings of the allocator.
    Settings,
    /// Rounding of sizes.
    Divisions,
    /// The whole snapshot.
    Whole,
}

/// A growing container: the slot of its items, and its memo index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Open {
    pub(super) slot: u32,
    pub(super) memo: u32,
}

/// Consecutive items of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) of: Thing,
    pub(super) first: u32,
    pub(super) count: u32,
}

/// Kind of the items of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Thing {
    /// Entries of a trace.
    Entry,
    /// Blocks of a segment.
    Block,
    /// Segments.
    Segment,
    /// History items of a block in files of torch 2.0.
    Past,
}

impl Run {
    /// Appends `next`, if it follows directly.
    #[inline]
    pub(super) fn join(&mut self, next: Self) -> bool {
        let follows = self.of == next.of && self.first.checked_add(self.count) == Some(next.first);
        if follows {
            self.count = self.count.saturating_add(next.count);
        }
        follows
    }

    /// Returns the indices of its items in their table.
    pub(super) fn range(self) -> std::ops::Range<usize> {
        let first = self.first as usize;
        first..first.saturating_add(self.count as usize)
    }
}

impl Value {
    /// Returns a non-negative number.
    #[inline]
    pub(super) fn number(self) -> Option<u64> {
        match self {
            Self::Int(value) => u64::try_from(value).ok(),
            Self::Big(value) => Some(value),
            _ => None,
        }
    }

    /// Returns a pointer: writers differ in whether the highest bit is a sign.
    #[inline]
    pub(super) fn pointer(self) -> Option<u64> {
        match self {
            Self::Int(value) => Some(value.cast_unsigned()),
            Self::Big(value) => Some(value),
            _ => None,
        }
    }
}

/// Content of a memo entry in four bytes: a tag and a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cell(u32);

/// Maximum number next to a tag.
const NUMBERS: u32 = (1 << 29) - 1;

/// Content of a memo entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kept {
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

impl Cell {
    pub(super) const NOTHING: Self = Self(0);

    /// Returns `None` if the number is too large.
    pub(super) fn new(kept: Kept) -> Option<Self> {
        let (tag, number) = match kept {
            Kept::Nothing => (0, 0),
            Kept::Pending(number) => (1, number),
            Kept::Text(number) => (2, number),
            Kept::Frame(number) => (3, number),
            Kept::Site(number) => (4, number),
            Kept::Other(number) => (5, number),
            Kept::Ignored => (6, 0),
            Kept::Used => (7, 0),
        };
        (number <= NUMBERS).then_some(Self(tag << 29 | number))
    }

    #[inline(always)]
    pub(super) fn kept(self) -> Kept {
        let number = self.0 & NUMBERS;
        match self.0 >> 29 {
            0 => Kept::Nothing,
            1 => Kept::Pending(number),
            2 => Kept::Text(number),
            3 => Kept::Frame(number),
            4 => Kept::Site(number),
            5 => Kept::Other(number),
            6 => Kept::Ignored,
            _ => Kept::Used,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_small() {
        assert_eq!(size_of::<Value>(), 16);
        assert_eq!(size_of::<Cell>(), 4);
    }

    #[test]
    fn memo_cell_round_trips() {
        for kept in [
            Kept::Nothing,
            Kept::Pending(5),
            Kept::Text(0),
            Kept::Frame(NUMBERS),
            Kept::Site(7),
            Kept::Other(1),
            Kept::Ignored,
            Kept::Used,
        ] {
            assert_eq!(Cell::new(kept).map(Cell::kept), Some(kept));
        }
        assert_eq!(Cell::new(Kept::Text(NUMBERS + 1)), None);
    }
}
