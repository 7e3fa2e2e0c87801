//! Allocations that ended because their address was given out again, and whose free call is still
//! under way (or lost).

use hashbrown::HashMap;

use crate::ids::{ContextId, DeviceId, Key};
use crate::units::Moment;

/// Keys that are remembered; beyond that only the count is.
const KEYS: usize = 65_536;

/// An allocation that made room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owed {
    /// The context it was in.
    pub(super) context: Option<ContextId>,
    /// The device it was on.
    pub(super) device: Option<DeviceId>,
    /// When the call had returned that made it.
    pub(super) began: Moment,
    /// When its name was seen given out again.
    pub(super) at: Moment,
    /// When the call was entered that got the name.
    pub(super) entered: Moment,
    /// How much device memory it was.
    pub(super) bytes: u64,
}

/// The ends one process still owes.
#[derive(Debug, Default)]
pub(super) struct Superseded {
    by_key: HashMap<Key, Vec<Owed>>,
    /// All of them.
    pub(super) count: u64,
}

impl Superseded {
    /// A live allocation of that name had to make room; so many frees of it are owed.
    pub(super) fn add(&mut self, key: Key, frees: u64, owed: Owed) {
        self.count += frees;
        let known = self.by_key.contains_key(&key);
        if known || self.by_key.len() < KEYS {
            self.by_key.entry(key).or_default().extend((0..frees).map(|_| owed));
        }
    }

    /// A free arrived that is not for a live allocation; gives the one that was owed, if any: the
    /// youngest that was there when the free was entered.
    pub(super) fn settle(&mut self, key: Key, entered: Moment) -> Option<Owed> {
        let all = self.by_key.get_mut(&key)?;
        let position = all.iter().rposition(|owed| owed.began <= entered)?;
        let owed = all.remove(position);
        if all.is_empty() {
            self.by_key.remove(&key);
        }
        self.count -= 1;
        Some(owed)
    }

    /// A context ended in a call that was entered at that moment: what was there and made room since
    /// then may have ended with it, without a free of its own. Gives how many.
    pub(super) fn released(&mut self, context: ContextId, entered: Moment) -> u64 {
        let mut ended = 0;
        let released = |owed: &Owed| {
            owed.context == Some(context) && owed.began <= entered && entered <= owed.at
        };
        self.by_key.retain(|_, owed| {
            let before = owed.len();
            owed.retain(|owed| !released(owed));
            ended += (before - owed.len()) as u64;
            !owed.is_empty()
        });
        self.count -= ended;
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Moment = Moment(1000);

    fn owed(context: u64, at: u64) -> Owed {
        let (began, at) = (Moment(at / 2), Moment(at));
        Owed { context: Some(ContextId(context)), device: None, began, at, entered: at, bytes: 1 }
    }

    #[test]
    fn a_free_settles_one_debt_of_its_key() {
        let mut superseded = Superseded::default();
        superseded.add(Key::address(1), 1, owed(0, 1));
        superseded.add(Key::address(1), 1, owed(0, 1));
        assert!(superseded.settle(Key::address(2), LATER).is_none());
        assert!(superseded.settle(Key::address(1), LATER).is_some());
        assert!(superseded.settle(Key::address(1), LATER).is_some());
        assert!(superseded.settle(Key::address(1), LATER).is_none());
        assert_eq!(superseded.count, 0);
    }

    #[test]
    fn a_free_settles_no_debt_of_what_came_after_it() {
        let mut superseded = Superseded::default();
        superseded.add(Key::address(1), 1, owed(0, 10));
        superseded.add(Key::address(1), 1, owed(0, 40));
        let ends = |owed: Option<Owed>| owed.map(|owed| owed.at);
        assert_eq!(ends(superseded.settle(Key::address(1), Moment(15))), Some(Moment(10)));
        assert_eq!(ends(superseded.settle(Key::address(1), Moment(15))), None);
        assert_eq!(ends(superseded.settle(Key::address(1), Moment(35))), Some(Moment(40)));
    }

    #[test]
    fn the_end_of_a_context_settles_what_made_room_meanwhile() {
        let mut superseded = Superseded::default();
        superseded.add(Key::address(1), 1, owed(7, 10));
        superseded.add(Key::address(2), 1, owed(7, 20));
        superseded.add(Key::address(3), 1, owed(8, 20));
        superseded.add(Key::address(4), 1, owed(7, 40));
        // One had made room before the end began, one came after that.
        assert_eq!(superseded.released(ContextId(7), Moment(15)), 1);
        assert_eq!(superseded.count, 3);
        assert!(superseded.settle(Key::address(2), LATER).is_none());
        assert!(superseded.settle(Key::address(1), LATER).is_some());
        assert!(superseded.settle(Key::address(3), LATER).is_some());
    }

    #[test]
    fn debts_beyond_the_limit_are_only_counted() {
        let mut superseded = Superseded::default();
        for value in 0..KEYS as u64 + 10 {
            superseded.add(Key::address(value), 1, owed(0, 1));
        }
        assert_eq!(superseded.by_key.len(), KEYS);
        assert_eq!(superseded.count, KEYS as u64 + 10);
        assert!(superseded.settle(Key::address(KEYS as u64 + 1), LATER).is_none());
    }
}
