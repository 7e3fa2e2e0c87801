//! Draws pages of text, and details below a table.

use formats::report::tables::incidents::mark_text;
use formats::report::tables::{chart_column, columns_chart};
use formats::report::view::{compact_size, wrap};
use ratatui::layout::Rect;

use super::Canvas;
use crate::top::pages::listing::{Cursor, Target};
use crate::top::pages::lists::all_incidents;
use crate::top::pages::rows::Shown;
use crate::top::pages::source_lines::SourceLines;
use crate::top::pages::{TextLine, leak_page, stack_page};
use crate::top::state::{Page, State, Tab};
use crate::top::theme::Tone;

/// Returns the lines of a page of text.
pub(super) fn page(
    state: &State,
    shown: &Shown<'_>,
    width: usize,
    sources: &SourceLines,
) -> Vec<TextLine> {
    let lines = match state.page() {
        Page::Stack { host, key, site } => {
            stack_page(shown, (host, key, site), state.unfolded, width, sources)
        }
        Page::Leak { host, id } => leak_page(shown, (host, id), state.unfolded, width),
        _ => None,
    };
    let gone = "Waiting for the next values, or it is gone; Esc goes back.";
    lines.unwrap_or_else(|| vec![(gone.to_owned(), Tone::Dim)])
}

/// Draws a text; the cursor is its first visible line.
pub(super) fn draw(
    canvas: &mut Canvas<'_>,
    lines: &[TextLine],
    cursor: Cursor,
    area: Rect,
) -> Cursor {
    let height = usize::from(area.height);
    let first = cursor.index.min(lines.len().saturating_sub(height));
    for (index, (line, tone)) in lines.iter().skip(first).take(height).enumerate() {
        let y = area.y + u16::try_from(index).unwrap_or(u16::MAX);
        canvas.put(area.x, y, area.width, line, *tone);
    }
    let hidden = lines.len().saturating_sub(first + height);
    if hidden > 0 && area.height > 0 {
        let text = format!(" {hidden} more lines ↓");
        canvas.put_right(area, area.bottom() - 1, &text, Tone::Dim);
    }
    Cursor { index: first, offset: first, ..Cursor::default() }
}

/// Draws what belongs to the selected row.
pub(super) fn details(
    canvas: &mut Canvas<'_>,
    shown: &Shown<'_>,
    selected: &Target,
    index: usize,
    area: Rect,
) {
    if area.height < 2 {
        return;
    }
    let line = "─".repeat(usize::from(area.width));
    canvas.put(area.x, area.y, area.width, &line, Tone::Dim);
    let area = Rect { y: area.y + 1, height: area.height - 1, ..area };
    let lines = match (canvas.state.page(), selected) {
        (Page::Tab(Tab::Suspects), Target::Leak { host, id }) => {
            leak_page(shown, (*host, *id), canvas.state.unfolded, usize::from(area.width))
        }
        (Page::Tab(Tab::Incidents), _) => incident_lines(shown, index, usize::from(area.width)),
        (Page::Sites { host, key }, _) => {
            let values = shown.usage(host, |usage, until| usage.process(key, until));
            let marks = shown.marks(host, Some(key.pid), values.len());
            let marks: Vec<_> = marks.map(|(at, mark)| (at, mark_text(mark))).collect();
            chart(canvas, &values, &marks, area);
            return;
        }
        _ => None,
    };
    draw(canvas, &lines.unwrap_or_default(), Cursor::default(), area);
}

fn incident_lines(shown: &Shown<'_>, index: usize, width: usize) -> Option<Vec<TextLine>> {
    let all = all_incidents(shown);
    let incident = &all.get(index)?.1;
    let mut lines = vec![(incident.title(), Tone::Title)];
    lines.extend(wrap(&incident.summary, width, 2).into_iter().map(|it| (it, Tone::Strong)));
    for detail in &incident.details {
        let text = format!("  {detail}");
        lines.extend(wrap(&text, width, 4).into_iter().map(|it| (it, Tone::Plain)));
    }
    Some(lines)
}

/// Draws used memory over time, from 0 to its maximum. `marks`: labels of values for the line above,
/// newest first.
fn chart(canvas: &mut Canvas<'_>, values: &[u64], marks: &[(usize, String)], area: Rect) {
    let top = values.iter().copied().max().unwrap_or(0);
    let label = compact_size(top);
    let left = u16::try_from(label.chars().count()).unwrap_or(0) + 2;
    canvas.put(area.x, area.y, left, &label, Tone::Dim);
    canvas.put(area.x, area.bottom() - 1, left, "0", Tone::Dim);
    let width = usize::from(area.width.saturating_sub(left));
    let lines = columns_chart(values, top, width, usize::from(area.height));
    for (index, line) in lines.iter().enumerate() {
        let y = area.y + u16::try_from(index).unwrap_or(u16::MAX);
        canvas.put(area.x + left, y, area.width.saturating_sub(left), line, Tone::Chart);
    }
    let mut end = area.right();
    for (place, label) in marks {
        let column = u16::try_from(chart_column(*place, values.len(), width)).unwrap_or(0);
        let x = area.x + left + column;
        // A part of a label would lose what distinguishes it: the 3 of `epoch 3`.
        let has_room = usize::from(end.saturating_sub(x)) > label.chars().count();
        let text = if has_room { format!("┬{label}") } else { "┬".to_owned() };
        canvas.put(x, area.y - 1, end.saturating_sub(x), &text, Tone::Title);
        end = end.min(x);
    }
}
