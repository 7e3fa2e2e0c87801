//! Configuration of the simulated machine, from environment variables.

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Maximum number of devices.
pub(crate) const MAX_DEVICES: usize = 16;

const GIB: u64 = 1 << 30;

/// The configuration of the simulated machine.
pub(crate) struct Settings {
    /// `SIM_DEVICES`: number of devices.
    pub(crate) devices: usize,
    /// `SIM_MEMORY`: memory of each device in bytes.
    pub(crate) memory: u64,
    /// `SIM_LATENCY_US`: minimum duration of each call.
    pub(crate) latency: Duration,
    /// `SIM_INIT_MS`: duration of `cuInit`; real drivers take several hundred milliseconds.
    pub(crate) init_time: Duration,
    /// `SIM_BANDWIDTH`: bytes per second of synchronous copies; without it they take no time.
    pub(crate) bandwidth: Option<u64>,
    /// `SIM_INJECT_FAILURES`: failures to inject.
    pub(crate) failures: Vec<InjectedFailure>,
    /// `SIM_ORACLE_DIR`: directory of the oracle of each process.
    pub(crate) oracle_dir: Option<PathBuf>,
    /// `SIM_STATE_FILE`: file through which processes share the memory of the devices.
    pub(crate) shared: Option<PathBuf>,
    /// `SIM_CONTEXT_OVERHEAD`: device memory of a process's contexts; used if devices are shared.
    pub(crate) overhead: u64,
    /// `SIM_OBJECT_COSTS`: device memory of each object of a kind, such as `module=8M,stream=2M`;
    /// used if devices are shared.
    pub(crate) object_costs: Vec<(String, u64)>,
}

/// An injected failure, such as `cuMemAlloc_v2:3=2` or `cuMemFree_v2:every10=1`.
pub(crate) struct InjectedFailure {
    function: String,
    number: u64,
    every: bool,
    code: c_int,
    calls: AtomicU64,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// Returns the configuration, which is read once.
pub(crate) fn get() -> &'static Settings {
    SETTINGS.get_or_init(|| read(&|name| std::env::var(name).ok()))
}

fn read(variable: &dyn Fn(&str) -> Option<String>) -> Settings {
    let number = |name: &str| variable(name).and_then(|text| text.trim().parse::<u64>().ok());
    let size = |name: &str| variable(name).and_then(|text| bytes(&text));
    let path = |name: &str| variable(name).filter(|text| !text.is_empty()).map(PathBuf::from);
    let devices = number("SIM_DEVICES").map_or(2, |n| usize::try_from(n).unwrap_or(MAX_DEVICES));
    Settings {
        devices: devices.min(MAX_DEVICES),
        memory: size("SIM_MEMORY").unwrap_or(24 * GIB),
        latency: Duration::from_micros(number("SIM_LATENCY_US").unwrap_or(0)),
        init_time: Duration::from_millis(number("SIM_INIT_MS").unwrap_or(0)),
        bandwidth: size("SIM_BANDWIDTH").filter(|bytes| *bytes > 0),
        failures: variable("SIM_INJECT_FAILURES").map_or_else(Vec::new, |text| failures(&text)),
        oracle_dir: path("SIM_ORACLE_DIR"),
        shared: path("SIM_STATE_FILE"),
        overhead: size("SIM_CONTEXT_OVERHEAD").unwrap_or(512 << 20),
        object_costs: variable("SIM_OBJECT_COSTS").map_or_else(Vec::new, |text| costs(&text)),
    }
}

/// Parses a number of bytes: `1048576`, `512M`, `24G`, `24GiB`.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let shift = match unit.trim().trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Parses a comma-separated list of costs; invalid entries are ignored.
fn costs(text: &str) -> Vec<(String, u64)> {
    let one = |part: &str| {
        let (kind, size) = part.trim().split_once('=')?;
        Some((kind.to_owned(), bytes(size)?))
    };
    text.split(',').filter_map(one).collect()
}

/// Parses a comma-separated list of failures; invalid entries are ignored.
fn failures(text: &str) -> Vec<InjectedFailure> {
    text.split(',').filter_map(|part| failure(part.trim())).collect()
}

fn failure(text: &str) -> Option<InjectedFailure> {
    let (function, rest) = text.split_once(':')?;
    let (calls, code) = rest.split_once('=')?;
    let (every, number) = match calls.strip_prefix("every") {
        Some(number) => (true, number),
        None => (false, calls),
    };
    let number = number.parse().ok().filter(|n| *n > 0)?;
    let code = code.parse().ok()?;
    Some(InjectedFailure {
        function: function.to_owned(),
        number,
        every,
        code,
        calls: AtomicU64::new(0),
    })
}

impl Settings {
    /// Counts a call and returns the result of an injected failure, if there is one.
    pub(crate) fn failure(&self, function: &str) -> Option<c_int> {
        let mut result = None;
        for failure in self.failures.iter().filter(|f| f.function == function) {
            let call = failure.calls.fetch_add(1, Ordering::Relaxed) + 1;
            let hit =
                if failure.every { call % failure.number == 0 } else { call == failure.number };
            if hit {
                result = Some(failure.code);
            }
        }
        result
    }

    /// Resets the call counts: a forked child counts its own calls.
    pub(crate) fn reset_calls(&self) {
        for failure in &self.failures {
            failure.calls.store(0, Ordering::Relaxed);
        }
    }
}

/// Returns the configuration if it was read already.
pub(crate) fn if_read() -> Option<&'static Settings> {
    SETTINGS.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_accept_units() {
        assert_eq!(bytes("1048576"), Some(1 << 20));
        assert_eq!(bytes("512M"), Some(512 << 20));
        assert_eq!(bytes("24G"), Some(24 << 30));
        assert_eq!(bytes("24GiB"), Some(24 << 30));
        assert_eq!(bytes("x"), None);
        assert_eq!(bytes("99999999999G"), None);
    }

    #[test]
    fn failures_are_injected_once_or_every_nth_call() {
        let settings = read(&|name| {
            (name == "SIM_INJECT_FAILURES")
                .then(|| "cuA:3=2, cuB:every2=1,nonsense,cuC:0=1".to_owned())
        });
        let a: Vec<_> = (0..4).map(|_| settings.failure("cuA")).collect();
        assert_eq!(a, [None, None, Some(2), None]);
        let b: Vec<_> = (0..4).map(|_| settings.failure("cuB")).collect();
        assert_eq!(b, [None, Some(1), None, Some(1)]);
        assert_eq!(settings.failure("cuC"), None);
        assert_eq!((settings.devices, settings.memory), (2, 24 << 30));
    }
}
