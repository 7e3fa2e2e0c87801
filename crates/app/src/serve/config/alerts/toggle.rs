//! Thresholds that can be switched off: a value, `"off"` or `false`, or `true` for the default.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use crate::parse_units;
use crate::serve::config::{ByteSize, DurationValue};

/// A threshold in the configuration.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Toggle<T> {
    Default,
    Off,
    On(T),
}

impl<T: Copy> Toggle<T> {
    /// Returns the threshold, or the default; none if it is off.
    pub(super) fn or<U>(self, default: Option<U>, convert: impl Fn(T) -> U) -> Option<U> {
        match self {
            Self::Default => default,
            Self::Off => None,
            Self::On(limit) => Some(convert(limit)),
        }
    }
}

impl Toggle<NoThreshold> {
    pub(super) const fn is_on(self) -> bool {
        !matches!(self, Self::Off)
    }
}

/// A value that can be a threshold.
pub(super) trait ToggleValue: Sized {
    /// Description for error messages.
    const EXPECTED: &'static str;

    /// Parses a plain number.
    fn number(number: f64) -> Result<Self, String>;

    /// Parses text.
    fn text(text: &str) -> Result<Self, String>;
}

/// A rule without a threshold.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct NoThreshold;

/// A ratio between 0 and 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Ratio(pub(super) f64);

fn expected<T: ToggleValue>() -> String {
    format!("expected {}, or \"off\"", T::EXPECTED)
}

impl ToggleValue for NoThreshold {
    const EXPECTED: &'static str = "true";

    fn number(_: f64) -> Result<Self, String> {
        Err(expected::<Self>())
    }

    fn text(_: &str) -> Result<Self, String> {
        Err(expected::<Self>())
    }
}

impl ToggleValue for Ratio {
    const EXPECTED: &'static str = "a share between 0 and 1, such as 0.95";

    fn number(number: f64) -> Result<Self, String> {
        if number > 0.0 && number < 1.0 { Ok(Self(number)) } else { Err(expected::<Self>()) }
    }

    fn text(_: &str) -> Result<Self, String> {
        Err(expected::<Self>())
    }
}

impl ToggleValue for DurationValue {
    const EXPECTED: &'static str = "a time in quotes, such as \"5m\"";

    fn number(_: f64) -> Result<Self, String> {
        Err(expected::<Self>())
    }

    fn text(text: &str) -> Result<Self, String> {
        parse_units::time(text)
            .map(Self)
            .map_err(|reason| format!("{reason}; {}", expected::<Self>()))
    }
}

impl ToggleValue for ByteSize {
    const EXPECTED: &'static str = "a size in quotes, such as \"1G\"";

    fn number(_: f64) -> Result<Self, String> {
        Err(expected::<Self>())
    }

    fn text(text: &str) -> Result<Self, String> {
        parse_units::size(text)
            .map(Self)
            .map_err(|reason| format!("{reason}; {}", expected::<Self>()))
    }
}

impl<'de, T: ToggleValue> Deserialize<'de> for Toggle<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ToggleVisitor(PhantomData))
    }
}

struct ToggleVisitor<T>(PhantomData<T>);

impl<T: ToggleValue> Visitor<'_> for ToggleVisitor<T> {
    type Value = Toggle<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, or \"off\"", T::EXPECTED)
    }

    fn visit_bool<E: de::Error>(self, on: bool) -> Result<Toggle<T>, E> {
        Ok(if on { Toggle::Default } else { Toggle::Off })
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Toggle<T>, E> {
        self.visit_f64(number as f64)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Toggle<T>, E> {
        T::number(number).map(Toggle::On).map_err(E::custom)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Toggle<T>, E> {
        match text {
            "off" => Ok(Toggle::Off),
            _ => T::text(text).map(Toggle::On).map_err(E::custom),
        }
    }
}
