//! ELF files: fields of headers, sections, symbols, and the content of single sections.

use super::fields::{self, Field};
use super::{Random, change_part};

/// A section: type, offset and size in the file.
struct Section {
    kind: u64,
    start: usize,
    bytes: usize,
}

/// Changes a field of a table, or bytes of one section.
pub fn elf(bytes: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    if !bytes.starts_with(b"\x7fELF") {
        return None;
    }
    let mut new = bytes.to_vec();
    let number = |at, width| Field::little(at, width).get(bytes);
    let table = |at: usize, entry: usize, count: usize| -> Option<(usize, usize)> {
        Some((
            usize::try_from(number(at, 8)?).ok()?,
            (number(count, 2)? as usize).min(bytes.len() / entry),
        ))
    };
    let (segments, segment_count) = table(32, 56, 56)?;
    let (headers, header_count) = table(40, 64, 60)?;
    let sections = sections(bytes, headers, header_count);
    match random.below(12) {
        0 => {
            let parts =
                [(4, 1), (5, 1), (16, 2), (18, 2), (24, 8), (32, 8), (40, 8), (54, 2), (56, 2)];
            let more = [(58, 2), (60, 2), (62, 2)];
            let parts: Vec<_> =
                parts.iter().chain(&more).map(|(at, width)| Field::little(*at, *width)).collect();
            fields::change(&mut new, &parts, random)?;
        }
        1 | 2 => {
            let at = segments.checked_add(random.below(segment_count) * 56)?;
            let parts = [(0, 4), (4, 4), (8, 8), (16, 8), (32, 8), (40, 8), (48, 8)];
            fields::change(
                &mut new,
                &parts.map(|(n, width)| Field::little(at.saturating_add(n), width)),
                random,
            )?;
        }
        3 | 4 => {
            let at = headers.checked_add(random.below(header_count) * 64)?;
            let parts = [
                (0, 4),
                (4, 4),
                (8, 8),
                (16, 8),
                (24, 8),
                (32, 8),
                (40, 4),
                (44, 4),
                (48, 8),
                (56, 8),
            ];
            fields::change(
                &mut new,
                &parts.map(|(n, width)| Field::little(at.saturating_add(n), width)),
                random,
            )?;
        }
        5 | 6 => {
            let symbols: Vec<_> = sections.iter().filter(|s| matches!(s.kind, 2 | 11)).collect();
            let section = random.one_of(&symbols)?;
            let at = section.start + random.below(section.bytes / 24) * 24;
            let parts = [(0, 4), (4, 1), (6, 2), (8, 8), (16, 8)];
            fields::change(
                &mut new,
                &parts.map(|(n, width)| Field::little(at.saturating_add(n), width)),
                random,
            )?;
        }
        _ => {
            let section = random.one_of(&sections)?;
            let content = new.get_mut(section.start..section.start + section.bytes)?;
            if random.below(2) == 0 {
                let widths: Vec<_> = (0..content.len()).map(|at| Field::little(at, 1)).collect();
                fields::change(content, &widths, random)?;
            } else {
                change_part(content, random);
            }
        }
    }
    Some(new)
}

/// Returns the sections with content.
fn sections(bytes: &[u8], headers: usize, count: usize) -> Vec<Section> {
    let section = |n: usize| {
        let at = headers.checked_add(n * 64)?;
        let number = |n, width| Field::little(at.checked_add(n)?, width).get(bytes);
        let kind = number(4, 4)?;
        let start = usize::try_from(number(24, 8)?).ok()?;
        let length = usize::try_from(number(32, 8)?).ok()?;
        // Section 8 has no bytes in the file.
        let inside = start.checked_add(length).is_some_and(|end| end <= bytes.len());
        (inside && length > 0 && kind != 8).then_some(Section { kind, start, bytes: length })
    };
    (0..count).filter_map(section).collect()
}
