//! Draws a table with a selection.

use formats::report::view::wrap;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};

use super::Canvas;
use crate::top::pages::listing::{Cursor, Listing, Row, Target, layout};
use crate::top::state::ClickAreas;
use crate::top::theme::Tone;

/// Draws a table; returns the cursor and what is selected.
pub(super) fn draw(
    canvas: &mut Canvas<'_>,
    listing: &Listing<'_>,
    mut cursor: Cursor,
    area: Rect,
    areas: &mut ClickAreas,
) -> (Cursor, Target) {
    if area.height == 0 {
        return (cursor, Target::Nothing);
    }
    let height = usize::from(area.height.saturating_sub(1));
    cursor.follow(&listing.ids, height);
    let visible = cursor.offset..(cursor.offset + height).min(listing.ids.len());
    let rows: Vec<Row> = visible.map(|index| (listing.row)(index)).collect();
    let length = |text: &String| text.chars().count();
    let cells: Vec<Vec<usize>> =
        rows.iter().map(|row| row.cells.iter().map(length).collect()).collect();
    let widths = layout(&listing.columns, &cells, usize::from(area.width));
    titles(canvas, listing, &widths, area, areas);
    if rows.is_empty() {
        let lines = wrap(&format!(" {}", listing.empty), usize::from(area.width), 1);
        for (line, y) in lines.iter().zip(area.y + 1..area.bottom()) {
            canvas.put(0, y, area.width, line, Tone::Dim);
        }
    }
    let mut selected = Target::Nothing;
    for (line, row) in rows.iter().enumerate() {
        let y = area.y + 1 + u16::try_from(line).unwrap_or(u16::MAX);
        let is_selected = cursor.offset + line == cursor.index;
        draw_row(canvas, listing, row, &widths, Rect { y, height: 1, ..area }, is_selected);
        if is_selected {
            selected = row.target.clone();
        }
    }
    let shown = u16::try_from(rows.len()).unwrap_or(u16::MAX);
    areas.rows = (area.y + 1, shown);
    let hidden = listing.ids.len() - cursor.offset - rows.len();
    if hidden > 0 {
        let text = format!(" {hidden} more ↓");
        canvas.put_right(area, area.y, &text, Tone::Dim);
    }
    (cursor, selected)
}

fn titles(
    canvas: &mut Canvas<'_>,
    listing: &Listing<'_>,
    widths: &[usize],
    area: Rect,
    areas: &mut ClickAreas,
) {
    areas.titles = Some(area.y);
    let mut x = area.x;
    for (index, (column, width)) in listing.columns.iter().zip(widths).enumerate() {
        let width = u16::try_from(*width).unwrap_or(u16::MAX);
        if width == 0 || x >= area.right() {
            continue;
        }
        let width = width.min(area.right() - x);
        let is_sorted = listing.sorted.is_some_and(|(sorted, _)| sorted == index);
        let tone = if is_sorted { Tone::Title } else { Tone::Dim };
        let blank = usize::from(width).saturating_sub(column.title.chars().count());
        let blank = if column.is_right { blank } else { 0 };
        let text = format!("{}{}", " ".repeat(blank), column.title);
        let mut style = canvas.state.theme.style(tone);
        if is_sorted {
            style = style.add_modifier(Modifier::UNDERLINED);
        }
        canvas.put_styled(x, area.y, width, &text, style);
        areas.columns.push((x, x + width, index));
        x = x.saturating_add(width + 1);
    }
}

fn draw_row(
    canvas: &mut Canvas<'_>,
    listing: &Listing<'_>,
    row: &Row,
    widths: &[usize],
    area: Rect,
    is_selected: bool,
) {
    let mut x = area.x;
    for (index, ((column, width), text)) in
        listing.columns.iter().zip(widths).zip(&row.cells).enumerate()
    {
        let width = u16::try_from(*width).unwrap_or(u16::MAX);
        if width == 0 || x >= area.right() {
            continue;
        }
        let width = width.min(area.right() - x);
        let text = column.shorten(text, usize::from(width));
        let blank = usize::from(width).saturating_sub(text.chars().count());
        let blank = if column.is_right { blank } else { 0 };
        let tone = if listing.charts.contains(&index) { Tone::Chart } else { row.tone };
        canvas.put(x, area.y, width, &format!("{}{text}", " ".repeat(blank)), tone);
        x = x.saturating_add(width + 1);
    }
    if is_selected {
        // One color for the whole row: each cell's own would leave a patchwork.
        let style = canvas.state.theme.style(row.tone);
        let style = style.fg(style.fg.unwrap_or(Color::Reset)).add_modifier(Modifier::REVERSED);
        canvas.buffer.set_style(area, style);
    }
}
