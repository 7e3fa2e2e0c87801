//! Tables that fit a width: the flexible column is shortened.

use std::io::{self, Write};

use crate::report::analysis::frames::base;
use crate::report::live::text::TextStyle;
use crate::report::tables::ColumnSpec;
use crate::report::text_page::TextPage;

/// Writes a table with all of its texts; the title line is dim. `paint`: how other lines look.
pub(crate) fn write(
    out: &mut TextPage<'_>,
    paint: fn(TextStyle, &str) -> String,
    columns: &[ColumnSpec],
    rows: &[Vec<String>],
) -> io::Result<()> {
    for (index, lines) in wrapped_lines(columns, rows, out.style.width).iter().enumerate() {
        let paint = if index == 0 { TextStyle::dim } else { paint };
        lines.iter().try_for_each(|line| writeln!(out, "{}", paint(out.style, line)))?;
    }
    Ok(())
}

/// Lays out a table: the title line and one line per row, each at most `width` characters if the
/// flexible columns can be shortened far enough. Texts must be sanitized.
pub(crate) fn lines(columns: &[ColumnSpec], rows: &[Vec<String>], width: usize) -> Vec<String> {
    rows_of(columns, rows, width, |text, width| vec![shorten(text, width)]).concat()
}

/// Lays out a table like [`lines`], with long texts on several lines.
pub(crate) fn wrapped_lines(
    columns: &[ColumnSpec],
    rows: &[Vec<String>],
    width: usize,
) -> Vec<Vec<String>> {
    let wrapped =
        |text: &str, width| wrap(text, width, 0).iter().map(|line| shorten(line, width)).collect();
    rows_of(columns, rows, width, wrapped)
}

/// Returns the lines of the titles and of each row; `fitted` returns the lines of a cell.
fn rows_of(
    columns: &[ColumnSpec],
    rows: &[Vec<String>],
    width: usize,
    fitted: impl Fn(&str, usize) -> Vec<String>,
) -> Vec<Vec<String>> {
    let titles: Vec<String> = columns.iter().map(|column| column.title.to_owned()).collect();
    let all = || std::iter::once(&titles).chain(rows);
    let mut widths: Vec<usize> = (0..columns.len())
        .map(|index| all().filter_map(|row| row.get(index)).map(|cell| length(cell)).max())
        .map(|width| width.unwrap_or(0))
        .collect();
    shrink(columns, &mut widths, width);
    let lines = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(text, width)| fitted(text, *width));
        let cells: Vec<_> = cells.collect();
        let line = |index: usize| {
            let cells = cells.iter().zip(columns).zip(&widths).map(|((lines, column), width)| {
                let text = lines.get(index).map_or("", String::as_str);
                let fill = " ".repeat(width.saturating_sub(length(text)));
                if column.is_right { fill + text } else { text.to_owned() + &fill }
            });
            cells.collect::<Vec<_>>().join(" ").trim_end().to_owned()
        };
        let height = cells.iter().map(Vec::len).max().unwrap_or(0);
        (0..height).map(line).collect()
    };
    all().map(lines).collect()
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

/// Shortens `file:line function`: the line number stays, then the end of the file name.
pub(crate) fn shorten_place(text: &str, width: usize) -> String {
    let is_number =
        |(at, _): &(usize, &str)| text[at + 1..].starts_with(|c: char| c.is_ascii_digit());
    let Some((colon, _)) = text.match_indices(':').find(is_number) else {
        return shorten(text, width);
    };
    let end = text[colon..].find(' ').map_or(text.len(), |blank| colon + blank);
    let (place, line) = (length(&text[..end]), length(&text[colon..end]));
    // A part of the file name besides its line, or else the line is of no use.
    if length(text) <= width || place < width || line + 4 > width {
        return shorten(text, width);
    }
    if place == width {
        return text[..end].to_owned();
    }
    let cut = place - (width - 1);
    format!("…{}", text[..end].chars().skip(cut).collect::<String>())
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

/// Returns `function (file:line)` without the directories of the file.
pub(crate) fn without_directories(text: &str) -> String {
    match text.strip_suffix(')').and_then(|text| text.rsplit_once(" (")) {
        Some((function, place)) => format!("{function} ({})", base(place)),
        None => text.to_owned(),
    }
}

/// Shortens a text: `function (file:line)` loses directories and namespaces first, then all lose
/// their middle.
pub(crate) fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut text = without_directories(text);
    if text.chars().count() > width
        && let Some((function, place)) = text.split_once(" (")
        && !function.contains(['<', '(', ' '])
        && let Some((_, name)) = function.rsplit_once("::")
    {
        text = format!("{name} ({place}");
    }
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

    #[test]
    fn shortened_places_keep_their_line() {
        let place = "torch_loss_history.py:11 validate";
        assert_eq!(shorten_place(place, 33), place);
        assert_eq!(shorten_place(place, 26), "torch_loss_history.py:11 …");
        assert_eq!(shorten_place(place, 24), "torch_loss_history.py:11");
        assert_eq!(shorten_place(place, 12), "…story.py:11");
        assert_eq!(shorten_place(place, 6), "torch…");
        assert_eq!(shorten_place(":16,13 capture +1", 10), ":16,13 ca…");
        assert_eq!(shorten_place("c10::cuda::malloc", 8), "c10::cu…");
    }

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
        let columns = [ColumnSpec::right("N", 0), ColumnSpec::flexible("AT", 4, 0)];
        let rows = [vec!["1".to_owned(), "thread.rs:89 leak_losses".to_owned()]];
        let want = [vec!["N AT"], vec!["1 thread.rs:89", "  leak_losses"]];
        assert_eq!(wrapped_lines(&columns, &rows, 15), want);
    }

    #[test]
    fn text_is_wrapped_at_words() {
        assert_eq!(wrap("ab cd efgh i", 5, 2), ["ab cd", "  efgh", "  i"]);
        assert_eq!(wrap("  a  b", 9, 2), ["  a  b"]);
        assert_eq!(wrap("", 5, 2), [""]);
    }
}
