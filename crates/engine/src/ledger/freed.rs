//! Recently freed keys of a process, to distinguish a double free from an invalid free.

use crate::ids::Key;

/// Limit of remembered keys.
const KEPT: usize = 4096;

/// The most recently freed keys, in a ring that allocates only until it has reached its full size.
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

    /// Whether the key was freed recently. Linear scan: used only for failed calls.
    pub(super) fn contains(&self, key: Key) -> bool {
        self.keys.contains(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_key_replaces_the_oldest() {
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
