//! What this process takes of the machine, as the kernel counts it.

use std::time::Duration;

use engine::units::Bytes;

/// What was taken up to a moment.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Usage {
    /// The moment, since the agent began.
    pub(crate) at: Duration,
    /// Processor time, user and system, in seconds.
    pub(crate) cpu_seconds: f64,
    /// The part of it that answers to requests took.
    pub(crate) answering_seconds: f64,
    /// Resident memory, the kernel's rings that are mapped included.
    pub(crate) memory: Bytes,
}

impl Usage {
    /// As of now; zero where the kernel does not tell.
    pub(crate) fn now(at: Duration, answering_seconds: f64) -> Self {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}"));
        let ticks = read("stat").ok().and_then(|text| ticks(&text)).unwrap_or_default();
        let pages = read("statm").ok().and_then(|text| resident(&text)).unwrap_or_default();
        Self {
            at,
            cpu_seconds: ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
            answering_seconds,
            memory: Bytes(pages.saturating_mul(rustix::param::page_size() as u64)),
        }
    }
}

/// User and system time. The name of the program before them can hold anything, also brackets.
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
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let stat = "7 (a) b) R 1 7 7 0 -1 4194304 100 0 0 0 30 12 0 0 20 0 1 0 100 200 300";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(resident("500 120 30 1 0 80 0"), Some(120));
        assert_eq!((ticks("nonsense"), resident("")), (None, None));
    }

    #[test]
    fn this_process_takes_something() {
        let usage = Usage::now(Duration::ZERO, 0.0);
        assert!(usage.memory > Bytes(100_000), "{usage:?}");
    }
}
