//! PyTorch memory snapshots: `torch.cuda.memory._dump_snapshot()`, HTML pages of its viewers, and
//! files made from profiles. See `docs/guide/pytorch-snapshots.md` for the meaning of the values.
//!
//! A snapshot is a pickle. It is never executed: `machine` supports the opcodes of plain data and
//! rejects all others. Nothing is kept as a tree: `builder` interprets each dictionary as soon as
//! it is complete. After the file was read, `pairs` matches allocations and frees, and `replay`
//! emits the changes in the order of time.

mod html;
mod pickle;
mod read_ahead;
mod replay;
mod snapshot;
mod warnings;

use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;
use std::thread;

use engine::model::Timestamp;

use self::pickle::byte_window::{ByteWindow, NextBlock};
use self::pickle::error::{ReadError, ReadErrorKind};
use self::pickle::machine::PickleMachine;
use self::pickle::value::{RunItem, Value};
use self::read_ahead::{ReadAhead, read_block};
use self::replay::device_trace::device_traces;
use self::replay::live_addresses::LiveAddresses;
use self::replay::{ReplayContext, TraceReplayer, timestamp};
use self::snapshot::builder::SnapshotBuilder;
use super::{ImportError, ImportSink, ImportSummary, SourceFormat};

/// Smaller times are not microseconds since 1970, but entry numbers.
const REAL_TIME: u64 = 1 << 40;

/// Shorter inputs are read by one thread.
const MIN_READ_AHEAD: u64 = 4 << 20;

/// Reads a snapshot: the pickle itself, or an HTML page that contains one.
///
/// # Errors
/// The file cannot be read, is not a snapshot, or is damaged.
pub fn read(path: &Path, sink: &mut dyn ImportSink) -> Result<ImportSummary, ImportError> {
    let io_error = |source| ImportError::Io { path: path.into(), source };
    let (input, is_page) = open(path).map_err(io_error)?;
    let Some((mut input, max)) = input else {
        return Err(not_recognised(path, is_page));
    };
    thread::scope(|scope| {
        let next_block: NextBlock<'_> = match max {
            0..MIN_READ_AHEAD => Box::new(move |used| read_block(&mut input, used)),
            _ => {
                let mut ahead = ReadAhead::start(scope, input).map_err(io_error)?;
                Box::new(move |used| ahead.next_block(used))
            }
        };
        let window = ByteWindow::new(next_block, max);
        read_pickle(window, sink).map_err(|error| explain(path, error, is_page))
    })
}

/// A pickle, and its maximum length.
type Input = (Box<dyn Read + Send>, u64);

/// Opens the pickle of a file, if it starts like one; also returns whether it is inside a page.
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
        return Ok((Some((Box::new(file), length)), false));
    }
    let is_page = start.trim_ascii_start().first().is_some_and(|byte| matches!(byte, b'<' | b'['));
    let page = is_page.then(|| -> Input {
        let page = html::pickle(BufReader::with_capacity(1 << 16, file));
        (Box::new(page), length / 4 * 3 + 3)
    });
    Ok((page, is_page))
}

fn read_pickle(
    input: ByteWindow<'_>,
    sink: &mut dyn ImportSink,
) -> Result<ImportSummary, ReadError> {
    let total = input.remaining();
    let mut builder = SnapshotBuilder::new(sink, total);
    let value = PickleMachine::new(input, &mut builder).run()?;
    let segments_only = match value {
        Value::Snapshot => None,
        Value::List(run) if run.item == RunItem::Segment => Some(value),
        Value::EmptyList => Some(value),
        _ => {
            return Err(ReadError::not_snapshot(
                "the pickle holds neither `segments` nor `device_traces`",
            ));
        }
    };
    replay(&mut builder, segments_only);
    builder.sink.progress(total, total);
    Ok(ImportSummary { source: SourceFormat::Torch, events: builder.used, producer: None })
}

/// Replays the snapshot to the sink, in the order of time.
fn replay(builder: &mut SnapshotBuilder<'_>, segments_only: Option<Value>) {
    let mut device_traces = device_traces(builder, segments_only);
    if device_traces.iter().all(|trace| trace.entries.count == 0) {
        builder.warnings.no_trace = true;
    } else if device_traces.iter().all(|trace| trace.segments.as_ref().is_none_or(Vec::is_empty)) {
        builder.warnings.no_segments = true;
        device_traces.iter_mut().for_each(|trace| trace.segments = None);
    }
    let entries = &mut builder.entries;
    let warnings = &mut builder.warnings;
    let paired: Vec<_> = device_traces
        .into_iter()
        .map(|trace| {
            let pairs = replay::pairs::pair(&trace, entries, warnings);
            (trace, pairs)
        })
        .collect();
    let first = paired.iter().filter_map(|(trace, _)| {
        if trace.entries.count == 0 { None } else { entries.get(trace.entries.first) }
    });
    let first = first.map(|entry| entry.time).min();
    let timed = first.is_some_and(|time| time >= REAL_TIME);
    let with_memory = paired.iter().filter(|(trace, _)| trace.has_memory()).count();
    let mut context = ReplayContext {
        entries,
        streams: &builder.streams,
        settings: &builder.settings,
        warnings,
        sink: &mut *builder.sink,
        timed,
        live: (with_memory > 1).then(LiveAddresses::default),
    };
    context.sink.cache_settings(context.settings);
    let start = timestamp(first.unwrap_or(0));
    if timed && let Ok(nanos) = i64::try_from(start.0) {
        context.sink.clock(start, nanos);
    }
    let replayers = paired.into_iter().enumerate();
    let replayers = replayers
        .map(|(number, (trace, pairs))| TraceReplayer::new(number, trace, pairs, &mut context))
        .collect();
    merge(replayers, start, &mut context);
    if builder.warnings.no_trace {
        // Everything is older than the missing trace, which has its own warning.
        builder.warnings.older = 0;
    }
    std::mem::take(&mut builder.warnings).flush(&builder.strings, &mut *builder.sink);
}

fn merge(mut replayers: Vec<TraceReplayer>, start: Timestamp, context: &mut ReplayContext<'_>) {
    for replayer in &mut replayers {
        replayer.begin(start, context);
    }
    let mut end = start;
    loop {
        let next = replayers
            .iter_mut()
            .filter_map(|replayer| replayer.time(context.entries).map(|time| (time, replayer)));
        let Some((time, replayer)) = next.min_by_key(|(time, _)| *time) else { break };
        end = timestamp(time);
        replayer.step(context);
    }
    for replayer in &mut replayers {
        replayer.finish(end, context);
    }
}

fn not_recognised(path: &Path, is_page: bool) -> ImportError {
    let reason = if is_page {
        "no memory snapshot in the page; make one with torch.cuda.memory._dump_snapshot()"
    } else {
        "not a PyTorch memory snapshot: a pickle of protocol 2 to 5, or a page made from one; \
         make one with torch.cuda.memory._dump_snapshot()"
    };
    ImportError::NotRecognized { path: path.into(), reason: reason.to_owned() }
}

fn explain(path: &Path, error: ReadError, is_page: bool) -> ImportError {
    let path = path.to_path_buf();
    match error.into_kind() {
        ReadErrorKind::Io(source) => ImportError::Io { path, source },
        ReadErrorKind::Broken { at: 0, .. } if is_page => not_recognised(&path, true),
        ReadErrorKind::Broken { problem, at, advice } => {
            let location = if is_page { "byte {} of the pickle in the page" } else { "byte {}" };
            let location = location.replace("{}", &at.to_string());
            ImportError::Broken { path, problem, location, advice: advice.to_owned() }
        }
        ReadErrorKind::NotSnapshot(reason) => {
            let reason =
                format!("{reason}; make a snapshot with torch.cuda.memory._dump_snapshot()");
            ImportError::NotRecognized { path, reason }
        }
    }
}
