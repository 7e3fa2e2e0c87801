//! Recently freed keys of a process, to distinguish a double free from an invalid free.

use crate::model::AllocationKey;

/// Limit of remembered keys.
const MAX_RECENT_FREES: usize = 4096;

/// The most recently freed keys, in a ring that allocates only until it has reached its full size.
#[derive(Debug, Default)]
pub(crate) struct RecentFrees {
    keys: Vec<AllocationKey>,
    oldest: usize,
}

impl RecentFrees {
    pub(crate) fn push(&mut self, key: AllocationKey) {
        if self.keys.len() < MAX_RECENT_FREES {
            self.keys.push(key);
        } else {
            self.keys[self.oldest] = key;
            self.oldest = (self.oldest + 1) % MAX_RECENT_FREES;
        }
    }

    /// Whether the key was freed recently. Linear scan: used only for failed calls.
    pub(crate) fn contains(&self, key: AllocationKey) -> bool {
        self.keys.contains(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_key_replaces_the_oldest() {
        let mut freed = RecentFrees::default();
        for value in 0..MAX_RECENT_FREES as u64 + 2 {
            freed.push(AllocationKey::address(value));
        }
        let known: Vec<_> =
            (0..4).map(|value| freed.contains(AllocationKey::address(value))).collect();
        assert_eq!(known, [false, false, true, true]);
        assert!(freed.contains(AllocationKey::address(MAX_RECENT_FREES as u64 + 1)));
        assert_eq!(freed.keys.len(), MAX_RECENT_FREES);
    }
}
