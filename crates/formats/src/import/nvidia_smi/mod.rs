//! Logs of `nvidia-smi --query-gpu=timestamp,memory.used --format=csv --loop-ms=…`: driver-reported
//! usage, to overlay on the memory of a file. They contain no allocations, so they are not an input
//! of their own.
//!
//! Times are wall-clock times without a zone: the user gives their offset to timestamps, or
//! [`align()`] determines it.

mod align;
mod columns;

pub use align::{Alignment, AlignmentError, align};

use std::collections::BTreeMap;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use self::columns::{Columns, CsvLine, LineContent};

/// Content of a log by GPU.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SmiLog {
    /// GPUs, by name.
    pub gpus: Vec<GpuSeries>,
    /// Number of unusable lines: truncated lines, messages, and lines of another form.
    pub skipped: u64,
    /// Number of lines without a value, such as `[N/A]`.
    pub without_value: u64,
    /// Number of times the clock was set back (at the end of daylight saving time); later times
    /// were shifted.
    pub set_back: u64,
}

/// Used memory of one GPU over time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GpuSeries {
    /// Index or UUID if the log has one, else the position among the lines of one sample.
    pub gpu: String,
    /// Nanoseconds since 1970 by the log's own clock, and bytes. Of consecutive equal values only
    /// the first and the last are kept.
    pub points: Vec<(i64, u64)>,
}

/// Reason why a log cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SmiError {
    /// No line has a time and a value.
    #[error(
        "no line has a time and used memory; log with nvidia-smi \
         --query-gpu=timestamp,index,memory.used --format=csv --loop-ms=10"
    )]
    Nothing,
    /// A line has several numbers, and there is no header.
    #[error("line {line} has several numbers and no header; log without noheader")]
    NoHeader {
        /// Line number, counted from 1.
        line: usize,
    },
    /// Lines of several GPUs cannot be distinguished.
    #[error("several GPUs are in the log and cannot be distinguished; add index to --query-gpu")]
    Mixed,
}

/// Returns whether the start of a file is that of a log.
pub(super) fn looks_like(head: &[u8]) -> bool {
    let head = String::from_utf8_lossy(head.get(..4096).unwrap_or(head));
    head.lines().take(5).any(|line| {
        let fields: Vec<_> = line.split(',').map(str::trim).collect();
        let header = fields.iter().any(|field| columns::is_memory(field));
        fields.len() > 1 && (header || fields.iter().any(|field| time(field).is_some()))
    })
}

/// Reads a log. A truncated last line and messages between the lines are skipped.
///
/// # Errors
///
/// The log has no values, or lines cannot be assigned to GPUs.
pub fn parse(text: &str) -> Result<SmiLog, SmiError> {
    let mut log = SmiLog::default();
    let mut rows: Vec<LogRow> = Vec::new();
    let mut columns: Option<Columns> = None;
    let mut shift = 0;
    let complete = text.ends_with('\n');
    let count = text.lines().count();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        let line = CsvLine::new(line);
        if let Some(header) = Columns::of_header(&line) {
            columns = Some(header);
            continue;
        }
        if columns.is_none() {
            columns = Columns::of_values(&line)
                .map_err(|columns::AmbiguousColumns| SmiError::NoHeader { line: number })?;
        }
        let truncated = number == count && !complete;
        match columns.as_ref().map(|columns| columns.read(&line)) {
            // A truncated number still parses as a number.
            Some(LineContent::Value(mut row)) if !truncated => {
                row.time = row.time.saturating_add(shift);
                if let Some(last) = rows.last()
                    && row.time < last.time
                {
                    log.set_back += 1;
                    // After the last line, and not part of the same sample.
                    let next = last.time.saturating_add(2 * SAME_SAMPLE_NS);
                    shift = shift.saturating_add(next.saturating_sub(row.time));
                    row.time = next;
                }
                rows.push(row);
            }
            Some(LineContent::NoValue) => log.without_value += 1,
            _ => log.skipped += 1,
        }
    }
    if rows.is_empty() {
        return Err(SmiError::Nothing);
    }
    log.gpus = series(rows)?;
    Ok(log)
}

/// One value of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
struct LogRow {
    time: i64,
    gpu: Option<String>,
    /// Whether it is the memory of a single process.
    per_process: bool,
    bytes: u64,
}

/// Maximum distance of the lines of one sample.
const SAME_SAMPLE_NS: i64 = 1_000_000;

fn series(mut rows: Vec<LogRow>) -> Result<Vec<GpuSeries>, SmiError> {
    if rows.iter().all(|row| row.gpu.is_none() && !row.per_process) {
        number_gpus(&mut rows)?;
    }
    let mut all: BTreeMap<String, Vec<(i64, u64)>> = BTreeMap::new();
    for row in rows {
        let points = all.entry(row.gpu.unwrap_or_else(|| "0".into())).or_default();
        match points.last_mut() {
            Some((time, bytes)) if row.per_process && *time == row.time => {
                *bytes = bytes.saturating_add(row.bytes);
            }
            _ => points.push((row.time, row.bytes)),
        }
    }
    Ok(all.into_iter().map(|(gpu, points)| GpuSeries { gpu, points: runs(points) }).collect())
}

/// Assigns lines to GPUs. Without an index, the lines of one sample are in the order of the GPUs.
fn number_gpus(rows: &mut [LogRow]) -> Result<(), SmiError> {
    let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
    let same_sample = |pair: &[LogRow]| matches!(pair, [first, second] if second.time.saturating_sub(first.time) <= SAME_SAMPLE_NS);
    let mut size = 1;
    for pair in rows.windows(2) {
        if same_sample(pair) {
            size += 1;
        } else {
            *sizes.entry(size).or_default() += 1;
            size = 1;
        }
    }
    let common = sizes.iter().max_by_key(|(_, count)| **count).map_or(size, |(size, _)| *size);
    let (all, same) = (sizes.values().sum::<usize>(), sizes.get(&common).copied().unwrap_or(0));
    // With one GPU, an occasional late line does no harm.
    if common == 1 && same * 10 >= all * 9 {
        return Ok(());
    }
    if same != all || size > common {
        return Err(SmiError::Mixed);
    }
    for (at, row) in rows.iter_mut().enumerate() {
        row.gpu = Some((at % common).to_string());
    }
    Ok(())
}

/// Drops the inner points of runs of equal values.
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

/// Parses `2026/11/15 00:44:12.728`, as if it were UTC.
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

fn numbers(text: &str, separator: char) -> Option<[i16; 3]> {
    let mut parts = text.split(separator).map(|part| part.parse().ok());
    let found = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(found)
}
