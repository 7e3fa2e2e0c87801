//! Fast path for entries of traces and lists of frames, which are most of a file and written in few
//! forms. They are matched as a whole in the bytes ahead; everything else is read by opcode.

use super::super::pickle::error::ReadError;
use super::super::pickle::machine::PickleMachine;
use super::super::pickle::memo::Memo;
use super::super::pickle::strings::{KnownString, StringTable};
use super::super::pickle::value::{NO_MEMO, OpenContainerRef, Value};
use super::builder::SnapshotBuilder;
use super::entry::{self, EntryFields};
use super::stack_cache;

/// Maximum number of memoized values of one entry.
const MAX_PENDING_VALUES: usize = 8;

/// An entry read in advance. It has no effect before it is complete.
struct PendingEntry {
    entry: EntryFields,
    /// Length in bytes.
    length: usize,
    memoized: [Value; MAX_PENDING_VALUES],
    memoized_count: usize,
}

impl PickleMachine<'_, '_> {
    /// Reads the content of a group as a whole if its form is known: the items of a list of frames,
    /// or an entry. Returns whether it did; otherwise nothing was consumed.
    #[inline]
    pub(crate) fn match_entry(&mut self) -> Result<bool, ReadError> {
        match self.stack.last() {
            Some(&Value::NewList(memo)) => self.known_stack(memo),
            Some(&Value::NewDict(memo)) => self.entry_ahead(memo),
            _ => Ok(false),
        }
    }

    fn known_stack(&mut self, memo: u32) -> Result<bool, ReadError> {
        let Some(list) = stack_cache::list_of_references(self.input.ahead()) else {
            return Ok(false);
        };
        let Some(site) = site_of_list(list, self.builder, &mut self.memo) else { return Ok(false) };
        // The list and its end.
        let length = list.len() + 1;
        self.input.advance(length);
        self.stack.pop();
        let slot = self.builder.open_known(site);
        self.push(Value::OpenList(OpenContainerRef { slot, memo })).map(|()| true)
    }

    fn entry_ahead(&mut self, memo: u32) -> Result<bool, ReadError> {
        let mut pending = PendingEntry {
            entry: EntryFields::default(),
            length: 0,
            memoized: [Value::None; MAX_PENDING_VALUES],
            memoized_count: 0,
        };
        if pending.read(self.input.ahead(), self.builder, &mut self.memo).is_none() {
            return Ok(false);
        }
        self.input.advance(pending.length);
        self.stack.pop();
        let value = entry::keep(self.builder, &pending.entry);
        for &value in pending.memoized.iter().take(pending.memoized_count) {
            let index = self.memo.next();
            self.memo.put(index, value).map_err(|problem| self.broken(problem))?;
        }
        if memo != NO_MEMO {
            self.memo.put(memo, value).map_err(|problem| self.broken(problem))?;
        }
        self.push_joined(value).map(|()| true)
    }
}

fn site_of_list(list: &[u8], builder: &mut SnapshotBuilder<'_>, memo: &mut Memo) -> Option<u32> {
    if std::mem::take(&mut memo.rewritten) {
        builder.stack_cache.clear();
    }
    builder.stack_cache.get(list).or_else(|| builder.add_stack(list, memo))
}

impl PendingEntry {
    /// Reads keys and values up to the end of the entry. Returns `None` for any other form, or if
    /// the window ends.
    fn read(
        &mut self,
        bytes: &[u8],
        builder: &mut SnapshotBuilder<'_>,
        memo: &mut Memo,
    ) -> Option<()> {
        loop {
            let rest = bytes.get(self.length..)?;
            if self.length > 0 && rest.first() == Some(&b'u') {
                self.length += 1;
                return Some(());
            }
            let (Value::Text(key), used) = reference(rest, memo)? else { return None };
            let word = KnownString::of(key);
            // An entry starts with its action; other dictionaries do not.
            if self.length == 0 && word != Some(KnownString::Action) {
                return None;
            }
            let (value, length) = self.value(rest.get(used..)?, builder, memo)?;
            self.length += used + length;
            if let Some(word) = word {
                self.entry.set(word, value);
            }
        }
    }

    /// Returns a value and its length in bytes.
    #[inline]
    fn value(
        &mut self,
        rest: &[u8],
        builder: &mut SnapshotBuilder<'_>,
        memo: &mut Memo,
    ) -> Option<(Value, usize)> {
        match *rest {
            [b'h' | b'j', ..] => reference(rest, memo),
            [b'K', byte, ..] => Some((Value::Int(i64::from(byte)), 2)),
            [b'M', a, b, ..] => Some((Value::Int(i64::from(u16::from_le_bytes([a, b]))), 3)),
            [b'J', a, b, c, d, ..] => {
                Some((Value::Int(i64::from(i32::from_le_bytes([a, b, c, d]))), 5))
            }
            [0x8a, length @ 1..=8, ..] => long(rest.get(2..)?, usize::from(length)),
            [0x8c, length, ..] => self.text(rest, usize::from(length), &mut builder.strings),
            [b']', 0x94, b'(', ref list @ ..] => {
                let list = stack_cache::list_of_references(list)?;
                let site = Value::Site(site_of_list(list, builder, memo)?);
                // A longer list may continue in another batch.
                let length = 3 + list.len() + 1;
                self.memoize(site)?;
                (!matches!(rest.get(length)?, b'(' | b'a')).then_some((site, length))
            }
            _ => None,
        }
    }

    /// Reads a short text that is memoized.
    #[inline]
    fn text(
        &mut self,
        rest: &[u8],
        length: usize,
        strings: &mut StringTable,
    ) -> Option<(Value, usize)> {
        let text = rest.get(2..2 + length)?;
        if rest.get(2 + length) != Some(&0x94) {
            return None;
        }
        let value = Value::Text(strings.id(text).ok()?);
        self.memoize(value)?;
        Some((value, 3 + length))
    }

    #[inline]
    fn memoize(&mut self, value: Value) -> Option<()> {
        *self.memoized.get_mut(self.memoized_count)? = value;
        self.memoized_count += 1;
        Some(())
    }
}

/// Returns a memoized value, and the length of the reference in bytes.
#[inline]
fn reference(rest: &[u8], memo: &Memo) -> Option<(Value, usize)> {
    let (index, used) = match *rest {
        [b'j', a, b, c, d, ..] => (u32::from_le_bytes([a, b, c, d]), 5),
        [b'h', index, ..] => (u32::from(index), 2),
        _ => return None,
    };
    memo.get(index).ok().map(|value| (value, used))
}

/// Reads a signed number of up to eight bytes.
#[inline]
fn long(bytes: &[u8], length: usize) -> Option<(Value, usize)> {
    let wide = u64::from_le_bytes(*bytes.first_chunk::<8>()?);
    let unused = 64 - 8 * u32::try_from(length).ok()?;
    Some((Value::Int((wide << unused).cast_signed() >> unused), 2 + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_length_keep_their_sign() {
        let bytes = |value: i64| value.to_le_bytes();
        for (value, length) in
            [(0, 1), (-1, 1), (127, 1), (-128, 1), (128, 2), (-129, 2), (i64::MIN, 8)]
        {
            let mut wide = bytes(value).to_vec();
            wide.iter_mut().skip(length).for_each(|byte| *byte = 0x5a);
            assert_eq!(long(&wide, length), Some((Value::Int(value), 2 + length)));
        }
        assert_eq!(long(&[1, 2, 3], 2), None);
    }
}
