//! Positions in the records of a session, for requests that programs make while they are traced.

use super::Session;
use crate::error::Error;
use crate::in_process::Waker;

/// A position in the records of all processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordMark(u64);

impl Session {
    /// Marks the records that were written so far, also those of processes that are new.
    pub fn mark(&mut self) -> Result<RecordMark, Error> {
        self.source.scan(&mut self.processes)?;
        Ok(RecordMark(self.source.written()))
    }

    /// Returns whether the events of all records before a mark were returned.
    #[must_use]
    pub fn has_read(&self, mark: RecordMark) -> bool {
        self.source.has_read(mark.0)
    }

    /// Returns what ends a wait for records early.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.source.waker()
    }
}
