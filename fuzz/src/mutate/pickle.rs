//! Pickles: values, and operations with their arguments.

use std::ops::Range;

use super::{Random, pieces};

/// Changes values of a pickle, so that it is still complete; rarely any operations.
pub fn pickle(bytes: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    if bytes.first() != Some(&0x80) {
        return None;
    }
    let operations = operations(bytes);
    if random.below(8) == 0 {
        return change_operations(bytes, &operations, random);
    }
    let values = Values::of(bytes, &operations);
    let splice = |range: &Range<usize>, new: &[u8]| {
        let mut new = [bytes.get(..range.start)?, new, bytes.get(range.end..)?].concat();
        // The length of the first frame, which follows the protocol.
        if let Some((frame, rest)) = new.split_at_mut_checked(11)
            && frame[2] == 0x95
        {
            frame[3..].copy_from_slice(&rest.len().to_le_bytes());
        }
        Some(new)
    };
    match random.below(8) {
        0 => {
            let items = [&values.elements, &values.pairs][random.below(2)];
            splice(random.one_of(items)?, &[])
        }
        // One or several copies of an item at the place of another.
        number @ 1..=3 => {
            let items = if number < 3 { &values.elements } else { &values.pairs };
            let (from, to) = (random.one_of(items)?, random.one_of(items)?);
            let times = [1, 1, 1 + random.below(8)][random.below(3)];
            splice(&(to.start..to.start), &bytes.get(from.clone())?.repeat(times))
        }
        4 => splice(random.one_of(&values.all)?, bytes.get(random.one_of(&values.all)?.clone())?),
        _ => {
            let scalar = random.one_of(&values.scalars)?;
            let mut operation = bytes.get(scalar.clone())?.to_vec();
            change_scalar(&mut operation, random);
            splice(scalar, &operation)
        }
    }
}

fn change_operations(
    bytes: &[u8],
    operations: &[Range<usize>],
    random: &mut Random,
) -> Option<Vec<u8>> {
    let is_stop = |range: &Range<usize>| bytes[range.start] == b'.';
    let end = operations.iter().position(is_stop).unwrap_or(operations.len());
    // The protocol and the end stay.
    let inner = operations.get(1..end)?;
    let (start, end) = (inner.first()?.start, inner.last()?.end);
    let shifted: Vec<_> =
        inner.iter().map(|range| range.start - start..range.end - start).collect();
    let new = pieces::change(&bytes[start..end], &shifted, random, change_operation)?;
    Some([&bytes[..start], &new, b"."].concat())
}

/// Places of values in the file.
#[derive(Default)]
struct Values {
    all: Vec<Range<usize>>,
    /// Values that are one operation.
    scalars: Vec<Range<usize>>,
    /// Elements of lists, and pairs of dictionaries.
    elements: Vec<Range<usize>>,
    pairs: Vec<Range<usize>>,
}

impl Values {
    /// Follows the stack of the pickle. Places of marks are on a stack of their own.
    fn of(bytes: &[u8], operations: &[Range<usize>]) -> Self {
        let mut values = Self::default();
        let (mut stack, mut marks) = (Vec::<Range<usize>>::new(), Vec::new());
        for operation in operations {
            let opcode = bytes[operation.start];
            let mut start = None;
            let items = match opcode {
                b'(' => {
                    marks.push((stack.len(), operation.start));
                    continue;
                }
                b'e' | b'u' | b't' => {
                    let (depth, place) = marks.pop().unwrap_or((stack.len(), operation.start));
                    start = Some(place);
                    stack.len().saturating_sub(depth)
                }
                b'a' | 0x85 => 1,
                b's' | 0x86 => 2,
                0x87 => 3,
                _ => 0,
            };
            let items = stack.split_off(stack.len().saturating_sub(items));
            match opcode {
                0x80 | 0x95 | b'.' => {}
                b'a' | b'e' => values.elements.extend(items),
                b's' | b'u' => {
                    let pairs = items.chunks_exact(2).map(|pair| pair[0].start..pair[1].end);
                    values.pairs.extend(pairs);
                }
                b't' | 0x85..=0x87 => {
                    let start = start.or_else(|| Some(items.first()?.start));
                    stack.push(start.unwrap_or(operation.start)..operation.end);
                }
                0x94 | b'q' | b'r' => {}
                // Later operations fill containers.
                b']' | b'}' => stack.push(operation.clone()),
                _ => {
                    values.scalars.push(operation.clone());
                    stack.push(operation.clone());
                }
            }
            // The value at the top goes on up to here.
            if let Some(top) = stack.last_mut() {
                top.end = operation.end;
            }
        }
        values.all = [&values.elements[..], &values.scalars].concat();
        values
    }
}

fn operations(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut operations = Vec::new();
    let mut at = 0;
    while let Some(length) = length(&bytes[at..]) {
        operations.push(at..at + length);
        at += length;
    }
    operations
}

/// Returns the length of the first operation with its argument; `None` at the end.
fn length(bytes: &[u8]) -> Option<usize> {
    let (opcode, rest) = bytes.split_first()?;
    let number = |width: usize| {
        let digits = rest.get(..width)?.iter().rev();
        Some(digits.fold(0_usize, |number, byte| number << 8 | usize::from(*byte)))
    };
    let length = match opcode {
        b'K' | b'h' | b'q' | 0x80 | 0x82 => 2,
        b'M' | 0x83 => 3,
        b'J' | b'j' | b'r' | 0x84 => 5,
        b'G' | 0x95 => 9,
        0x8a | 0x8c | b'U' | b'C' => 2_usize.checked_add(number(1)?)?,
        b'X' | b'T' | b'B' | 0x8b => 5_usize.checked_add(number(4)?)?,
        0x8d | 0x8e | 0x96 => 9_usize.checked_add(number(8)?)?,
        _ => 1,
    };
    (length <= bytes.len()).then_some(length)
}

/// Changes a number, text or simple value to another one.
fn change_scalar(operation: &mut Vec<u8>, random: &mut Random) {
    let number = random.number().to_le_bytes();
    match operation[0] {
        b'K' | b'M' | b'J' | 0x8a if random.below(8) > 0 => {
            *operation = match random.below(4) {
                0 => vec![b'K', number[0]],
                1 => [b"J", &number[..4]].concat(),
                2 => [&[0x8a, 9][..], &number, &[0]].concat(),
                _ => [&[0x8a, 8][..], &number].concat(),
            };
        }
        b'h' | b'j' => {
            operation[1] = operation[1].wrapping_add(random.below(9) as u8).wrapping_sub(4)
        }
        0x8c | b'U' | b'C' if random.below(8) > 0 => {
            let mut text = operation[2..].to_vec();
            pieces::change_any(&mut text, random);
            text.truncate(255);
            *operation = [&[operation[0], text.len() as u8][..], &text].concat();
        }
        _ => {
            let simple: [&[u8]; 8] =
                [b"N", b"\x88", b"\x89", b")", b"K\x01", b"\x8c\x01x", b"]", b"}"];
            *operation = simple[random.below(simple.len())].to_vec();
        }
    }
}

/// Changes the argument of an operation, or replaces the operation.
fn change_operation(operation: &mut Vec<u8>, random: &mut Random) {
    const SIMPLE: &[u8] = b"N\x88\x89}])(.0aelsudt1\x85\x86\x87\x94";
    match random.below(3) {
        0 => change_scalar(operation, random),
        1 => *operation = vec![SIMPLE[random.below(SIMPLE.len())]],
        _ => {
            let (first, rest) = operation.split_at_mut(1);
            if rest.is_empty() {
                first[0] = first[0].wrapping_add(random.next() as u8);
            } else {
                super::change_part(rest, random);
            }
        }
    }
}
