//! What the columns of a log are: told by a header, or by what the values look like.

use super::{Row, time};

/// A line in its fields.
pub(super) struct Line<'a> {
    fields: Vec<&'a str>,
}

impl<'a> Line<'a> {
    pub(super) fn new(line: &'a str) -> Self {
        Self { fields: line.split(',').map(str::trim).collect() }
    }
}

/// Where the columns are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Columns {
    count: usize,
    time: usize,
    memory: usize,
    gpu: Option<usize>,
    /// Lines are of processes.
    parts: bool,
}

/// What a line says.
pub(super) enum Meaning {
    /// Memory at a time.
    Value(Row),
    /// There is no value: the driver does not tell it.
    NoValue,
    /// It is another sort of line.
    Nothing,
}

/// There are several numbers, and no header says what they are.
#[derive(Debug)]
pub(super) struct Several;

/// Whether a field is the heading of the column that counts.
pub(super) fn is_memory(field: &str) -> bool {
    matches!(name(field), "memory.used" | "used_gpu_memory" | "used_memory")
}

/// A heading without its unit.
fn name(field: &str) -> &str {
    field.split_once(" [").map_or(field, |(name, _)| name)
}

impl Columns {
    /// The columns of a line that is a header with all that is needed.
    pub(super) fn of_header(line: &Line<'_>) -> Option<Self> {
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
            parts: at(&["pid"]).is_some(),
        })
    }

    /// The columns from what is in them; `None` for a line that is something else.
    pub(super) fn of_values(line: &Line<'_>) -> Result<Option<Self>, Several> {
        let Some(found) = line.fields.iter().position(|field| time(field).is_some()) else {
            return Ok(None);
        };
        let with_unit: Vec<_> = places(line, |field| field.ends_with(" MiB"));
        let numbers: Vec<_> = places(line, |field| field.parse::<u64>().is_ok());
        let missing: Vec<_> = places(line, |field| field.starts_with('['));
        let gpu = places(line, |field| field.starts_with("GPU-")).first().copied();
        let memory = match (&*with_unit, &*numbers, &*missing) {
            ([one], _, _) | ([], [one], []) | ([], [], [one]) => *one,
            ([], [], []) => return Ok(None),
            _ => return Err(Several),
        };
        let gpu = gpu.or(match (&*with_unit, &*numbers) {
            // With units a bare number beside them can only be the index.
            ([_], [index]) => Some(*index),
            _ => None,
        });
        Ok(Some(Self { count: line.fields.len(), time: found, memory, gpu, parts: false }))
    }

    /// What a line says in these columns.
    pub(super) fn read(&self, line: &Line<'_>) -> Meaning {
        let field = |at: usize| line.fields.get(at).copied();
        let (Some(time), Some(memory)) = (field(self.time).and_then(time), field(self.memory))
        else {
            return Meaning::Nothing;
        };
        if line.fields.len() != self.count {
            return Meaning::Nothing;
        }
        if memory.starts_with('[') {
            return Meaning::NoValue;
        }
        let number = memory.strip_suffix(" MiB").unwrap_or(memory).parse::<u64>();
        let Some(bytes) = number.ok().and_then(|mebibytes| mebibytes.checked_mul(1 << 20)) else {
            return Meaning::Nothing;
        };
        let gpu = self.gpu.and_then(field).map(str::to_owned);
        Meaning::Value(Row { time, gpu, part: self.parts, bytes })
    }
}

fn places(line: &Line<'_>, is: impl Fn(&str) -> bool) -> Vec<usize> {
    (0..).zip(&line.fields).filter(|(_, field)| is(field)).map(|(at, _)| at).collect()
}
