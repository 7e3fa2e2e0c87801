//! What a process freed last, to tell a second free from a free of nonsense.

use crate::ids::Key;

/// Keys that are remembered.
const KEPT: usize = 4096;

/// The last freed keys, in a ring that grows to its size once and takes nothing from the heap then.
#[derive(Debug, Default)]
pub(super) struct Freed {
    keys: Vec<Key>,
    oldest: usize,
}

impl Freed {
    pub(super) fn push(&mut self, key: Key) {
        if self.keys.len() < KEPT {
            self.keys.push(key);
        } else {
            self.keys[self.oldest] = key;
            self.oldest = (self.oldest + 1) % KEPT;
        }
    }

    /// Whether the key is among them. Looks at all of them: only failed calls ask.
    pub(super) fn contains(&self, key: Key) -> bool {
        self.keys.contains(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_key_makes_room_for_the_newest() {
        let mut freed = Freed::default();
        for value in 0..KEPT as u64 + 2 {
            freed.push(Key::address(value));
        }
        let known: Vec<_> = (0..4).map(|value| freed.contains(Key::address(value))).collect();
        assert_eq!(known, [false, false, true, true]);
        assert!(freed.contains(Key::address(KEPT as u64 + 1)));
        assert_eq!(freed.keys.len(), KEPT);
    }
}
