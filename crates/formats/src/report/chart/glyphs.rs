//! Outlines of the characters of DejaVu Sans and text widths, so that no system font is needed.

use std::collections::HashMap;
use std::sync::OnceLock;

/// Font units per em.
pub(super) const EM: f64 = 2048.0;

/// A character: advance width and outline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Glyph {
    pub(super) advance: f64,
    pub(super) outline: &'static str,
}

fn table() -> &'static HashMap<char, Glyph> {
    static TABLE: OnceLock<HashMap<char, Glyph>> = OnceLock::new();
    TABLE.get_or_init(|| include_str!("glyphs.txt").lines().filter_map(entry).collect())
}

fn entry(line: &'static str) -> Option<(char, Glyph)> {
    let mut parts = line.splitn(3, ' ');
    let character = char::from_u32(parts.next()?.parse().ok()?)?;
    let advance = parts.next()?.parse().ok()?;
    Some((character, Glyph { advance, outline: parts.next().unwrap_or("") }))
}

/// Returns the glyph of a character; a question mark for unsupported ones.
pub(super) fn glyph(character: char) -> Glyph {
    let table = table();
    let none = Glyph { advance: EM / 2.0, outline: "" };
    table.get(&character).or_else(|| table.get(&'?')).copied().unwrap_or(none)
}

/// Returns the width of a text.
pub(super) fn width(text: &str, size: f64) -> f64 {
    text.chars().map(|character| glyph(character).advance).sum::<f64>() / EM * size
}

/// Shortens a text to fit, with an ellipsis at the end.
pub(super) fn fit(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_owned();
    }
    let mut left = room - width("…", size);
    let kept = text.chars().take_while(|character| {
        left -= glyph(*character).advance / EM * size;
        left >= 0.0
    });
    let mut kept: String = kept.collect();
    kept.push('…');
    kept
}

/// Returns the commands of an outline: an SVG path letter and its numbers.
pub(super) fn steps(outline: &'static str) -> impl Iterator<Item = (u8, [f64; 4])> {
    let letters = |c: char| c.is_ascii_uppercase();
    let mut rest = outline;
    std::iter::from_fn(move || {
        let letter = *rest.as_bytes().first()?;
        let body = rest.get(1..)?;
        let end = body.find(letters).unwrap_or(body.len());
        let mut numbers = [0.0; 4];
        for (number, text) in numbers.iter_mut().zip(body.get(..end)?.split(' ')) {
            *number = text.parse().unwrap_or(0.0);
        }
        rest = body.get(end..)?;
        Some((letter, numbers))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_character_of_charts_has_a_glyph() {
        for character in (' '..='~').chain("…−µ×·".chars()) {
            assert!(table().contains_key(&character), "{character}");
            let closed = glyph(character).outline;
            assert!(character == ' ' || closed.ends_with('Z'), "{character}: {closed}");
        }
        assert_eq!(glyph('训').outline, glyph('?').outline);
    }

    #[test]
    fn text_is_shortened_to_fit() {
        // DejaVu Sans: a zero is 1303 units wide, an ellipsis 2048.
        assert!((width("000", 2048.0) - 3909.0).abs() < 0.001);
        assert_eq!(fit("000", 2048.0, 3910.0), "000");
        assert_eq!(fit("0000", 2048.0, 5000.0), "00…");
        assert_eq!(fit("0000", 2048.0, 0.0), "…");
    }

    #[test]
    fn outline_is_split_into_commands() {
        let found: Vec<_> = steps("M1 2L-3 4Q5 6 7 8Z").collect();
        let none = [0.0; 4];
        let want = [
            (b'M', [1.0, 2.0, 0.0, 0.0]),
            (b'L', [-3.0, 4.0, 0.0, 0.0]),
            (b'Q', [5.0, 6.0, 7.0, 8.0]),
            (b'Z', none),
        ];
        assert_eq!(found, want);
    }
}
