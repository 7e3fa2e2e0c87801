//! Sizes and durations of the command line.

use std::time::Duration;

use engine::model::Bytes;
pub(crate) use formats::parse_units::{size, time};

/// Leaks that make a verb fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LeakThreshold {
    /// A site is a leak suspect, or a process without a caching allocator exited with more than
    /// this not freed.
    NotFreed(Bytes),
    /// A site is a leak suspect, even if everything was freed at the end.
    Suspects,
}

/// Parses a size, or `suspects`.
pub(crate) fn leak_limit(text: &str) -> Result<LeakThreshold, String> {
    if text == "suspects" {
        return Ok(LeakThreshold::Suspects);
    }
    let explain = |reason| format!("{reason}; expected a size, such as 10M, or `suspects`");
    size(text).map(LeakThreshold::NotFreed).map_err(explain)
}

/// Parses the time between two reports: not shorter than a screen can show.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let interval = time(text)?;
    if interval < Duration::from_millis(10) {
        return Err("must be 10ms or more".into());
    }
    Ok(interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_have_a_minimum() {
        assert!(interval("1ms").is_err());
        assert_eq!(interval("10ms"), Ok(Duration::from_millis(10)));
    }
}
