//! Values with stable indices.

/// Values by index. Indices of removed values are used again.
#[derive(Debug)]
pub(in crate::ledger) struct Slots<T> {
    slots: Vec<Option<T>>,
    vacant: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), vacant: Vec::new() }
    }
}

impl<T> Slots<T> {
    pub(in crate::ledger) fn insert(&mut self, value: T) -> u32 {
        if let Some(index) = self.vacant.pop() {
            self.slots[index as usize] = Some(value);
            return index;
        }
        self.slots.push(Some(value));
        self.slots.len() as u32 - 1
    }

    pub(in crate::ledger) fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.as_ref()
    }

    pub(in crate::ledger) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    /// Removes a value that matches.
    pub(in crate::ledger) fn remove_if(
        &mut self,
        index: u32,
        matches: impl FnOnce(&mut T) -> bool,
    ) -> Option<T> {
        let removed = self.slots.get_mut(index as usize)?.take_if(matches)?;
        self.vacant.push(index);
        Some(removed)
    }

    /// All values, in arbitrary order.
    pub(in crate::ledger) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten()
    }

    /// Number of indices, used or not.
    pub(in crate::ledger) fn indices(&self) -> usize {
        self.slots.len()
    }
}
