//! From an instruction to its line: the three tables that versions of Python have used.
//!
//! All of them list runs of instructions. They end with their bytes, so any bytes do.

use super::layout::Lines;

/// The line of the instruction at this offset, in bytes; `None` where it has none. An offset before
/// the first instruction is on the first line, as Python has it.
pub(super) fn line(how: Lines, table: &[u8], first_line: u32, offset: i64) -> Option<u32> {
    if offset < 0 {
        return Some(first_line);
    }
    let line = match how {
        Lines::Steps => steps(table, first_line.into(), offset),
        Lines::Ranges => ranges(table, first_line.into(), offset)?,
        Lines::Locations => locations(table, first_line.into(), offset)?,
    };
    u32::try_from(line).ok()
}

/// Pairs: so many bytes on, so many lines on. The last step at or before the offset counts.
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

/// Pairs: so many bytes have a line that is so many lines on, or none.
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

/// Entries that begin with a byte whose highest bit is set: how many units of 2 bytes, and how the
/// place is written. Columns are skipped.
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
            // One line, in few or more bytes of columns.
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

/// A number in pieces of 6 bits, lowest first; bit 6 says that more follow. The lowest bit of the
/// whole is the sign.
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
    fn steps_count_from_the_instruction_they_name() {
        let table = [0, 1, 6, 2, 10, 0xff, 255, 127, 0, 127];
        let at = |offset| line(Lines::Steps, &table, 10, offset);
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
    fn ranges_can_be_without_a_line() {
        let table = [4, 1, 2, 0x80, 6, 0xfe, 0, 127, 2, 3];
        let at = |offset| line(Lines::Ranges, &table, 10, offset);
        assert_eq!(
            [at(-2), at(0), at(3), at(4), at(6)],
            [Some(10), Some(11), Some(11), None, Some(9)]
        );
        assert_eq!([at(12), at(13), at(14)], [Some(139), Some(139), None]);
    }

    #[test]
    fn locations_of_every_form() {
        // A unit on the line, two a line on, one without, one 70 lines back, one 1000 on.
        let table = [0x80, 0x00, 0xd9, 1, 2, 0xf8, 0xe8, 0x4d, 0x02, 0xf0, 0x50, 0x1f, 0, 1, 1];
        let at = |offset| line(Lines::Locations, &table, 100, offset);
        assert_eq!([at(-2), at(0), at(2), at(5)], [Some(100), Some(100), Some(101), Some(101)]);
        assert_eq!([at(6), at(8), at(10), at(12)], [None, Some(31), Some(1031), None]);
    }

    #[test]
    fn lines_that_cannot_be_are_none() {
        assert_eq!(line(Lines::Steps, &[0, 0x81], 1, 0), None);
        assert_eq!(
            line(Lines::Locations, &[0xe8, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f], 1, 0),
            None
        );
        assert_eq!(line(Lines::Locations, &[0x7f; 64], 1, i64::MAX), None);
        assert_eq!(line(Lines::Ranges, &[], 1, 0), None);
    }
}
