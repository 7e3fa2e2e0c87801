//! Prescan of the memory events: their order, the calls they refer to, and variables that have to
//! be known before the first change.

use hashbrown::HashMap;

use engine::kind::Kind;

use super::about::{Operation, Words};
use super::processes::Processes;
use super::record::Row;
use super::strings::text;
use super::table::Reader;
use crate::import::Error;

pub(super) const COLUMNS: [&str; 8] = [
    "start",
    "globalPid",
    "address",
    "bytes",
    "memKind",
    "memoryOperationType",
    "correlationId",
    "name",
];

/// Result of the prescan.
#[derive(Debug)]
pub(super) struct Survey<'a> {
    enums: &'a Words,
    /// Processes, with the calls that their allocations refer to.
    pub(super) processes: Processes,
    /// `__managed__` variables by process and address.
    pub(super) variables: HashMap<(u32, i64), Vec<Variable>>,
    /// Total number of rows.
    pub(super) rows: u64,
    /// Number of rows that start before an earlier row of the file.
    pub(super) late: u64,
    /// Earliest and latest time.
    pub(super) span: Option<(i64, i64)>,
}

/// A `__managed__` variable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Variable {
    /// Time of the row with its name.
    pub(super) start: i64,
    /// Size.
    pub(super) bytes: i64,
    /// Name.
    pub(super) name: String,
}

impl<'a> Survey<'a> {
    pub(super) fn new(enums: &'a Words) -> Self {
        Self {
            enums,
            processes: Processes::default(),
            variables: HashMap::new(),
            rows: 0,
            late: 0,
            span: None,
        }
    }
}

impl Reader<8> for Survey<'_> {
    fn begin(&mut self) -> Result<(), Error> {
        *self = Survey::new(self.enums);
        Ok(())
    }

    #[inline]
    fn row(&mut self, row: &Row<'_, 8>) -> Result<(), Error> {
        self.rows += 1;
        let (Some(start), Some(global)) = (row.int(0), row.int(1)) else { return Ok(()) };
        self.span = match self.span {
            None => Some((start, start)),
            Some((first, last)) => {
                self.late += u64::from(start < last);
                Some((first.min(start), last.max(start)))
            }
        };
        let operation = row.int(5).and_then(|id| self.enums.operation(id));
        if operation != Some(Operation::Allocation) {
            return Ok(());
        }
        let Some(process) = self.processes.number(global) else { return Ok(()) };
        let correlation = row.int(6).and_then(|id| u32::try_from(id).ok()).filter(|&id| id != 0);
        if let (Some(correlation), Some(process)) = (correlation, self.processes.get(process)) {
            process.calls.request(correlation);
        }
        let kind = row.int(4).and_then(|id| self.enums.kind(id));
        if let (Some(Kind::ManagedStatic), Some(address), Some(bytes)) =
            (kind, row.int(2), row.int(3))
        {
            let name = text(row.text);
            let variables = self.variables.entry((process, address)).or_default();
            variables.push(Variable { start, bytes, name });
        }
        Ok(())
    }
}
