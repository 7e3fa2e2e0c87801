//! Memory that processes had not freed at their end.

use std::cmp::Reverse;

use crate::leak::is_framework_cache;
use crate::model::{
    Bytes, CallStack, MemoryKind, MemoryLayer, ProcessIdentity, ProcessKey, SiteName,
};

/// Limit of sites that are listed per process.
const MAX_LISTED_SITES: usize = 100;

/// Memory that an ended process could have freed and did not: without static variables and imported
/// memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotFreed {
    /// Process.
    pub key: ProcessKey,
    /// Name of the process (untrusted).
    pub name: Box<str>,
    /// Its program and user.
    pub identity: ProcessIdentity,
    /// Memory that caching allocators of frameworks hold until exit: not a leak by itself.
    pub cached: Bytes,
    /// All other memory, on device and host.
    pub bytes: Bytes,
    /// Its number of allocations.
    pub allocations: u64,
    /// The largest sites of it; the list may be incomplete.
    pub sites: Vec<NotFreedSite>,
}

impl NotFreed {
    /// Adds up the live memory of an ended process by site. `has_torch`: memory without a call stack
    /// is assumed to be PyTorch's cache.
    pub(crate) fn of(
        key: ProcessKey,
        name: &str,
        has_torch: bool,
        live: impl Iterator<Item = NotFreedSite>,
    ) -> Self {
        let is_cache = |one: &NotFreedSite| {
            is_framework_cache(&one.frames) || (has_torch && one.site == SiteName::Unknown)
        };
        let (cached, mut sites): (Vec<_>, Vec<_>) = live.partition(is_cache);
        let bytes = |sites: &[NotFreedSite]| {
            Bytes(sites.iter().fold(0, |sum, site| sum.saturating_add(site.bytes.0)))
        };
        sites.sort_by_key(|one| (Reverse(one.bytes), one.site, one.kind));
        let allocations = sites.iter().map(|site| site.allocations);
        Self {
            key,
            name: name.into(),
            identity: ProcessIdentity::default(),
            cached: bytes(&cached),
            bytes: bytes(&sites),
            allocations: allocations.fold(0, u64::saturating_add),
            sites: sites.into_iter().take(MAX_LISTED_SITES).collect(),
        }
    }

    /// Whether memory of this kind belongs to the program, which can free it.
    pub(crate) const fn includes(kind: MemoryKind) -> bool {
        let layer = kind.layer();
        let is_counted = matches!(
            layer,
            MemoryLayer::Physical | MemoryLayer::Used | MemoryLayer::Managed | MemoryLayer::Host
        );
        is_counted && !kind.is_static()
    }
}

/// Memory of one kind from one site that an ended process had not freed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotFreedSite {
    /// Site.
    pub site: SiteName,
    /// Frames, innermost first, if known.
    pub frames: CallStack,
    /// Memory kind.
    pub kind: MemoryKind,
    /// Bytes.
    pub bytes: Bytes,
    /// Number of allocations.
    pub allocations: u64,
}
