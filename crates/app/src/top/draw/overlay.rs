//! Help, and the choice of columns.

use formats::report::tables::processes::ProcessColumn;
use ratatui::layout::Rect;

use super::Canvas;
use crate::top::keys::HELP;
use crate::top::pages::listing::Cursor;
use crate::top::state::Overlay;
use crate::top::theme::Tone;

/// Width of the keys in the help.
const KEYS_WIDTH: usize = 30;

/// Draws what is in front of the page; returns its cursor.
pub(super) fn draw(canvas: &mut Canvas<'_>, overlay: Overlay, cursor: Cursor) -> Cursor {
    let area = canvas.buffer.area;
    let (lines, title, is_list) = match overlay {
        Overlay::Help => {
            (help(usize::from(area.width), &canvas.state.notes), "keys; Esc closes", false)
        }
        Overlay::Columns => (columns(canvas), "columns: Space shows or hides, Esc closes", true),
    };
    canvas.buffer.reset();
    canvas.put(0, 0, area.width, title, Tone::Title);
    let body = Rect { y: 1, height: area.height.saturating_sub(1), ..area };
    let height = usize::from(body.height);
    let mut cursor = cursor;
    let last = lines.len().saturating_sub(1);
    cursor.index =
        cursor.index.min(if is_list { last } else { lines.len().saturating_sub(height) });
    let first =
        if is_list { cursor.index.saturating_sub(height.saturating_sub(1)) } else { cursor.index };
    for (index, line) in lines.iter().enumerate().skip(first).take(height) {
        let y = body.y + u16::try_from(index - first).unwrap_or(u16::MAX);
        let is_selected = is_list && index == cursor.index;
        let tone = if is_selected { Tone::Selected } else { Tone::Plain };
        canvas.put(0, y, body.width, line, tone);
    }
    if lines.len() > first + height {
        let text = format!(" {} more ↓", lines.len() - first - height);
        canvas.put_right(body, body.bottom() - 1, &text, Tone::Dim);
    }
    cursor
}

fn help(width: usize, notes: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    for (keys, text) in HELP {
        if width > 60 {
            let line = format!("{keys:KEYS_WIDTH$} {text}");
            lines.extend(formats::report::view::wrap(&line, width, KEYS_WIDTH + 1));
        } else {
            lines.push((*keys).to_owned());
            lines.extend(formats::report::view::wrap(&format!("   {text}"), width, 3));
        }
    }
    for note in notes {
        lines.push(String::new());
        lines.extend(formats::report::view::wrap(&format!("note: {note}"), width, 3));
    }
    lines
}

fn columns(canvas: &Canvas<'_>) -> Vec<String> {
    let line = |column: &ProcessColumn| {
        let mark = if canvas.state.columns.contains(column) { "x" } else { " " };
        format!("[{mark}] {}", column.spec().title)
    };
    ProcessColumn::ALL.iter().map(line).collect()
}
