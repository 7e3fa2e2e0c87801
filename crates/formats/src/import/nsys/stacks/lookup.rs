//! A compact set of numbers with a position for each. Files refer to calls and call chains by
//! numbers that mostly increase, so a search continues from where the last one ended.

/// Sorted numbers.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    keys: Vec<u32>,
    sorted: bool,
    last: usize,
    /// If the range of numbers is small: the position of each, counted from the first.
    near: Vec<u32>,
}

/// Maximum range of numbers with direct positions.
const MAX_DIRECT_RANGE: u32 = 1 << 16;

/// A number that is not in the set.
const ABSENT: u32 = u32::MAX;

impl Lookup {
    /// Adds a number; duplicates are dropped by [`Lookup::done`].
    #[inline]
    pub(crate) fn push(&mut self, key: u32) {
        if self.keys.last() != Some(&key) {
            self.sorted = false;
            self.keys.push(key);
        }
    }

    /// Sorts the numbers. Called once after all were added.
    pub(crate) fn done(&mut self) {
        if !self.sorted {
            if !self.keys.is_sorted() {
                self.keys.sort_unstable();
            }
            self.keys.dedup();
            self.keys.shrink_to_fit();
            self.sorted = true;
            self.index();
        }
    }

    fn index(&mut self) {
        let (Some(&first), Some(&last)) = (self.keys.first(), self.keys.last()) else { return };
        if last - first >= MAX_DIRECT_RANGE {
            return;
        }
        self.near = vec![ABSENT; (last - first) as usize + 1];
        for (position, &key) in (0..).zip(&self.keys) {
            if let Some(slot) = self.near.get_mut((key - first) as usize) {
                *slot = position;
            }
        }
    }

    /// Returns the number of distinct numbers.
    pub(crate) const fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the position of a number, after [`Lookup::done`].
    #[inline]
    pub(crate) fn find(&mut self, key: u32) -> Option<usize> {
        if !self.near.is_empty() {
            let at = key.checked_sub(*self.keys.first()?)? as usize;
            return self.near.get(at).filter(|&&at| at != ABSENT).map(|&at| at as usize);
        }
        let at = self.last;
        let here = *self.keys.get(at)?;
        if key == here {
            return Some(at);
        }
        let (low, high) = if key >= here { self.upwards(key, at) } else { self.downwards(key, at) };
        let found = self.keys.get(low..high)?.binary_search(&key);
        // The search must not continue from the end.
        let (Ok(near) | Err(near)) = found;
        self.last = (low + near).min(self.keys.len() - 1);
        found.ok().map(|near| low + near)
    }

    /// Returns a range from `at` upwards that contains the number, if any does.
    fn upwards(&self, key: u32, at: usize) -> (usize, usize) {
        let (mut low, mut step) = (at, 1);
        loop {
            let high = low.saturating_add(step);
            match self.keys.get(high) {
                Some(&other) if other <= key => (low, step) = (high, step * 2),
                Some(_) => return (low, high),
                None => return (low, self.keys.len()),
            }
        }
    }

    fn downwards(&self, key: u32, at: usize) -> (usize, usize) {
        let (mut high, mut step) = (at, 1);
        loop {
            let low = high.saturating_sub(step);
            match self.keys.get(low) {
                Some(&other) if other > key && low > 0 => (high, step) = (low, step * 2),
                _ => return (low, high),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    proptest::proptest! {
        #![proptest_config(crate::random::config(crate::random::CASES))]

        #[test]
        fn lookup_finds_exactly_the_inserted_keys(
            keys: Vec<u8>,
            queried: Vec<u8>,
            step in proptest::sample::select(vec![1_u32, 1000]),
        ) {
            let mut lookup = Lookup::default();
            keys.iter().for_each(|&key| lookup.push(7 + step * u32::from(key)));
            lookup.done();
            let set: BTreeSet<_> = keys.iter().copied().collect();
            proptest::prop_assert_eq!(lookup.len(), set.len());
            for key in queried {
                let expected = set.contains(&key).then(|| set.range(..key).count());
                proptest::prop_assert_eq!(lookup.find(7 + step * u32::from(key)), expected);
                proptest::prop_assert_eq!(lookup.find(6 + step * u32::from(key)), None::<usize>.or_else(|| {
                    (step == 1 && key > 0 && set.contains(&(key - 1))).then(|| set.range(..key - 1).count())
                }));
            }
        }
    }
}
