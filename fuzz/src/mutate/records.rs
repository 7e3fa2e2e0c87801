//! Records of the ring: each after its length, with a head that the decoder accepts.

use std::ops::Range;

use capture::fuzz::{HOOKS, record_bytes};

use super::fields::{self, Field};
use super::{Random, pieces};

/// Results of calls: success, ordinary failures, and capture errors.
const RESULTS: [i32; 6] = [0, 0, 1, 2, 900, 908];

/// Number of kinds of records.
const KINDS: usize = 13;

/// Changes records, or adds one.
pub fn records(bytes: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let records = split(bytes);
    if records.is_empty() || random.below(5) == 0 {
        let at = random.one_of(&records).map_or(0, |record| record.start);
        let other = near(bytes, &records, random);
        let new = with_length(&new_record(random, other));
        return Some([&bytes[..at], &new, &bytes[at..]].concat());
    }
    pieces::change(bytes, &records, random, |record, random| {
        let mut body = record.split_off(2);
        let words: Vec<_> = (0..body.len() / 8).map(|n| Field::little(n * 8, 8)).collect();
        let heads = [Field::little(2, 2), Field::little(4, 4), Field::little(8, 4)];
        match random.below(8) {
            0 => drop(fields::change(&mut body, &heads, random)),
            1 => body[2..4].copy_from_slice(&(random.below(HOOKS.len()) as u16).to_le_bytes()),
            2 => pieces::change_any(&mut body, random),
            _ => drop(fields::change(&mut body, &words, random)),
        }
        *record = with_length(&body);
    })
}

fn split(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut records = Vec::new();
    let mut at = 0;
    while let Some(length) = bytes.get(at..at + 2) {
        let end = at + 2 + usize::from(u16::from_le_bytes([length[0], length[1]]));
        // Mutations need a complete head.
        if end > bytes.len() || end < at + 26 {
            break;
        }
        records.push(at..end);
        at = end;
    }
    records
}

fn with_length(body: &[u8]) -> Vec<u8> {
    let length = body.len().min(usize::from(u16::MAX)) as u16;
    [&length.to_le_bytes(), &body[..usize::from(length)]].concat()
}

/// Returns words of another record, so that addresses and handles occur more than once.
fn near<'a>(bytes: &'a [u8], records: &[Range<usize>], random: &mut Random) -> &'a [u8] {
    random.one_of(records).map_or(&[], |record| &bytes[record.start + 2..record.end])
}

/// Returns a record of any kind, of few processes and threads.
fn new_record(random: &mut Random, other: &[u8]) -> Vec<u8> {
    let kind = if random.below(2) == 0 { 1 } else { 1 + random.below(KINDS) as u16 };
    let length = record_bytes(kind).unwrap_or(24);
    let mut body = Vec::new();
    body.extend(kind.to_le_bytes());
    body.extend((random.below(HOOKS.len()) as u16).to_le_bytes());
    body.extend(RESULTS[random.below(RESULTS.len())].to_le_bytes());
    body.extend((1 + random.below(2) as u32).to_le_bytes());
    body.extend((1 + random.below(3) as u32).to_le_bytes());
    body.extend((random.next() % 1_000_000).to_le_bytes());
    while body.len() < length {
        let same = other.get(body.len()..body.len() + 8);
        match (random.below(3), same) {
            (0, Some(same)) => body.extend(same),
            (1, _) => body.extend(random.number().to_le_bytes()),
            _ => body.extend((random.next() % 8).to_le_bytes()),
        }
    }
    body.truncate(length);
    body
}
