//! Records of SQLite's file format: a header of serial types, then the values. Every offset is
//! checked; inconsistent records are `None`, and the caller falls back to SQLite.

/// Requested values of one row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordRow<'a, const N: usize> {
    /// Integers; 0 if missing.
    pub(crate) values: [i64; N],
    /// Bit set of columns without a value.
    pub(crate) null: u32,
    /// Bit set of columns with a value that is not an integer.
    pub(crate) wrong: u32,
    /// Text of the last requested column, if it contains one.
    pub(crate) text: &'a [u8],
}

impl<const N: usize> RecordRow<'_, N> {
    /// A row without values.
    pub(crate) const EMPTY: Self = Self { values: [0; N], null: u32::MAX, wrong: 0, text: &[] };

    /// Returns the integer of a column; `None` if missing.
    #[inline]
    pub(crate) fn int(&self, column: usize) -> Option<i64> {
        let absent = (self.null | self.wrong) & (1 << column) != 0;
        if absent { None } else { self.values.get(column).copied() }
    }
}

/// A column of the table that was not requested.
pub(crate) const SKIPPED_COLUMN: u8 = u8::MAX;

/// Returns the value and the length of a variable-length integer.
#[inline]
pub(crate) fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    if first < 0x80 { Some((u64::from(first), 1)) } else { long_varint(bytes) }
}

fn long_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let mut value = u64::from(first & 0x7f);
    let mut i = 1;
    while i < 8 {
        let byte = *bytes.get(i)?;
        i += 1;
        value = value << 7 | u64::from(byte & 0x7f);
        if byte < 0x80 {
            return Some((value, i));
        }
    }
    Some((value << 8 | u64::from(*bytes.get(8)?), 9))
}

/// Returns the length of a value in the body of a record.
#[inline]
fn length(serial: u64) -> Option<usize> {
    const SHORT: [u8; 10] = [0, 1, 2, 3, 4, 6, 8, 8, 0, 0];
    match serial {
        0..=9 => Some(SHORT[serial as usize] as usize),
        10 | 11 => None,
        _ => usize::try_from((serial - 12) / 2).ok(),
    }
}

/// Returns the big-endian integer of `length` (1 to 8) bytes at `at`.
#[inline]
fn integer(record: &[u8], at: usize, length: usize) -> Option<i64> {
    let rest = record.get(at..)?;
    if let Some(eight) = rest.first_chunk() {
        return Some(i64::from_be_bytes(*eight) >> (64 - 8 * length as u32));
    }
    let bytes = rest.get(..length)?;
    let mut value = if *bytes.first()? >= 0x80 { -1_i64 } else { 0 };
    for &byte in bytes {
        value = value << 8 | i64::from(byte);
    }
    Some(value)
}

/// Decodes the requested values of a record; `positions` has the position in the row for each
/// column of the table.
#[inline]
pub(crate) fn decode<'a, const N: usize>(
    record: &'a [u8],
    positions: &[u8],
) -> Option<RecordRow<'a, N>> {
    let (header, mut at) = varint(record)?;
    let header = usize::try_from(header).ok()?;
    let serials = record.get(..header)?;
    let mut body = header;
    let mut row = RecordRow { values: [0; N], null: u32::MAX, wrong: 0, text: &[] };
    for &position in positions {
        // A row from before a column was added has fewer values.
        let Some(&short) = serials.get(at) else { break };
        let (serial, width) =
            if short < 0x80 { (u64::from(short), 1) } else { varint(serials.get(at..)?)? };
        at += width;
        let length = length(serial)?;
        if position != SKIPPED_COLUMN {
            let bit = 1_u32 << position;
            let slot = row.values.get_mut(position as usize)?;
            match serial {
                0 => {}
                1..=6 => {
                    *slot = integer(record, body, length)?;
                    row.null &= !bit;
                }
                8 | 9 => {
                    *slot = i64::from(serial == 9);
                    row.null &= !bit;
                }
                _ => {
                    row.null &= !bit;
                    row.wrong |= bit;
                    let bytes = record.get(body..body.checked_add(length)?)?;
                    if serial >= 13 && serial % 2 == 1 && usize::from(position) + 1 == N {
                        row.text = bytes;
                    }
                }
            }
        }
        body = body.checked_add(length)?;
    }
    Some(row)
}

/// Positions of values in records with the same header. Rows of a table have few different headers,
/// so most rows need only this.
#[derive(Clone, Copy, Debug)]
struct RecordLayout<const N: usize> {
    /// Header, which starts with its own length; all ones in an unused layout.
    header: HeaderBytes,
    /// Length of the needed part of the record.
    needed: usize,
    /// Columns whose value is encoded in the header: a bit for each, and a bit for each 1.
    constant: u32,
    ones: u32,
    null: u32,
    /// Integers: column, offset of the eight bytes that end with it, and number of bits to cut off.
    integers: [(u8, u16, u8); N],
    count: usize,
}

/// Maximum length of a cached header; longer ones are decoded without a layout.
const MAX_CACHED_HEADER: usize = 32;

/// Header as numbers, which are faster to compare than bytes.
type HeaderBytes = [u64; MAX_CACHED_HEADER / 8];

/// Maximum number of cached layouts.
const MAX_LAYOUTS: usize = 256;

/// Cached layouts of a table.
#[derive(Debug)]
pub(crate) struct LayoutCache<'p, const N: usize> {
    positions: &'p [u8],
    known: Vec<RecordLayout<N>>,
}

impl<'p, const N: usize> LayoutCache<'p, N> {
    pub(crate) fn new(positions: &'p [u8]) -> Self {
        let unused = RecordLayout {
            header: [u64::MAX; 4],
            needed: 0,
            constant: 0,
            ones: 0,
            null: 0,
            integers: [(0, 0, 0); N],
            count: 0,
        };
        Self { positions, known: vec![unused; MAX_LAYOUTS] }
    }

    /// Decodes the requested values of a record, like [`decode`]. Values of columns without one are
    /// left unchanged. The record is the first `length` bytes; more may follow it.
    #[inline]
    pub(crate) fn decode<'a>(
        &mut self,
        bytes: &'a [u8],
        length: usize,
        row: &mut RecordRow<'a, N>,
    ) -> Option<()> {
        let record = bytes.get(..length)?;
        let length = usize::from(*record.first()?);
        let Some(mask) = MASKS.get(length) else { return self.decode_new(record, row) };
        let header = header(bytes, mask);
        let layout = self.known.get(slot(&header))?;
        if layout.header != header {
            return self.decode_new(record, row);
        }
        let body = record.get(..layout.needed)?;
        (row.null, row.wrong, row.text) = (layout.null, 0, &[]);
        for &(position, begin, cut) in layout.integers.get(..layout.count)? {
            let eight = body.get(usize::from(begin)..)?.first_chunk()?;
            *row.values.get_mut(usize::from(position))? = i64::from_be_bytes(*eight) << cut >> cut;
        }
        let mut constant = layout.constant;
        while constant != 0 {
            let position = constant.trailing_zeros();
            *row.values.get_mut(position as usize)? = i64::from(layout.ones >> position & 1);
            constant &= constant - 1;
        }
        Some(())
    }

    /// Decodes a record whose header is not cached, and caches its layout.
    #[cold]
    fn decode_new<'a>(&mut self, record: &'a [u8], row: &mut RecordRow<'a, N>) -> Option<()> {
        *row = decode(record, self.positions)?;
        let length = usize::from(*record.first()?);
        if (2..MASKS.len()).contains(&length)
            && let Some(new) = layout_of(record.get(..length)?, self.positions)
        {
            *self.known.get_mut(slot(&new.header))? = new;
        }
        Some(())
    }
}

/// Masks of headers, by length.
const MASKS: [HeaderBytes; MAX_CACHED_HEADER + 1] = masks();

const fn masks() -> [HeaderBytes; MAX_CACHED_HEADER + 1] {
    let mut masks = [[0; MAX_CACHED_HEADER / 8]; MAX_CACHED_HEADER + 1];
    let mut length = 0;
    while length <= MAX_CACHED_HEADER {
        let mut byte = 0;
        while byte < length {
            masks[length][byte / 8] |= 0xff << (8 * (byte % 8));
            byte += 1;
        }
        length += 1;
    }
    masks
}

/// Returns the header of a record, padded with zeros.
#[inline]
fn header(record: &[u8], mask: &HeaderBytes) -> HeaderBytes {
    let bytes: [u8; MAX_CACHED_HEADER] = match record.first_chunk() {
        Some(bytes) => *bytes,
        None => {
            let mut bytes = [0; MAX_CACHED_HEADER];
            bytes.iter_mut().zip(record).for_each(|(to, from)| *to = *from);
            bytes
        }
    };
    let mut words = *mask;
    for (word, eight) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word &= eight.first_chunk().map_or(0, |eight| u64::from_le_bytes(*eight));
    }
    words
}

#[inline]
const fn slot(header: &HeaderBytes) -> usize {
    let [a, b, c, d] = *header;
    let hash = a.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ b.wrapping_mul(0xc2b2_ae3d_27d4_eb4f)
        ^ c.wrapping_mul(0x1656_67b1_9e37_79f9)
        ^ d.wrapping_mul(0x517c_c1b7_2722_0a95);
    (hash >> 56) as usize
}

/// Returns the layout of records with this header, if all requested values are integers that have
/// eight bytes before their end.
fn layout_of<const N: usize>(header: &[u8], positions: &[u8]) -> Option<RecordLayout<N>> {
    let mut layout = RecordLayout {
        header: self::header(header, MASKS.get(header.len())?),
        needed: header.len(),
        constant: 0,
        ones: 0,
        null: u32::MAX,
        integers: [(0, 0, 0); N],
        count: 0,
    };
    for (at, &position) in (1..).zip(positions) {
        let Some(&serial) = header.get(at) else { break };
        if serial >= 0x80 {
            return None;
        }
        let length = length(u64::from(serial))?;
        let end = layout.needed.checked_add(length)?;
        if position != SKIPPED_COLUMN && serial != 0 {
            // Two columns with one position do not occur in real files; `decode` defines which one
            // counts.
            if layout.null & (1 << position) == 0 {
                return None;
            }
            layout.null &= !(1 << position);
            match serial {
                1..=6 => {
                    let begin = u16::try_from(end.checked_sub(8)?).ok()?;
                    let cut = 64 - 8 * u8::try_from(length).ok()?;
                    let integer = (position, begin, cut);
                    *layout.integers.get_mut(layout.count)? = integer;
                    layout.count += 1;
                }
                8 | 9 => {
                    layout.constant |= 1 << position;
                    layout.ones |= u32::from(serial == 9) << position;
                }
                _ => return None,
            }
        }
        layout.needed = end;
    }
    Some(layout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::strategy::Strategy;

    #[test]
    fn varint_has_up_to_nine_bytes() {
        assert_eq!(varint(&[0x7f]), Some((127, 1)));
        assert_eq!(varint(&[0x81, 0x00]), Some((128, 2)));
        assert_eq!(varint(&[0xff; 9]), Some((u64::MAX, 9)));
        assert_eq!(varint(&[0xff; 8]), None);
        assert_eq!(varint(&[]), None);
    }

    #[test]
    fn integers_of_every_width_keep_their_sign() {
        // Serial types 1 to 6, 8 and 9, and values by hand.
        let record = [
            9, 1, 2, 3, 4, 5, 6, 8, 9,    // the header is nine bytes long
            0xff, // -1
            0x80, 0x00, // -32768
            0x01, 0x00, 0x00, // 65536
            0xff, 0xff, 0xff, 0xfe, // -2
            0x00, 0x01, 0x00, 0x00, 0x00, 0x00, // 2^32
            0x80, 0, 0, 0, 0, 0, 0, 0, // the smallest
        ];
        let row: RecordRow<'_, 8> = decode(&record, &[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
        assert_eq!(row.values, [-1, -32768, 65536, -2, 1 << 32, i64::MIN, 0, 1]);
        assert_eq!(row.null, !0xff);
        let short: RecordRow<'_, 2> = decode(&record[..10], &[0]).unwrap();
        assert_eq!(short.int(0), Some(-1));
        assert_eq!(short.int(1), None);
    }

    #[test]
    fn other_types_are_not_integers() {
        let record = [4, 7, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'h', b'i'];
        let row: RecordRow<'_, 3> = decode(&record, &[0, 2, 1]).unwrap();
        assert_eq!(row.wrong, 0b101);
        assert_eq!(row.text, b"hi");
        assert_eq!(row.int(1), None);
    }

    #[test]
    fn last_of_two_columns_with_one_position_counts() {
        let (record, positions) = ([7, 8, 1, 0, 0, 0, 0, 1], [5, 5]);
        let mut layouts = LayoutCache::<8>::new(&positions);
        for _ in 0..2 {
            let mut row = RecordRow::EMPTY;
            layouts.decode(&record, record.len(), &mut row).unwrap();
            assert_eq!(row.int(5), Some(1));
        }
    }

    /// Bytes that often look like a record.
    fn record() -> impl Strategy<Value = Vec<u8>> {
        let serials = proptest::collection::vec(0_u8..20, 0..12);
        let body = proptest::collection::vec(proptest::num::u8::ANY, 0..60);
        let similar = (serials, body)
            .prop_map(|(serials, body)| [vec![serials.len() as u8 + 1], serials, body].concat());
        proptest::prop_oneof![similar, proptest::collection::vec(proptest::num::u8::ANY, 0..40)]
    }

    proptest::proptest! {
        #![proptest_config(crate::random::config(crate::random::CASES))]

        #[test]
        fn any_bytes_decode_the_same_with_layouts(
            record in record(),
            positions in proptest::collection::vec(0_u8..8, 0..9),
        ) {
            let mut layouts = LayoutCache::<8>::new(&positions);
            for _ in 0..2 {
                let mut row = RecordRow::EMPTY;
                // What follows the record has no effect.
                let more = [&record[..], &[0xff; 40]].concat();
                let fast = layouts.decode(&more, record.len(), &mut row).map(|()| row);
                let content = |row: RecordRow<'_, 8>| {
                    let values: Vec<_> = (0..8).map(|column| row.int(column)).collect();
                    (values, row.null, row.wrong, row.text.to_vec())
                };
                let slow = decode::<8>(&record, &positions);
                proptest::prop_assert_eq!(slow.map(content), fast.map(content));
            }
        }
    }
}
