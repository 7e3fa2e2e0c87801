//! Errors of the reader, without the name of the file.

use std::io;

/// Error of reading. Boxed, so that results of single opcodes stay small.
#[derive(Debug)]
pub(crate) struct ReadError(Box<ReadErrorKind>);

/// Kind of an error.
#[derive(Debug)]
pub(crate) enum ReadErrorKind {
    /// Error of the system.
    Io(io::Error),
    /// The pickle is invalid.
    Broken {
        /// Problem.
        problem: String,
        /// Offset in the pickle.
        at: u64,
        /// Next step for the user.
        advice: &'static str,
    },
    /// A pickle, but not a snapshot.
    NotSnapshot(String),
}

/// For files that were truncated or damaged.
pub(crate) const COPY_AGAIN: &str =
    "the file is damaged or cut short: copy it again, or dump the snapshot again";

/// For pickles that contain more than plain data.
pub(crate) const NEVER_RUN: &str = "pickles are never executed; only plain data is supported: \
    make the file with torch.cuda.memory._dump_snapshot()";

impl ReadError {
    pub(crate) fn io(error: io::Error) -> Self {
        Self(Box::new(ReadErrorKind::Io(error)))
    }

    pub(crate) fn broken(problem: impl Into<String>, at: u64) -> Self {
        Self(Box::new(ReadErrorKind::Broken { problem: problem.into(), at, advice: COPY_AGAIN }))
    }

    pub(crate) fn rejected(problem: impl Into<String>, at: u64) -> Self {
        Self(Box::new(ReadErrorKind::Broken { problem: problem.into(), at, advice: NEVER_RUN }))
    }

    pub(crate) fn not_snapshot(reason: impl Into<String>) -> Self {
        Self(Box::new(ReadErrorKind::NotSnapshot(reason.into())))
    }

    pub(crate) fn into_kind(self) -> ReadErrorKind {
        *self.0
    }
}
