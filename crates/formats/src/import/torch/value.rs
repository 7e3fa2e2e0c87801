//! What is on the stack and in the memo of the machine. Nothing is kept as a tree: a dictionary
//! becomes what it means as soon as it is complete, and a list becomes a run of such things.

use super::words::WordId;

/// No place in the memo.
pub(super) const NOWHERE: u32 = u32::MAX;

/// A value: 16 bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Value {
    /// Complete, and nothing that a snapshot needs.
    Ignored,
    /// No value.
    None,
    /// Yes or no.
    Bool(bool),
    /// A number.
    Int(i64),
    /// A number that needs the 64th bit.
    Big(u64),
    /// A number with a fraction.
    Float(f64),
    /// A text.
    Text(WordId),
    /// A dictionary without items so far, and its place in the memo.
    NewDict(u32),
    /// A list without items so far, and its place in the memo.
    NewList(u32),
    /// A dictionary that grows.
    OpenDict(Open),
    /// A list that grows.
    OpenList(Open),
    /// A complete list without items.
    EmptyList,
    /// A frame of a stack, by the number that the frames give it.
    Frame(u32),
    /// A complete list of frames.
    Site(u32),
    /// Complete dictionaries one after the other on the stack.
    Items(Run),
    /// A complete list of them.
    List(Run),
    /// A list of lists of entries.
    Traces(u32),
    /// A tuple of two numbers.
    Pair(u32),
    /// Settings of the allocator.
    Settings,
    /// How sizes are rounded.
    Divisions,
    /// The whole snapshot.
    Whole,
}

/// A container that grows: where its items are, and its place in the memo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Open {
    pub(super) slot: u32,
    pub(super) memo: u32,
}

/// Things that were complete one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) of: Thing,
    pub(super) first: u32,
    pub(super) count: u32,
}

/// What a run is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Thing {
    /// Entries of a trace.
    Entry,
    /// Blocks of a segment.
    Block,
    /// Segments.
    Segment,
    /// What torch 2.0 told of a block's past.
    Past,
}

impl Run {
    /// Takes `next` in, if it follows.
    #[inline]
    pub(super) fn join(&mut self, next: Self) -> bool {
        let follows = self.of == next.of && self.first.checked_add(self.count) == Some(next.first);
        if follows {
            self.count = self.count.saturating_add(next.count);
        }
        follows
    }

    /// The places of its things in their table.
    pub(super) fn range(self) -> std::ops::Range<usize> {
        let first = self.first as usize;
        first..first.saturating_add(self.count as usize)
    }
}

impl Value {
    /// A number that is not negative.
    #[inline]
    pub(super) fn number(self) -> Option<u64> {
        match self {
            Self::Int(value) => u64::try_from(value).ok(),
            Self::Big(value) => Some(value),
            _ => None,
        }
    }

    /// A pointer: writers differ in whether the highest bit is a sign.
    #[inline]
    pub(super) fn pointer(self) -> Option<u64> {
        match self {
            Self::Int(value) => Some(value.cast_unsigned()),
            Self::Big(value) => Some(value),
            _ => None,
        }
    }
}

/// What the memo keeps of a value, in four bytes: a tag and a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cell(u32);

/// The numbers that fit beside a tag.
const NUMBERS: u32 = (1 << 29) - 1;

/// What is in a cell of the memo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kept {
    /// Nothing was put there.
    Nothing,
    /// A container at this place of the stack, not complete when it was put there.
    Pending(u32),
    /// A text.
    Text(u32),
    /// A frame.
    Frame(u32),
    /// A list of frames.
    Site(u32),
    /// Something rare, by its place in a list of such things.
    Other(u32),
    /// What a snapshot does not need.
    Ignored,
    /// What was used up when it was complete.
    Used,
}

impl Cell {
    pub(super) const NOTHING: Self = Self(0);

    /// Fails if the number is too large.
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
    fn a_cell_gives_back_what_was_put_in() {
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
