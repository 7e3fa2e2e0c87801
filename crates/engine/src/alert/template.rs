//! Renders summary and advice of an alert from templates.
#![allow(clippy::cast_possible_truncation, reason = "casts from floats saturate")]

use crate::model::Bytes;

use super::{Alert, RuleExpr};

/// Unit of a value.
enum ValueUnit {
    Bytes,
    /// Bytes per second, printed per hour.
    ByteRate,
    /// A count per second, printed per hour.
    Rate,
    Seconds,
    Share,
    Plain,
}

/// Replaces labels, `value` and `threshold` in a template.
pub(super) fn render(template: &str, alert: &Alert) -> String {
    let mut text = String::new();
    for (before, name) in pieces(template) {
        text.push_str(before);
        match name {
            None => (),
            Some("value") => text.push_str(&format_value(alert, alert.value)),
            Some("threshold") => {
                text.push_str(&format_value(alert, alert.rule.threshold.threshold_value()));
            }
            Some(name) => match alert.labels.iter().find(|(label, _)| *label == name) {
                Some((_, value)) => text.push_str(value),
                None => text.push('?'),
            },
        }
    }
    text
}

/// Splits a template into text and the placeholder after it.
pub fn pieces(template: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    let mut rest = Some(template);
    std::iter::from_fn(move || {
        let text = rest?;
        let cut = text.split_once('{').and_then(|(before, after)| {
            let (name, after) = after.split_once('}')?;
            Some((before, name, after))
        });
        match cut {
            None => {
                rest = None;
                Some((text, None))
            }
            Some((before, name, after)) => {
                rest = Some(after);
                Some((before, Some(name)))
            }
        }
    })
}

/// Formats a value of an alert with its unit.
fn format_value(alert: &Alert, value: f64) -> String {
    match unit(alert) {
        ValueUnit::Bytes if value < 0.0 => format!("-{}", Bytes(-value as u64)),
        ValueUnit::Bytes => Bytes(value as u64).to_string(),
        ValueUnit::ByteRate => format!("{}/h", Bytes((value * 3600.0).round() as u64)),
        ValueUnit::Rate => format!("{:.0}/h", value * 3600.0),
        ValueUnit::Seconds => seconds(value),
        ValueUnit::Share => format!("{:.0} %", value * 100.0),
        ValueUnit::Plain if value.fract() == 0.0 && value.abs() < 1e15 => format!("{value:.0}"),
        ValueUnit::Plain => format!("{value:.3}"),
    }
}

fn unit(alert: &Alert) -> ValueUnit {
    let metric = alert.rule.metric;
    if matches!(alert.rule.expr, RuleExpr::ShareOf(_)) {
        return ValueUnit::Share;
    }
    match metric.unit {
        "bytes" => ValueUnit::Bytes,
        "seconds" => ValueUnit::Seconds,
        "ratio" => ValueUnit::Share,
        "bytes_per_second" => ValueUnit::ByteRate,
        "objects_per_second" => ValueUnit::Rate,
        _ => ValueUnit::Plain,
    }
}

/// Formats seconds as `45s`, `12m`, `3h 05m` or `2d 4h`.
fn seconds(seconds: f64) -> String {
    let total = seconds.max(0.0) as u64;
    let (days, hours, minutes) = (total / 86_400, total / 3600 % 24, total / 60 % 60);
    match total {
        0..60 => format!("{total}s"),
        60..3600 => format!("{minutes}m"),
        3600..86_400 => format!("{hours}h {minutes:02}m"),
        _ => format!("{days}d {hours}h"),
    }
}
