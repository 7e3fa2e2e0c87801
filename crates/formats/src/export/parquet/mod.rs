//! Tables for databases that read many files as one: `TABLE/host=…/date=…/part-0.parquet`.
//!
//! Rows of one day and host are one file. Who makes the files is told each path as it is needed.

mod allocations;
mod events;
mod file;
mod live;
mod stacks;

pub use allocations::{Done, Rows};
pub use events::{Events, Machine, Trouble, machine};
pub use live::{LiveTable, Part, Tick};

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use self::file::File;

/// Different days of a file. Rows of more of them have no day.
const DAYS: usize = 32;

/// Rows that a file's reader has to hold at once.
const ROW_GROUP: usize = 1 << 17;

/// A host or date that is not known. What Hive takes for null would be a column without a type where
/// there is no other.
const UNKNOWN: &str = "unknown";

/// The longest name of a host.
const LONGEST_HOST: usize = 64;

const NANOS_A_DAY: i64 = 86_400_000_000_000;

/// A day, counted from 1970-01-01 UTC; none where it is not known.
pub(super) type Day = Option<i64>;

/// The day of a time, in nanoseconds since 1970, UTC.
pub(super) const fn day(utc_nanos: i64) -> i64 {
    utc_nanos.div_euclid(NANOS_A_DAY)
}

/// Makes a file by its path below the folder.
pub type Make<'a, W> = Box<dyn FnMut(&Path) -> io::Result<W> + 'a>;

/// A table, while it is written.
pub(super) struct Table<'a, W: Write + Send> {
    name: &'static str,
    host: Option<String>,
    schema: SchemaRef,
    make: Make<'a, W>,
    parts: BTreeMap<Day, File<W>>,
    /// Rows whose day was one too many.
    undated: u64,
}

impl<'a, W: Write + Send> Table<'a, W> {
    pub(super) fn new(
        name: &'static str,
        host: Option<&str>,
        schema: SchemaRef,
        make: Make<'a, W>,
    ) -> Self {
        let host = host.map(escaped);
        Self { name, host, schema, make, parts: BTreeMap::new(), undated: 0 }
    }

    /// The day under which rows of a day are kept.
    pub(super) fn kept(&mut self, day: Day, rows: usize) -> Day {
        let is_new = !self.parts.contains_key(&day);
        if is_new && day.is_some() && self.parts.len() >= DAYS {
            self.undated = self.undated.saturating_add(rows as u64);
            return None;
        }
        day
    }

    pub(super) fn write(&mut self, day: Day, batch: &RecordBatch) -> io::Result<()> {
        if !self.parts.contains_key(&day) {
            let path = path(self.name, self.host.as_deref(), day);
            let file = File::new((self.make)(&path)?, &self.schema)?;
            self.parts.insert(day, file);
        }
        match self.parts.get_mut(&day) {
            Some(part) => part.write(batch),
            None => Ok(()),
        }
    }

    /// The files, whole, and what should be known of them.
    pub(super) fn finish(self) -> io::Result<(Vec<W>, Vec<String>)> {
        let parts = self.parts.into_values().map(File::finish);
        let parts = parts.collect::<io::Result<Vec<W>>>()?;
        let mut notes = Vec::new();
        if self.undated > 0 {
            notes.push(format!(
                "the file is of more than {DAYS} days: {} rows of `{}` are in the directory \
                 date={UNKNOWN}",
                self.undated, self.name
            ));
        }
        Ok((parts, notes))
    }
}

fn properties() -> Option<WriterProperties> {
    let level = ZstdLevel::try_new(3).unwrap_or_default();
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_max_row_group_row_count(Some(ROW_GROUP))
        .set_created_by(concat!("vramscope ", env!("CARGO_PKG_VERSION")).to_owned());
    Some(properties.build())
}

/// Where the file of a host is that begins at a time, in nanoseconds since 1970, UTC: one of many of a
/// day, and the `number`th of that second.
#[must_use]
pub fn part_path(table: LiveTable, host: &str, utc_nanos: i64, number: u32) -> PathBuf {
    let seconds = utc_nanos.rem_euclid(NANOS_A_DAY) / 1_000_000_000;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let name = format!("part-{hours:02}{minutes:02}{seconds:02}-{number}.parquet");
    path(table.name(), Some(&escaped(host)), Some(day(utc_nanos))).with_file_name(name)
}

/// The folder of the files of a host.
#[must_use]
pub fn host_folder(table: LiveTable, host: &str) -> PathBuf {
    Path::new(table.name()).join(format!("host={}", escaped(host)))
}

/// The day of a time, in nanoseconds since 1970, UTC, counted from then: a file has rows of one.
#[must_use]
pub const fn day_of(utc_nanos: i64) -> i64 {
    day(utc_nanos)
}

fn path(table: &str, host: Option<&str>, day: Day) -> PathBuf {
    let date = day.and_then(|day| {
        let nanos = i128::from(day) * i128::from(NANOS_A_DAY);
        let time = jiff::Timestamp::from_nanosecond(nanos).ok()?;
        Some(time.strftime("%Y-%m-%d").to_string())
    });
    [
        table.to_owned(),
        format!("host={}", host.unwrap_or(UNKNOWN)),
        format!("date={}", date.as_deref().unwrap_or(UNKNOWN)),
        "part-0.parquet".to_owned(),
    ]
    .iter()
    .collect()
}

/// A name that is safe in a path: everything else is written as readers of such folders expect it.
fn escaped(host: &str) -> String {
    let mut out = String::new();
    for byte in host.bytes().take(LONGEST_HOST) {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.') {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    if out.is_empty() { UNKNOWN.to_owned() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_safe_whatever_a_host_calls_itself() {
        let of = |host: Option<&str>, day| path("events", host, day).to_str().unwrap().to_owned();
        assert_eq!(
            of(Some(&escaped("node-7.a")), Some(day(1_700_000_000_000_000_000))),
            "events/host=node-7.a/date=2023-11-14/part-0.parquet"
        );
        assert_eq!(of(None, None), "events/host=unknown/date=unknown/part-0.parquet");
        assert_eq!(escaped("../../etc\n=%"), "..%2F..%2Fetc%0A%3D%25");
        assert_eq!(escaped(""), UNKNOWN);
        assert!(escaped(&"ü".repeat(1000)).len() <= 3 * LONGEST_HOST);
    }

    #[test]
    fn files_of_a_day_are_called_by_their_time() {
        let path = part_path(LiveTable::Sites, "node/7", 1_700_000_000_000_000_000, 3);
        let want = "sites/host=node%2F7/date=2023-11-14/part-221320-3.parquet";
        assert_eq!(path.to_str(), Some(want));
        assert!(path.starts_with(host_folder(LiveTable::Sites, "node/7")));
    }

    #[test]
    fn a_day_is_that_of_utc_also_before_1970() {
        assert_eq!((day(0), day(-1), day(NANOS_A_DAY)), (0, -1, 1));
        assert!(path("t", None, Some(day(i64::MIN))).to_str().unwrap().contains("date=1677-09-21"));
    }
}
