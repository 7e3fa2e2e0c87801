//! Tab-separated tables: a header line, sizes in bytes, times in nanoseconds.

use std::borrow::Cow;
use std::io::{self, Write};

use super::document::{Cell, Table};

/// Writes a table.
pub(super) fn write(out: &mut dyn Write, table: &Table) -> io::Result<()> {
    head(out, &table.columns)?;
    table.rows.iter().try_for_each(|cells| row(out, cells))
}

/// Writes the column names.
pub(super) fn head(out: &mut dyn Write, columns: &[&str]) -> io::Result<()> {
    writeln!(out, "{}", columns.join("\t"))
}

/// Writes a row.
pub(super) fn row(out: &mut dyn Write, cells: &[Cell]) -> io::Result<()> {
    let mut first = true;
    for cell in cells {
        if !std::mem::take(&mut first) {
            write!(out, "\t")?;
        }
        write!(out, "{}", field(&cell.raw()))?;
    }
    writeln!(out)
}

/// Escapes text for a field: tabs, line breaks and other control characters become `\t`, `\n`,
/// `\u{…}`, a backslash becomes `\\`.
pub(crate) fn field(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\' || byte == b' ') {
        return text.into();
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            c => out.push_str(&crate::sanitize::sanitize(c.encode_utf8(&mut [0; 4]))),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_in_text_are_escaped() {
        let rows = vec![vec![Cell::Text("a\tb\nc\\d\x1be".into()), Cell::Bytes(1 << 20)]];
        let mut out = Vec::new();
        write(&mut out, &Table { columns: vec!["name", "bytes"], rows }).unwrap();
        let want = "name\tbytes\na\\tb\\nc\\\\d\\u{1b}e\t1048576\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }
}
