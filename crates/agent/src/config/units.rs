//! Sizes and durations in the configuration, written as on the command line.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use engine::model::{Bytes, Nanos};
use formats::parse_units;
use serde::{Deserialize, Deserializer, de};

/// A size, such as `"512M"`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ByteSize(pub Bytes);

/// A duration, such as `"10m"`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DurationValue(pub Duration);

/// A ratio between 0 and 1, both excluded.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ratio(pub f64);

/// One of a few words, such as `"full"`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Choice<T>(pub T);

impl ByteSize {
    /// Returns a size in MiB.
    pub(crate) const fn mib(number: u64) -> Self {
        Self(Bytes(number << 20))
    }
}

impl DurationValue {
    /// Returns a duration in seconds.
    pub(crate) const fn secs(number: u64) -> Self {
        Self(Duration::from_secs(number))
    }

    /// Converts to the engine's unit.
    pub(crate) fn nanos(self) -> Nanos {
        Nanos(u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_units::size(&text).map(Self).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for DurationValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_units::time(&text).map(Self).map_err(de::Error::custom)
    }
}

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Choice<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Ratio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ratio = f64::deserialize(deserializer)?;
        let expected = "must be between 0 and 1, such as 0.95";
        if ratio > 0.0 && ratio < 1.0 { Ok(Self(ratio)) } else { Err(de::Error::custom(expected)) }
    }
}
