//! Reads Python `str` and `bytes` objects.

use super::layout::PythonLayout;
use super::memory::{MemoryReader, u32_at, u64_at};
use engine::model::stack::UnknownReason;

/// Maximum number of characters read of a string; the rest becomes `…`.
const MAX_STRING_CHARS: usize = 4096;

/// Maximum size of a line table.
const MAX_LINE_TABLE_BYTES: usize = 1 << 20;

/// Maximum size of an object's header.
const OBJECT_HEADER_BYTES: usize = 64;

/// Reads a compact `str`, the usual form: its characters follow its header.
pub(super) fn text(
    memory: &impl MemoryReader,
    layout: &PythonLayout,
    at: u64,
) -> Result<String, UnknownReason> {
    const COMPACT: u32 = 1 << 5;
    const ASCII: u32 = 1 << 6;
    let end = layout.text_ascii.max(8);
    let head =
        memory.block(at, end.into(), OBJECT_HEADER_BYTES).ok_or(UnknownReason::ProcessExited)?;
    let invalid = UnknownReason::UnsupportedInterpreter;
    let length = u64_at(&head, layout.text_length.into()).ok_or(invalid)?;
    let state = u32_at(&head, layout.text_state.into()).ok_or(invalid)?;
    let (ascii, kind) = (state & ASCII != 0, state >> 2 & 7);
    if state & COMPACT == 0 || !matches!(kind, 1 | 2 | 4) || (ascii && kind != 1) {
        return Err(invalid);
    }
    let from = if ascii { layout.text_ascii } else { layout.text_wide };
    let chars = usize::try_from(length).unwrap_or(usize::MAX).min(MAX_STRING_CHARS);
    let bytes = chars * kind as usize;
    let from = at.checked_add(from.into()).ok_or(invalid)?;
    let data =
        memory.block(from, bytes, 4 * MAX_STRING_CHARS).ok_or(UnknownReason::ProcessExited)?;
    let mut text: String = match kind {
        1 if ascii => data.iter().map(|&b| if b < 128 { b.into() } else { '\u{fffd}' }).collect(),
        1 => data.iter().map(|&b| char::from(b)).collect(),
        2 => data.as_chunks().0.iter().map(|&b| character(u16::from_le_bytes(b).into())).collect(),
        _ => data.as_chunks().0.iter().map(|&b| character(u32::from_le_bytes(b))).collect(),
    };
    if length > MAX_STRING_CHARS as u64 {
        text.push('…');
    }
    Ok(text)
}

/// Converts a code point. Python strings can contain lone surrogates, for file names that are not
/// UTF-8.
fn character(code: u32) -> char {
    char::from_u32(code).unwrap_or('\u{fffd}')
}

/// Reads the line table in a `bytes` object.
pub(super) fn table(memory: &impl MemoryReader, layout: &PythonLayout, at: u64) -> Option<Vec<u8>> {
    let length = usize::try_from(memory.word_at(at, layout.bytes_size)?).ok()?;
    memory.block(at.checked_add(layout.bytes_data.into())?, length, MAX_LINE_TABLE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::python::layout::of_version;
    use crate::stacks::python::version::PythonVersion;

    struct Bytes(Vec<u8>);

    impl MemoryReader for Bytes {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            let from = usize::try_from(address).unwrap();
            let found = self.0.get(from..).and_then(|rest| rest.get(..into.len()));
            found.map(|found| into.copy_from_slice(found)).is_some()
        }
    }

    fn layout() -> PythonLayout {
        of_version(PythonVersion::three(12)).unwrap()
    }

    fn string(length: u64, state: u32, skip: usize, data: &[u8]) -> Bytes {
        let mut bytes = vec![0; 40 + skip];
        bytes[16..24].copy_from_slice(&length.to_le_bytes());
        bytes[32..36].copy_from_slice(&state.to_le_bytes());
        bytes.extend_from_slice(data);
        Bytes(bytes)
    }

    fn read(memory: &Bytes) -> Result<String, UnknownReason> {
        text(memory, &layout(), 0)
    }

    #[test]
    fn strings_of_every_width_are_read() {
        assert_eq!(read(&string(3, 0x64, 0, b"abc")).as_deref(), Ok("abc"));
        assert_eq!(read(&string(2, 0x24, 16, b"\xe4\xff")).as_deref(), Ok("äÿ"));
        assert_eq!(read(&string(2, 0x28, 16, &[0x3f, 4, 0, 0xdc])).as_deref(), Ok("п\u{fffd}"));
        assert_eq!(read(&string(1, 0x30, 16, &[0, 0, 2, 0])).as_deref(), Ok("𠀀"));
        assert_eq!(read(&string(1, 0x30, 16, &[0, 0, 2, 9])).as_deref(), Ok("\u{fffd}"));
        assert_eq!(read(&string(0, 0x64, 0, b"")).as_deref(), Ok(""));
    }

    #[test]
    fn long_string_is_truncated() {
        let truncated = read(&string(5000, 0x64, 0, &[b'n'; 5000])).unwrap();
        assert_eq!(truncated, "n".repeat(4096) + "…");
        assert_eq!(read(&string(u64::MAX, 0x64, 0, &[b'n'; 4096])).unwrap(), truncated);
    }

    #[test]
    fn invalid_strings_are_rejected() {
        // Not compact, an invalid kind, ASCII of an impossible width, and too few bytes.
        for state in [0x44, 0x20, 0x2c, 0x3c, 0x68] {
            assert_eq!(
                read(&string(3, state, 16, b"abcdefghijklmnop")),
                Err(UnknownReason::UnsupportedInterpreter)
            );
        }
        assert_eq!(read(&string(4, 0x64, 0, b"abc")), Err(UnknownReason::ProcessExited));
        assert_eq!(read(&Bytes(vec![0; 39])), Err(UnknownReason::ProcessExited));
    }

    #[test]
    fn line_table_above_the_limit_is_not_read() {
        let mut bytes = vec![0; 32 + (1 << 20) + 1];
        bytes[16..24].copy_from_slice(&(1_u64 << 20).to_le_bytes());
        assert_eq!(table(&Bytes(bytes.clone()), &layout(), 0).unwrap().len(), 1 << 20);
        bytes[16..24].copy_from_slice(&((1_u64 << 20) + 1).to_le_bytes());
        assert_eq!(table(&Bytes(bytes), &layout(), 0), None);
    }
}
