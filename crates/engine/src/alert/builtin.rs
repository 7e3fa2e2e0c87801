//! The rules that come with the agent. `contrib/prometheus` has the same for Prometheus.

use crate::metrics::Metric;
use crate::metrics::catalogue as metric;
use crate::units::{Bytes, Nanos};

use super::{Limit, Measure, Rule, Severity};

const MINUTE: Nanos = Nanos::from_millis(60_000);
const HOUR: Nanos = Nanos::from_millis(3_600_000);

/// How long something that happened stays an alert.
const RECENT: Nanos = Nanos(10 * MINUTE.0);

/// Caches smaller than this may be in pieces.
const SMALL_CACHE: f64 = (1_u64 << 30) as f64;

/// Limits of the rules; a rule without one is off.
#[derive(Clone, PartialEq, Debug)]
pub struct Thresholds {
    /// How long a place is suspected before that is an alert.
    pub leak_suspect: Option<Nanos>,
    /// A GPU will be full within this time.
    pub full_within: Option<Nanos>,
    /// Memory ran out.
    pub out_of_memory: bool,
    /// The share of a GPU's memory that is used.
    pub nearly_full: Option<f64>,
    /// The share of a framework's cache that lies in pieces.
    pub fragmentation: Option<f64>,
    /// By how much the untracked memory of a process grows in an hour.
    pub untracked_growth: Option<Bytes>,
    /// Events were lost.
    pub events_lost: bool,
    /// The agent gave something up to stay within its budget.
    pub degraded: bool,
    /// The agent does not trace.
    pub not_ready: bool,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            leak_suspect: Some(Nanos(5 * MINUTE.0)),
            full_within: Some(Nanos(6 * HOUR.0)),
            out_of_memory: true,
            nearly_full: Some(0.95),
            fragmentation: Some(0.4),
            untracked_growth: Some(Bytes(1 << 30)),
            events_lost: true,
            degraded: true,
            not_ready: true,
        }
    }
}

/// The names of all rules, in their order.
pub const NAMES: [&str; 9] = [
    "out_of_memory",
    "full_soon",
    "nearly_full",
    "leak_suspect",
    "untracked_growth",
    "fragmentation",
    "events_lost",
    "degraded",
    "not_ready",
];

/// The rules that are on.
#[must_use]
pub fn rules(limits: &Thresholds) -> Vec<Rule> {
    let memory = [
        limits.out_of_memory.then(out_of_memory),
        limits.full_within.map(full_soon),
        limits.nearly_full.map(nearly_full),
        limits.leak_suspect.map(leak_suspect),
        limits.untracked_growth.map(untracked_growth),
        limits.fragmentation.map(fragmentation),
    ];
    let own = [
        limits.events_lost.then(events_lost),
        limits.degraded.then(degraded),
        limits.not_ready.then(not_ready),
    ];
    memory.into_iter().chain(own).flatten().collect()
}

/// A warning about the value itself.
fn rule(name: &str, metric: &'static Metric, limit: Limit, summary: &str, advice: &str) -> Rule {
    Rule {
        name: name.into(),
        is_builtin: true,
        severity: Severity::Warning,
        metric,
        measure: Measure::Value,
        matching: Vec::new(),
        at_least: None,
        limit,
        slack: 0.0,
        hold: Nanos(0),
        summary: summary.into(),
        advice: advice.into(),
    }
}

fn out_of_memory() -> Rule {
    let summary =
        "memory was refused (GPU {gpu}); calls that failed in the last ten minutes: {value}";
    let advice = "Look at the snapshot that was taken (/api/v1/incidents): it tells the cause, which may \
                  be a limit or the host's memory, who held what, and what would help; `vramscope \
                  advise` tells what would give memory back now.";
    Rule {
        severity: Severity::Critical,
        measure: Measure::Increase(RECENT),
        ..rule("out_of_memory", &metric::OUT_OF_MEMORY, Limit::Above(0.0), summary, advice)
    }
}

fn full_soon(within: Nanos) -> Rule {
    let limit = Limit::Below(within.0 as f64 / 1e9);
    let summary = "GPU {gpu} will be full in {value} if its suspects go on like this";
    let advice = "Look at the suspects (/api/v1/snapshot) and restart what leaks before the GPU is \
                  full; `vramscope advise` ranks what would help.";
    Rule {
        hold: Nanos(5 * MINUTE.0),
        // A forecast goes to and fro by more than other figures.
        slack: limit.number() / 10.0,
        ..rule("full_soon", &metric::GPU_FULL_IN, limit, summary, advice)
    }
}

fn nearly_full(share: f64) -> Rule {
    let summary = "{value} of GPU {gpu} is used";
    let advice = "See who holds it (/api/v1/processes). A framework's cache can be emptied; \
                  `vramscope advise` says what each step would give back.";
    Rule {
        measure: Measure::ShareOf(&metric::GPU_TOTAL),
        hold: Nanos(10 * MINUTE.0),
        slack: 0.02,
        ..rule("nearly_full", &metric::GPU_USED, Limit::Above(share), summary, advice)
    }
}

fn leak_suspect(hold: Nanos) -> Rule {
    let summary = "{process} (pid {pid}) leaks at {place}: {value} more per hour ({subject})";
    let advice = "Look at what that place keeps: `vramscope trace -p {pid}` shows the call stack and \
                  the evidence. Restart the process if it cannot wait.";
    Rule {
        hold,
        ..rule("leak_suspect", &metric::SUSPECT_GROWTH, Limit::Above(0.0), summary, advice)
    }
}

fn untracked_growth(bytes: Bytes) -> Rule {
    let summary = "memory of {process} (pid {pid}) on GPU {gpu} that no call allocated grew by {value} \
                   in an hour";
    let advice = "Contexts, modules and the driver's own buffers grow without a call that allocates. \
                  Look for contexts or modules that are made again and again; restart the process if \
                  the GPU gets full.";
    Rule {
        measure: Measure::Growth(HOUR),
        ..rule(
            "untracked_growth",
            &metric::UNTRACKED,
            Limit::Above(bytes.0 as f64),
            summary,
            advice,
        )
    }
}

fn fragmentation(share: f64) -> Rule {
    let summary = "{value} of what PyTorch's cache of {process} (pid {pid}) holds on GPU {gpu} lies free \
                   in pieces";
    let advice = "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or call \
                  torch.cuda.empty_cache() between phases of different sizes.";
    Rule {
        severity: Severity::Info,
        at_least: Some((&metric::CACHE_RESERVED, SMALL_CACHE)),
        hold: Nanos(15 * MINUTE.0),
        slack: 0.05,
        ..rule("fragmentation", &metric::FRAGMENTATION, Limit::Above(share), summary, advice)
    }
}

fn events_lost() -> Rule {
    let summary =
        "events ({class}) that were lost in the last ten minutes: {value}; figures may be too low";
    let advice = "The host was too busy for the agent to keep up. Give it more processor time, or trace \
                  less ([trace] stacks, torch and objects).";
    Rule {
        measure: Measure::Increase(RECENT),
        ..rule("events_lost", &metric::LOST, Limit::Above(0.0), summary, advice)
    }
}

fn degraded() -> Rule {
    let summary = "the agent gave up detail to stay within its budget (steps: {value}); memory is still \
                   accounted exactly";
    let advice =
        "Raise max_cpu or max_memory in [trace], or take cheaper call stacks (stacks = \"fp\").";
    Rule {
        hold: Nanos(5 * MINUTE.0),
        ..rule("degraded", &metric::DEGRADED, Limit::Above(0.0), summary, advice)
    }
}

fn not_ready() -> Rule {
    let summary = "the agent runs, but does not trace";
    let advice = "Read its messages, and run `vramscope doctor` on the host.";
    Rule {
        hold: Nanos(5 * MINUTE.0),
        ..rule("not_ready", &metric::READY, Limit::Below(1.0), summary, advice)
    }
}
