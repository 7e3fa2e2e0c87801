//! Memory and objects by the library that created them.

use std::sync::Arc;

use crate::model::{Bytes, ObjectKind};

/// What a process holds on behalf of one library: the first one on the call stack outside the
/// driver and the CUDA runtime.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LibraryView {
    /// Name, such as `NCCL`, `PyTorch allocator` or `program` (untrusted).
    pub library: Arc<str>,
    /// Live device memory.
    pub live_bytes: Bytes,
    /// Number of live allocations of device memory.
    pub live_allocations: u64,
    /// Upper bound of the peak of the live device memory: the peaks of its sites may have been at
    /// different times.
    pub peak_max: Bytes,
    /// Device memory allocated so far.
    pub bytes_total: Bytes,
    /// Allocations of device memory so far.
    pub allocations_total: u64,
    /// Live pinned and registered host memory.
    pub host_bytes: Bytes,
    /// Live objects by kind.
    pub objects: Vec<(ObjectKind, u64)>,
}

impl LibraryView {
    /// Number of live objects.
    pub fn object_count(&self) -> u64 {
        self.objects.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Adds live objects of a kind.
    pub(crate) fn add_objects(&mut self, kind: ObjectKind, count: u64) {
        match self.objects.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, sum)) => *sum = sum.saturating_add(count),
            None if count == 0 => {}
            None => {
                self.objects.push((kind, count));
                self.objects.sort_unstable_by_key(|(kind, _)| *kind);
            }
        }
    }

    /// Sum of two views, with the name of the first.
    #[must_use]
    pub fn merge(mut self, other: &Self) -> Self {
        let add = |sum: &mut Bytes, more: Bytes| *sum = Bytes(sum.0.saturating_add(more.0));
        add(&mut self.live_bytes, other.live_bytes);
        add(&mut self.peak_max, other.peak_max);
        add(&mut self.bytes_total, other.bytes_total);
        add(&mut self.host_bytes, other.host_bytes);
        self.live_allocations = self.live_allocations.saturating_add(other.live_allocations);
        self.allocations_total = self.allocations_total.saturating_add(other.allocations_total);
        other.objects.iter().for_each(|(kind, count)| self.add_objects(*kind, *count));
        self
    }
}
