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

/// Objects of one kind that one process made. Where records were lost (see [`Loss::objects`](crate::snapshot::Loss::objects)), each
/// count can be wrong by so many.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectView {
    /// The kind.
    pub kind: ObjectKind,
    /// Made, and not ended yet.
    pub live: u64,
    /// All that were ever made.
    pub created: u64,
    /// Of those: destroyed by calls.
    pub destroyed: u64,
    /// Of those: ended with their context, without a call.
    pub released: u64,
    /// The most that were live at one time.
    pub peak: u64,
    /// Destroyed, and never seen before: made before the trace, or by a call whose record was lost.
    pub unknown_destroys: u64,
    /// Of the live ones: that are too many to be kept one by one. They have no site, and the end of
    /// their context is not noticed.
    pub untracked: u64,
}

/// Objects of one kind that one site made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SiteObjectView {
    /// The kind.
    pub kind: ObjectKind,
    /// Made, and not ended yet.
    pub live: u64,
    /// All that were ever made.
    pub created: u64,
    /// Of those: destroyed by calls, or shown to be by another object of the same name.
    pub destroyed: u64,
}
