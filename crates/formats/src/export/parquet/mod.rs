//! Hive-partitioned Parquet tables: `TABLE/host=…/date=…/part-0.parquet`.
//!
//! Rows of one day and host are one file. A callback creates each file by its path.

mod allocations;
mod events;
mod file;
mod live;
mod tables;

pub use allocations::{AllocationRows, WriteResult};
pub use events::{EventExportError, EventRows, RecordedHost, recorded_host};
pub use live::{LiveTable, PartFile, SCHEMA_VERSION, TableSample};

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;

use self::file::File;

/// Maximum number of days per table. Rows of further days have no date.
const MAX_DAYS: usize = 32;

/// Rows that a reader has to hold in memory at once.
const ROW_GROUP_ROWS: usize = 1 << 17;

/// Partition of an unknown host or date. Hive's null partition would make a column without a type
/// if there is no other one.
const UNKNOWN_PARTITION: &str = "unknown";

/// Maximum number of bytes of a host name.
const MAX_HOST_CHARS: usize = 64;

const NANOS_A_DAY: i64 = 86_400_000_000_000;

/// A day, counted from 1970-01-01 UTC; none if unknown.
pub(super) type Day = Option<i64>;

/// Returns the day of a time in nanoseconds since 1970, UTC.
pub(super) const fn day(utc_nanos: i64) -> i64 {
    utc_nanos.div_euclid(NANOS_A_DAY)
}

/// Creates a file by its path below the output directory.
pub type FileFactory<'a, W> = Box<dyn FnMut(&Path) -> io::Result<W> + 'a>;

/// A table in progress.
pub(super) struct TableWriter<'a, W: Write + Send> {
    name: &'static str,
    host: Option<String>,
    schema: SchemaRef,
    create: FileFactory<'a, W>,
    parts: BTreeMap<Day, File<W>>,
    /// Number of rows beyond the limit of days.
    undated: u64,
}

impl<'a, W: Write + Send> TableWriter<'a, W> {
    pub(super) fn new(
        name: &'static str,
        host: Option<&str>,
        schema: SchemaRef,
        create: FileFactory<'a, W>,
    ) -> Self {
        let host = host.map(escaped);
        Self { name, host, schema, create, parts: BTreeMap::new(), undated: 0 }
    }

    /// Returns the day under which rows are written: none beyond the limit of days.
    pub(super) fn partition_day(&mut self, day: Day, rows: usize) -> Day {
        let is_new = !self.parts.contains_key(&day);
        if is_new && day.is_some() && self.parts.len() >= MAX_DAYS {
            self.undated = self.undated.saturating_add(rows as u64);
            return None;
        }
        day
    }

    pub(super) fn write(&mut self, day: Day, batch: &RecordBatch) -> io::Result<()> {
        if !self.parts.contains_key(&day) {
            let path = path(self.name, self.host.as_deref(), day);
            let file = File::new((self.create)(&path)?, &self.schema)?;
            self.parts.insert(day, file);
        }
        match self.parts.get_mut(&day) {
            Some(part) => part.write(batch),
            None => Ok(()),
        }
    }

    /// Returns the completed files, and notes for the user.
    pub(super) fn finish(self) -> io::Result<(Vec<W>, Vec<String>)> {
        let parts = self.parts.into_values().map(File::finish);
        let parts = parts.collect::<io::Result<Vec<W>>>()?;
        let mut notes = Vec::new();
        if self.undated > 0 {
            notes.push(format!(
                "the file is of more than {MAX_DAYS} days: {} rows of `{}` are in the directory \
                 date={UNKNOWN_PARTITION}",
                self.undated, self.name
            ));
        }
        Ok((parts, notes))
    }
}

/// Returns the properties of a file; the metadata of the schema is also that of the file.
fn properties(schema: &Schema) -> Option<WriterProperties> {
    let pairs = schema.metadata().iter();
    let pairs = pairs.map(|(key, value)| KeyValue::new(key.clone(), value.clone())).collect();
    let level = ZstdLevel::try_new(3).unwrap_or_default();
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_key_value_metadata(Some(pairs))
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_created_by(concat!("vramscope ", env!("CARGO_PKG_VERSION")).to_owned());
    Some(properties.build())
}

/// Returns the path of a file that starts at a time, in nanoseconds since 1970, UTC. A day has many
/// files; `number` counts those of one second.
pub fn part_path(table: LiveTable, host: &str, utc_nanos: i64, number: u32) -> PathBuf {
    let seconds = utc_nanos.rem_euclid(NANOS_A_DAY) / 1_000_000_000;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let name = format!("part-{hours:02}{minutes:02}{seconds:02}-{number}.parquet");
    path(table.name(), Some(&escaped(host)), Some(day(utc_nanos))).with_file_name(name)
}

/// Returns the directory of a host's files.
pub fn host_dir(table: LiveTable, host: &str) -> PathBuf {
    Path::new(table.name()).join(format!("host={}", escaped(host)))
}

/// Returns the day of a time in nanoseconds since 1970, UTC. Each file has rows of one day.
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
        format!("host={}", host.unwrap_or(UNKNOWN_PARTITION)),
        format!("date={}", date.as_deref().unwrap_or(UNKNOWN_PARTITION)),
        "part-0.parquet".to_owned(),
    ]
    .iter()
    .collect()
}

/// Percent-encodes a host name for use in a path, as readers of Hive partitions expect.
fn escaped(host: &str) -> String {
    let mut out = String::new();
    for byte in host.bytes().take(MAX_HOST_CHARS) {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.') {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    if out.is_empty() { UNKNOWN_PARTITION.to_owned() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_safe_for_any_host_name() {
        let of = |host: Option<&str>, day| path("events", host, day).to_str().unwrap().to_owned();
        assert_eq!(
            of(Some(&escaped("node-7.a")), Some(day(1_700_000_000_000_000_000))),
            "events/host=node-7.a/date=2023-11-14/part-0.parquet"
        );
        assert_eq!(of(None, None), "events/host=unknown/date=unknown/part-0.parquet");
        assert_eq!(escaped("../../etc\n=%"), "..%2F..%2Fetc%0A%3D%25");
        assert_eq!(escaped(""), UNKNOWN_PARTITION);
        assert!(escaped(&"ü".repeat(1000)).len() <= 3 * MAX_HOST_CHARS);
    }

    #[test]
    fn part_files_are_named_by_time() {
        let path = part_path(LiveTable::Sites, "node/7", 1_700_000_000_000_000_000, 3);
        let want = "sites/host=node%2F7/date=2023-11-14/part-221320-3.parquet";
        assert_eq!(path.to_str(), Some(want));
        assert!(path.starts_with(host_dir(LiveTable::Sites, "node/7")));
    }

    #[test]
    fn days_are_utc_and_may_precede_1970() {
        assert_eq!((day(0), day(-1), day(NANOS_A_DAY)), (0, -1, 1));
        assert!(path("t", None, Some(day(i64::MIN))).to_str().unwrap().contains("date=1677-09-21"));
    }
}
