//! Records of SQLite's file format: a header of serial types, then the values. Every offset is
//! checked; what does not add up is `None`, and the caller leaves the file to SQLite.

/// The values of one row that were asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a, const N: usize> {
    /// The integers; 0 where there is none.
    pub(super) values: [i64; N],
    /// A bit for each column that has no value.
    pub(super) null: u32,
    /// A bit for each column that holds something else than an integer.
    pub(super) wrong: u32,
    /// The text of the last column of the row that held one.
    pub(super) text: &'a [u8],
}

impl<const N: usize> Row<'_, N> {
    /// A row without values.
    pub(super) const EMPTY: Self = Self { values: [0; N], null: u32::MAX, wrong: 0, text: &[] };

    /// The integer of a column; `None` when there is none.
    #[inline]
    pub(super) fn int(&self, column: usize) -> Option<i64> {
        let absent = (self.null | self.wrong) & (1 << column) != 0;
        if absent { None } else { self.values.get(column).copied() }
    }

    /// Whether a column holds something that is no integer.
    #[inline]
    pub(super) const fn is_wrong(&self, column: usize) -> bool {
        self.wrong & (1 << column) != 0
    }
}

/// A column of the table that nobody asked for.
pub(super) const UNWANTED: u8 = u8::MAX;

/// A variable-length integer: its value and its length.
#[inline]
pub(super) fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    if first < 0x80 {
        return Some((u64::from(first), 1));
    }
    let mut value = u64::from(first & 0x7f);
    for (i, &byte) in bytes.iter().enumerate().take(9).skip(1) {
        if i == 8 {
            return Some((value << 8 | u64::from(byte), 9));
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte < 0x80 {
            return Some((value, i + 1));
        }
    }
    None
}

/// How long a value is in the body of a record.
#[inline]
fn length(serial: u64) -> Option<usize> {
    const SHORT: [u8; 10] = [0, 1, 2, 3, 4, 6, 8, 8, 0, 0];
    match serial {
        0..=9 => Some(SHORT[serial as usize] as usize),
        10 | 11 => None,
        _ => usize::try_from((serial - 12) / 2).ok(),
    }
}

/// A big-endian integer of `length` (1 to 8) bytes at `at`.
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

/// Takes from a record what `places` asks for: for each column of the table, the place in the row.
#[inline]
pub(super) fn decode<'a, const N: usize>(record: &'a [u8], places: &[u8]) -> Option<Row<'a, N>> {
    let (header, mut at) = varint(record)?;
    let header = usize::try_from(header).ok()?;
    let serials = record.get(..header)?;
    let mut body = header;
    let mut row = Row { values: [0; N], null: u32::MAX, wrong: 0, text: &[] };
    for &place in places {
        // A row from before a column was added has fewer values.
        let Some(&short) = serials.get(at) else { break };
        let (serial, width) =
            if short < 0x80 { (u64::from(short), 1) } else { varint(serials.get(at..)?)? };
        at += width;
        let length = length(serial)?;
        if place != UNWANTED {
            let bit = 1_u32 << place;
            let slot = row.values.get_mut(place as usize)?;
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
                    if serial >= 13 && serial % 2 == 1 {
                        row.text = bytes;
                    }
                }
            }
        }
        body = body.checked_add(length)?;
    }
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_length_integers_have_up_to_nine_bytes() {
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
            9, 1, 2, 3, 4, 5, 6, 8, 9, // the header is nine bytes long
            0xff, // -1
            0x80, 0x00, // -32768
            0x01, 0x00, 0x00, // 65536
            0xff, 0xff, 0xff, 0xfe, // -2
            0x00, 0x01, 0x00, 0x00, 0x00, 0x00, // 2^32
            0x80, 0, 0, 0, 0, 0, 0, 0, // the smallest
        ];
        let row: Row<'_, 8> = decode(&record, &[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
        assert_eq!(row.values, [-1, -32768, 65536, -2, 1 << 32, i64::MIN, 0, 1]);
        assert_eq!(row.null, !0xff);
        let short: Row<'_, 2> = decode(&record[..10], &[0]).unwrap();
        assert_eq!(short.int(0), Some(-1));
        assert_eq!(short.int(1), None);
    }

    #[test]
    fn what_is_no_integer_is_told_apart() {
        let record = [4, 7, 17, 0, 0, 0, 0, 0, 0, 0, 0, 0, b'h', b'i'];
        let row: Row<'_, 3> = decode(&record, &[0, 1, 2]).unwrap();
        assert!(row.is_wrong(0) && row.is_wrong(1) && !row.is_wrong(2));
        assert_eq!(row.text, b"hi");
        assert_eq!(row.int(2), None);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_survived(record: Vec<u8>, places in proptest::collection::vec(0_u8..8, 0..9)) {
            let _ = decode::<8>(&record, &places);
        }
    }
}
