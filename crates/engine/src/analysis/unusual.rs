//! What is far outside of the usual: allocations much bigger than others of the same site or process,
//! and growth in a short time much greater than in others. `docs/guide/leak-verdicts.md` has the rules in words.
//!
//! Whoever does the unusual again and again has another usual: what was told once is told again only
//! when it is more than twice as much.

use crate::units::{Bytes, Moment, Nanos};

/// Sizes are counted by half powers of two from 64 KiB on; smaller ones are all the same.
const SMALLEST: u32 = 16;
const BUCKETS: usize = 64;

/// How many times the usual is unusual, for a site and for a process.
const TIMES: u64 = 8;
const TIMES_OF_PROCESS: u64 = 16;

/// The least that is told, for a site and for a process.
const LEAST: u64 = 1 << 20;
const LEAST_OF_PROCESS: u64 = 64 << 20;

/// Earlier allocations that show what is usual, at a site and in a process.
const EARLIER: u64 = 32;
const EARLIER_IN_PROCESS: u64 = 16;

/// The length of the times whose growth is compared: about a second.
const SPAN: u32 = 30;

/// Earlier ones that show what is usual, the least that is told, and the least that counts as usual.
const EARLIER_SPANS: u64 = 32;
const LEAST_GROWTH: u64 = 256 << 20;
const LEAST_USUAL: u64 = 32 << 20;

/// Counts of quantities, and what most of them are.
#[derive(Clone, Debug)]
struct Histogram {
    counts: [u32; BUCKETS],
    all: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], all: 0 }
    }
}

const fn bucket(bytes: u64) -> usize {
    let power = (bytes | 1).ilog2();
    if power < SMALLEST {
        return 0;
    }
    let half = (bytes >> (power - 1) & 1) as usize;
    let place = 1 + (power - SMALLEST) as usize * 2 + half;
    if place < BUCKETS { place } else { BUCKETS - 1 }
}

/// The greatest size of a bucket.
const fn top(bucket: usize) -> u64 {
    if bucket == 0 {
        return (1 << SMALLEST) - 1;
    }
    let power = SMALLEST + (bucket as u32 - 1) / 2;
    let half = 1_u64 << (power - 1);
    let from = (1 << power) + if bucket.is_multiple_of(2) { half } else { 0 };
    from + (half - 1)
}

impl Histogram {
    fn add(&mut self, bytes: u64) {
        if let Some(count) = self.counts.get_mut(bucket(bytes)) {
            *count = count.saturating_add(1);
            self.all = self.all.saturating_add(1);
        }
    }

    /// What a share of all is not above, to within a half power of two.
    fn at(&self, part: u64, of: u64) -> u64 {
        let wanted = self.all.saturating_mul(part).div_ceil(of);
        let mut below = 0;
        let found = self.counts.iter().position(|count| {
            below += u64::from(*count);
            below >= wanted
        });
        found.map_or(u64::MAX, top)
    }
}

/// What a size is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usual {
    /// Nine of ten were at most this big.
    pub bytes: Bytes,
    /// Of how many.
    pub of: u64,
    /// Of the site; else of the process.
    pub of_site: bool,
}

/// What is known of a site before an allocation: how many there were, and the biggest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtSite {
    /// How many.
    pub count: u64,
    /// The biggest.
    pub largest: u64,
}

/// Sizes of one process.
#[derive(Clone, Debug, Default)]
pub struct Sizes {
    histogram: Histogram,
    told: u64,
}

impl Sizes {
    /// An allocation began; says what is usual if it is far outside of that.
    pub fn add(&mut self, bytes: u64, site: Option<AtSite>) -> Option<Usual> {
        let usual = if bytes < LEAST { None } else { self.compare(bytes, site) };
        self.histogram.add(bytes);
        usual
    }

    fn compare(&mut self, bytes: u64, site: Option<AtSite>) -> Option<Usual> {
        let usual = match site.filter(|site| site.count >= EARLIER) {
            Some(site) => {
                let far = bytes / TIMES > site.largest;
                let usual = Usual { bytes: Bytes(site.largest), of: site.count, of_site: true };
                far.then_some(usual)?
            }
            None => {
                let all = self.histogram.all;
                let far = bytes >= LEAST_OF_PROCESS
                    && all >= EARLIER_IN_PROCESS
                    && bytes / TIMES_OF_PROCESS > self.histogram.at(99, 100);
                let usual = Bytes(self.histogram.at(9, 10));
                far.then_some(Usual { bytes: usual, of: all, of_site: false })?
            }
        };
        let more = bytes / 2 > self.told;
        self.told = self.told.max(bytes);
        more.then_some(usual)
    }
}

/// Growth of one process in times of about a second.
#[derive(Clone, Debug, Default)]
pub struct Growths {
    histogram: Histogram,
    told: u64,
    /// The number of the time that is under way, and what was live when it began.
    current: Option<(u64, u64)>,
    /// The biggest unusual allocation in it: what explains the growth is not told twice.
    explained: u64,
}

/// A growth that is far outside of the usual.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grown {
    /// When it was over.
    pub at: Moment,
    /// How much.
    pub bytes: Bytes,
    /// In how long.
    pub within: Nanos,
    /// Nine of ten times grew at most so much.
    pub usual: Bytes,
}

impl Growths {
    /// Memory is about to begin, and so much is live; says if the time before grew unusually.
    #[inline]
    pub fn pass(&mut self, at: Moment, live: u64) -> Option<Grown> {
        match self.current {
            Some((number, _)) if at.0 >> SPAN <= number => None,
            _ => self.close(at, live),
        }
    }

    /// An unusual allocation was told by itself.
    pub fn explain(&mut self, bytes: u64) {
        self.explained = self.explained.max(bytes);
    }

    #[cold]
    fn close(&mut self, at: Moment, live: u64) -> Option<Grown> {
        let (number, before) = self.current.replace((at.0 >> SPAN, live))?;
        let explained = std::mem::take(&mut self.explained);
        let grown = live.saturating_sub(before);
        let usual = self.histogram.at(99, 100).max(LEAST_USUAL);
        let far = self.histogram.all >= EARLIER_SPANS
            && grown >= LEAST_GROWTH
            && grown / TIMES > usual
            && explained < grown / 2
            && grown / 2 > self.told;
        let nine_of_ten = Bytes(self.histogram.at(9, 10));
        self.histogram.add(grown);
        far.then(|| {
            self.told = grown;
            let at = Moment((number + 1) << SPAN);
            Grown { at, bytes: Bytes(grown), within: Nanos(1 << SPAN), usual: nine_of_ten }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_bucket_holds_sizes_up_to_its_top() {
        for bytes in [0, 1, 65_535, 65_536, 98_303, 98_304, 131_071, 131_072, MIB, 3 * MIB] {
            let bucket = bucket(bytes);
            assert!(bytes <= top(bucket), "{bytes}");
            assert!(bucket == 0 || bytes > top(bucket - 1), "{bytes}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn one_of_two_gigabytes_among_many_of_ten_megabytes_is_unusual() {
        let mut sizes = Sizes::default();
        assert!((0..20).all(|_| sizes.add(10 * MIB, None).is_none()));
        let usual = sizes.add(2096 * MIB, None).unwrap();
        assert_eq!((usual.of, usual.of_site), (20, false));
        assert!((10 * MIB..16 * MIB).contains(&usual.bytes.0), "{}", usual.bytes);
        // The next ones are no news.
        assert!((0..20).all(|_| sizes.add(2096 * MIB, None).is_none()));
    }

    #[test]
    fn a_site_is_compared_with_itself() {
        let mut sizes = Sizes::default();
        let site = |count, largest| Some(AtSite { count, largest });
        assert_eq!(sizes.add(20 * MIB, site(31, MIB)), None);
        assert_eq!(sizes.add(8 * MIB, site(32, MIB)), None);
        let usual = sizes.add(90 * MIB, site(32, 2 * MIB)).unwrap();
        assert_eq!(usual, Usual { bytes: Bytes(2 * MIB), of: 32, of_site: true });
        assert_eq!(sizes.add(100 * MIB, site(32, 2 * MIB)), None);
    }

    #[test]
    fn sizes_of_all_sorts_are_soon_usual() {
        let mut sizes = Sizes::default();
        let told = (0..2000_u64).filter(|step| {
            let power = step * 7919 % 20;
            sizes.add(1024 << power, None).is_some()
        });
        assert!(told.count() <= 1);
    }

    #[test]
    fn a_jump_after_a_calm_time_is_told_once() {
        let mut growths = Growths::default();
        let second = |number: u64| Moment(number << SPAN);
        assert!((0..40).all(|n| growths.pass(second(n), n * MIB).is_none()));
        let jump = 1024 * MIB;
        assert_eq!(
            growths.pass(second(40), 40 * MIB + jump).map(|grown| grown.bytes.0 >> 20),
            Some(1025)
        );
        assert_eq!(growths.pass(second(41), 2 * jump), None);
        growths.explain(4 * jump);
        assert_eq!(growths.pass(second(42), 8 * jump), None);
    }

    #[test]
    fn a_start_is_no_jump() {
        let mut growths = Growths::default();
        assert!((0..20).all(|n| growths.pass(Moment(n << SPAN), n * 1024 * MIB).is_none()));
    }
}
