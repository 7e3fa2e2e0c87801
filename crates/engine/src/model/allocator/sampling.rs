//! Sampling of blocks: which call stacks are captured if there are too many of them.
//!
//! A block of `s` bytes is sampled with probability 1 - exp(-s/T - 1/16), where T is the interval: large
//! blocks always, small ones by their bytes, and at least one in 16. It stands for 1/p blocks of
//! its size, so sums over sampled blocks are unbiased estimates.
#![allow(
    clippy::cast_possible_truncation,
    reason = "a logarithm of 64 bits; casts from floats saturate"
)]

use crate::model::Bytes;

/// One in 16 blocks is sampled, however small they are.
const MIN_SHARE: f64 = 16.0;

/// Fractions of a block in [`Sampling::others`].
pub const BLOCK_FRACTIONS: u64 = 256;

/// Sampling interval: mean number of bytes between two sampled blocks, a power of two.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SamplingInterval(u8);

impl SamplingInterval {
    /// An interval by its binary logarithm; `None` for 0, which stands for no sampling.
    pub const fn from_log2(power: u8) -> Option<Self> {
        match power {
            1..=63 => Some(Self(power)),
            _ => None,
        }
    }

    /// An interval in bytes, rounded down; `None` for less than two.
    pub fn from_bytes(bytes: u64) -> Option<Self> {
        Self::from_log2(bytes.checked_ilog2()? as u8)
    }

    /// The interval in bytes.
    pub const fn bytes(self) -> Bytes {
        Bytes(1 << self.0)
    }
}

/// Whether the call stack of a block was captured.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Sampling {
    /// As those of all blocks at that time.
    #[default]
    All,
    /// The block was sampled: it stands for others.
    Sampled(SamplingInterval),
    /// It was not sampled: its site is not known.
    Skipped(SamplingInterval),
}

impl Sampling {
    /// The interval, if blocks are sampled.
    pub const fn interval(self) -> Option<SamplingInterval> {
        match self {
            Self::All => None,
            Self::Sampled(interval) | Self::Skipped(interval) => Some(interval),
        }
    }

    /// The bytes that a block of this size stands for, itself included.
    pub fn estimate(self, bytes: u64) -> u64 {
        match self {
            Self::All => bytes,
            Self::Sampled(interval) => (bytes as f64 * blocks(bytes, interval)).round() as u64,
            Self::Skipped(_) => 0,
        }
    }

    /// Number of other blocks that a block of this size stands for, in 1/256.
    pub fn others(self, bytes: u64) -> u64 {
        match self {
            Self::Sampled(interval) => {
                ((blocks(bytes, interval) - 1.0) * BLOCK_FRACTIONS as f64).round() as u64
            }
            Self::All | Self::Skipped(_) => 0,
        }
    }
}

/// Number of blocks that a sampled block of this size stands for.
fn blocks(bytes: u64, interval: SamplingInterval) -> f64 {
    let expected = bytes as f64 / interval.bytes().0 as f64 + 1.0 / MIN_SHARE;
    -1.0 / (-expected).exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_stand_for_blocks_of_their_size() {
        let interval = SamplingInterval::from_bytes(1 << 20).unwrap();
        assert_eq!(interval.bytes(), Bytes(1 << 20));
        let sampled = Sampling::Sampled(interval);
        // Tiny blocks: one in 16. Large blocks: always.
        assert_eq!(sampled.others(1) / BLOCK_FRACTIONS, 15);
        assert_eq!((sampled.others(1 << 30), sampled.estimate(1 << 30)), (0, 1 << 30));
        // 1 - exp(-1 - 1/16) = 0.6544.
        assert_eq!(sampled.estimate(1 << 20), 1_602_325);
        let skipped = Sampling::Skipped(interval);
        assert_eq!((skipped.estimate(512), skipped.others(512)), (0, 0));
        assert_eq!((Sampling::All.estimate(512), Sampling::All.others(512)), (512, 0));
        assert!(SamplingInterval::from_bytes(1).is_none());
    }
}
