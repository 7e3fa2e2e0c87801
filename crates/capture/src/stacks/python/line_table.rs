//! Resolves instructions to lines, with the three line table formats of Python.
//!
//! All formats list ranges of instructions. A table ends with its bytes, so any bytes are valid.

use super::layout::LineTableFormat;

/// Returns the line of the instruction at a byte offset; `None` if it has none. As in Python, an
/// offset before the first instruction is on the first line.
pub(super) fn line(
    format: LineTableFormat,
    table: &[u8],
    first_line: u32,
    offset: i64,
) -> Option<u32> {
    if offset < 0 {
        return Some(first_line);
    }
    let line = match format {
        LineTableFormat::Steps => steps(table, first_line.into(), offset),
        LineTableFormat::Ranges => ranges(table, first_line.into(), offset)?,
        LineTableFormat::Locations => locations(table, first_line.into(), offset)?,
    };
    u32::try_from(line).ok()
}

/// Pairs of a byte increment and a line increment. The last pair at or before the offset is used.
fn steps(table: &[u8], first: i64, offset: i64) -> i64 {
    let (mut at, mut line) = (0, first);
    for pair in table.as_chunks::<2>().0 {
        let [bytes, lines] = *pair;
        at += i64::from(bytes);
        if at > offset {
            break;
        }
        line += i64::from(lines.cast_signed());
    }
    line
}

/// Pairs of a length in bytes and a line increment, or no line.
fn ranges(table: &[u8], first: i64, offset: i64) -> Option<i64> {
    const NO_LINE: i8 = -128;
    let (mut end, mut line) = (0, first);
    for pair in table.as_chunks::<2>().0 {
        let [bytes, lines] = *pair;
        let lines = lines.cast_signed();
        end += i64::from(bytes);
        if lines != NO_LINE {
            line += i64::from(lines);
        }
        if offset < end {
            return (lines != NO_LINE).then_some(line);
        }
    }
    None
}

/// Entries that start with a byte whose highest bit is set: the length in units of 2 bytes, and the
/// format of the location. Columns are skipped.
fn locations(table: &[u8], first: i64, offset: i64) -> Option<i64> {
    let (mut end, mut line) = (0_i64, first);
    let mut rest = table;
    while let Some((&head, after)) = rest.split_first() {
        let length = after.iter().position(|b| b & 0x80 != 0).unwrap_or(after.len());
        let (body, next) = after.split_at_checked(length)?;
        rest = next;
        end += (i64::from(head & 7) + 1) * 2;
        let form = head >> 3 & 0xf;
        let step = match form {
            // The same line, with short or long columns.
            0..=9 => Some(0),
            10..=12 => Some(i64::from(form) - 10),
            13 | 14 => Some(signed(body)),
            _ => None,
        };
        line = line.saturating_add(step.unwrap_or(0));
        if offset < end {
            return step.map(|_| line);
        }
    }
    None
}

/// Decodes a number in groups of 6 bits, lowest first; bit 6 means that more follow. The lowest bit
/// of the result is the sign.
fn signed(bytes: &[u8]) -> i64 {
    let mut value = 0_u64;
    for (i, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x3f) << (6 * i);
        if byte & 0x40 == 0 {
            break;
        }
    }
    let size = (value >> 1).cast_signed();
    if value & 1 == 1 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_apply_from_their_instruction() {
        let table = [0, 1, 6, 2, 10, 0xff, 255, 127, 0, 127];
        let at = |offset| line(LineTableFormat::Steps, &table, 10, offset);
        assert_eq!(
            [at(-1), at(0), at(5), at(6), at(15)],
            [Some(10), Some(11), Some(11), Some(13), Some(13)]
        );
        assert_eq!(
            [at(16), at(270), at(271), at(9999)],
            [Some(12), Some(12), Some(266), Some(266)]
        );
    }

    #[test]
    fn ranges_can_have_no_line() {
        let table = [4, 1, 2, 0x80, 6, 0xfe, 0, 127, 2, 3];
        let at = |offset| line(LineTableFormat::Ranges, &table, 10, offset);
        assert_eq!(
            [at(-2), at(0), at(3), at(4), at(6)],
            [Some(10), Some(11), Some(11), None, Some(9)]
        );
        assert_eq!([at(12), at(13), at(14)], [Some(139), Some(139), None]);
    }

    #[test]
    fn locations_of_every_form() {
        // One unit on the line, two at +1, one without a line, one at -70, one at +1000.
        let table = [0x80, 0x00, 0xd9, 1, 2, 0xf8, 0xe8, 0x4d, 0x02, 0xf0, 0x50, 0x1f, 0, 1, 1];
        let at = |offset| line(LineTableFormat::Locations, &table, 100, offset);
        assert_eq!([at(-2), at(0), at(2), at(5)], [Some(100), Some(100), Some(101), Some(101)]);
        assert_eq!([at(6), at(8), at(10), at(12)], [None, Some(31), Some(1031), None]);
    }

    #[test]
    fn impossible_lines_are_none() {
        assert_eq!(line(LineTableFormat::Steps, &[0, 0x81], 1, 0), None);
        assert_eq!(
            line(
                LineTableFormat::Locations,
                &[0xe8, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f],
                1,
                0
            ),
            None
        );
        assert_eq!(line(LineTableFormat::Locations, &[0x7f; 64], 1, i64::MAX), None);
        assert_eq!(line(LineTableFormat::Ranges, &[], 1, 0), None);
    }
}
