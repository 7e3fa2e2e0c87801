//! Parses sizes and durations as users type them.

use std::time::Duration;

use engine::model::Bytes;

/// Parses `4096`, `10M`, `1.5GiB` or `512 kB`: all units are powers of 1024.
///
/// # Errors
/// A message for the user.
pub fn size(text: &str) -> Result<Bytes, String> {
    let (number, unit) = split(text);
    let power = match unit.to_ascii_lowercase().trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return Err(format!("unknown size unit `{unit}`; use K, M, G or T")),
    };
    let bytes = positive(number)? * 1024_f64.powi(power);
    if bytes < u64::MAX as f64 { Ok(Bytes(bytes as u64)) } else { Err("too large".into()) }
}

/// Parses `2` (seconds), `500ms`, `1.5s`, `10m`, `6h` or `1d`.
///
/// # Errors
/// A message for the user.
pub fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(format!("unknown time unit `{unit}`; use ms, s, m, h or d")),
    };
    Duration::try_from_secs_f64(positive(number)? * seconds).map_err(|e| e.to_string())
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

fn positive(number: &str) -> Result<f64, String> {
    number.parse().map_err(|_| "expected a number, such as 10 or 1.5".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("10M", 10 << 20),
            ("10MiB", 10 << 20),
            ("1.5g", 3 << 29),
            ("512 kB", 512 << 10),
            ("7B", 7),
        ] {
            assert_eq!(size(text), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "M", "-1", "10X", "1e3", "99999999999T", "1.2.3"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times() {
        for (text, ms) in
            [("2", 2000), ("500ms", 500), ("1.5s", 1500), ("2m", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(time(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "-2s", "5 fortnights", "1e300h"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
