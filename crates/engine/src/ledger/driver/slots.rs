//! Values with stable indices.
#![allow(clippy::cast_possible_truncation, reason = "fewer slots than 2^32")]

/// Values by index. Indices of removed values are used again.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Option<T>>,
    vacant: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), vacant: Vec::new() }
    }
}

impl<T> Slots<T> {
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(index) = self.vacant.pop() {
            self.slots[index as usize] = Some(value);
            return index;
        }
        self.slots.push(Some(value));
        self.slots.len() as u32 - 1
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    /// Removes a value that matches.
    pub(crate) fn remove_if(
        &mut self,
        index: u32,
        matches: impl FnOnce(&mut T) -> bool,
    ) -> Option<T> {
        let removed = self.slots.get_mut(index as usize)?.take_if(matches)?;
        self.vacant.push(index);
        Some(removed)
    }

    /// All values, in arbitrary order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().flatten()
    }

    /// Number of indices, used or not.
    pub(crate) fn indices(&self) -> usize {
        self.slots.len()
    }
}
