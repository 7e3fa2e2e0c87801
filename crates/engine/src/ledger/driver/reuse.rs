//! Names that the driver uses again: addresses, handles, contexts.
//!
//! The driver gives a name to a new owner only after the old one has ended. Calls of several threads
//! overlap, so their records arrive in any order, and two rules follow:
//! - A call that was entered before the owner of its name existed is about an older owner
//!   ([`existed`]).
//! - A new owner proves that the older one has ended. The call that ended it is pending: its record
//!   is yet to come, or lost ([`Owners::expect_end`]).

use std::hash::Hash;

use hashbrown::HashMap;

use crate::model::Timestamp;

/// Limit of names with pending calls.
const MAX_PENDING: usize = 65_536;

/// Whether an owner that exists since the return of a call existed when another call was entered.
pub(crate) fn existed(since: Timestamp, entered: Timestamp) -> bool {
    since <= entered
}

/// Numbers by key; a number of 0 takes no space.
#[derive(Debug)]
pub(crate) struct Counts<K>(HashMap<K, u64>);

impl<K> Default for Counts<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Copy + Eq + Hash> Counts<K> {
    pub(crate) fn add(&mut self, key: K, count: u64) {
        *self.0.entry(key).or_insert(0) += count;
    }

    /// Takes one away; returns whether there was one.
    pub(crate) fn take(&mut self, key: K) -> bool {
        let Some(count) = self.0.get_mut(&key) else { return false };
        *count -= 1;
        if *count == 0 {
            self.0.remove(&key);
        }
        true
    }

    pub(crate) fn get(&self, key: K) -> u64 {
        self.0.get(&key).copied().unwrap_or(0)
    }

    /// Takes all away; returns their number.
    pub(crate) fn take_all(&mut self, key: K) -> u64 {
        self.0.remove(&key).unwrap_or(0)
    }

    pub(crate) fn contains(&self, key: K) -> bool {
        self.0.contains_key(&key)
    }
}

/// Owners of names, each since the return of the call that created it.
#[derive(Debug)]
pub(crate) struct Owners<K, V> {
    live: HashMap<K, (Timestamp, V)>,
    /// Calls that ended older owners and have not returned.
    pending: Counts<K>,
}

impl<K, V> Default for Owners<K, V> {
    fn default() -> Self {
        Self { live: HashMap::new(), pending: Counts::default() }
    }
}

impl<K: Copy + Eq + Hash, V> Owners<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.live.len()
    }

    pub(crate) fn get(&self, key: K) -> Option<&V> {
        self.live.get(&key).map(|(_, owner)| owner)
    }

    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.live.get_mut(&key).map(|(_, owner)| owner)
    }

    /// All owners with their names and times.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, Timestamp, &V)> {
        self.live.iter().map(|(key, (since, owner))| (*key, *since, owner))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.live.values_mut().map(|(_, owner)| owner)
    }

    /// Gives a name to a new owner; returns the older one, which has ended.
    pub(crate) fn insert(&mut self, key: K, since: Timestamp, owner: V) -> Option<V> {
        self.live.insert(key, (since, owner)).map(|(_, older)| older)
    }

    /// Removes an owner, with the time since which it exists.
    pub(crate) fn remove(&mut self, key: K) -> Option<(Timestamp, V)> {
        self.live.remove(&key)
    }

    /// Whether a call that was entered at this time is about the owner.
    pub(crate) fn is_about(&self, key: K, entered: Timestamp) -> bool {
        self.live.get(&key).is_some_and(|(since, _)| existed(*since, entered))
    }

    /// Removes the owner that a call entered at this time is about.
    pub(crate) fn end(&mut self, key: K, entered: Timestamp) -> Option<V> {
        self.is_about(key, entered).then(|| self.remove(key))?.map(|(_, owner)| owner)
    }

    /// Records that calls which end an older owner have not returned.
    pub(crate) fn expect_end(&mut self, key: K, calls: u64) {
        if calls > 0 && (self.pending.0.len() < MAX_PENDING || self.pending.contains(key)) {
            self.pending.add(key, calls);
        }
    }

    /// Matches a call that is not about the owner; returns whether one was pending.
    pub(crate) fn match_pending(&mut self, key: K) -> bool {
        self.pending.take(key)
    }
}
