//! Thresholds that can be switched off: a value, `"off"` or `false`, or `true` for the default.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use crate::quantity;
use crate::serve::config::{Size, Span};

/// A threshold in the configuration.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Switch<T> {
    Default,
    Off,
    On(T),
}

impl<T: Copy> Switch<T> {
    /// Returns the threshold, or the default; none if it is off.
    pub(super) fn or<U>(self, default: Option<U>, convert: impl Fn(T) -> U) -> Option<U> {
        match self {
            Self::Default => default,
            Self::Off => None,
            Self::On(limit) => Some(convert(limit)),
        }
    }
}

impl Switch<Always> {
    pub(super) const fn is_on(self) -> bool {
        !matches!(self, Self::Off)
    }
}

/// A value that can be a threshold.
pub(super) trait Quantity: Sized {
    /// Description for error messages.
    const EXPECTED: &'static str;

    /// Parses a plain number.
    fn number(number: f64) -> Result<Self, String>;

    /// Parses text.
    fn text(text: &str) -> Result<Self, String>;
}

/// A rule without a threshold.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Always;

/// A ratio between 0 and 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Share(pub(super) f64);

fn expected<T: Quantity>() -> String {
    format!("expected {}, or \"off\"", T::EXPECTED)
}

impl Quantity for Always {
    const EXPECTED: &'static str = "true";

    fn number(_: f64) -> Result<Self, String> {
        Err(expected::<Self>())
    }

    fn text(_: &str) -> Result<Self, String> {
        Err(expected::<Self>())
    }
}

impl Quantity for Share {
    const EXPECTED: &'static str = "a share between 0 and 1, such as 0.95";

    fn number(number: f64) -> Result<Self, String> {
        if number > 0.0 && number < 1.0 { Ok(Self(number)) } else { Err(expected::<Self>()) }
    }

    fn text(_: &str) -> Result<Self, String> {
        Err(expected::<Self>())
    }
}

impl Quantity for Span {
    const EXPECTED: &'static str = "a time in quotes, such as \"5m\"";

    fn number(_: f64) -> Result<Self, String> {
        Err(expected::<Self>())
    }

    fn text(text: &str) -> Result<Self, String> {
        quantity::time(text).map(Self).map_err(|why| format!("{why}; {}", expected::<Self>()))
    }
}

impl Quantity for Size {
    const EXPECTED: &'static str = "a size in quotes, such as \"1G\"";

    fn number(_: f64) -> Result<Self, String> {
        Err(expected::<Self>())
    }

    fn text(text: &str) -> Result<Self, String> {
        quantity::size(text).map(Self).map_err(|why| format!("{why}; {}", expected::<Self>()))
    }
}

impl<'de, T: Quantity> Deserialize<'de> for Switch<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader(PhantomData))
    }
}

struct Reader<T>(PhantomData<T>);

impl<T: Quantity> Visitor<'_> for Reader<T> {
    type Value = Switch<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, or \"off\"", T::EXPECTED)
    }

    fn visit_bool<E: de::Error>(self, on: bool) -> Result<Switch<T>, E> {
        Ok(if on { Switch::Default } else { Switch::Off })
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Switch<T>, E> {
        self.visit_f64(number as f64)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Switch<T>, E> {
        T::number(number).map(Switch::On).map_err(E::custom)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Switch<T>, E> {
        match text {
            "off" => Ok(Switch::Off),
            _ => T::text(text).map(Switch::On).map_err(E::custom),
        }
    }
}
