//! Draws the view into a buffer of cells. Work is proportional to what is visible.

mod header;
mod overlay;
mod table;
mod text;

use std::sync::Arc;

use engine::view::View;
use formats::report::view::gpu_facts;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::frame::TopFrame;
use super::pages::listing::{Cursor, Target};
use super::pages::lists;
use super::pages::rows::Shown;
use super::pages::source_lines::SourceLines;
use super::state::{ClickAreas, Page, State, Tab};
use super::theme::{Tone, to_ascii};

/// Smallest screen.
const MIN_SIZE: (u16, u16) = (20, 5);

/// Height from which there are tabs, charts and details.
const ROOMY: u16 = 18;

/// A part of the screen to draw to.
pub(super) struct Canvas<'b> {
    pub(super) buffer: &'b mut Buffer,
    pub(super) state: &'b State,
}

impl Canvas<'_> {
    /// Writes a text, at most `width` cells of it; returns the column after it.
    pub(super) fn put(&mut self, x: u16, y: u16, width: u16, text: &str, tone: Tone) -> u16 {
        self.put_styled(x, y, width, text, self.state.theme.style(tone))
    }

    /// The same with a style.
    pub(super) fn put_styled(
        &mut self,
        x: u16,
        y: u16,
        width: u16,
        text: &str,
        style: Style,
    ) -> u16 {
        let area = self.buffer.area;
        if x >= area.right() || y >= area.bottom() {
            return x;
        }
        self.buffer.set_stringn(x, y, text, usize::from(width), style).0
    }

    /// Writes a text that ends at the right border of an area.
    pub(super) fn put_right(&mut self, area: Rect, y: u16, text: &str, tone: Tone) {
        let length = u16::try_from(text.chars().count()).unwrap_or(u16::MAX).min(area.width);
        self.put(area.right() - length, y, length, text, tone);
    }
}

/// What drawing has decided.
#[derive(Default)]
pub(super) struct Outcome {
    cursor: Option<Cursor>,
    selected: Target,
    areas: ClickAreas,
    page_height: usize,
    notes: Vec<String>,
}

/// Draws the state.
pub(crate) fn draw(buffer: &mut Buffer, state: &mut State, sources: &SourceLines) {
    let area = buffer.area;
    let found = state.shown().map(|(number, frame)| (number, Arc::clone(frame)));
    let outcome = match found {
        _ if area.width < MIN_SIZE.0 || area.height < MIN_SIZE.1 => {
            Canvas { buffer, state }.put(0, 0, area.width, "too small", Tone::Plain);
            Outcome::default()
        }
        None => {
            let text = "vramscope top: waiting for the first values";
            Canvas { buffer, state }.put(0, 0, area.width, text, Tone::Plain);
            Outcome::default()
        }
        Some((number, frame)) => {
            with_views(&frame, number, state, |shown| draw_page(buffer, state, shown, sources))
        }
    };
    state.notes = outcome.notes;
    if let Some((overlay, cursor)) = state.overlay {
        let cursor = overlay::draw(&mut Canvas { buffer, state }, overlay, cursor);
        state.overlay = Some((overlay, cursor));
    }
    if let (Some(cursor), Some((_, current))) = (outcome.cursor, state.pages.last_mut()) {
        *current = cursor;
    }
    state.selected = outcome.selected;
    state.areas = outcome.areas;
    state.page_height = outcome.page_height.max(1);
    if state.is_ascii {
        to_ascii(buffer);
    }
}

fn with_views<T>(
    frame: &TopFrame,
    number: u64,
    state: &State,
    show: impl FnOnce(&Shown<'_>) -> T,
) -> T {
    let facts: Vec<_> = frame.hosts.iter().map(|host| gpu_facts(&host.context.gpus)).collect();
    let hosts = frame.hosts.iter().zip(&facts);
    let views = hosts.map(|(host, facts)| View::of(&host.snapshot, facts)).collect();
    show(&Shown { frame, number, views, history: &state.history, held: state.held.as_ref() })
}

fn draw_page(
    buffer: &mut Buffer,
    state: &State,
    shown: &Shown<'_>,
    sources: &SourceLines,
) -> Outcome {
    let area = buffer.area;
    let mut outcome = Outcome { notes: header::notes(shown), ..Outcome::default() };
    let mut canvas = Canvas { buffer, state };
    let mut y = header::draw(&mut canvas, shown, area, &mut outcome.areas);
    let bottom = area.bottom() - 1;
    header::footer(&mut canvas, shown, Rect { y: bottom, height: 1, ..area });
    let below = details_height(state, area.height);
    let body = Rect { y, height: bottom.saturating_sub(y).saturating_sub(below), ..area };
    y = body.bottom();
    let cursor = state.pages.last().map(|(_, cursor)| *cursor).unwrap_or_default();
    if let Some(listing) = lists::of_page(shown, state) {
        let drawn = table::draw(&mut canvas, &listing, cursor, body, &mut outcome.areas);
        outcome.page_height = usize::from(body.height.saturating_sub(1));
        outcome.selected = drawn.1.clone();
        outcome.cursor = Some(drawn.0);
        let rest = Rect { y, height: bottom - y, ..area };
        text::details(&mut canvas, shown, &drawn.1, drawn.0.index, rest);
    } else {
        let lines = text::page(state, shown, usize::from(area.width), sources);
        let drawn = text::draw(&mut canvas, &lines, cursor, body);
        outcome.page_height = usize::from(body.height);
        outcome.cursor = Some(drawn);
    }
    outcome
}

/// Height of the details below a table.
fn details_height(state: &State, height: u16) -> u16 {
    let has_details = match state.page() {
        Page::Tab(Tab::Suspects | Tab::Incidents) => height >= ROOMY,
        Page::Sites { .. } => height >= ROOMY + 2,
        _ => false,
    };
    match state.page() {
        _ if !has_details => 0,
        Page::Sites { .. } => 6,
        _ => height / 2 - 2,
    }
}
