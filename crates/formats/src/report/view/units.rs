//! Short forms of sizes, counts and times for tables.

use engine::model::Nanos;

const UNITS: [(u64, &str); 5] =
    [(1 << 50, "P"), (1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];

/// Formats a size with three digits: `4.87G`, `737M`, `12B`.
pub fn compact_size(bytes: u64) -> String {
    for (unit, name) in UNITS {
        // Step up where three digits would round to 1000.
        if bytes as f64 / unit as f64 >= 0.9995 {
            return format!("{}{name}", three_digits(bytes as f64 / unit as f64));
        }
    }
    format!("{bytes}B")
}

/// Formats a change of a size: `+4.87G`, `-12.0M`.
pub(crate) fn signed_size(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "+" };
    format!("{sign}{}", compact_size(bytes.unsigned_abs()))
}

/// Formats a number with three digits: `27`, `177k`, `1.09M`.
pub(crate) fn compact_count(count: u64) -> String {
    match count {
        0..10_000 => count.to_string(),
        10_000..999_500 => format!("{}k", three_digits(count as f64 / 1e3)),
        _ => format!("{}M", three_digits(count as f64 / 1e6)),
    }
}

fn three_digits(value: f64) -> String {
    match value {
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Formats a time in words: `12 s`, `12 min`, `3 h 05 min`, `12 days`.
pub fn duration_words(time: Nanos) -> String {
    let seconds = time.0.div_ceil(1_000_000_000);
    let minutes = seconds / 60;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{minutes} min"),
        7200..172_800 => format!("{} h {:02} min", minutes / 60, minutes % 60),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Returns the mark of a note: `¹`, `²`, and `(10)` from ten on.
pub(crate) fn mark(number: usize) -> String {
    const MARKS: [&str; 9] = ["¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"];
    let mark = number.checked_sub(1).and_then(|index| MARKS.get(index));
    mark.map_or_else(|| format!("({number})"), |mark| (*mark).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits_and_a_unit() {
        for (bytes, text) in [
            (0, "0B"),
            (1000, "1000B"),
            (1023, "1023B"),
            (1536, "1.50K"),
            (737 << 20, "737M"),
            ((4 << 30) + (890 << 20), "4.87G"),
            (18 << 30, "18.0G"),
            (612 << 30, "612G"),
            ((1 << 40) - 1, "1.00T"),
            (u64::MAX, "16384P"),
        ] {
            assert_eq!(compact_size(bytes), text);
        }
        assert_eq!((signed_size(-(12 << 20)), signed_size(0)), ("-12.0M".into(), "+0B".into()));
    }

    #[test]
    fn counts_and_times_are_short() {
        let counts = [9999, 35_100, 177_000, 999_600, 1_090_000].map(compact_count);
        assert_eq!(counts, ["9999", "35.1k", "177k", "1.00M", "1.09M"]);
        let times = [21_000, 719_000, 11_100_000, 1_036_800_000];
        let words = times.map(|ms| duration_words(Nanos::from_millis(ms)));
        assert_eq!(words, ["21 s", "11 min", "3 h 05 min", "12 days"]);
        assert_eq!((mark(1), mark(9), mark(12)), ("¹".into(), "⁹".into(), "(12)".into()));
    }
}
