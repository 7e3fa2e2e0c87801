//! Handles: numbers that identify objects, like pointers in a real driver.

use crate::abi::Handle;

/// Distance between two handles of one kind.
const HANDLE_STRIDE: u64 = 0x80;

/// A unique identity of an object: handles are reused, keys are not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ObjectKey {
    pub(crate) index: u32,
    serial: u32,
}

/// Objects by handle. A freed handle is the next one returned, as is common for heap addresses.
pub(crate) struct Slab<T> {
    base: u64,
    next_serial: u32,
    entries: Vec<Option<(u32, T)>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    /// Creates an empty table. `kind` keeps handles of different kinds apart.
    pub(crate) const fn new(kind: u64) -> Self {
        let base = 0x5580_0000_0000 + (kind << 32);
        Self { base, next_serial: 0, entries: Vec::new(), free: Vec::new() }
    }

    /// Adds an object.
    pub(crate) fn insert(&mut self, object: T) -> ObjectKey {
        self.insert_if(object, |_| true)
    }

    /// Adds an object; its handle is a new one or the youngest freed one that may be reused.
    pub(crate) fn insert_if(&mut self, object: T, is_unused: impl Fn(u32) -> bool) -> ObjectKey {
        let serial = self.next_serial;
        self.next_serial = self.next_serial.wrapping_add(1);
        let position = self.free.iter().rposition(|index| is_unused(*index));
        if let Some(index) = position.map(|position| self.free.remove(position))
            && let Some(entry) = self.entries.get_mut(index as usize)
        {
            *entry = Some((serial, object));
            return ObjectKey { index, serial };
        }
        let index = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        self.entries.push(Some((serial, object)));
        ObjectKey { index, serial }
    }

    /// Removes an object; its handle can be reused.
    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let (_, object) = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(object)
    }

    /// Returns the handle that a program sees.
    pub(crate) const fn handle(&self, index: u32) -> Handle {
        self.base + (index as u64 + 1) * HANDLE_STRIDE
    }

    /// Returns the key of the object with a handle.
    pub(crate) fn find(&self, handle: Handle) -> Option<ObjectKey> {
        let offset = handle.checked_sub(self.base)?.checked_sub(HANDLE_STRIDE)?;
        if offset % HANDLE_STRIDE != 0 {
            return None;
        }
        let index = u32::try_from(offset / HANDLE_STRIDE).ok()?;
        let (serial, _) = self.entries.get(index as usize)?.as_ref()?;
        Some(ObjectKey { index, serial: *serial })
    }

    /// Returns the object at an index.
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.as_ref().map(|(_, object)| object)
    }

    /// Returns the object at an index for changes.
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.as_mut().map(|(_, object)| object)
    }

    /// Returns the object of a key, unless it was removed.
    pub(crate) fn by_key(&self, key: ObjectKey) -> Option<&T> {
        match self.entries.get(key.index as usize)? {
            Some((serial, object)) if *serial == key.serial => Some(object),
            _ => None,
        }
    }

    /// Calls a function for every object.
    pub(crate) fn for_each(&mut self, change: impl FnMut(&mut T)) {
        self.entries.iter_mut().flatten().map(|(_, object)| object).for_each(change);
    }

    /// Returns all objects with their indexes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0_u32..)
            .zip(&self.entries)
            .filter_map(|(index, entry)| entry.as_ref().map(|(_, object)| (index, object)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_reused_but_keys_are_not() {
        let mut slab = Slab::new(1);
        let first = slab.insert('a');
        let handle = slab.handle(first.index);
        assert_eq!(slab.find(handle), Some(first));
        assert_eq!(slab.remove(first.index), Some('a'));
        assert_eq!(slab.find(handle), None);
        let second = slab.insert('b');
        assert_eq!(slab.handle(second.index), handle);
        assert_eq!(slab.by_key(first), None);
        assert_eq!(slab.by_key(second), Some(&'b'));
        assert_eq!(slab.find(handle + 1), None);
        assert_eq!(slab.find(0), None);
    }
}
