//! Questions that are answered from changes, stacks and caches.

pub mod fragmentation;
