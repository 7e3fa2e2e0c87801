//! Axis ticks: sizes that are round in binary units, times that are round in decimal or clock
//! units.

use jiff::Timestamp;

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Returns about `wanted` ticks of a size axis, starting at 0 and a power of two apart.
pub(super) fn sizes(max: u64, wanted: u32) -> Vec<u64> {
    let rough = (max / u64::from(wanted.max(1))).max(1);
    let step = rough.checked_next_power_of_two().unwrap_or(1 << 63);
    // Half the step if there are too few ticks.
    let few = (max / step).saturating_mul(10) < u64::from(wanted) * 7;
    let step = if few { (step / 2).max(1) } else { step };
    (0..=max / step).map(|mark| mark.saturating_mul(step)).collect()
}

/// Formats a size tick, without trailing zeros.
pub(super) fn size(bytes: u64) -> String {
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if bytes == 0 {
        return "0".to_owned();
    }
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} {}", UNITS[unit])
}

/// Returns about `wanted` ticks of a time axis in nanoseconds, and the distance between them.
pub(super) fn times(from: i64, to: i64, wanted: u32) -> (Vec<i64>, i64) {
    const SECOND: i64 = 1_000_000_000;
    const TIME_STEPS: [i64; 17] =
        [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400];
    let rough = (to.saturating_sub(from) / i64::from(wanted.max(1))).max(1);
    let step = if rough < SECOND {
        let power = 10_i64.pow(rough.ilog10());
        [1, 2, 5, 10].map(|times| times * power).into_iter().find(|step| *step >= rough)
    } else {
        TIME_STEPS.map(|seconds| seconds * SECOND).into_iter().find(|step| *step >= rough)
    };
    let days = || (rough / (86400 * SECOND)).saturating_add(1).saturating_mul(86400 * SECOND);
    let step = step.unwrap_or_else(days);
    let first = from.div_euclid(step).saturating_mul(step);
    let marks = (0..200).map_while(|mark| first.checked_add(step.checked_mul(mark)?));
    (marks.filter(|mark| *mark >= from && *mark <= to).collect(), step)
}

/// Formats a time with the digits that ticks `step` apart need: seconds, or the time of day in UTC.
pub(super) fn time(nanos: i64, step: i64, utc: Option<i64>) -> String {
    let digits = (0..9).find(|digits| step >= 10_i64.pow(9 - digits)).unwrap_or(9) as usize;
    let stamp =
        utc.and_then(|utc| Timestamp::from_nanosecond(i128::from(utc) + i128::from(nanos)).ok());
    match stamp {
        Some(stamp) => {
            let text = stamp.strftime("%H:%M:%S%.9f").to_string();
            let end = if digits == 0 { 8 } else { 9 + digits };
            text.get(..end).unwrap_or(&text).to_owned()
        }
        None => format!("{:.digits$} s", nanos as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_ticks_are_round_in_binary_units() {
        let text =
            |max, wanted| sizes(max, wanted).into_iter().map(size).collect::<Vec<_>>().join(", ");
        assert_eq!(text(700 << 20, 5), "0, 128 MiB, 256 MiB, 384 MiB, 512 MiB, 640 MiB");
        assert_eq!(text(3 << 30, 5), "0, 512 MiB, 1 GiB, 1.5 GiB, 2 GiB, 2.5 GiB, 3 GiB");
        assert_eq!(text(1, 5), "0, 1 B");
        assert_eq!(text(0, 5), "0");
        assert!(sizes(u64::MAX, 5).len() < 12);
    }

    #[test]
    fn time_ticks_are_round() {
        let text = |from, to| {
            let (marks, step) = times(from, to, 5);
            marks.into_iter().map(|at| time(at, step, None)).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(text(0, 5_800_000_000), "0 s, 2 s, 4 s");
        assert_eq!(text(400_000_000, 598_000_000), "0.40 s, 0.45 s, 0.50 s, 0.55 s");
        assert_eq!(
            text(-1_000, 1_000),
            "-0.0000010 s, -0.0000005 s, 0.0000000 s, 0.0000005 s, 0.0000010 s"
        );
        assert_eq!(
            text(0, 1000),
            "0.0000000 s, 0.0000002 s, 0.0000004 s, 0.0000006 s, \
            0.0000008 s, 0.0000010 s"
        );
        assert_eq!(text(0, 3_000_000_000_000), "0 s, 600 s, 1200 s, 1800 s, 2400 s, 3000 s");
        assert!(times(i64::MIN, i64::MAX, 5).0.len() < 12);
        assert_eq!(times(7, 7, 5), (vec![7], 1));
    }

    #[test]
    fn wall_clock_ticks_are_times_of_day() {
        let utc = Some(1_700_000_000_000_000_000);
        assert_eq!(time(0, 1_000_000_000, utc), "22:13:20");
        assert_eq!(time(250_000_000, 50_000_000, utc), "22:13:20.25");
        assert_eq!(time(0, 1_000_000_000, Some(i64::MAX)), "23:47:16");
    }
}
