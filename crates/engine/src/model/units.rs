//! Quantities with their unit in the type.

use std::fmt;
use std::ops::Sub;

/// A point in time: nanoseconds of the monotonic clock. The engine never reads a clock; times
/// arrive with events and snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Timestamp(pub u64);

/// A duration in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Nanos(pub u64);

impl Sub for Timestamp {
    type Output = Nanos;

    /// Duration from `earlier` to `self`; zero if `earlier` is later.
    fn sub(self, earlier: Self) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Nanos {
    /// An hour.
    pub const HOUR: Self = Self::from_millis(3_600_000);

    /// Time until a quantity is used up at a growth per hour.
    pub fn until_used_up(quantity: u64, growth_per_hour: u64) -> Self {
        let nanos = u128::from(quantity) * u128::from(Self::HOUR.0);
        Self(u64::try_from(nanos / u128::from(growth_per_hour.max(1))).unwrap_or(u64::MAX))
    }

    /// Creates a duration from milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// Whole milliseconds, rounded down.
    pub const fn millis(self) -> u64 {
        self.0 / 1_000_000
    }
}

/// A number of bytes. Displays in binary units with two decimals (`20.00 MiB`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut unit = 0;
        let mut divisor = 1024_u64;
        // Step up while two decimals would round to 1024.00 of the smaller unit.
        while unit + 1 < UNITS.len() && self.0 as f64 / divisor as f64 >= 1023.995 {
            divisor = divisor.saturating_mul(1024);
            unit += 1;
        }
        f.pad(&format!("{:.2} {}", self.0 as f64 / divisor as f64, UNITS[unit]))
    }
}

/// A sum of sizes. Wide enough for any number of sizes of any value, so that sizes from a malicious
/// program cannot make additions and subtractions disagree; printed as at most `u64::MAX`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct ByteSum(u128);

impl ByteSum {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.0 += u128::from(bytes);
    }

    pub(crate) fn subtract(&mut self, bytes: u64) {
        self.0 = self.0.saturating_sub(u128::from(bytes));
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, or 0 if `other` is larger.
    pub(crate) fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Signed difference, clamped to `i64`.
    pub(crate) fn signed_difference(self, other: Self) -> i64 {
        let clamp = |bytes: u128| i64::try_from(bytes).unwrap_or(i64::MAX);
        if self >= other { clamp(self.0 - other.0) } else { -clamp(other.0 - self.0) }
    }

    /// `count` times `bytes`.
    pub(crate) fn product(count: u64, bytes: u64) -> Self {
        Self(u128::from(count) * u128::from(bytes))
    }

    /// `count` times this.
    pub(crate) fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(u128::from(count)))
    }

    /// The sum divided by a count.
    pub(crate) fn mean(self, count: u64) -> u64 {
        u64::try_from(self.0 / u128::from(count.max(1))).unwrap_or(u64::MAX)
    }

    pub(crate) fn bytes(self) -> Bytes {
        Bytes(u64::try_from(self.0).unwrap_or(u64::MAX))
    }
}

impl From<u64> for ByteSum {
    fn from(bytes: u64) -> Self {
        Self(u128::from(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_printed_in_binary_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (20 << 20, "20.00 MiB"),
            ((1 << 30) - 1, "1.00 GiB"),
            (2096 << 20, "2.05 GiB"),
            (u64::MAX, "16.00 EiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn negative_duration_is_zero() {
        assert_eq!(Timestamp(3) - Timestamp(5), Nanos(0));
    }
}
