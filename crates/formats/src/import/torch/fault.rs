//! What stops the reader, before the name of the file is known.

use std::io;

/// Why reading stops. Boxed: results of single opcodes stay small.
#[derive(Debug)]
pub(super) struct Fault(Box<Kind>);

/// The reason behind a fault.
#[derive(Debug)]
pub(super) enum Kind {
    /// The system's reason.
    Io(io::Error),
    /// The bytes make no sense.
    Broken {
        /// What is wrong.
        what: String,
        /// Where in the pickle.
        at: u64,
        /// What to do next.
        advice: &'static str,
    },
    /// A pickle, and no snapshot.
    NotSnapshot(String),
}

/// For files that a copy or a crash cut short or changed.
pub(super) const COPY_AGAIN: &str =
    "the file is damaged or cut short: copy it again, or dump the snapshot again";

/// For pickles that want more than plain data.
pub(super) const NEVER_RUN: &str = "pickles are never executed; only plain data is supported: \
    make the file with torch.cuda.memory._dump_snapshot()";

impl Fault {
    pub(super) fn io(error: io::Error) -> Self {
        Self(Box::new(Kind::Io(error)))
    }

    pub(super) fn broken(what: impl Into<String>, at: u64) -> Self {
        Self(Box::new(Kind::Broken { what: what.into(), at, advice: COPY_AGAIN }))
    }

    pub(super) fn refused(what: impl Into<String>, at: u64) -> Self {
        Self(Box::new(Kind::Broken { what: what.into(), at, advice: NEVER_RUN }))
    }

    pub(super) fn not_snapshot(why: impl Into<String>) -> Self {
        Self(Box::new(Kind::NotSnapshot(why.into())))
    }

    pub(super) fn into_kind(self) -> Kind {
        *self.0
    }
}
