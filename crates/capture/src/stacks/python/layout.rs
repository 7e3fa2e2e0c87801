//! Layout of Python's structures by version: the fields that stack walks and symbols need.
//!
//! From 3.13 on the interpreter publishes it ([`super::debug_offsets`]). For older versions it is a
//! table, taken from the debug information of 3.9.18, 3.10.13, 3.11.7 and 3.12.1 and compared with
//! running processes.

use super::version::PythonVersion;
use crate::wire::{self, VS_NO_FIELD, VS_NONE, WirePython};

/// Frames with this owner or a higher one belong to the interpreter, since 3.12: they mark calls
/// from C. 3.12 and 3.13 have one such owner, 3.14 has two, 3.15 one again.
const OWNER_ENTRY: u8 = 3;
/// Higher than any owner.
const NO_OWNER: u8 = 255;

/// Layout of Python's structures; offsets in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PythonLayout {
    pub(super) version: PythonVersion,
    /// In the runtime: the first interpreter.
    pub(super) interpreters: u16,
    pub(super) interpreter_next: u16,
    pub(super) threads: u16,
    pub(super) thread_next: u16,
    pub(super) thread_interpreter: u16,
    pub(super) thread_id: u16,
    pub(super) thread_frame: u16,
    /// Offset of the frame in the structure that the thread points to; `None`: it points to the
    /// frame.
    pub(super) frame_of: Option<u16>,
    pub(super) frame_code: u16,
    pub(super) frame_instruction: u16,
    pub(super) frame_previous: u16,
    pub(super) entry: EntryFrameRule,
    pub(super) code_first_line: u16,
    pub(super) code_file: u16,
    /// The qualified name; before 3.11 the name.
    pub(super) code_name: u16,
    pub(super) code_lines: u16,
    pub(super) instruction: InstructionField,
    pub(super) lines: LineTableFormat,
    pub(super) object_type: u16,
    pub(super) bytes_size: u16,
    pub(super) bytes_data: u16,
    pub(super) text_length: u16,
    pub(super) text_state: u16,
    /// Offsets of the characters in ASCII strings and in others.
    pub(super) text_ascii: u16,
    pub(super) text_wide: u16,
}

/// How to detect frames that entered the interpreter from C.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EntryFrameRule {
    /// Every frame did.
    Every,
    /// A flag at this offset.
    Marked(u16),
    /// A separate shim frame, identified by the owner at this offset.
    Shim(u16),
}

/// How a frame stores its instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum InstructionField {
    /// As an index, in units of this many bytes.
    Number(i64),
    /// As an address; the instructions start at this offset in the code object.
    Address(u16),
}

/// Format of the line table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LineTableFormat {
    /// `co_lnotab`, up to 3.9.
    Steps,
    /// `co_linetable` of 3.10.
    Ranges,
    /// `co_linetable` since 3.11.
    Locations,
}

const V3_9: PythonLayout = PythonLayout {
    version: PythonVersion::three(9),
    interpreters: 32,
    interpreter_next: 0,
    threads: 8,
    thread_next: 8,
    thread_interpreter: 16,
    thread_id: 176,
    thread_frame: 24,
    frame_of: None,
    frame_code: 32,
    frame_instruction: 104,
    frame_previous: 24,
    entry: EntryFrameRule::Every,
    code_first_line: 40,
    code_file: 104,
    code_name: 112,
    code_lines: 120,
    instruction: InstructionField::Number(1),
    lines: LineTableFormat::Steps,
    object_type: 8,
    bytes_size: 16,
    bytes_data: 32,
    text_length: 16,
    text_state: 32,
    text_ascii: 48,
    text_wide: 72,
};

const V3_10: PythonLayout = PythonLayout {
    version: PythonVersion::three(10),
    frame_instruction: 96,
    instruction: InstructionField::Number(2),
    lines: LineTableFormat::Ranges,
    ..V3_9
};

const V3_11: PythonLayout = PythonLayout {
    version: PythonVersion::three(11),
    interpreters: 40,
    threads: 16,
    thread_id: 152,
    thread_frame: 56,
    frame_of: Some(8),
    frame_code: 32,
    frame_instruction: 56,
    frame_previous: 48,
    entry: EntryFrameRule::Marked(68),
    code_first_line: 72,
    code_file: 112,
    code_name: 128,
    code_lines: 136,
    instruction: InstructionField::Address(184),
    lines: LineTableFormat::Locations,
    ..V3_10
};

const V3_12: PythonLayout = PythonLayout {
    version: PythonVersion::three(12),
    threads: 72,
    thread_id: 136,
    frame_of: Some(0),
    frame_code: 0,
    frame_previous: 8,
    entry: EntryFrameRule::Shim(70),
    code_first_line: 68,
    instruction: InstructionField::Address(192),
    text_ascii: 40,
    text_wide: 56,
    ..V3_11
};

/// The first version that publishes its layout.
pub(super) const FIRST_WITH_DEBUG_OFFSETS: PythonVersion = PythonVersion::three(13);

/// Returns the layout of a version that does not publish it.
pub(super) fn of_version(version: PythonVersion) -> Option<PythonLayout> {
    [V3_9, V3_10, V3_11, V3_12].into_iter().find(|layout| layout.version == version)
}

impl PythonLayout {
    /// Returns the bytes of a frame that the probes read.
    pub(super) fn frame_bytes(&self) -> usize {
        if self.entry == EntryFrameRule::Every {
            wire::VS_PYTHON_FRAME_OBJECT
        } else {
            wire::VS_PYTHON_FRAME
        }
    }

    /// Returns the data for the probes, with the runtime at this address; `None` if a field is
    /// outside of the bytes that they read.
    pub(super) fn wire(&self, runtime: u64) -> Option<WirePython> {
        let bytes = self.frame_bytes();
        let code_from = self.code_first_line.min(self.code_name).min(self.code_lines) & !7;
        let in_code =
            |offset: u16, size: u8| field_index(offset - code_from, size, wire::VS_PYTHON_CODE);
        // Without shims the owner is the highest byte of a pointer, which is always 0.
        let (owner, owner_entry) = match self.entry {
            EntryFrameRule::Shim(owner) => (owner, OWNER_ENTRY),
            EntryFrameRule::Every | EntryFrameRule::Marked(_) => {
                (self.frame_previous.checked_add(7)?, NO_OWNER)
            }
        };
        // Fields of the session stay 0.
        let mut wire: WirePython = wire::parse(&[0; size_of::<WirePython>()])?;
        wire.interpreters = runtime.checked_add(self.interpreters.into())?;
        wire.interpreter_next = self.interpreter_next;
        wire.threads = self.threads;
        wire.thread_next = self.thread_next;
        wire.thread_id = self.thread_id;
        wire.thread_frame = self.thread_frame;
        wire.frame_of = self.frame_of.map_or(u16::try_from(VS_NO_FIELD).ok(), Some)?;
        wire.code_from = code_from;
        wire.version = self.version.wire();
        wire.frame_code = field_index(self.frame_code, 8, bytes)?;
        wire.frame_instruction = field_index(self.frame_instruction, 8, bytes)?;
        wire.frame_previous = field_index(self.frame_previous, 8, bytes)?;
        wire.frame_owner = field_index(owner, 1, bytes)?;
        wire.owner_entry = owner_entry;
        wire.frame_is_entry = match self.entry {
            EntryFrameRule::Marked(mark) => field_index(mark, 1, bytes)?,
            EntryFrameRule::Every | EntryFrameRule::Shim(_) => u8::try_from(VS_NONE).ok()?,
        };
        wire.every_is_entry = u8::from(self.entry == EntryFrameRule::Every);
        wire.code_name = in_code(self.code_name, 8)?;
        wire.code_lines = in_code(self.code_lines, 8)?;
        wire.code_first_line = in_code(self.code_first_line, 4)?;
        Some(wire)
    }
}

/// Returns an offset in units of the field's size; `None` if it is not a multiple, or beyond
/// `bytes`.
fn field_index(offset: u16, size: u8, bytes: usize) -> Option<u8> {
    let inside = usize::from(offset) + usize::from(size) <= bytes;
    let aligned = offset.is_multiple_of(u16::from(size));
    u8::try_from(offset / u16::from(size)).ok().filter(|_| inside && aligned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_offsets_are_in_units_of_the_field_size() {
        let wire = V3_9.wire(0x1000).unwrap();
        assert_eq!((wire.interpreters, wire.version), (0x1020, 0x0309));
        assert_eq!((wire.frame_code, wire.frame_previous, wire.frame_instruction), (4, 3, 13));
        assert_eq!((wire.every_is_entry, wire.frame_is_entry, wire.owner_entry), (1, 255, 255));
        assert_eq!(wire.frame_of, 65535);
        assert_eq!((wire.code_from, wire.code_first_line), (40, 0));
        assert_eq!((wire.code_name, wire.code_lines), (9, 10));
        let wire = V3_12.wire(0x1000).unwrap();
        assert_eq!((wire.frame_code, wire.frame_previous, wire.frame_instruction), (0, 1, 7));
        assert_eq!((wire.frame_owner, wire.owner_entry), (70, 3));
        assert_eq!((wire.every_is_entry, wire.frame_is_entry, wire.frame_of), (0, 255, 0));
        assert_eq!((wire.code_from, wire.code_first_line), (64, 1));
        assert_eq!((wire.code_name, wire.code_lines), (8, 9));
    }

    #[test]
    fn fields_outside_of_the_read_range_are_rejected() {
        let outside = PythonLayout { frame_instruction: 80, ..V3_12 };
        assert!(outside.wire(0).is_none());
        assert!(PythonLayout { frame_instruction: 72, ..V3_12 }.wire(0).is_some());
        assert!(PythonLayout { frame_instruction: 52, ..V3_12 }.wire(0).is_none());
        assert!(PythonLayout { entry: EntryFrameRule::Shim(80), ..V3_12 }.wire(0).is_none());
        assert!(PythonLayout { code_lines: 160, ..V3_12 }.wire(0).is_none());
        assert!(PythonLayout { frame_previous: u16::MAX, ..V3_9 }.wire(0).is_none());
        assert!(V3_12.wire(u64::MAX).is_none());
    }

    #[test]
    fn every_layout_has_a_recorded_process() {
        let images = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python_images");
        let names = std::fs::read_dir(images).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let minor = |name: String| name.strip_prefix("3.")?.strip_suffix(".image")?.parse().ok();
        let recorded: std::collections::BTreeSet<u8> = names.filter_map(minor).collect();
        let listed =
            (0..=u8::MAX).filter(|minor| of_version(PythonVersion::three(*minor)).is_some());
        // Later versions publish their layout.
        let needed = recorded.iter().copied().filter(|minor| *minor < 13);
        assert!(listed.eq(needed), "{recorded:?}");
    }
}
