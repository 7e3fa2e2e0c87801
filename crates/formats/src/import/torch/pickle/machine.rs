//! Pickle machine for opcodes of plain data only. Opcodes that would look up, call or build an
//! object are rejected by name.

use super::super::snapshot::builder::SnapshotBuilder;
use super::byte_window::ByteWindow;
use super::error::ReadError;
use super::memo::Memo;
use super::opcode;
use super::strings::MAX_STRING_BYTES;
use super::value::{MemoValue, NO_MEMO, OpenContainerRef, Value};

/// Maximum number of values on the stack. Known lists are flushed at once, others by their writers
/// every thousand items.
const MAX_STACK_VALUES: usize = 4 << 20;

/// Maximum nesting of lists and dictionaries.
const MAX_DEPTH: usize = 256;

/// Values of a full batch of a dictionary, as Python writes them.
const DICT_BATCH_VALUES: usize = 2000;

/// The stack, the memo, and the builder that interprets values.
pub(crate) struct PickleMachine<'m, 's> {
    pub(crate) input: ByteWindow<'m>,
    pub(crate) stack: Vec<Value>,
    marks: Vec<usize>,
    pub(crate) memo: Memo,
    pub(crate) builder: &'m mut SnapshotBuilder<'s>,
}

impl<'m, 's> PickleMachine<'m, 's> {
    pub(crate) fn new(input: ByteWindow<'m>, builder: &'m mut SnapshotBuilder<'s>) -> Self {
        Self { input, stack: Vec::new(), marks: Vec::new(), memo: Memo::default(), builder }
    }

    /// Runs to the end of the pickle; returns its value.
    pub(crate) fn run(mut self) -> Result<Value, ReadError> {
        loop {
            let opcode = match self.input.next_in_window() {
                Some(opcode) => opcode,
                None => {
                    self.builder.progress(self.input.offset());
                    let [opcode] = self.input.array()?;
                    opcode
                }
            };
            match opcode {
                b'h' => {
                    let [index] = self.input.array()?;
                    self.get(u32::from(index))?;
                }
                b'j' => {
                    let index = u32::from_le_bytes(self.input.array()?);
                    self.get(index)?;
                }
                0x94 => self.put(self.memo.next())?,
                b'(' => {
                    if self.marks.len() >= MAX_DEPTH {
                        return Err(self.broken("values are nested too deeply"));
                    }
                    if !self.match_entry()? {
                        self.marks.push(self.stack.len());
                    }
                }
                b'}' => self.push(Value::NewDict(NO_MEMO))?,
                b']' => self.push(Value::NewList(NO_MEMO))?,
                b'u' => self.set_items()?,
                b'e' => self.append_items()?,
                b'.' => {
                    let value = self.pop()?;
                    return self.finish(value);
                }
                _ => self.rare(opcode)?,
            }
        }
    }

    /// Handles opcodes that push one value, and less frequent ones.
    #[inline]
    fn rare(&mut self, opcode: u8) -> Result<(), ReadError> {
        match opcode {
            b'K' => self.input.array().and_then(|[byte]| self.push(Value::Int(i64::from(byte)))),
            b'M' => {
                let value = u16::from_le_bytes(self.input.array()?);
                self.push(Value::Int(i64::from(value)))
            }
            b'J' => {
                let value = i32::from_le_bytes(self.input.array()?);
                self.push(Value::Int(i64::from(value)))
            }
            0x8a => {
                let [length] = self.input.array()?;
                self.long(u64::from(length))
            }
            0x8c | b'U' => {
                let [length] = self.input.array()?;
                self.text(u64::from(length))
            }
            b'X' | b'T' => {
                let length = u32::from_le_bytes(self.input.array()?);
                self.text(u64::from(length))
            }
            0x8d => {
                let length = u64::from_le_bytes(self.input.array()?);
                self.text(length)
            }
            b'N' => self.push(Value::None),
            0x88 => self.push(Value::Bool(true)),
            0x89 => self.push(Value::Bool(false)),
            b'G' => {
                let value = f64::from_be_bytes(self.input.array()?);
                self.push(Value::Float(value))
            }
            b'q' => {
                let [index] = self.input.array()?;
                self.put(u32::from(index))
            }
            b'r' => {
                let index = u32::from_le_bytes(self.input.array()?);
                self.put(index)
            }
            b's' => self.set_item(),
            b'a' => self.append_item(),
            0x80 => self.protocol(),
            0x95 => self.frame(),
            _ => self.rarest(opcode),
        }
    }

    fn rarest(&mut self, opcode: u8) -> Result<(), ReadError> {
        match opcode {
            b')' => self.push(Value::Ignored),
            0x85..=0x87 => self.tuple_of(usize::from(opcode - 0x84)),
            b't' => {
                let count = self.stack.len().saturating_sub(self.mark()?);
                self.tuple_of(count)
            }
            b'l' | b'd' => {
                let new = if opcode == b'l' { Value::NewList } else { Value::NewDict };
                let mark = self.mark()?.min(self.stack.len());
                self.stack.insert(mark, new(NO_MEMO));
                self.marks.push(mark + 1);
                if opcode == b'l' { self.append_items() } else { self.set_items() }
            }
            b'0' => {
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                    return Ok(());
                }
                self.pop().map(drop)
            }
            b'1' => {
                let mark = self.mark()?;
                self.stack.truncate(mark);
                Ok(())
            }
            0x8b => {
                let length = u32::from_le_bytes(self.input.array()?);
                self.long(u64::from(length))
            }
            b'C' => {
                let [length] = self.input.array()?;
                self.bytes(u64::from(length))
            }
            b'B' => {
                let length = u32::from_le_bytes(self.input.array()?);
                self.bytes(u64::from(length))
            }
            0x8e | 0x96 => {
                let length = u64::from_le_bytes(self.input.array()?);
                self.bytes(length)
            }
            _ => Err(ReadError::rejected(
                format!("the pickle uses {} (0x{opcode:02x})", opcode::name(opcode)),
                self.input.offset().saturating_sub(1),
            )),
        }
    }

    fn protocol(&mut self) -> Result<(), ReadError> {
        match self.input.array()? {
            [0..=5] => Ok(()),
            [newer] => Err(ReadError::rejected(
                format!("the pickle has protocol {newer}; 2 to 5 are known"),
                self.input.offset().saturating_sub(1),
            )),
        }
    }

    fn frame(&mut self) -> Result<(), ReadError> {
        let length = u64::from_le_bytes(self.input.array()?);
        if length > self.input.remaining() {
            return Err(self.broken("the pickle ends before it is complete"));
        }
        Ok(())
    }

    fn text(&mut self, length: u64) -> Result<(), ReadError> {
        let strings = &mut self.builder.strings;
        let id = self.input.text(length, MAX_STRING_BYTES, |bytes| strings.id(bytes))?;
        let id = id.map_err(|_| self.broken("the pickle holds more text than a snapshot has"))?;
        self.push(Value::Text(id))
    }

    fn bytes(&mut self, length: u64) -> Result<(), ReadError> {
        self.input.text(length, 0, |_| ())?;
        self.push(Value::Ignored)
    }

    /// Reads a signed number of any length, lowest byte first.
    fn long(&mut self, length: u64) -> Result<(), ReadError> {
        let value = self.input.text(length, 16, |bytes| {
            let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
            let mut wide = [if negative { 0xff } else { 0 }; 16];
            wide.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            i128::from_le_bytes(wide)
        })?;
        self.push(if length > 16 {
            Value::Ignored
        } else if let Ok(value) = i64::try_from(value) {
            Value::Int(value)
        } else {
            u64::try_from(value).map_or(Value::Ignored, Value::Big)
        })
    }

    #[inline]
    pub(crate) fn push(&mut self, value: Value) -> Result<(), ReadError> {
        if self.stack.len() >= MAX_STACK_VALUES {
            return Err(self.broken("the pickle holds too many values at one time"));
        }
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Value, ReadError> {
        self.stack.pop().ok_or_else(|| self.broken("a value is missing"))
    }

    #[inline]
    fn mark(&mut self) -> Result<usize, ReadError> {
        self.marks.pop().ok_or_else(|| self.broken("the beginning of a group of values is missing"))
    }

    #[inline]
    fn get(&mut self, index: u32) -> Result<(), ReadError> {
        match self.memo.get(index) {
            Ok(value) => self.push(value),
            Err(memo_value) => self.get_slowly(index, memo_value),
        }
    }

    /// Returns a container that is still on the stack, and completes it: appending to it later
    /// would make it contain itself, and is rejected.
    fn get_slowly(&mut self, index: u32, memo_value: MemoValue) -> Result<(), ReadError> {
        match memo_value {
            MemoValue::Used => Err(self.broken("an entry, block or segment is used twice")),
            MemoValue::Pending(at) => {
                let here = self.stack.get(at as usize).copied();
                let open = here.filter(|value| memo_of(*value) == Some(index));
                let open = open.ok_or_else(|| self.broken("a value that was dropped is used"))?;
                let value = self.finish(open)?;
                if let Some(slot) = self.stack.get_mut(at as usize) {
                    *slot = value;
                }
                self.get(index)
            }
            _ => Err(self.broken(&format!("value {index} is used and was never kept"))),
        }
    }

    #[inline]
    fn put(&mut self, index: u32) -> Result<(), ReadError> {
        let at = self.stack.len().saturating_sub(1);
        let Some(top) = self.stack.last_mut() else {
            return Err(self.broken("a value is missing"));
        };
        let stored = match top {
            Value::NewDict(memo) | Value::NewList(memo) if *memo == NO_MEMO => {
                *memo = index;
                self.memo.pend(index, at)
            }
            Value::OpenDict(open) | Value::OpenList(open) if open.memo == NO_MEMO => {
                open.memo = index;
                self.memo.pend(index, at)
            }
            Value::NewDict(_) | Value::NewList(_) | Value::OpenDict(_) | Value::OpenList(_) => {
                let value = self.pop()?;
                let value = self.finish(value)?;
                self.stack.push(value);
                self.memo.put(index, value)
            }
            _ => self.memo.put(index, *top),
        };
        stored.map_err(|problem| self.broken(problem))
    }

    /// Completes a value: nothing can be added to it afterwards.
    #[inline]
    fn finish(&mut self, value: Value) -> Result<Value, ReadError> {
        match value {
            Value::NewDict(_) | Value::NewList(_) | Value::OpenDict(_) | Value::OpenList(_) => {
                self.finish_container(value)
            }
            _ => Ok(value),
        }
    }

    fn finish_container(&mut self, value: Value) -> Result<Value, ReadError> {
        let (finished, memo) = match value {
            Value::NewDict(memo) => (Value::Ignored, memo),
            Value::NewList(memo) => (Value::EmptyList, memo),
            Value::OpenDict(open) => (self.builder.close_dict(open.slot), open.memo),
            Value::OpenList(open) => (self.builder.close_list(open.slot), open.memo),
            _ => return Ok(value),
        };
        if memo != NO_MEMO {
            self.memo.put(memo, finished).map_err(|problem| self.broken(problem))?;
        }
        Ok(finished)
    }

    /// Completes all values from a stack index on.
    #[inline]
    fn finish_from(&mut self, from: usize) -> Result<(), ReadError> {
        for at in from..self.stack.len() {
            let Some(&value) = self.stack.get(at) else { break };
            if memo_of(value).is_some() {
                let finished = self.finish_container(value)?;
                if let Some(slot) = self.stack.get_mut(at) {
                    *slot = finished;
                }
            }
        }
        Ok(())
    }

    fn set_items(&mut self) -> Result<(), ReadError> {
        let mark = self.mark()?;
        self.finish_from(mark)?;
        let items = self.stack.get(mark..).unwrap_or_default();
        let dict = mark.checked_sub(1).and_then(|at| self.stack.get(at)).copied();
        let dict = match dict {
            // A full batch: more may follow.
            Some(Value::NewDict(memo)) if items.len() >= DICT_BATCH_VALUES => {
                let slot = self.builder.open_dict();
                self.builder.grow_dict(slot, items);
                Value::OpenDict(OpenContainerRef { slot, memo })
            }
            Some(Value::NewDict(memo)) => {
                let value = self.builder.dict(items);
                if memo != NO_MEMO {
                    self.memo.put(memo, value).map_err(|problem| self.broken(problem))?;
                }
                value
            }
            Some(value @ Value::OpenDict(open)) => {
                self.builder.grow_dict(open.slot, items);
                value
            }
            _ => return Err(self.broken("items are set of what is not a dictionary, or complete")),
        };
        self.stack.truncate(mark.saturating_sub(1));
        self.push_joined(dict)
    }

    /// Pushes a value. Consecutive items of the same kind share one stack entry.
    #[inline]
    pub(crate) fn push_joined(&mut self, value: Value) -> Result<(), ReadError> {
        let in_group = self.marks.last().is_none_or(|&mark| mark < self.stack.len());
        if let Value::Items(next) = value
            && in_group
            && let Some(Value::Items(run)) = self.stack.last_mut()
            && run.join(next)
        {
            return Ok(());
        }
        self.push(value)
    }

    fn set_item(&mut self) -> Result<(), ReadError> {
        let key = self.stack.len().saturating_sub(2);
        self.finish_from(key)?;
        let dict = key.checked_sub(1).and_then(|at| self.stack.get(at)).copied();
        let open = match dict {
            Some(Value::NewDict(memo)) => OpenContainerRef { slot: self.builder.open_dict(), memo },
            Some(Value::OpenDict(open)) => open,
            _ => return Err(self.broken("an item is set of what is not a dictionary, or complete")),
        };
        self.builder.grow_dict(open.slot, self.stack.get(key..).unwrap_or_default());
        self.stack.truncate(key - 1);
        self.push(Value::OpenDict(open))
    }

    fn append_items(&mut self) -> Result<(), ReadError> {
        let mark = self.mark()?;
        self.append_from(mark)
    }

    fn append_item(&mut self) -> Result<(), ReadError> {
        self.append_from(self.stack.len().saturating_sub(1))
    }

    fn append_from(&mut self, from: usize) -> Result<(), ReadError> {
        self.finish_from(from)?;
        let list = from.checked_sub(1).and_then(|at| self.stack.get(at)).copied();
        let open = match list {
            Some(Value::NewList(memo)) => OpenContainerRef { slot: self.builder.open_list(), memo },
            Some(Value::OpenList(open)) => open,
            _ => return Err(self.broken("items are added to what is not a list, or complete")),
        };
        self.builder.grow_list(open.slot, self.stack.get(from..).unwrap_or_default());
        self.stack.truncate(from - 1);
        self.push(Value::OpenList(open))
    }

    fn tuple_of(&mut self, count: usize) -> Result<(), ReadError> {
        let from = self.stack.len().checked_sub(count);
        let from = from.ok_or_else(|| self.broken("a value is missing"))?;
        self.finish_from(from)?;
        let value = self.builder.tuple(self.stack.get(from..).unwrap_or_default());
        self.stack.truncate(from);
        self.push(value)
    }

    #[cold]
    pub(crate) fn broken(&self, problem: &str) -> ReadError {
        ReadError::broken(problem, self.input.offset().saturating_sub(1))
    }
}

/// Returns the memo index of an incomplete container.
#[inline]
fn memo_of(value: Value) -> Option<u32> {
    match value {
        Value::NewDict(memo) | Value::NewList(memo) => Some(memo),
        Value::OpenDict(open) | Value::OpenList(open) => Some(open.memo),
        _ => None,
    }
}
