//! The words that stand for the engine's closed lists. They are a contract: never renamed.

use engine::event::FreeBy;
use engine::ids::Space;
use engine::kind::Kind;
use engine::object::ObjectKind;
use engine::stack::{Language, Unknown};
use engine::tensor::NoTensors;
use engine::work::{Direction, NamedBy, NoName};

/// A closed list with a word for each of its members.
pub(crate) trait Word: Copy + 'static {
    /// All of them.
    const ALL: &'static [Self];

    /// The word.
    fn word(self) -> &'static str;

    /// What a word stands for.
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
            Self::Address => "address",
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
            Self::Stripped => "stripped",
            Self::Unmapped => "unmapped",
            Self::Jit => "jit",
            Self::Unreadable => "unreadable",
            Self::NotTold => "not_told",
            Self::Gone => "gone",
            Self::Probed => "probed",
            Self::Interpreter => "interpreter",
            Self::TooEarly => "too_early",
            Self::Deep => "deep",
            Self::NoRule => "no_rule",
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
        match self {
            Self::HostToDevice => "host_to_device",
            Self::DeviceToHost => "device_to_host",
            Self::DeviceToDevice => "device_to_device",
            Self::HostToHost => "host_to_host",
            Self::Peer => "peer",
            Self::Array => "array",
            Self::Fill => "fill",
            Self::Unknown => "unknown",
        }
    }
}
