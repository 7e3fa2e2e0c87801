//! Prescan of the memory events: their order, the calls they refer to, and variables that have to
//! be known before the first change.

use hashbrown::HashMap;

use engine::model::MemoryKind;

use super::metadata::{EnumTables, MemoryOperation};
use super::processes::Processes;
use super::sqlite::record::RecordRow;
use super::sqlite::string_table::text;
use super::sqlite::table::RowReader;
use crate::import::ImportError;

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
pub(super) struct Prescan<'a> {
    enums: &'a EnumTables,
    /// Processes, with the calls that their allocations refer to.
    pub(super) processes: Processes,
    /// `__managed__` variables by process and address.
    pub(super) variables: HashMap<(u32, i64), Vec<ManagedVariable>>,
    /// Total number of rows.
    pub(super) rows: u64,
    /// Number of rows that start before an earlier row of the file.
    pub(super) late: u64,
    /// Earliest and latest time.
    pub(super) span: Option<(i64, i64)>,
}

/// A `__managed__` variable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ManagedVariable {
    /// Time of the row with its name.
    pub(super) start: i64,
    /// Size.
    pub(super) bytes: i64,
    /// Name.
    pub(super) name: String,
}

impl<'a> Prescan<'a> {
    pub(super) fn new(enums: &'a EnumTables) -> Self {
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

impl RowReader<8> for Prescan<'_> {
    fn begin(&mut self) -> Result<(), ImportError> {
        *self = Prescan::new(self.enums);
        Ok(())
    }

    #[inline]
    fn row(&mut self, row: &RecordRow<'_, 8>) -> Result<(), ImportError> {
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
        if operation != Some(MemoryOperation::Allocation) {
            return Ok(());
        }
        let Some(process) = self.processes.number(global) else { return Ok(()) };
        let correlation = row.int(6).and_then(|id| u32::try_from(id).ok()).filter(|&id| id != 0);
        if let (Some(correlation), Some(process)) = (correlation, self.processes.get(process)) {
            process.calls.request(correlation);
        }
        let kind = row.int(4).and_then(|id| self.enums.kind(id));
        if let (Some(MemoryKind::ManagedStatic), Some(address), Some(bytes)) =
            (kind, row.int(2), row.int(3))
        {
            let name = text(row.text);
            let variables = self.variables.entry((process, address)).or_default();
            variables.push(ManagedVariable { start, bytes, name });
        }
        Ok(())
    }
}
