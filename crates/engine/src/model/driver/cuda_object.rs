//! CUDA objects that are not themselves memory, and that a program can forget to destroy.

use crate::model::named::named_enum;
use crate::model::{ContextId, SiteId};

named_enum! {
    /// Kind of CUDA object.
    pub enum ObjectKind {
        /// A `CUstream`.
        Stream => "stream",
        /// A `CUevent`.
        Event => "event",
        /// A `CUgraph`.
        Graph => "graph",
        /// A `CUgraphExec`.
        GraphExec => "graph_exec",
        /// A `CUmodule`.
        Module => "module",
        /// A `CUlibrary`.
        Library => "library",
        /// A `CUcontext` that the program created; primary contexts belong to the driver.
        Context => "context",
        /// A `CUgreenCtx`.
        GreenContext => "green_context",
        /// A `CUtexObject`.
        Texture => "texture",
        /// A `CUsurfObject`.
        Surface => "surface",
        /// A `CUmemoryPool` that the program created.
        Pool => "pool",
        /// A `CUlinkState`.
        Linker => "linker",
    }
}

impl ObjectKind {
    /// Whether the driver destroys it with its context. It does not for graphs, libraries and
    /// pools, and contexts have no context.
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
}

/// A call that created or destroyed an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "fields have the names of their types")]
pub enum ObjectCall {
    /// An object was created by a site, in the context that it ends with, if known.
    Created { kind: ObjectKind, handle: u64, context: Option<ContextId>, site: Option<SiteId> },
    /// An object was destroyed.
    Destroyed { kind: ObjectKind, handle: u64 },
    /// The module or library that was just created is from an image of this size.
    Image { kind: ObjectKind, handle: u64, bytes: u64 },
}

/// Objects of one kind in one process. If records were lost (see
/// the lost objects of `LostTotals`), each count can be off by that
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

impl ObjectView {
    /// No objects of a kind.
    pub(crate) const fn none(kind: ObjectKind) -> Self {
        Self {
            kind,
            live: 0,
            created: 0,
            destroyed: 0,
            released: 0,
            peak: 0,
            unknown_destroys: 0,
            untracked: 0,
        }
    }
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
