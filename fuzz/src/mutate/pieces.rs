//! Inputs that are a list of pieces, such as lines or operations.

use std::ops::Range;

use super::{Random, change_part};

/// Changes the list: drops, repeats, moves or swaps pieces, or changes bytes of one.
pub(super) fn change(
    bytes: &[u8],
    pieces: &[Range<usize>],
    random: &mut Random,
    change_piece: impl FnOnce(&mut Vec<u8>, &mut Random),
) -> Option<Vec<u8>> {
    if pieces.is_empty() {
        return None;
    }
    let (first, count) = random.part(pieces.len(), 8);
    let part = pieces[first].start..pieces[first + count - 1].end;
    let (before, inside, after) = (&bytes[..part.start], &bytes[part.clone()], &bytes[part.end..]);
    let to = random.one_of(pieces)?.start;
    let inserted = || {
        let mut new = bytes.to_vec();
        new.splice(to..to, inside.iter().copied());
        new
    };
    Some(match random.below(10) {
        0 => [before, after].concat(),
        1 => inserted(),
        2 => {
            let times = 2 + random.below(20);
            [before, &inside.repeat(times), after].concat()
        }
        3 => {
            // Moves the part.
            let rest = [before, after].concat();
            let to = to.min(rest.len());
            [&rest[..to], inside, &rest[to..]].concat()
        }
        4 => before.to_vec(),
        _ => {
            let piece = &pieces[first];
            let mut new = bytes[piece.clone()].to_vec();
            change_piece(&mut new, random);
            [&bytes[..piece.start], &new, &bytes[piece.end..]].concat()
        }
    })
}

/// Changes bytes of a piece, or its length.
pub(super) fn change_any(piece: &mut Vec<u8>, random: &mut Random) {
    if random.below(4) == 0 {
        let (start, length) = random.part(piece.len(), 16);
        let part = piece[start..start + length].to_vec();
        match random.below(2) {
            0 => drop(piece.drain(start..start + length)),
            _ => drop(piece.splice(start..start, part)),
        }
    } else {
        change_part(piece, random);
    }
}
