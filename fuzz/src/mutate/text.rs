//! Text: lines, and numbers and words in them.

use std::ops::Range;

use super::{Random, pieces};

/// Changes lines.
pub fn lines(bytes: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    pieces::change(bytes, &split(bytes, b'\n'), random, change_line)
}

/// Changes the elements of XML, or its lines.
pub fn xml(bytes: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    if bytes.trim_ascii_start().starts_with(b"<") && random.below(2) == 0 {
        return pieces::change(bytes, &split(bytes, b'>'), random, change_line);
    }
    lines(bytes, random)
}

fn split(bytes: &[u8], end: u8) -> Vec<Range<usize>> {
    let mut start = 0;
    let pieces = bytes.split_inclusive(|&byte| byte == end).map(|piece| {
        let range = start..start + piece.len();
        start = range.end;
        range
    });
    pieces.collect()
}

pub(super) fn change_line(line: &mut Vec<u8>, random: &mut Random) {
    let numbers = words(line, u8::is_ascii_digit);
    let words = words(line, u8::is_ascii_alphanumeric);
    match random.below(4) {
        0 | 1 if !numbers.is_empty() => {
            let range = numbers[random.below(numbers.len())].clone();
            let mut text = random.number().to_string();
            match random.below(6) {
                0 => text.insert(0, '-'),
                1 => text.push_str(".5"),
                2 => text = text.repeat(4),
                _ => {}
            }
            line.splice(range, text.into_bytes());
        }
        2 if !words.is_empty() => {
            // Repeats, drops or replaces a word.
            let range = words[random.below(words.len())].clone();
            let other = words[random.below(words.len())].clone();
            let new = match random.below(3) {
                0 => Vec::new(),
                1 => line[range.clone()].repeat(2),
                _ => line[other].to_vec(),
            };
            line.splice(range, new);
        }
        _ => pieces::change_any(line, random),
    }
}

fn words(line: &[u8], is_inside: fn(&u8) -> bool) -> Vec<Range<usize>> {
    let mut words: Vec<Range<usize>> = Vec::new();
    for (at, byte) in line.iter().enumerate() {
        match words.last_mut() {
            Some(last) if is_inside(byte) && last.end == at => last.end = at + 1,
            _ if is_inside(byte) => words.push(at..at + 1),
            _ => {}
        }
    }
    words
}
