//! Names of the engine's enum values in recordings. They are stable since version 0.1.

use engine::model::activity::{CopyDirection, NameSource, UnnamedReason};
use engine::model::cuda_object::ObjectKind;
use engine::model::event::FreeFunction;
use engine::model::ids::AddressType;
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::{Language, UnknownReason};
use engine::model::tensor::TensorsUnavailable;

/// An enum with a name for each of its values.
pub(crate) trait EnumName: Copy + 'static {
    /// All values.
    const ALL: &'static [Self];

    /// Returns the name.
    fn word(self) -> &'static str;

    /// Returns the value of a name.
    fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|member| member.word() == word)
    }
}

/// Names that are the same in all outputs.
macro_rules! enum_names {
    ($($type:ident),*) => {
        $(impl EnumName for $type {
            const ALL: &'static [Self] = &Self::ALL;

            fn word(self) -> &'static str {
                self.name()
            }
        })*
    };
}

enum_names!(
    AddressType,
    CopyDirection,
    FreeFunction,
    Language,
    MemoryKind,
    NameSource,
    ObjectKind,
    TensorsUnavailable,
    UnnamedReason
);

impl EnumName for UnknownReason {
    const ALL: &'static [Self] = &Self::ALL;

    fn word(self) -> &'static str {
        match self {
            Self::NoSymbol => "no_symbol",
            Self::Unmapped => "unmapped",
            Self::Jit => "jit",
            Self::Unreadable => "unreadable",
            Self::NotRecorded => "not_recorded",
            Self::ProcessExited => "process_exited",
            Self::HiddenByUretprobe => "hidden_by_uretprobe",
            Self::UnsupportedInterpreter => "unsupported_interpreter",
            Self::InterpreterNotReady => "interpreter_not_ready",
            Self::Truncated => "truncated",
            Self::NoUnwindInfo => "no_unwind_info",
        }
    }
}
