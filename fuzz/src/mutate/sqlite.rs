//! SQLite files: values, headers of records, cells and pages.

use super::fields::{self, Field};
use super::{Random, change_part};

/// Changes one row, cell or page.
pub fn sqlite(bytes: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    if !bytes.starts_with(b"SQLite format 3\0") {
        return None;
    }
    let page = match Field::big(16, 2).get(bytes)? {
        1 => 65536,
        size => usize::try_from(size).ok()?,
    };
    let count = bytes.len().checked_div(page).filter(|count| *count > 0)?;
    let mut new = bytes.to_vec();
    match random.below(32) {
        0 => {
            let header = [16, 18, 20, 21, 22, 23].map(|at| Field::big(at, 1));
            let numbers = (6..25).map(|n| Field::big(n * 4, 4));
            let header: Vec<_> = header.into_iter().chain(numbers).collect();
            fields::change(&mut new, &header, random)?;
        }
        1 => {
            // Copies a page over another one, but not over the first, which has the header.
            let (from, to) = (random.below(count), 1 + random.below(count.saturating_sub(1)));
            let from = from * page;
            if to < count {
                new.copy_within(from..from + page, to * page);
            }
        }
        2 => change_part(&mut new, random),
        3 => change_page(&mut new, random.below(count) * page, page, random)?,
        _ => {
            let pages = data_pages(bytes, page, count);
            change_page(&mut new, *random.one_of(&pages)?, page, random)?;
        }
    }
    Some(new)
}

/// Returns the starts of pages with rows, without those of the schema: few changes of its statements
/// leave a table that is read.
fn data_pages(bytes: &[u8], page: usize, count: usize) -> Vec<usize> {
    let number = |at, width| Field::big(at, width).get(bytes).unwrap_or(0) as usize;
    // The first page is the root of the schema.
    let cells = number(103, 2).min(page / 2);
    let children = (0..cells).map(|n| number(number(112 + n * 2, 2), 4));
    let schema: Vec<usize> = children.chain([number(108, 4)]).collect();
    let is_data = |n: &usize| number(n * page, 1) == 0x0d && !schema.contains(&(n + 1));
    (1..count).filter(is_data).map(|n| n * page).collect()
}

fn change_page(data: &mut [u8], start: usize, page: usize, random: &mut Random) -> Option<()> {
    let header = if start == 0 { 100 } else { 0 };
    let at = start + header;
    let is_leaf = matches!(data.get(at)?, 0x0a | 0x0d);
    let cells = Field::big(at + 3, 2).get(data)? as usize;
    let first = at + if is_leaf { 8 } else { 12 };
    let pointers: Vec<_> = (0..cells.min(page / 2)).map(|n| Field::big(first + n * 2, 2)).collect();
    if random.below(10) == 0 {
        let widths = [(0, 1), (1, 2), (3, 2), (5, 2), (7, 1), (8, 4)];
        let parts: Vec<_> = widths.iter().map(|(n, width)| Field::big(at + n, *width)).collect();
        return fields::change(data, &parts, random);
    }
    if random.below(10) == 0 {
        return fields::change(data, &pointers, random);
    }
    let cell = random.one_of(&pointers)?.get(data)? as usize;
    let cell = start.checked_add(cell).filter(|_| cell < page)?;
    change_cell(data, cell, start + page, random)
}

/// Changes a value of a row of a table, or a number of its header.
fn change_cell(data: &mut [u8], cell: usize, end: usize, random: &mut Random) -> Option<()> {
    let (_, payload) = varint(data, cell)?;
    let (_, row) = varint(data, cell + payload)?;
    let record = cell + payload + row;
    let (header_bytes, mut at) = varint(data, record)?;
    let header_end = record.checked_add(usize::try_from(header_bytes).ok()?)?;
    let mut values = Vec::new();
    let mut value = header_end;
    while record + at < header_end && value < end {
        let (kind, length) = varint(data, record + at)?;
        let bytes = match kind {
            0 | 8 | 9 => 0,
            1..=4 => kind as usize,
            5 => 6,
            6 | 7 => 8,
            text => usize::try_from(text.checked_sub(12)? / 2).ok()?,
        };
        if bytes > 0 && value + bytes <= end {
            values.push(Field::big(value, bytes.min(8)));
        }
        value = value.checked_add(bytes)?;
        at += length;
    }
    match random.below(8) {
        0 => {
            let header: Vec<_> =
                (record..header_end.min(end)).map(|at| Field::big(at, 1)).collect();
            fields::change(data, &header, random)
        }
        1 => fields::change(data, &[Field::big(cell, 1), Field::big(cell + payload, 1)], random),
        _ => fields::change(data, &values, random),
    }
}

/// Returns a number and its length.
fn varint(data: &[u8], at: usize) -> Option<(u64, usize)> {
    let mut value = 0_u64;
    for length in 1..=9 {
        let byte = *data.get(at + length - 1)?;
        value = value << 7 | u64::from(byte & 0x7f);
        if byte < 0x80 {
            return Some((value, length));
        }
    }
    Some((value, 9))
}
