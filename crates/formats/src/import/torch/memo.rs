//! The memo of a pickle: values that are used again.

use super::value::{Cell, Kept, Value};
use super::words::WordId;

/// Maximum distance of an index from the last one. Writers count up.
const AHEAD: usize = 1 << 16;

/// Maximum number of rare values; snapshots mostly share texts, frames and stacks.
const OTHERS: usize = 4 << 20;

/// Values by index.
#[derive(Default)]
pub(super) struct Memo {
    cells: Vec<Cell>,
    others: Vec<Value>,
    /// A complete value was overwritten: conclusions from indices no longer hold.
    pub(super) rewritten: bool,
}

impl Memo {
    /// Returns the next free index.
    #[inline]
    pub(super) fn next(&self) -> u32 {
        u32::try_from(self.cells.len()).unwrap_or(u32::MAX)
    }

    /// Returns the value at an index, or why there is none.
    #[inline(always)]
    pub(super) fn get(&self, index: u32) -> Result<Value, Kept> {
        match self.cells.get(index as usize).map_or(Kept::Nothing, |cell| cell.kept()) {
            Kept::Frame(frame) => Ok(Value::Frame(frame)),
            Kept::Text(id) => Ok(Value::Text(WordId(id))),
            Kept::Site(site) => Ok(Value::Site(site)),
            Kept::Ignored => Ok(Value::Ignored),
            Kept::Other(at) => self.others.get(at as usize).copied().ok_or(Kept::Nothing),
            kept => Err(kept),
        }
    }

    /// Stores a complete value.
    #[inline]
    pub(super) fn put(&mut self, index: u32, value: Value) -> Result<(), &'static str> {
        let kept = match value {
            Value::Text(id) => Kept::Text(id.0),
            Value::Frame(frame) => Kept::Frame(frame),
            Value::Site(site) => Kept::Site(site),
            Value::Ignored => Kept::Ignored,
            Value::Items(_) | Value::List(_) | Value::Traces(_) | Value::Whole => Kept::Used,
            _ => {
                if self.others.len() >= OTHERS {
                    return Err("too many values are kept");
                }
                self.others.push(value);
                Kept::Other(u32::try_from(self.others.len() - 1).unwrap_or(u32::MAX))
            }
        };
        self.keep(index, kept)
    }

    /// Stores the stack index of an incomplete container.
    #[inline]
    pub(super) fn pend(&mut self, index: u32, at: usize) -> Result<(), &'static str> {
        self.keep(index, Kept::Pending(u32::try_from(at).unwrap_or(u32::MAX)))
    }

    #[inline]
    fn keep(&mut self, index: u32, kept: Kept) -> Result<(), &'static str> {
        let cell = Cell::new(kept).ok_or("too many values are kept")?;
        let index = index as usize;
        if let Some(old) = self.cells.get_mut(index) {
            self.rewritten |= !matches!(old.kept(), Kept::Pending(_) | Kept::Nothing);
            *old = cell;
            return Ok(());
        }
        if index - self.cells.len() > AHEAD {
            return Err("a value is kept far from all others");
        }
        self.cells.resize(index, Cell::NOTHING);
        self.cells.push(cell);
        Ok(())
    }
}
