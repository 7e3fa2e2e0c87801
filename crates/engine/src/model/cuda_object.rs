//! CUDA objects that are not themselves memory, and that a program can forget to destroy.

use crate::model::ids::{ContextId, SiteId};

/// Kind of CUDA object.
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
    /// A `CUcontext` that the program created; primary contexts belong to the driver.
    Context = 6,
    /// A `CUgreenCtx`.
    GreenContext = 7,
    /// A `CUtexObject`.
    Texture = 8,
    /// A `CUsurfObject`.
    Surface = 9,
    /// A `CUmemoryPool` that the program created.
    Pool = 10,
    /// A `CUlinkState`.
    Linker = 11,
}

impl ObjectKind {
    /// All kinds, in display order.
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

    /// Whether the driver destroys it with its context. It does not for graphs, libraries and
    /// pools, and contexts have no context.
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

    /// Name in reports, JSON, metrics and files.
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

/// A call that created or destroyed an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectCall {
    /// An object was created.
    Created {
        /// Kind.
        kind: ObjectKind,
        /// Handle.
        handle: u64,
        /// Context that it belongs to and ends with, if known.
        context: Option<ContextId>,
        /// Site that created it.
        site: Option<SiteId>,
    },
    /// An object was destroyed.
    Destroyed {
        /// Kind.
        kind: ObjectKind,
        /// Handle.
        handle: u64,
    },
}

/// Objects of one kind in one process. If records were lost (see
/// [`LostTotals::objects`](crate::snapshot::LostTotals::objects)), each count can be off by that
/// number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectView {
    /// Kind.
    pub kind: ObjectKind,
    /// Live objects.
    pub live: u64,
    /// Objects created so far.
    pub created: u64,
    /// Of those: destroyed by calls.
    pub destroyed: u64,
    /// Of those: ended with their context, without a call.
    pub released: u64,
    /// Peak of the live objects.
    pub peak: u64,
    /// Destroy calls for unknown objects: created before the trace, or by a call whose record was
    /// lost.
    pub unknown_destroys: u64,
    /// Live objects beyond the limit of tracked ones. They have no site, and the end of their
    /// context is not detected.
    pub untracked: u64,
}

/// Objects of one kind from one site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SiteObjectView {
    /// Kind.
    pub kind: ObjectKind,
    /// Live objects.
    pub live: u64,
    /// Objects created so far.
    pub created: u64,
    /// Of those: destroyed by calls, or implied by another object with the same handle.
    pub destroyed: u64,
}
