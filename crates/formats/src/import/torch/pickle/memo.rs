//! The memo of a pickle: values that are used again.

use super::strings::StringId;
use super::value::{MemoCell, MemoValue, Value};

/// Maximum distance of an index from the last one. Writers count up.
const MAX_MEMO_GAP: usize = 1 << 16;

/// Maximum number of rare values; snapshots mostly share texts, frames and stacks.
const MAX_RARE_VALUES: usize = 4 << 20;

/// Values by index.
#[derive(Default)]
pub(crate) struct Memo {
    cells: Vec<MemoCell>,
    others: Vec<Value>,
    /// A complete value was overwritten: conclusions from indices no longer hold.
    pub(crate) rewritten: bool,
}

impl Memo {
    /// Returns the next free index.
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        u32::try_from(self.cells.len()).unwrap_or(u32::MAX)
    }

    /// Returns the value at an index, or why it is missing.
    #[inline(always)]
    pub(crate) fn get(&self, index: u32) -> Result<Value, MemoValue> {
        match self.cells.get(index as usize).map_or(MemoValue::Nothing, |cell| cell.value()) {
            MemoValue::Frame(frame) => Ok(Value::Frame(frame)),
            MemoValue::Text(id) => Ok(Value::Text(StringId(id))),
            MemoValue::Site(site) => Ok(Value::Site(site)),
            MemoValue::Ignored => Ok(Value::Ignored),
            MemoValue::Other(at) => self.others.get(at as usize).copied().ok_or(MemoValue::Nothing),
            other => Err(other),
        }
    }

    /// Stores a complete value.
    #[inline]
    pub(crate) fn put(&mut self, index: u32, value: Value) -> Result<(), &'static str> {
        let memo_value = match value {
            Value::Text(id) => MemoValue::Text(id.0),
            Value::Frame(frame) => MemoValue::Frame(frame),
            Value::Site(site) => MemoValue::Site(site),
            Value::Ignored => MemoValue::Ignored,
            Value::Items(_) | Value::List(_) | Value::Traces(_) | Value::Snapshot => {
                MemoValue::Used
            }
            _ => {
                if self.others.len() >= MAX_RARE_VALUES {
                    return Err("too many values are kept");
                }
                self.others.push(value);
                MemoValue::Other(u32::try_from(self.others.len() - 1).unwrap_or(u32::MAX))
            }
        };
        self.keep(index, memo_value)
    }

    /// Stores the stack index of an incomplete container.
    #[inline]
    pub(crate) fn pend(&mut self, index: u32, at: usize) -> Result<(), &'static str> {
        self.keep(index, MemoValue::Pending(u32::try_from(at).unwrap_or(u32::MAX)))
    }

    #[inline]
    fn keep(&mut self, index: u32, memo_value: MemoValue) -> Result<(), &'static str> {
        let cell = MemoCell::new(memo_value).ok_or("too many values are kept")?;
        let index = index as usize;
        if let Some(old) = self.cells.get_mut(index) {
            self.rewritten |= !matches!(old.value(), MemoValue::Pending(_) | MemoValue::Nothing);
            *old = cell;
            return Ok(());
        }
        if index - self.cells.len() > MAX_MEMO_GAP {
            return Err("a value is kept far from all others");
        }
        self.cells.resize(index, MemoCell::NOTHING);
        self.cells.push(cell);
        Ok(())
    }
}
