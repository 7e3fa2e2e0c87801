//! Logs of `nvidia-smi --query-gpu=timestamp,memory.used --format=csv --loop-ms=…`: what the driver
//! saw, to be laid over what a file tells. They know no allocations, so they are no input by
//! themselves.
//!
//! Times are those of the machine's wall, without a zone: how they relate to moments is told by the
//! user, or found out by [`align()`].

mod align;
mod columns;

pub use align::{Aligned, Unlike, align};

use std::collections::BTreeMap;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use self::columns::{Columns, Line, Meaning};

/// What a log says of each GPU.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Overlay {
    /// The GPUs, by name.
    pub gpus: Vec<Series>,
    /// Lines that could not be used: cut ones, messages, and those of another form.
    pub skipped: u64,
    /// Lines without a value, such as `[N/A]`.
    pub without_value: u64,
    /// How often the clock was set back (at the end of summer time); later times were moved.
    pub set_back: u64,
}

/// The used memory of one GPU over time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Series {
    /// The index or UUID where the log has one, else the place among the lines of one moment.
    pub gpu: String,
    /// Nanoseconds since 1970 as the log's own clock counts them, and bytes. Of equal values that
    /// follow each other only the first and the last are kept.
    pub points: Vec<(i64, u64)>,
}

/// Why a log cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// It has no line with a time and a value.
    #[error(
        "no line has a time and used memory; log with nvidia-smi \
         --query-gpu=timestamp,index,memory.used --format=csv --loop-ms=10"
    )]
    Nothing,
    /// It has several numbers in a line, and no header.
    #[error("line {line} has several numbers and no header; log without noheader")]
    NoHeader {
        /// The line, counted from 1.
        line: usize,
    },
    /// Lines of several GPUs cannot be told apart.
    #[error("several GPUs are in the log and cannot be distinguished; add index to --query-gpu")]
    Mixed,
}

/// Whether the beginning of a file is that of a log.
pub(super) fn looks_like(head: &[u8]) -> bool {
    let head = String::from_utf8_lossy(head.get(..4096).unwrap_or(head));
    head.lines().take(5).any(|line| {
        let fields: Vec<_> = line.split(',').map(str::trim).collect();
        let header = fields.iter().any(|field| columns::is_memory(field));
        fields.len() > 1 && (header || fields.iter().any(|field| time(field).is_some()))
    })
}

/// Reads a log. A last line that is cut is skipped, as are messages between the lines.
///
/// # Errors
///
/// There is nothing to read, or it is not clear what belongs to which GPU.
pub fn parse(text: &str) -> Result<Overlay, Error> {
    let mut overlay = Overlay::default();
    let mut rows: Vec<Row> = Vec::new();
    let mut columns: Option<Columns> = None;
    let mut shift = 0;
    let whole = text.ends_with('\n');
    let count = text.lines().count();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        let line = Line::new(line);
        if let Some(header) = Columns::of_header(&line) {
            columns = Some(header);
            continue;
        }
        if columns.is_none() {
            columns = Columns::of_values(&line)
                .map_err(|columns::Several| Error::NoHeader { line: number })?;
        }
        let cut = number == count && !whole;
        match columns.as_ref().map(|columns| columns.read(&line)) {
            // A number that is cut is a number still.
            Some(Meaning::Value(mut row)) if !cut => {
                row.time = row.time.saturating_add(shift);
                if let Some(last) = rows.last()
                    && row.time < last.time
                {
                    overlay.set_back += 1;
                    // Later than the last line, and not of the same moment.
                    let next = last.time.saturating_add(2 * TOGETHER);
                    shift = shift.saturating_add(next.saturating_sub(row.time));
                    row.time = next;
                }
                rows.push(row);
            }
            Some(Meaning::NoValue) => overlay.without_value += 1,
            _ => overlay.skipped += 1,
        }
    }
    if rows.is_empty() {
        return Err(Error::Nothing);
    }
    overlay.gpus = series(rows)?;
    Ok(overlay)
}

/// One value of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Row {
    time: i64,
    gpu: Option<String>,
    /// It is the memory of one process of several.
    part: bool,
    bytes: u64,
}

/// Lines of one moment are at most this far apart.
const TOGETHER: i64 = 1_000_000;

fn series(mut rows: Vec<Row>) -> Result<Vec<Series>, Error> {
    if rows.iter().all(|row| row.gpu.is_none() && !row.part) {
        number_gpus(&mut rows)?;
    }
    let mut all: BTreeMap<String, Vec<(i64, u64)>> = BTreeMap::new();
    for row in rows {
        let points = all.entry(row.gpu.unwrap_or_else(|| "0".into())).or_default();
        match points.last_mut() {
            Some((time, bytes)) if row.part && *time == row.time => {
                *bytes = bytes.saturating_add(row.bytes);
            }
            _ => points.push((row.time, row.bytes)),
        }
    }
    Ok(all.into_iter().map(|(gpu, points)| Series { gpu, points: runs(points) }).collect())
}

/// Without an index the lines of one moment are GPU after GPU.
fn number_gpus(rows: &mut [Row]) -> Result<(), Error> {
    let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
    let together = |pair: &[Row]| matches!(pair, [first, second] if second.time.saturating_sub(first.time) <= TOGETHER);
    let mut size = 1;
    for pair in rows.windows(2) {
        if together(pair) {
            size += 1;
        } else {
            *sizes.entry(size).or_default() += 1;
            size = 1;
        }
    }
    let most = sizes.iter().max_by_key(|(_, count)| **count).map_or(size, |(size, _)| *size);
    let (all, same) = (sizes.values().sum::<usize>(), sizes.get(&most).copied().unwrap_or(0));
    // A line that came late now and then does no harm to one GPU alone.
    if most == 1 && same * 10 >= all * 9 {
        return Ok(());
    }
    if same != all || size > most {
        return Err(Error::Mixed);
    }
    for (at, row) in rows.iter_mut().enumerate() {
        row.gpu = Some((at % most).to_string());
    }
    Ok(())
}

/// Drops what lies inside of a run of equal values.
fn runs(points: Vec<(i64, u64)>) -> Vec<(i64, u64)> {
    let mut kept: Vec<(i64, u64)> = Vec::new();
    for (time, bytes) in points {
        if let [.., (_, before), (last, value)] = kept.as_mut_slice()
            && *before == bytes
            && *value == bytes
        {
            *last = time;
        } else {
            kept.push((time, bytes));
        }
    }
    kept
}

/// `2026/11/15 00:44:12.728`, as if it were UTC.
fn time(text: &str) -> Option<i64> {
    let (date, clock) = text.split_once(' ')?;
    let [year, month, day] = numbers(date, '/')?;
    let (clock, fraction) = clock.split_once('.')?;
    let [hour, minute, second] = numbers(clock, ':')?;
    if fraction.len() != 3 {
        return None;
    }
    let millis: i32 = fraction.parse().ok()?;
    let time = DateTime::new(
        year,
        i8::try_from(month).ok()?,
        i8::try_from(day).ok()?,
        i8::try_from(hour).ok()?,
        i8::try_from(minute).ok()?,
        i8::try_from(second).ok()?,
        millis.checked_mul(1_000_000)?,
    );
    let time = time.ok()?.to_zoned(TimeZone::UTC).ok()?;
    i64::try_from(time.timestamp().as_nanosecond()).ok()
}

fn numbers(text: &str, between: char) -> Option<[i16; 3]> {
    let mut parts = text.split(between).map(|part| part.parse().ok());
    let found = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(found)
}
