//! One screen as plain text, for scripts.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use formats::report::live::json;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::draw::draw;
use super::pages::source_lines::SourceLines;
use super::source::RunningSource;
use super::state::State;
use crate::io::output;

/// Lines besides those of processes.
const OTHER_LINES: usize = 12;

/// Limit of lines.
const MAX_LINES: usize = 5000;

/// Waits for the values, and prints them. Growth needs at least two frames; a recording is read to
/// its end.
pub(crate) fn run(
    source: &RunningSource,
    state: &mut State,
    observe: Duration,
    is_json: bool,
) -> Result<()> {
    let start = Instant::now();
    let mut is_complete = false;
    while !is_complete {
        let Some(frame) = source.wait() else { bail!("the source ended without values") };
        let frame = frame?;
        is_complete = match frame.replay {
            Some(replay) => replay.has_ended,
            None => start.elapsed() >= observe,
        };
        state.push(frame);
    }
    let mut out = output::results();
    let Some((_, frame)) = state.history.newest() else { bail!("the source ended without values") };
    if is_json {
        for host in &frame.hosts {
            writeln!(out.writer, "{}", json::line(&host.snapshot, &host.context)?)?;
        }
        return out.finish();
    }
    let processes: usize = frame.hosts.iter().map(|host| host.snapshot.processes.len()).sum();
    let gpus: usize = frame.hosts.iter().map(|host| host.context.gpus.len()).sum();
    let height = (processes + 2 * gpus + OTHER_LINES).min(MAX_LINES);
    let width = u16::try_from(out.style.width).unwrap_or(u16::MAX).clamp(20, 300);
    let mut buffer =
        Buffer::empty(Rect::new(0, 0, width, u16::try_from(height).unwrap_or(u16::MAX)));
    draw(&mut buffer, state, &SourceLines::default());
    for line in text_lines(&buffer) {
        writeln!(out.writer, "{line}")?;
    }
    out.finish()
}

/// Returns the lines of a buffer without the keys at its end and without empty lines before them.
fn text_lines(buffer: &Buffer) -> Vec<String> {
    let mut lines = lines(buffer);
    lines.pop();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

/// Returns the text of a buffer.
pub(crate) fn lines(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width).max(1);
    let line = |cells: &[ratatui::buffer::Cell]| {
        let text: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        text.trim_end().to_owned()
    };
    buffer.content.chunks(width).map(line).collect()
}
