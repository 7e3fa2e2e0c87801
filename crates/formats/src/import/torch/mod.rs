//! PyTorch's memory snapshots: `torch.cuda.memory._dump_snapshot()`, pages that show one, and what
//! is made from profiles. See `docs/guide/pytorch-snapshots.md` for what the figures mean.
//!
//! A snapshot is a pickle. It is never executed: `machine` knows the opcodes of plain data and
//! refuses all others. Nothing of it is kept as a tree: `meaning` turns each dictionary into what
//! it means as soon as it is complete. When all was read, `pair` finds what belongs together, and
//! `replay` tells it in the order of time.

mod ahead;
mod entry;
mod events;
mod fault;
mod frames;
mod gaps;
mod html;
mod input;
mod known;
mod lane;
mod machine;
mod meaning;
mod memo;
mod notes;
mod opcode;
mod pair;
mod replay;
mod reserved;
mod state;
mod value;
mod words;

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

use engine::units::Moment;

use self::fault::{Fault, Kind};
use self::html::Page;
use self::input::Input;
use self::lane::lanes;
use self::machine::Machine;
use self::meaning::Meaning;
use self::replay::{Player, Stage, moment};
use self::value::{Thing, Value};
use super::{Error, Imported, Sink, Source};

/// Times before this are no microseconds since 1970, but numbers of entries.
const REAL_TIME: u64 = 1 << 40;

/// Reads a snapshot: the pickle itself, or a page that holds one.
///
/// # Errors
/// When the file cannot be read, is no snapshot, or is broken.
pub fn read(path: &Path, sink: &mut dyn Sink) -> Result<Imported, Error> {
    let (input, is_page) = open(path).map_err(|source| Error::Io { path: path.into(), source })?;
    let Some(input) = input else {
        return Err(not_recognised(path, is_page));
    };
    read_pickle(input, sink).map_err(|fault| explain(path, fault, is_page))
}

/// The pickle of a file, if it begins like one, and whether it is inside a page.
fn open(path: &Path) -> std::io::Result<(Option<Input>, bool)> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut start = [0; 64];
    let mut known = 0;
    while let Some(space @ [_, ..]) = start.get_mut(known..) {
        match file.read(space)? {
            0 => break,
            more => known += more,
        }
    }
    file.rewind()?;
    let start = start.get(..known).unwrap_or_default();
    if matches!(start, [0x80, 0..=5, ..]) {
        return Ok((Some(Input::new(Box::new(file), length)), false));
    }
    let is_page = start.trim_ascii_start().first().is_some_and(|byte| matches!(byte, b'<' | b'['));
    let page = is_page.then(|| {
        let page = Page::new(BufReader::with_capacity(1 << 16, file));
        Input::new(Box::new(page), length / 4 * 3 + 3)
    });
    Ok((page, is_page))
}

fn read_pickle(input: Input, sink: &mut dyn Sink) -> Result<Imported, Fault> {
    let total = input.left();
    let mut meaning = Meaning::new(sink, total);
    let value = Machine::new(input, &mut meaning).run()?;
    let segments_only = match value {
        Value::Whole => None,
        Value::List(run) if run.of == Thing::Segment => Some(value),
        Value::EmptyList => Some(value),
        _ => {
            return Err(Fault::not_snapshot(
                "the pickle holds neither `segments` nor `device_traces`",
            ));
        }
    };
    tell(&mut meaning, segments_only);
    meaning.sink.progress(total, total);
    Ok(Imported { source: Source::Torch, events: meaning.used, producer: None })
}

/// Tells the sink everything, in the order of time.
fn tell(meaning: &mut Meaning<'_>, segments_only: Option<Value>) {
    let mut lanes = lanes(meaning, segments_only);
    if lanes.iter().all(|lane| lane.trace.count == 0) {
        meaning.notes.no_trace = true;
    } else if lanes.iter().all(|lane| lane.segments.as_ref().is_none_or(Vec::is_empty)) {
        meaning.notes.no_segments = true;
        lanes.iter_mut().for_each(|lane| lane.segments = None);
    }
    let events = &mut meaning.events;
    let notes = &mut meaning.notes;
    let paired: Vec<_> = lanes
        .into_iter()
        .map(|lane| {
            let pairs = pair::pair(&lane, events, notes);
            (lane, pairs)
        })
        .collect();
    let first = paired.iter().filter_map(|(lane, _)| {
        if lane.trace.count == 0 { None } else { events.get(lane.trace.first) }
    });
    let first = first.map(|event| event.time).min();
    let timed = first.is_some_and(|time| time >= REAL_TIME);
    let mut stage = Stage {
        events,
        streams: &meaning.streams,
        settings: &meaning.settings,
        notes,
        sink: &mut *meaning.sink,
        timed,
    };
    stage.sink.cache_settings(stage.settings);
    let start = moment(first.unwrap_or(0));
    if timed && let Ok(nanos) = i64::try_from(start.0) {
        stage.sink.clock(start, nanos);
    }
    let players = paired.into_iter().map(|(lane, pairs)| Player::new(lane, pairs, &mut stage));
    let players = players.collect();
    play(players, start, &mut stage);
    if meaning.notes.no_trace {
        // Everything is older than a trace that is not there: that was said already.
        meaning.notes.older = 0;
    }
    std::mem::take(&mut meaning.notes).tell(&meaning.words, &mut *meaning.sink);
}

fn play(mut players: Vec<Player>, start: Moment, stage: &mut Stage<'_>) {
    for player in &mut players {
        player.begin(start, stage);
    }
    let mut end = start;
    loop {
        let next = players
            .iter_mut()
            .filter_map(|player| player.time(stage.events).map(|time| (time, player)));
        let Some((time, player)) = next.min_by_key(|(time, _)| *time) else { break };
        end = moment(time);
        player.step(stage);
    }
    for player in &mut players {
        player.finish(end, stage);
    }
}

fn not_recognised(path: &Path, is_page: bool) -> Error {
    let why = if is_page {
        "the page holds no memory snapshot; make one with torch.cuda.memory._dump_snapshot()"
    } else {
        "this is no PyTorch memory snapshot: a pickle of protocol 2 to 5, or a page made from one; \
         make one with torch.cuda.memory._dump_snapshot()"
    };
    Error::NotRecognised { path: path.into(), why: why.to_owned() }
}

fn explain(path: &Path, fault: Fault, is_page: bool) -> Error {
    let path = path.to_path_buf();
    match fault.into_kind() {
        Kind::Io(source) => Error::Io { path, source },
        Kind::Broken { at: 0, .. } if is_page => not_recognised(&path, true),
        Kind::Broken { what, at, advice } => {
            let place = if is_page { "byte {} of the pickle in the page" } else { "byte {}" };
            let place = place.replace("{}", &at.to_string());
            Error::Broken { path, what, place, advice: advice.to_owned() }
        }
        Kind::NotSnapshot(why) => {
            let why = format!("{why}; make a snapshot with torch.cuda.memory._dump_snapshot()");
            Error::NotRecognised { path, why }
        }
    }
}
