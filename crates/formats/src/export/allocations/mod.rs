//! Table of single allocations for spreadsheets and databases. Rows are built here once; CSV, JSON
//! and Parquet only encode them.

mod csv;
mod json;
mod stack_text;

use std::io;

use engine::analysis::lifetimes::{Lifetime, LifetimeTracker};
use engine::model::{AllocationChange, Timestamp};

pub use csv::CsvEncoder;
pub use json::JsonEncoder;
pub(crate) use stack_text::{StackTextCache, joined};

use super::format_writer::FormatWriter;
use crate::import::collecting_sink::FileInfo;
use crate::sanitize::sanitize;

/// Type of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ColumnType {
    /// 16 bits.
    U16,
    /// 32 bits.
    U32,
    /// 64 bits.
    U64,
    /// 64 bits that are an address or handle: hexadecimal in text formats.
    Hex,
    /// 64 bits, signed.
    I64,
    /// Nanoseconds since 1970, UTC; RFC 3339 in text formats.
    Time,
    /// A fixed set of values.
    Word,
    /// Sanitized text from the file.
    Text,
}

impl ColumnType {
    /// Returns the type's name in documentation: in Parquet, and in text formats if that differs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U16 => "uint16",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
            Self::Hex => "uint64, in text `0x…`",
            Self::I64 => "int64",
            Self::Time => "timestamp[ns, UTC], in text RFC 3339",
            Self::Word | Self::Text => "string",
        }
    }
}

/// Every column in order: name, type, meaning. `docs/reference/export-formats.md` has the same table.
pub const COLUMNS: &[(&str, ColumnType, &str)] = &[
    ("pid", ColumnType::U32, "process; 0 if the file does not contain it"),
    ("process", ColumnType::Text, "process name"),
    ("tid", ColumnType::U32, "thread that allocated"),
    ("address", ColumnType::Hex, "pointer, or the handle that `address_type` names"),
    (
        "address_type",
        ColumnType::Word,
        "what `address` is: `pointer`, `handle`, `array`, `pool` or `external`",
    ),
    ("kind", ColumnType::Word, "memory kind"),
    ("device", ColumnType::U16, "device ordinal of the process"),
    ("bytes", ColumnType::U64, "size"),
    ("alloc_ns", ColumnType::I64, "start, in nanoseconds since the start of the file"),
    ("free_ns", ColumnType::I64, "end"),
    ("alloc_time", ColumnType::Time, "start, if the file has a wall clock"),
    ("free_time", ColumnType::Time, "end"),
    (
        "end_reason",
        ColumnType::Word,
        "`freed` by the program; `replaced`: its address was allocated again; `released` with its context; `process_exited`: its process exited first; `live` at the end of the file",
    ),
    ("pool", ColumnType::Hex, "memory pool"),
    ("stream", ColumnType::Hex, "stream"),
    ("site", ColumnType::Text, "hash of its call stack, the same in every file"),
    ("stack", ColumnType::Text, "call stack, innermost frame first"),
];

/// One value of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cell<'a> {
    /// Unknown or absent.
    Null,
    /// A number of any width.
    Number(u64),
    /// A signed number.
    Signed(i64),
    /// One of a fixed set of names.
    Word(&'a str),
    /// Sanitized text from the file.
    Text(&'a str),
}

impl<'a> Cell<'a> {
    fn number(value: Option<impl Into<u64>>) -> Self {
        value.map_or(Self::Null, |value| Self::Number(value.into()))
    }

    fn signed(value: Option<i64>) -> Self {
        value.map_or(Self::Null, Self::Signed)
    }

    fn text(value: Option<&'a str>) -> Self {
        value.map_or(Self::Null, Self::Text)
    }
}

/// Encodes rows.
pub trait RowEncoder {
    /// Separator between two frames of a stack.
    const BETWEEN_FRAMES: &'static str;

    /// Writes a row: a cell for each of [`COLUMNS`].
    fn row(&mut self, cells: &[Cell<'_>]) -> io::Result<()>;

    /// Writes the end of the table.
    fn finish(&mut self) -> io::Result<()>;
}

/// Writes the table of allocations.
pub struct AllocationWriter<E> {
    encoder: E,
    lifetimes: LifetimeTracker,
    texts: StackTextCache,
}

impl<E: RowEncoder> AllocationWriter<E> {
    /// Creates a writer without rows.
    pub fn new(encoder: E) -> Self {
        let texts = StackTextCache::new(E::BETWEEN_FRAMES);
        Self { encoder, lifetimes: LifetimeTracker::default(), texts }
    }

    fn write(&mut self, lifetime: &Lifetime, info: &FileInfo) -> io::Result<()> {
        let allocation = &lifetime.change;
        let ended = lifetime.ended.map(|(at, _)| at);
        let process = info.processes.get(&allocation.pid).map(|name| sanitize(name));
        let site = allocation.site.map(|site| self.texts.of(site, &info.stacks));
        let stack = site.as_ref().map(|site| &*site.stack).filter(|stack| !stack.is_empty());
        self.encoder.row(&[
            Cell::number(Some(allocation.pid.0)),
            Cell::text(process.as_deref()),
            Cell::number(Some(allocation.tid.0).filter(|tid| *tid > 0)),
            Cell::number(Some(allocation.key.value)),
            Cell::Word(allocation.key.space.name()),
            Cell::Word(allocation.kind.name()),
            Cell::number(allocation.device.map(|device| device.0)),
            Cell::number(Some(allocation.bytes)),
            Cell::signed(Some(info.nanos(lifetime.allocated_at))),
            Cell::signed(ended.map(|at| info.nanos(at))),
            Cell::signed(info.utc_nanos(lifetime.allocated_at)),
            Cell::signed(ended.and_then(|at| info.utc_nanos(at))),
            Cell::Word(lifetime.end_reason()),
            Cell::number(allocation.pool.map(|pool| pool.0)),
            Cell::number(allocation.stream.map(|stream| stream.0)),
            Cell::text(site.as_ref().map(|site| &*site.name)),
            Cell::text(stack),
        ])
    }
}

impl<E: RowEncoder> FormatWriter for AllocationWriter<E> {
    fn change(&mut self, change: &AllocationChange, info: &FileInfo) -> io::Result<()> {
        match self.lifetimes.observe(change) {
            Some(ended) => self.write(&ended, info),
            None => Ok(()),
        }
    }

    fn finish(mut self: Box<Self>, info: &FileInfo) -> io::Result<Vec<String>> {
        for live in std::mem::take(&mut self.lifetimes).finish() {
            self.write(&live, info)?;
        }
        self.encoder.finish()?;
        Ok(Vec::new())
    }
}

impl FileInfo {
    /// Returns the nanoseconds since the start of the file; negative for earlier times.
    pub(crate) fn nanos(&self, at: Timestamp) -> i64 {
        let nanos = i128::from(at.0) - i128::from(self.origin().0);
        i64::try_from(nanos).unwrap_or(if nanos < 0 { i64::MIN } else { i64::MAX })
    }

    /// Returns nanoseconds since 1970, UTC, if the file has a wall clock.
    pub(crate) fn utc_nanos(&self, at: Timestamp) -> Option<i64> {
        let (start, utc) = self.clock?;
        i64::try_from(i128::from(utc) + i128::from(at.0) - i128::from(start.0)).ok()
    }
}
