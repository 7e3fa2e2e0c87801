//! Allocations that ended because their address was given out again, and whose free call is still
//! under way (or lost).

use hashbrown::HashMap;

use crate::ids::Key;

/// Keys that are remembered; beyond that only the count is.
const KEYS: usize = 65_536;

/// The frees one process still owes.
#[derive(Debug, Default)]
pub(super) struct Superseded {
    by_key: HashMap<Key, u64>,
    /// All of them.
    pub(super) count: u64,
}

impl Superseded {
    /// A live allocation of that name had to make room; so many frees of it are owed.
    pub(super) fn add(&mut self, key: Key, frees: u64) {
        self.count += frees;
        if let Some(count) = self.by_key.get_mut(&key) {
            *count += frees;
        } else if self.by_key.len() < KEYS {
            self.by_key.insert(key, frees);
        }
    }

    /// A free arrived that is not for a live allocation; says whether one was owed.
    pub(super) fn settle(&mut self, key: Key) -> bool {
        let Some(count) = self.by_key.get_mut(&key) else {
            return false;
        };
        *count -= 1;
        if *count == 0 {
            self.by_key.remove(&key);
        }
        self.count -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_settles_one_debt_of_its_key() {
        let mut superseded = Superseded::default();
        superseded.add(Key::address(1), 1);
        superseded.add(Key::address(1), 1);
        assert!(!superseded.settle(Key::address(2)));
        assert!(superseded.settle(Key::address(1)));
        assert!(superseded.settle(Key::address(1)));
        assert!(!superseded.settle(Key::address(1)));
        assert_eq!(superseded.count, 0);
    }

    #[test]
    fn debts_beyond_the_limit_are_only_counted() {
        let mut superseded = Superseded::default();
        for value in 0..KEYS as u64 + 10 {
            superseded.add(Key::address(value), 1);
        }
        assert_eq!(superseded.by_key.len(), KEYS);
        assert_eq!(superseded.count, KEYS as u64 + 10);
        assert!(!superseded.settle(Key::address(KEYS as u64 + 1)));
    }
}
