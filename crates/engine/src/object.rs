//! Objects of the driver that are no memory by themselves, and that a program can forget to destroy.

use crate::ids::{ContextId, SiteId};

/// The sort of object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum ObjectKind {
    /// A `CUstream`.
    Stream = 0,
    /// A `CUevent`.
    Event = 1,
    /// A `CUgraph`.
    Graph = 2,
    /// A `CUgraphExec`.
    GraphExec = 3,
    /// A `CUmodule`.
    Module = 4,
    /// A `CUlibrary`.
    Library = 5,
    /// A `CUcontext` that the program made; primary contexts are the driver's.
    Context = 6,
    /// A `CUgreenCtx`.
    GreenContext = 7,
    /// A `CUtexObject`.
    Texture = 8,
    /// A `CUsurfObject`.
    Surface = 9,
    /// A `CUmemoryPool` that the program made.
    Pool = 10,
    /// A `CUlinkState`.
    Linker = 11,
}

impl ObjectKind {
    /// Every kind, in display order.
    pub const ALL: [Self; 12] = [
        Self::Stream,
        Self::Event,
        Self::Graph,
        Self::GraphExec,
        Self::Module,
        Self::Library,
        Self::Context,
        Self::GreenContext,
        Self::Texture,
        Self::Surface,
        Self::Pool,
        Self::Linker,
    ];

    /// Whether it ends with the context that it was made in. Graphs, libraries and pools do not, and
    /// contexts end by themselves.
    #[must_use]
    pub const fn ends_with_context(self) -> bool {
        matches!(
            self,
            Self::Stream
                | Self::Event
                | Self::Module
                | Self::Texture
                | Self::Surface
                | Self::Linker
        )
    }

    /// The word for it in reports, JSON, metrics and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Event => "event",
            Self::Graph => "graph",
            Self::GraphExec => "graph_exec",
            Self::Module => "module",
            Self::Library => "library",
            Self::Context => "context",
            Self::GreenContext => "green_context",
            Self::Texture => "texture",
            Self::Surface => "surface",
            Self::Pool => "pool",
            Self::Linker => "linker",
        }
    }

    /// Position in [`ObjectKind::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// An object began or ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectCall {
    /// A call made one.
    Created {
        /// The sort.
        kind: ObjectKind,
        /// Its handle.
        handle: u64,
        /// The context it belongs to, and ends with, where known.
        context: Option<ContextId>,
        /// Where in the program.
        site: Option<SiteId>,
    },
    /// A call destroyed one.
    Destroyed {
        /// The sort.
        kind: ObjectKind,
        /// Its handle.
        handle: u64,
    },
}
