//! Whom allocations belong to. Many share an owner; each has a number instead of a copy.

use crate::ledger::Kind;

/// An owner of allocations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) kind: Kind,
    /// The device, unless it is host memory of no device in particular.
    pub(crate) device: Option<usize>,
    /// The context that takes them along when it ends.
    pub(crate) context: Option<u32>,
    /// The pool they are part of.
    pub(crate) pool: Option<u32>,
    /// How many there are.
    pub(crate) live: u64,
}

impl Owner {
    /// The device whose memory these allocations take.
    pub(crate) fn taken_from(&self) -> Option<usize> {
        self.device.filter(|_| self.kind.takes_device_memory())
    }
}

/// The owners, by number. Number 0 is nobody.
pub(crate) struct Owners {
    owners: Vec<Owner>,
    free: Vec<u32>,
    /// Owners without context or pool: one for each kind and device.
    common: Vec<(Kind, Option<usize>, u32)>,
}

impl Owners {
    /// Nobody yet.
    pub(crate) fn new() -> Self {
        let nobody = Owner { kind: Kind::Device, device: None, context: None, pool: None, live: 0 };
        Self { owners: vec![nobody], free: Vec::new(), common: Vec::new() }
    }

    /// Takes an owner in.
    pub(crate) fn add(&mut self, owner: Owner) -> u32 {
        if let Some(id) = self.free.pop()
            && let Some(place) = self.owners.get_mut(id as usize)
        {
            *place = owner;
            return id;
        }
        self.owners.push(owner);
        u32::try_from(self.owners.len() - 1).unwrap_or(0)
    }

    /// An owner for allocations of a context.
    pub(crate) fn add_for_context(&mut self, kind: Kind, device: usize, context: u32) -> u32 {
        let device = Some(device);
        self.add(Owner { kind, device, context: Some(context), pool: None, live: 0 })
    }

    /// The owner of allocations that belong to no context and no pool.
    pub(crate) fn common(&mut self, kind: Kind, device: Option<usize>) -> u32 {
        let known = self.common.iter().find(|entry| (entry.0, entry.1) == (kind, device));
        if let Some((_, _, id)) = known {
            return *id;
        }
        let id = self.add(Owner { kind, device, context: None, pool: None, live: 0 });
        self.common.push((kind, device, id));
        id
    }

    /// Removes an owner who owns nothing any more.
    pub(crate) fn remove(&mut self, id: u32) {
        self.free.push(id);
    }

    /// The owner behind a number.
    pub(crate) fn get(&self, id: u32) -> Option<Owner> {
        self.owners.get(id as usize).copied()
    }

    /// The owner behind a number, to change it.
    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut Owner> {
        self.owners.get_mut(id as usize)
    }

    /// Whether a context owns anything.
    pub(crate) fn context_owns(&self, context: u32) -> bool {
        self.owners.iter().any(|owner| owner.context == Some(context) && owner.live > 0)
    }

    /// Whether an owner is one of a context's.
    pub(crate) fn is_of(&self, id: u32, context: u32) -> bool {
        self.get(id).is_some_and(|owner| owner.context == Some(context))
    }
}
