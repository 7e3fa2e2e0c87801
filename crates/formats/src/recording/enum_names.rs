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

impl EnumName for MemoryKind {
    const ALL: &'static [Self] = &Self::ALL;

    fn word(self) -> &'static str {
        self.name()
    }
}

impl EnumName for ObjectKind {
    const ALL: &'static [Self] = &Self::ALL;

    fn word(self) -> &'static str {
        self.name()
    }
}

impl EnumName for Language {
    const ALL: &'static [Self] = &[Self::Native, Self::Python, Self::Synthetic];

    fn word(self) -> &'static str {
        self.name()
    }
}

impl EnumName for AddressType {
    const ALL: &'static [Self] =
        &[Self::Pointer, Self::Handle, Self::Array, Self::Pool, Self::External];

    fn word(self) -> &'static str {
        match self {
            Self::Pointer => "pointer",
            Self::Handle => "handle",
            Self::Array => "array",
            Self::Pool => "pool",
            Self::External => "external",
        }
    }
}

impl EnumName for FreeFunction {
    const ALL: &'static [Self] = &[
        Self::Free,
        Self::FreeAsync,
        Self::FreeHost,
        Self::Unregister,
        Self::DestroyArray,
        Self::CloseImport,
        Self::DestroyExternal,
    ];

    fn word(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::FreeAsync => "free_async",
            Self::FreeHost => "free_host",
            Self::Unregister => "unregister",
            Self::DestroyArray => "destroy_array",
            Self::CloseImport => "close_import",
            Self::DestroyExternal => "destroy_external",
        }
    }
}

impl EnumName for UnknownReason {
    const ALL: &'static [Self] = &[
        Self::NoSymbol,
        Self::Unmapped,
        Self::Jit,
        Self::Unreadable,
        Self::NotRecorded,
        Self::ProcessExited,
        Self::HiddenByUretprobe,
        Self::UnsupportedInterpreter,
        Self::InterpreterNotReady,
        Self::Truncated,
        Self::NoUnwindInfo,
    ];

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

impl EnumName for UnnamedReason {
    const ALL: &'static [Self] = &[Self::BeforeTrace, Self::Unreadable, Self::Lost];

    fn word(self) -> &'static str {
        match self {
            Self::BeforeTrace => "before_trace",
            Self::Unreadable => "unreadable",
            Self::Lost => "lost",
        }
    }
}

impl EnumName for TensorsUnavailable {
    const ALL: &'static [Self] = &Self::ALL;

    fn word(self) -> &'static str {
        self.name()
    }
}

impl EnumName for NameSource {
    const ALL: &'static [Self] = &[Self::Call, Self::Memory];

    fn word(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Memory => "memory",
        }
    }
}

impl EnumName for CopyDirection {
    const ALL: &'static [Self] = &Self::ALL;

    fn word(self) -> &'static str {
        self.name()
    }
}
