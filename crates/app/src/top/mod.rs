//! `vramscope top`: a full-screen view of GPUs, processes, sites, call stacks and allocations.
//!
//! A [`source::Source`] on its own thread sends frames: snapshots of one or several hosts. The view
//! builds rows from the view model of the engine and the tables of `formats`, for what is visible
//! only, and draws them. It changes nothing: no process is signaled.

mod draw;
mod frame;
mod keys;
mod once;
mod pages;
pub(crate) mod source;
mod state;
mod terminal;
#[cfg(test)]
mod tests;
mod theme;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use formats::report::tables::processes::ProcessColumn;
use ratatui::crossterm::event;

use crate::Outcome;
use crate::io::output;
pub(crate) use frame::TopFrame;
use keys::Action;
use pages::source_lines::SourceLines;
use source::{RequestCell, RunningSource, Source};
use state::State;
use terminal::{Screen, Signals};
pub(crate) use theme::Theme;

/// Longest time until a frame or a signal is noticed. Keys are noticed at once. crossterm waits for
/// whole milliseconds and spins for the rest, which is why that is short.
const POLL_INTERVAL: Duration = Duration::from_micros(40_020);

/// How the view starts.
pub(crate) struct TopOptions {
    pub(crate) interval: Duration,
    /// Of a recording: how much faster than recorded.
    pub(crate) speed: f64,
    pub(crate) theme: Theme,
    pub(crate) is_ascii: bool,
    /// End after this long.
    pub(crate) duration: Option<Duration>,
    /// Filter to start with.
    pub(crate) filter: String,
    /// Columns to start with; empty: the usual ones.
    pub(crate) columns: Vec<ProcessColumn>,
}

impl TopOptions {
    fn start(&self, source: Box<dyn Source>) -> Result<(RunningSource, State)> {
        let mut state = State::new(self.theme, self.is_ascii, self.interval, self.speed);
        state.filter.clone_from(&self.filter);
        if !self.columns.is_empty() {
            let is_wanted = |column: &ProcessColumn| self.columns.contains(column);
            state.columns = ProcessColumn::ALL.into_iter().filter(is_wanted).collect();
        }
        let requests = RequestCell::new(self.interval, self.speed);
        let source = RunningSource::start(source, requests)?;
        state.source.clone_from(&source.name);
        state.is_replay = source.is_replay;
        Ok((source, state))
    }
}

/// Prints one screen after observing for some time.
pub(crate) fn run_once(
    source: Box<dyn Source>,
    options: &TopOptions,
    observe: Duration,
    is_json: bool,
) -> Result<Outcome> {
    let (source, mut state) = options.start(source)?;
    once::run(&source, &mut state, observe, is_json)?;
    Ok(Outcome::Success)
}

/// Runs the full-screen view until it is closed.
pub(crate) fn run(source: Box<dyn Source>, options: &TopOptions) -> Result<Outcome> {
    let signals = Signals::watch()?;
    let (source, mut state) = options.start(source)?;
    let mut screen = Screen::open()?;
    let shown = show(&mut screen, &source, &mut state, &signals, options.duration);
    drop(screen);
    drop(source);
    shown.map(|()| Outcome::Success)
}

fn show(
    screen: &mut Screen,
    source: &RunningSource,
    state: &mut State,
    signals: &Signals,
    duration: Option<Duration>,
) -> Result<()> {
    let sources = SourceLines::default();
    let end = duration.map(|duration| Instant::now() + duration);
    let mut has_changed = true;
    while !state.quit && !signals.quits() && end.is_none_or(|end| Instant::now() < end) {
        let (frames, has_ended) = source.arrived();
        for frame in frames {
            state.push(frame?);
            has_changed = true;
        }
        if has_ended {
            bail!("the thread `top-source` ended early; there are no more values");
        }
        if let Some(message) = output::take_messages().pop() {
            state.message = Some(message);
            has_changed = true;
        }
        if signals.take_suspend() {
            screen.suspend()?;
            has_changed = true;
        }
        if has_changed {
            let drawn =
                screen.terminal.draw(|frame| draw::draw(frame.buffer_mut(), state, &sources));
            if drawn.is_err() {
                // The terminal is closed.
                return Ok(());
            }
            has_changed = false;
        }
        has_changed |= handle_events(screen, state)?;
        source.requests.update(|request| {
            request.details = state.details();
            request.interval = state.interval;
            request.speed = state.speed;
            request.is_paused = state.held.is_some();
        });
    }
    Ok(())
}

/// Waits for an event and handles it. Returns whether the screen changed.
fn handle_events(screen: &mut Screen, state: &mut State) -> Result<bool> {
    let event = match event::poll(POLL_INTERVAL) {
        Ok(true) => event::read(),
        Ok(false) => return Ok(false),
        Err(error) => Err(error),
    };
    // An error means that the terminal is closed.
    let Ok(event) = event else {
        state.quit = true;
        return Ok(false);
    };
    Ok(match keys::handle(state, &event) {
        Action::Draw => true,
        Action::Nothing => false,
        Action::Suspend => {
            screen.suspend()?;
            true
        }
    })
}
