//! The first look at the memory events: whether they are in order, which calls they name, and what
//! has to be known of them before the first one is told.

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

/// What was found.
#[derive(Debug)]
pub(super) struct Survey<'a> {
    words: &'a Words,
    /// The processes, with the calls that their allocations name.
    pub(super) processes: Processes,
    /// `__managed__` variables: the process and address of each, then when it was told, its bytes
    /// and its name.
    pub(super) variables: HashMap<(u32, i64), Vec<Variable>>,
    /// Rows in all.
    pub(super) rows: u64,
    /// Rows that begin before one that lies further ahead in the file.
    pub(super) late: u64,
    /// The earliest and the latest time.
    pub(super) span: Option<(i64, i64)>,
}

/// A `__managed__` variable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Variable {
    /// The time of the row that names it.
    pub(super) start: i64,
    /// Its size.
    pub(super) bytes: i64,
    /// Its name.
    pub(super) name: String,
}

impl<'a> Survey<'a> {
    pub(super) fn new(words: &'a Words) -> Self {
        Self {
            words,
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
        *self = Survey::new(self.words);
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
        let operation = row.int(5).and_then(|id| self.words.operation(id));
        if operation != Some(Operation::Allocation) {
            return Ok(());
        }
        let Some(process) = self.processes.number(global) else { return Ok(()) };
        let correlation = row.int(6).and_then(|id| u32::try_from(id).ok()).filter(|&id| id != 0);
        if let (Some(correlation), Some(process)) = (correlation, self.processes.get(process)) {
            process.calls.want(correlation);
        }
        let kind = row.int(4).and_then(|id| self.words.kind(id));
        if let (Some(Kind::ManagedStatic), Some(address), Some(bytes)) =
            (kind, row.int(2), row.int(3))
        {
            let name = text(row.text);
            let found = self.variables.entry((process, address)).or_default();
            found.push(Variable { start, bytes, name });
        }
        Ok(())
    }
}
