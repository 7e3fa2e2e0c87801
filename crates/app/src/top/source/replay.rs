//! A recording, replayed at any speed.

use std::io::{BufReader, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use engine::model::{Nanos, Timestamp};
use formats::WallClock;
use formats::recording::{RecordingReader, RecordingRow};

use super::{Request, RequestCell, Source};
use crate::commands::file::replay::{RecordedState, known_function};
use crate::files::input;
use crate::io::output;
use crate::io::output_file::shown;
use crate::top::frame::{HostFrame, ReplayPosition, TopFrame};

/// Longest time that one frame advances the recording at the highest speed, in seconds.
const MAX_STEP_SECONDS: f64 = 1e9;

/// At a high speed, a step of the replay has several frames: charts need more values than there are
/// drawings. They are a second of the recording apart; after this many, twice as much, and so on.
const FRAMES_PER_DISTANCE: u32 = 30;
const MIN_DISTANCE_NANOS: u64 = 1_000_000_000;

/// Time between two frames that are the same.
const LONG: Duration = Duration::from_hours(1);

/// A recording that is being read.
pub(crate) struct ReplaySource {
    reader: RecordingReader<Box<dyn Read + Send>>,
    name: String,
    state: RecordedState,
    /// The first row that is later than what was replayed.
    pending: Option<RecordingRow>,
    first: Option<Timestamp>,
    at: Timestamp,
    /// The step that is being replayed.
    step: Option<Step>,
    last_step: Option<Instant>,
    /// Request of the last frame.
    last_request: Option<Request>,
    has_ended: bool,
}

/// The rest of a step.
#[derive(Clone, Copy)]
struct Step {
    until: Timestamp,
    /// Time between two frames, and how many there were.
    nanos: u64,
    frames: u32,
}

impl ReplaySource {
    /// Opens a file.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        input::require_recording(path)?;
        let file = std::fs::File::open(path)?;
        let total = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|data| data.len());
        let name = path.file_name().map_or_else(|| shown(path), |name| shown(Path::new(name)));
        Self::new(Box::new(BufReader::new(file)), path, total, name)
    }

    /// Reads a recording that is part of this program.
    pub(crate) fn embedded(bytes: &'static [u8], name: &str) -> Result<Self> {
        Self::new(Box::new(bytes), Path::new(name), Some(bytes.len() as u64), name.to_owned())
    }

    fn new(
        input: Box<dyn Read + Send>,
        path: &Path,
        total: Option<u64>,
        name: String,
    ) -> Result<Self> {
        Ok(Self {
            reader: RecordingReader::new(input, path, total, known_function)?,
            name,
            state: RecordedState::default(),
            pending: None,
            first: None,
            at: Timestamp(0),
            step: None,
            last_step: None,
            last_request: None,
            has_ended: false,
        })
    }

    /// Replays up to a time.
    fn advance(&mut self, until: Timestamp) -> Result<()> {
        while !self.has_ended {
            let row = match self.pending.take() {
                Some(row) => row,
                None => match self.reader.next_row()? {
                    Some(row) => row,
                    None => {
                        self.has_ended = true;
                        for warning in self.reader.warnings() {
                            output::warn(&warning.text);
                        }
                        return Ok(());
                    }
                },
            };
            let time = match &row {
                RecordingRow::Event(event) => Some(event.time),
                RecordingRow::Tick(time) | RecordingRow::End(time) => Some(*time),
                _ => None,
            };
            if time.is_some_and(|time| time > until) {
                self.pending = Some(row);
                self.at = self.at.max(until);
                return Ok(());
            }
            if let RecordingRow::Clock(clock) = &row {
                self.first.get_or_insert(clock.start());
                self.at = self.at.max(clock.start());
            }
            self.state.apply(row);
            self.at = self.at.max(time.unwrap_or_default());
        }
        Ok(())
    }

    /// Replays up to the next frame of a step.
    fn replay(&mut self, mut step: Step) -> Result<()> {
        let next = Timestamp(self.at.0.saturating_add(step.nanos)).min(step.until);
        step.frames += 1;
        if step.frames.is_multiple_of(FRAMES_PER_DISTANCE) {
            step.nanos = step.nanos.saturating_mul(2);
        }
        self.advance(next)?;
        self.step = Some(step).filter(|_| next < step.until && !self.has_ended);
        Ok(())
    }

    /// Reads the header, and returns the time at which the recording starts.
    fn start(&mut self) -> Result<Timestamp> {
        while self.first.is_none() && !self.has_ended {
            self.advance(Timestamp(0))?;
            if let Some(row) = self.pending.take() {
                // The first row with a time begins a recording without a clock.
                self.first.get_or_insert(match &row {
                    RecordingRow::Event(event) => event.time,
                    _ => Timestamp(0),
                });
                self.pending = Some(row);
            }
        }
        Ok(self.first.unwrap_or_default())
    }
}

impl Source for ReplaySource {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn is_replay(&self) -> bool {
        true
    }

    fn next(&mut self, requests: &RequestCell) -> Result<Option<TopFrame>> {
        let start = self.start()?;
        if let Some(step) = self.step.take().filter(|_| !requests.get().is_paused) {
            self.replay(step)?;
            return Ok(Some(self.frame(&requests.get(), start)));
        }
        // A change since the last frame counts as one.
        let known = self.last_request.unwrap_or_else(|| requests.get());
        if let Some(last) = self.last_step {
            // Nothing changes after the end, or while it is paused.
            let rest = self.has_ended || known.is_paused;
            requests.wait(&known, last + if rest { LONG } else { known.interval });
        }
        let request = requests.get();
        let now = Instant::now();
        let is_first = self.last_step.is_none();
        let elapsed = self.last_step.map_or(known.interval, |last| now - last).as_secs_f64();
        self.last_step = Some(now);
        if !request.is_paused || is_first {
            let step = ((elapsed * known.speed).min(MAX_STEP_SECONDS) * 1e9) as u64;
            self.at = self.at.max(start);
            let until = Timestamp(self.at.0.saturating_add(step));
            self.replay(Step { until, nanos: MIN_DISTANCE_NANOS, frames: 0 })?;
        }
        self.last_request = Some(request);
        Ok(Some(self.frame(&request, start)))
    }
}

impl ReplaySource {
    /// Returns the state at the time that was replayed.
    fn frame(&mut self, request: &Request, start: Timestamp) -> TopFrame {
        let mut options = request.details.snapshot_options(0);
        // As in the final report, leaks of processes that exited remain.
        options.ended_sites = self.has_ended;
        let snapshot = self.state.ledger.snapshot(self.at, &options);
        let clock = self.state.clock.clone().unwrap_or_else(|| WallClock::fixed(start, 0));
        let context = self.state.context(clock, self.reader.functions());
        let name = self.state.host.clone();
        let is_local = name == formats::hostname::name();
        let host = HostFrame { is_local, ..HostFrame::new(name, snapshot, context) };
        let (speed, has_ended) = (request.speed, self.has_ended);
        let elapsed = Nanos(self.at.0.saturating_sub(start.0));
        let replay = Some(ReplayPosition { elapsed, speed, has_ended });
        TopFrame { hosts: vec![host], replay }
    }

    /// Replays one more second, whatever time it is.
    #[cfg(test)]
    pub(crate) fn step(&mut self, requests: &RequestCell) -> Result<TopFrame> {
        let start = self.start()?;
        self.advance(Timestamp(self.at.max(start).0.saturating_add(1_000_000_000)))?;
        Ok(self.frame(&requests.get(), start))
    }
}
