//! Columns of a log: from a header, or from the form of the values.

use super::{LogRow, time};

/// A line split into fields.
pub(super) struct CsvLine<'a> {
    fields: Vec<&'a str>,
}

impl<'a> CsvLine<'a> {
    pub(super) fn new(line: &'a str) -> Self {
        Self { fields: line.split(',').map(str::trim).collect() }
    }
}

/// Positions of the columns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Columns {
    count: usize,
    time: usize,
    memory: usize,
    gpu: Option<usize>,
    /// Whether lines are per process.
    per_process: bool,
}

/// Content of a line.
pub(super) enum LineContent {
    /// Memory at a time.
    Value(LogRow),
    /// No value: the driver does not report it.
    NoValue,
    /// Another kind of line.
    Nothing,
}

/// There are several numbers, and no header to identify them.
#[derive(Debug)]
pub(super) struct AmbiguousColumns;

/// Returns whether a field is the header of the memory column.
pub(super) fn is_memory(field: &str) -> bool {
    matches!(name(field), "memory.used" | "used_gpu_memory" | "used_memory")
}

/// Returns a header without its unit.
fn name(field: &str) -> &str {
    field.split_once(" [").map_or(field, |(name, _)| name)
}

impl Columns {
    /// Returns the columns of a header line with all required columns.
    pub(super) fn of_header(line: &CsvLine<'_>) -> Option<Self> {
        let at = |names: &[&str]| {
            names
                .iter()
                .find_map(|wanted| line.fields.iter().position(|field| name(field) == *wanted))
        };
        Some(Self {
            count: line.fields.len(),
            time: at(&["timestamp"])?,
            memory: line.fields.iter().position(|field| is_memory(field))?,
            gpu: at(&["index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "serial"]),
            per_process: at(&["pid"]).is_some(),
        })
    }

    /// Returns the columns from their values; `None` for another kind of line.
    pub(super) fn of_values(line: &CsvLine<'_>) -> Result<Option<Self>, AmbiguousColumns> {
        let Some(time_column) = line.fields.iter().position(|field| time(field).is_some()) else {
            return Ok(None);
        };
        let with_unit: Vec<_> = positions(line, |field| field.ends_with(" MiB"));
        let numbers: Vec<_> = positions(line, |field| field.parse::<u64>().is_ok());
        let missing: Vec<_> = positions(line, |field| field.starts_with('['));
        let gpu = positions(line, |field| field.starts_with("GPU-")).first().copied();
        let memory = match (&*with_unit, &*numbers, &*missing) {
            ([one], _, _) | ([], [one], []) | ([], [], [one]) => *one,
            ([], [], []) => return Ok(None),
            _ => return Err(AmbiguousColumns),
        };
        let gpu = gpu.or(match (&*with_unit, &*numbers) {
            // Next to values with a unit, a bare number can only be the index.
            ([_], [index]) => Some(*index),
            _ => None,
        });
        let count = line.fields.len();
        Ok(Some(Self { count, time: time_column, memory, gpu, per_process: false }))
    }

    /// Returns the content of a line in these columns.
    pub(super) fn read(&self, line: &CsvLine<'_>) -> LineContent {
        let field = |at: usize| line.fields.get(at).copied();
        let (Some(time), Some(memory)) = (field(self.time).and_then(time), field(self.memory))
        else {
            return LineContent::Nothing;
        };
        if line.fields.len() != self.count {
            return LineContent::Nothing;
        }
        if memory.starts_with('[') {
            return LineContent::NoValue;
        }
        let number = memory.strip_suffix(" MiB").unwrap_or(memory).parse::<u64>();
        let Some(bytes) = number.ok().and_then(|mebibytes| mebibytes.checked_mul(1 << 20)) else {
            return LineContent::Nothing;
        };
        let gpu = self.gpu.and_then(field).map(str::to_owned);
        LineContent::Value(LogRow { time, gpu, per_process: self.per_process, bytes })
    }
}

fn positions(line: &CsvLine<'_>, matches: impl Fn(&str) -> bool) -> Vec<usize> {
    (0..).zip(&line.fields).filter(|(_, field)| matches(field)).map(|(at, _)| at).collect()
}
