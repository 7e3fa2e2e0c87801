//! Resource usage of this process, as the kernel reports it.

use std::time::Duration;

use engine::model::Bytes;

/// Usage at one time.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct SelfUsage {
    /// Time since the start of the agent.
    pub(crate) at: Duration,
    /// CPU time, user and system, in seconds.
    pub(crate) cpu_seconds: f64,
    /// CPU time of HTTP responses.
    pub(crate) http_seconds: f64,
    /// Resident memory, including the mapped ring buffers of the kernel.
    pub(crate) memory: Bytes,
}

impl SelfUsage {
    /// Reads the current usage; zero if the kernel does not report it.
    pub(crate) fn now(at: Duration, http_seconds: f64) -> Self {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}"));
        let ticks = read("stat").ok().and_then(|text| ticks(&text)).unwrap_or_default();
        let pages = read("statm").ok().and_then(|text| resident(&text)).unwrap_or_default();
        Self {
            at,
            cpu_seconds: ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
            http_seconds,
            memory: Bytes(pages.saturating_mul(rustix::param::page_size() as u64)),
        }
    }
}

/// Returns user and system time. The process name before them may contain anything, including
/// brackets.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user.saturating_add(system))
}

fn resident(statm: &str) -> Option<u64> {
    statm.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_with_brackets_is_skipped() {
        let stat = "7 (a) b) R 1 7 7 0 -1 4194304 100 0 0 0 30 12 0 0 20 0 1 0 100 200 300";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(resident("500 120 30 1 0 80 0"), Some(120));
        assert_eq!((ticks("nonsense"), resident("")), (None, None));
    }

    #[test]
    fn usage_of_this_process_is_positive() {
        let usage = SelfUsage::now(Duration::ZERO, 0.0);
        assert!(usage.memory > Bytes(100_000), "{usage:?}");
    }
}
