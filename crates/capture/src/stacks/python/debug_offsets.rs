//! The debug offsets that Python publishes since 3.13 at the start of `_PyRuntime`: a cookie, the
//! version, and a list of offsets and sizes, which grows with each version.

use super::detect::PythonUnsupported;
use super::layout::{EntryFrameRule, InstructionField, LineTableFormat, PythonLayout};
use super::memory::{MemoryReader, u64_at};
use super::version::PythonVersion;

const COOKIE: &[u8; 8] = b"xdebugpy";

/// Indices into the list, in words from the cookie on. A size precedes the offsets that it bounds.
struct OffsetIndices {
    version: PythonVersion,
    runtime_size: usize,
    interpreters: usize,
    interpreter_size: usize,
    interpreter_next: usize,
    threads: usize,
    thread_size: usize,
    thread_next: usize,
    thread_interpreter: usize,
    thread_frame: usize,
    thread_id: usize,
    frame_size: usize,
    frame_previous: usize,
    frame_code: usize,
    frame_instruction: usize,
    frame_owner: usize,
    code_size: usize,
    code_file: usize,
    code_name: usize,
    code_lines: usize,
    code_first_line: usize,
    code_instructions: usize,
    object_type: usize,
    bytes_size: usize,
    text_size: usize,
}

const FREE_THREADED: usize = 2;

const V3_13: OffsetIndices = OffsetIndices {
    version: PythonVersion::three(13),
    runtime_size: 3,
    interpreters: 5,
    interpreter_size: 6,
    interpreter_next: 8,
    threads: 9,
    thread_size: 19,
    thread_next: 21,
    thread_interpreter: 22,
    thread_frame: 23,
    thread_id: 24,
    frame_size: 28,
    frame_previous: 29,
    frame_code: 30,
    frame_instruction: 31,
    frame_owner: 33,
    code_size: 34,
    code_file: 35,
    code_name: 37,
    code_lines: 38,
    code_first_line: 39,
    code_instructions: 43,
    object_type: 45,
    bytes_size: 64,
    text_size: 67,
};

const V3_14: OffsetIndices = OffsetIndices {
    version: PythonVersion::three(14),
    thread_size: 22,
    thread_next: 24,
    thread_interpreter: 25,
    thread_frame: 26,
    thread_id: 27,
    frame_size: 31,
    frame_previous: 32,
    frame_code: 33,
    frame_instruction: 34,
    frame_owner: 36,
    code_size: 39,
    code_file: 40,
    code_name: 42,
    code_lines: 43,
    code_first_line: 44,
    code_instructions: 48,
    object_type: 51,
    bytes_size: 74,
    text_size: 77,
    ..V3_13
};

const V3_15: OffsetIndices = OffsetIndices {
    version: PythonVersion::three(15),
    thread_id: 30,
    frame_size: 39,
    frame_previous: 40,
    frame_code: 41,
    frame_instruction: 42,
    frame_owner: 44,
    code_size: 47,
    code_file: 48,
    code_name: 50,
    code_lines: 51,
    code_first_line: 52,
    code_instructions: 56,
    object_type: 59,
    bytes_size: 86,
    text_size: 89,
    ..V3_14
};

/// Reads the layout from the runtime at this address; `None` if it publishes none.
pub(super) fn from_runtime(
    memory: &impl MemoryReader,
    runtime: u64,
) -> Result<Option<PythonLayout>, PythonUnsupported> {
    let head: [u8; 16] = memory.bytes(runtime).ok_or(PythonUnsupported::Unreadable)?;
    if !head.starts_with(COOKIE) {
        return Ok(None);
    }
    let hex = u64_at(&head, 8).unwrap_or_default();
    let version = PythonVersion::from_hex(hex).ok_or(PythonUnsupported::Implausible)?;
    let indices = [V3_13, V3_14, V3_15].into_iter().find(|indices| indices.version == version);
    let indices = indices.ok_or_else(|| PythonUnsupported::UnknownVersion(version.to_string()))?;
    // Up to the last index and the words after it.
    let length = (indices.text_size + 4) * 8;
    let list = memory.block(runtime, length, length).ok_or(PythonUnsupported::Unreadable)?;
    if u64_at(&list, FREE_THREADED * 8) != Some(0) {
        return Err(PythonUnsupported::FreeThreaded);
    }
    indices.layout(&list).ok_or(PythonUnsupported::Implausible).map(Some)
}

impl OffsetIndices {
    fn layout(&self, list: &[u8]) -> Option<PythonLayout> {
        let word = |index: usize| u64_at(list, index.checked_mul(8)?);
        // A field of this many bytes in a structure whose size is at index `size`.
        let field = |index: usize, bytes: u64, size: usize| {
            let offset = word(index)?;
            let end = offset.checked_add(bytes)?;
            u16::try_from(offset).ok().filter(|_| Some(end) <= word(size))
        };
        let pointer = |index: usize, size: usize| field(index, 8, size);
        let (bytes, text) = (self.bytes_size, self.text_size);
        let ascii = word(text + 3)?;
        // Without the pointer to characters in other memory.
        let wide = word(text)?.checked_sub(8)?;
        Some(PythonLayout {
            version: self.version,
            interpreters: pointer(self.interpreters, self.runtime_size)?,
            interpreter_next: pointer(self.interpreter_next, self.interpreter_size)?,
            threads: pointer(self.threads, self.interpreter_size)?,
            thread_next: pointer(self.thread_next, self.thread_size)?,
            thread_interpreter: pointer(self.thread_interpreter, self.thread_size)?,
            thread_id: pointer(self.thread_id, self.thread_size)?,
            thread_frame: pointer(self.thread_frame, self.thread_size)?,
            frame_of: None,
            frame_code: pointer(self.frame_code, self.frame_size)?,
            frame_instruction: pointer(self.frame_instruction, self.frame_size)?,
            frame_previous: pointer(self.frame_previous, self.frame_size)?,
            entry: EntryFrameRule::Shim(field(self.frame_owner, 1, self.frame_size)?),
            code_first_line: field(self.code_first_line, 4, self.code_size)?,
            code_file: pointer(self.code_file, self.code_size)?,
            code_name: pointer(self.code_name, self.code_size)?,
            code_lines: pointer(self.code_lines, self.code_size)?,
            instruction: InstructionField::Address(field(
                self.code_instructions,
                1,
                self.code_size,
            )?),
            lines: LineTableFormat::Locations,
            object_type: pointer(self.object_type, self.code_size)?,
            bytes_size: pointer(bytes + 1, bytes)?,
            bytes_data: field(bytes + 2, 1, bytes)?,
            text_length: pointer(text + 2, text)?,
            text_state: field(text + 1, 4, text)?,
            text_ascii: u16::try_from(ascii).ok().filter(|_| ascii <= wide)?,
            text_wide: u16::try_from(wide).ok()?,
        })
    }
}
