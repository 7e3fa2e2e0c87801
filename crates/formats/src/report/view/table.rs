//! Tables that fit a width: the flexible column is shortened.

use std::io::{self, Write};

use crate::report::live::text::TextStyle;
use crate::report::tables::ColumnSpec;

/// Writes a table; the title line is dim.
pub(crate) fn write(
    out: &mut dyn Write,
    columns: &[ColumnSpec],
    rows: &[Vec<String>],
    style: TextStyle,
) -> io::Result<()> {
    for (index, line) in lines(columns, rows, style.width).iter().enumerate() {
        writeln!(out, "{}", if index == 0 { style.dim(line) } else { line.clone() })?;
    }
    Ok(())
}

/// Lays out a table: the title line and one line per row, each at most `width` characters if the
/// flexible columns can be shortened far enough. Texts must be sanitized.
pub(crate) fn lines(columns: &[ColumnSpec], rows: &[Vec<String>], width: usize) -> Vec<String> {
    let titles: Vec<String> = columns.iter().map(|column| column.title.to_owned()).collect();
    let all = || std::iter::once(&titles).chain(rows);
    let mut widths: Vec<usize> = (0..columns.len())
        .map(|index| all().filter_map(|row| row.get(index)).map(|cell| length(cell)).max())
        .map(|width| width.unwrap_or(0))
        .collect();
    shrink(columns, &mut widths, width);
    let cell = |text: &str, column: &ColumnSpec, width: usize| {
        let text = shorten(text, width);
        let fill = " ".repeat(width.saturating_sub(length(&text)));
        if column.is_right { fill + &text } else { text + &fill }
    };
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(columns).zip(&widths);
        let cells: Vec<_> =
            cells.map(|((text, column), width)| cell(text, column, *width)).collect();
        cells.join(" ").trim_end().to_owned()
    };
    all().map(line).collect()
}

/// Shortens flexible columns, the widest first, until the line fits.
fn shrink(columns: &[ColumnSpec], widths: &mut [usize], width: usize) {
    let gaps = columns.len().saturating_sub(1);
    loop {
        let total = widths.iter().sum::<usize>() + gaps;
        let widest = columns
            .iter()
            .zip(widths.iter_mut())
            .filter(|(column, width)| column.shrinks_to.is_some_and(|min| **width > min))
            .max_by_key(|(_, width)| **width);
        match widest {
            Some((_, column)) if total > width => *column -= 1,
            _ => return,
        }
    }
}

/// Shortens a text to a number of characters; the end is replaced by `…`.
pub fn shorten(text: &str, width: usize) -> String {
    if length(text) <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// Number of characters.
pub(crate) fn length(text: &str) -> usize {
    text.chars().count()
}

/// Breaks a text into lines of at most `width` characters; later lines are indented. Blanks at its
/// start are kept.
pub fn wrap(text: &str, width: usize, indent: usize) -> Vec<String> {
    let words = text.trim_start_matches(' ');
    let mut line = " ".repeat(text.len() - words.len());
    let mut lines = Vec::new();
    for (index, word) in words.split(' ').enumerate() {
        if index > 0 && length(&line) + 1 + length(word) > width {
            lines.push(line.trim_end().to_owned());
            line = " ".repeat(indent);
        } else if index > 0 {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line.trim_end().to_owned());
    lines
}

/// Shortens a text: `function (file:line)` loses directories and namespaces first, then all lose
/// their middle.
pub(crate) fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let last =
        |path: &str, separator: &str| path.rsplit(separator).next().unwrap_or_default().to_owned();
    let place = text.strip_suffix(')').and_then(|text| text.rsplit_once(" ("));
    let text = place.map_or_else(
        || text.to_owned(),
        |(function, place)| {
            let place = last(place, "/");
            let whole = format!("{function} ({place})");
            let is_plain = !function.contains(['<', '(', ' ']);
            if whole.chars().count() <= width || !is_plain {
                return whole;
            }
            format!("{} ({place})", last(function, "::"))
        },
    );
    let count = text.chars().count();
    if count <= width {
        return text;
    }
    let kept = width.saturating_sub(1);
    let head: String = text.chars().take(kept / 2).collect();
    let tail: String = text.chars().skip(count - (kept - kept / 2)).collect();
    format!("{head}…{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [ColumnSpec; 3] = [
        ColumnSpec::right("PID", 0),
        ColumnSpec::flexible("PROGRAM", 4, 0),
        ColumnSpec::left("AT", 0),
    ];

    fn rows() -> Vec<Vec<String>> {
        let row = |cells: [&str; 3]| cells.map(ToOwned::to_owned).to_vec();
        vec![row(["1", "leak_exception.py", ":6 work"]), row(["1463", "x", ""])]
    }

    #[test]
    fn columns_are_aligned() {
        let want = [" PID PROGRAM           AT", "   1 leak_exception.py :6 work", "1463 x"];
        assert_eq!(lines(&COLUMNS, &rows(), 80), want);
    }

    #[test]
    fn flexible_columns_are_shortened_to_fit() {
        assert_eq!(lines(&COLUMNS, &rows(), 24)[1], "   1 leak_excep… :6 work");
        assert_eq!(lines(&COLUMNS, &rows(), 5)[1], "   1 lea… :6 work");
    }

    #[test]
    fn text_is_wrapped_at_words() {
        assert_eq!(wrap("ab cd efgh i", 5, 2), ["ab cd", "  efgh", "  i"]);
        assert_eq!(wrap("  a  b", 9, 2), ["  a  b"]);
        assert_eq!(wrap("", 5, 2), [""]);
    }
}
