//! A page for a browser: one file without scripts, fonts or pictures from elsewhere.

use std::io::{self, Write};

use super::model::{Cell, Line, Page, Section, Table};
use super::svg;
use crate::plain::plain_up_to;

/// The longest piece of foreign text.
const LONGEST: usize = 2000;

const STYLE: &str = "\
:root{color-scheme:light dark;--dim:#767676;--rule:#8884;--alarm:#c62828;--line:#1565c0}\
body{font:15px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.35rem}h1.alarm,p.alarm{color:var(--alarm)}h2{font-size:1.1rem;margin-top:2rem}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{padding:.25rem .8rem .25rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--rule)}\
th{color:var(--dim);font-weight:600}td.n,th.n{text-align:right;white-space:nowrap}\
code{font:13px/1.4 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere}\
.dim{color:var(--dim)}p{margin:.3rem 0}svg{width:100%;height:auto;max-width:60rem}\
details{margin-top:.2rem}summary{cursor:pointer;color:var(--dim)}";

/// Text that means nothing to a browser.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in plain_up_to(text, LONGEST).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Writes a page.
pub(super) fn write(out: &mut dyn Write, title: &str, page: &Page) -> io::Result<()> {
    writeln!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'unsafe-inline'\">\n<title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
        escape(title)
    )?;
    let class = if page.alarm { " class=\"alarm\"" } else { "" };
    writeln!(out, "<p class=\"dim\">{}</p>", escape(title))?;
    writeln!(out, "<h1{class}>{}</h1>", escape(&page.headline))?;
    for one in &page.lines {
        line(out, one)?;
    }
    for part in &page.sections {
        section(out, part)?;
    }
    if !page.notes.is_empty() {
        writeln!(out, "<h2>Notes</h2>")?;
    }
    for note in &page.notes {
        line(out, note)?;
    }
    writeln!(out, "</body>\n</html>")
}

fn line(out: &mut dyn Write, line: &Line) -> io::Result<()> {
    match line {
        Line::Plain(text) => writeln!(out, "<p>{}</p>", escape(text)),
        Line::Dim(text) => writeln!(out, "<p class=\"dim\">{}</p>", escape(text)),
        Line::Alarm(text) => writeln!(out, "<p class=\"alarm\">{}</p>", escape(text)),
    }
}

fn section(out: &mut dyn Write, section: &Section) -> io::Result<()> {
    if section.chart.is_none() && section.table.rows.is_empty() {
        return Ok(());
    }
    if !section.title.is_empty() {
        writeln!(out, "<h2>{}</h2>", escape(&section.title))?;
    }
    if let Some(chart) = &section.chart {
        svg::write(out, chart)?;
    }
    table(out, &section.table)?;
    for one in &section.after {
        line(out, one)?;
    }
    Ok(())
}

fn table(out: &mut dyn Write, table: &Table) -> io::Result<()> {
    if table.rows.is_empty() {
        return Ok(());
    }
    write!(out, "<table>\n<tr>")?;
    for (column, name) in table.columns.iter().enumerate() {
        let mut cells = table.rows.iter().filter_map(|row| row.get(column));
        let class = if cells.any(Cell::is_figure) { " class=\"n\"" } else { "" };
        write!(out, "<th{class}>{}</th>", escape(name))?;
    }
    writeln!(out, "</tr>")?;
    for row in &table.rows {
        write!(out, "<tr>")?;
        for cell in row {
            let class = if cell.is_figure() { " class=\"n\"" } else { "" };
            write!(out, "<td{class}>")?;
            content(out, cell)?;
            write!(out, "</td>")?;
        }
        writeln!(out, "</tr>")?;
    }
    writeln!(out, "</table>")
}

fn content(out: &mut dyn Write, cell: &Cell) -> io::Result<()> {
    let Cell::Stack { short, full } = cell else {
        return write!(out, "{}", escape(&cell.short()));
    };
    let lines = |lines: &[String]| {
        let lines: Vec<String> = lines.iter().map(|line| escape(line)).collect();
        lines.join("\n")
    };
    write!(out, "<code>{}</code>", lines(short))?;
    if !full.is_empty() && full != short {
        let count = full.len();
        write!(
            out,
            "<details><summary>all {count} frames</summary><code>{}</code></details>",
            lines(full)
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_no_markup() {
        assert_eq!(
            escape("<script>alert('1')</script>&\""),
            "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;&quot;"
        );
        assert_eq!(escape("a\x1b\u{202e}b"), "a\\u{1b}\\u{202e}b");
    }
}
