//! Symbolizes Python frames: names and lines, read from the code objects that the probes saw.

use std::sync::Arc;

use hashbrown::HashMap;

use engine::model::stack::{Frame, Language, UnknownReason};

use super::layout::{InstructionField, PythonLayout};
use super::line_table;
use super::memory::{MemoryReader, u32_at, u64_at};
use super::strings::{table, text};
use crate::wire::WirePythonFrame;

/// Maximum numbers of cached frames and code objects per process, and bytes of their line tables;
/// beyond them the cache is dropped.
const MAX_FRAMES: usize = 1 << 16;
const MAX_CODE_OBJECTS: usize = 1 << 14;
const MAX_LINE_TABLE_BYTES: usize = 16 << 20;

/// Maximum size of the fixed part of a code object.
const MAX_CODE_BYTES: usize = 4096;

/// Code objects of a process, and a bounded cache of symbolized frames.
pub(crate) struct PythonCode<M> {
    memory: M,
    layout: PythonLayout,
    codes: HashMap<CodeKey, Arc<CodeObject>>,
    bytes: usize,
    frames: HashMap<(CodeKey, u64), Option<Frame>>,
}

/// Identity of a code object. Addresses can be reused, so the fields that the probes read are part
/// of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct CodeKey {
    code: u64,
    name: u64,
    lines: u64,
    first_line: u32,
}

struct CodeObject {
    function: Result<Arc<str>, UnknownReason>,
    file: Option<Arc<str>>,
    lines: Vec<u8>,
    /// Code of the interpreter itself.
    internal: bool,
}

impl<M: MemoryReader> PythonCode<M> {
    pub(crate) fn new(layout: PythonLayout, memory: M) -> Self {
        Self { memory, layout, codes: HashMap::new(), bytes: 0, frames: HashMap::new() }
    }

    /// Symbolizes a frame; `None` for frames of the interpreter itself: marks of calls from C, and
    /// the frame below an `__init__`.
    pub(crate) fn frame(&mut self, found: &WirePythonFrame) -> Option<Frame> {
        if found.code == 0 {
            return None;
        }
        let key = CodeKey {
            code: found.code,
            name: found.name,
            lines: found.lines,
            first_line: found.first_line,
        };
        // A number is 4 bytes wide; the rest of its word is another field.
        let instruction = match self.layout.instruction {
            InstructionField::Number(_) => found.instruction & 0xffff_ffff,
            InstructionField::Address(_) => found.instruction,
        };
        if let Some(frame) = self.frames.get(&(key, instruction)) {
            return frame.clone();
        }
        let code = match self.code(key) {
            Ok(code) => code,
            Err(reason) => return Some(unknown(reason)),
        };
        let frame = self.resolved(key, &code, instruction);
        if self.frames.len() >= MAX_FRAMES {
            self.frames.clear();
        }
        self.frames.insert((key, instruction), frame.clone());
        frame
    }

    fn resolved(&self, key: CodeKey, code: &CodeObject, instruction: u64) -> Option<Frame> {
        if code.internal {
            return None;
        }
        let offset = match self.layout.instruction {
            // A signed 32-bit number, -1 before the first instruction.
            InstructionField::Number(unit) => i64::from((instruction as u32).cast_signed()) * unit,
            InstructionField::Address(begin) => {
                let begin = key.code.wrapping_add(begin.into());
                instruction.wrapping_sub(begin).cast_signed()
            }
        };
        let line = line_table::line(self.layout.lines, &code.lines, key.first_line, offset);
        Some(Frame {
            function: code.function.as_ref().map_or_else(|_| "".into(), Arc::clone),
            file: code.file.clone(),
            line: line.unwrap_or(0),
            module: None,
            language: Language::Python,
            unknown: code.function.as_ref().err().copied(),
        })
    }

    fn code(&mut self, key: CodeKey) -> Result<Arc<CodeObject>, UnknownReason> {
        if let Some(code) = self.codes.get(&key) {
            return Ok(Arc::clone(code));
        }
        let code = Arc::new(self.read(key)?);
        if self.codes.len() >= MAX_CODE_OBJECTS || self.bytes >= MAX_LINE_TABLE_BYTES {
            // Frames share the strings.
            self.frames.clear();
            self.codes.clear();
            self.bytes = 0;
        }
        self.bytes = self.bytes.saturating_add(code.size());
        self.codes.insert(key, Arc::clone(&code));
        Ok(code)
    }

    fn read(&self, key: CodeKey) -> Result<CodeObject, UnknownReason> {
        let layout = &self.layout;
        let end = layout.code_lines.max(layout.code_name).max(layout.code_file);
        let end = usize::from(end.max(layout.code_first_line)) + 8;
        let block =
            self.memory.block(key.code, end, MAX_CODE_BYTES).ok_or(UnknownReason::ProcessExited)?;
        let word = |offset: u16| u64_at(&block, offset.into());
        let same = word(layout.code_name) == Some(key.name)
            && word(layout.code_lines) == Some(key.lines)
            && u32_at(&block, layout.code_first_line.into()) == Some(key.first_line);
        let file = word(layout.code_file).filter(|_| same).ok_or(UnknownReason::ProcessExited)?;
        let function = text(&self.memory, layout, key.name);
        if function == Err(UnknownReason::ProcessExited) {
            return Err(UnknownReason::ProcessExited);
        }
        Ok(CodeObject {
            function: function.map(Arc::from),
            // Internal code has the same string as name and file.
            internal: file == key.name,
            file: text(&self.memory, layout, file).ok().map(Arc::from),
            lines: table(&self.memory, layout, key.lines).unwrap_or_default(),
        })
    }
}

impl CodeObject {
    fn size(&self) -> usize {
        let function = self.function.as_ref().map_or(0, |function| function.len());
        let file = self.file.as_ref().map_or(0, |file| file.len());
        function + file + self.lines.len()
    }
}

fn unknown(reason: UnknownReason) -> Frame {
    Frame { language: Language::Python, unknown: Some(reason), ..Frame::default() }
}
