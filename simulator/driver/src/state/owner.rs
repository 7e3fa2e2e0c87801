//! Owners of allocations. Many allocations share an owner, which they refer to by number.

use crate::oracle::MemoryKind;

/// An owner of allocations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) kind: MemoryKind,
    /// Device, unless it is host memory that belongs to no device.
    pub(crate) device: Option<usize>,
    /// Context that frees them when it ends.
    pub(crate) context: Option<u32>,
    /// Pool that contains them.
    pub(crate) pool: Option<u32>,
    /// Number of live allocations.
    pub(crate) live: u64,
}

impl Owner {
    /// Returns the device whose memory these allocations use.
    pub(crate) fn charged_device(&self) -> Option<usize> {
        self.device.filter(|_| self.kind.takes_device_memory())
    }
}

/// The owners by number. Number 0 is unused.
pub(crate) struct Owners {
    owners: Vec<Owner>,
    free: Vec<u32>,
    /// Owners without context or pool: one for each kind and device.
    common: Vec<(MemoryKind, Option<usize>, u32)>,
}

impl Owners {
    /// Creates an empty table.
    pub(crate) fn new() -> Self {
        let unused =
            Owner { kind: MemoryKind::Device, device: None, context: None, pool: None, live: 0 };
        Self { owners: vec![unused], free: Vec::new(), common: Vec::new() }
    }

    /// Adds an owner.
    pub(crate) fn add(&mut self, owner: Owner) -> u32 {
        if let Some(id) = self.free.pop()
            && let Some(slot) = self.owners.get_mut(id as usize)
        {
            *slot = owner;
            return id;
        }
        self.owners.push(owner);
        u32::try_from(self.owners.len() - 1).unwrap_or(0)
    }

    /// Adds an owner for allocations of a context.
    pub(crate) fn add_for_context(&mut self, kind: MemoryKind, device: usize, context: u32) -> u32 {
        let device = Some(device);
        self.add(Owner { kind, device, context: Some(context), pool: None, live: 0 })
    }

    /// Returns the owner of allocations without context and pool.
    pub(crate) fn common(&mut self, kind: MemoryKind, device: Option<usize>) -> u32 {
        let known = self.common.iter().find(|entry| (entry.0, entry.1) == (kind, device));
        if let Some((_, _, id)) = known {
            return *id;
        }
        let id = self.add(Owner { kind, device, context: None, pool: None, live: 0 });
        self.common.push((kind, device, id));
        id
    }

    /// Removes an owner without allocations.
    pub(crate) fn remove(&mut self, id: u32) {
        self.free.push(id);
    }

    /// Returns the owner with a number.
    pub(crate) fn get(&self, id: u32) -> Option<Owner> {
        self.owners.get(id as usize).copied()
    }

    /// Returns the owner with a number for changes.
    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut Owner> {
        self.owners.get_mut(id as usize)
    }

    /// Returns whether a context owns any allocation.
    pub(crate) fn context_owns(&self, context: u32) -> bool {
        self.owners.iter().any(|owner| owner.context == Some(context) && owner.live > 0)
    }

    /// Returns whether an owner belongs to a context.
    pub(crate) fn is_of(&self, id: u32, context: u32) -> bool {
        self.get(id).is_some_and(|owner| owner.context == Some(context))
    }
}
