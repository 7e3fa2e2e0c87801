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
    /// Creates a duration from milliseconds.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// Whole milliseconds, rounded down.
    #[must_use]
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
