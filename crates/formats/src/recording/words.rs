//! Names of the engine's enum values in recordings. They are stable since version 0.1.

use engine::event::FreeBy;
use engine::ids::Space;
use engine::kind::Kind;
use engine::object::ObjectKind;
use engine::stack::{Language, Unknown};
use engine::tensor::NoTensors;
use engine::work::{Direction, NamedBy, NoName};

/// An enum with a name for each of its values.
pub(crate) trait Word: Copy + 'static {
    /// All values.
    const ALL: &'static [Self];

    /// Returns the name.
    fn word(self) -> &'static str;

    /// Returns the value of a name.
    fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|member| member.word() == word)
    }
}

impl Word for Kind {
    const ALL: &'static [Self] = &Self::ALL;

    fn word(self) -> &'static str {
        self.name()
    }
}

impl Word for ObjectKind {
    const ALL: &'static [Self] = &Self::ALL;

    fn word(self) -> &'static str {
        self.name()
    }
}

impl Word for Language {
    const ALL: &'static [Self] = &[Self::Native, Self::Python, Self::Remark];

    fn word(self) -> &'static str {
        self.name()
    }
}

impl Word for Space {
    const ALL: &'static [Self] =
        &[Self::Address, Self::Handle, Self::Array, Self::Pool, Self::External];

    fn word(self) -> &'static str {
        match self {
            Self::Address => "pointer",
            Self::Handle => "handle",
            Self::Array => "array",
            Self::Pool => "pool",
            Self::External => "external",
        }
    }
}

impl Word for FreeBy {
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

impl Word for Unknown {
    const ALL: &'static [Self] = &[
        Self::Stripped,
        Self::Unmapped,
        Self::Jit,
        Self::Unreadable,
        Self::NotTold,
        Self::Gone,
        Self::Probed,
        Self::Interpreter,
        Self::TooEarly,
        Self::Deep,
        Self::NoRule,
    ];

    fn word(self) -> &'static str {
        match self {
            Self::Stripped => "no_symbol",
            Self::Unmapped => "unmapped",
            Self::Jit => "jit",
            Self::Unreadable => "unreadable",
            Self::NotTold => "not_recorded",
            Self::Gone => "process_exited",
            Self::Probed => "hidden_by_uretprobe",
            Self::Interpreter => "unsupported_interpreter",
            Self::TooEarly => "interpreter_not_ready",
            Self::Deep => "truncated",
            Self::NoRule => "no_unwind_info",
        }
    }
}

impl Word for NoName {
    const ALL: &'static [Self] = &[Self::BeforeTrace, Self::Unreadable, Self::Lost];

    fn word(self) -> &'static str {
        match self {
            Self::BeforeTrace => "before_trace",
            Self::Unreadable => "unreadable",
            Self::Lost => "lost",
        }
    }
}

impl Word for NoTensors {
    const ALL: &'static [Self] = &Self::ALL;

    fn word(self) -> &'static str {
        self.name()
    }
}

impl Word for NamedBy {
    const ALL: &'static [Self] = &[Self::Call, Self::Memory];

    fn word(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Memory => "memory",
        }
    }
}

impl Word for Direction {
    const ALL: &'static [Self] = &Self::ALL;

    fn word(self) -> &'static str {
        self.name()
    }
}
