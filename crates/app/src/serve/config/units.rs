//! Sizes and durations in the configuration, written as on the command line.

use std::time::Duration;

use engine::model::units::{Bytes, Nanos};
use serde::{Deserialize, Deserializer, de};

use crate::parse_units;

/// A size, such as `"512M"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ByteSize(pub(crate) Bytes);

/// A duration, such as `"10m"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DurationValue(pub(crate) Duration);

impl DurationValue {
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
