//! Built-in alert rules. The rule file for Prometheus in `contrib/prometheus` is generated from
//! them.

use crate::metrics::Metric;
use crate::metrics::catalog as metric;
use crate::model::{Bytes, Nanos};

use super::{Rule, RuleExpr, Severity, Threshold};

const MINUTE: Nanos = Nanos::from_millis(60_000);
const HOUR: Nanos = Nanos::HOUR;

/// How long an event keeps its alert firing.
const EVENT_ALERT_WINDOW: Nanos = Nanos(10 * MINUTE.0);

/// Smaller caches do not raise a fragmentation alert.
const MIN_FRAGMENTED_CACHE_BYTES: f64 = (1_u64 << 30) as f64;

/// Thresholds of the built-in rules.
#[derive(Clone, PartialEq, Debug)]
pub struct Thresholds {
    /// Time that a leak suspect must exist before it raises an alert.
    pub leak_suspect: Nanos,
    /// Raised if a GPU is forecast to be full within this time.
    pub full_soon: Nanos,
    /// Used share of a GPU's memory.
    pub nearly_full: f64,
    /// Fragmented share of a framework's cache.
    pub fragmentation: f64,
    /// Growth per hour of the untracked memory of a process.
    pub untracked_growth: Bytes,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            leak_suspect: Nanos(5 * MINUTE.0),
            full_soon: Nanos(6 * HOUR.0),
            nearly_full: 0.95,
            fragmentation: 0.4,
            untracked_growth: Bytes(1 << 30),
        }
    }
}

/// Names of all built-in rules.
pub const RULE_NAMES: [&str; 9] = [
    "out_of_memory",
    "full_soon",
    "nearly_full",
    "leak_suspect",
    "untracked_growth",
    "fragmentation",
    "lost_events",
    "degraded",
    "not_ready",
];

/// Returns the rules.
pub fn rules(thresholds: &Thresholds) -> Vec<Rule> {
    vec![
        out_of_memory(),
        full_soon(thresholds.full_soon),
        nearly_full(thresholds.nearly_full),
        leak_suspect(&metric::SUSPECT_GROWTH, thresholds.leak_suspect),
        leak_suspect(&metric::SUSPECT_GROWTH_OBJECTS, thresholds.leak_suspect),
        untracked_growth(thresholds.untracked_growth),
        fragmentation(thresholds.fragmentation),
        lost_events(),
        degraded(),
        not_ready(),
    ]
}

/// A warning rule on the current value of a metric.
const fn rule(
    name: &'static str,
    metric: &'static Metric,
    threshold: Threshold,
    summary: &'static str,
    advice: &'static str,
) -> Rule {
    Rule {
        name,
        severity: Severity::Warning,
        metric,
        expr: RuleExpr::Value,
        at_least: None,
        threshold,
        slack: 0.0,
        hold: Nanos(0),
        summary,
        advice,
    }
}

fn out_of_memory() -> Rule {
    let summary = "out of memory on GPU {gpu}: {value} failed calls in the last 10 minutes";
    let advice = "See the incident (/api/v1/incidents): it has the cause, which may be a quota or host \
                  memory, the holders and advice; `vramscope advise` suggests what to free now.";
    Rule {
        severity: Severity::Critical,
        expr: RuleExpr::Increase(EVENT_ALERT_WINDOW),
        ..rule("out_of_memory", &metric::OUT_OF_MEMORY, Threshold::Above(0.0), summary, advice)
    }
}

fn full_soon(within: Nanos) -> Rule {
    let threshold = Threshold::Below(within.0 as f64 / 1e9);
    let summary = "GPU {gpu} will be full in {value} at its current growth";
    let advice = "See the leak suspects (/api/v1/suspects) and restart what leaks before the GPU is \
                  full; `vramscope advise` ranks the steps.";
    Rule {
        hold: Nanos(5 * MINUTE.0),
        // Forecasts vary more than other values.
        slack: threshold.threshold_value() / 10.0,
        ..rule("full_soon", &metric::GPU_FULL_IN, threshold, summary, advice)
    }
}

fn nearly_full(share: f64) -> Rule {
    let summary = "{value} of GPU {gpu} is used";
    let advice = "See which processes hold it (/api/v1/processes). A framework's cache can be emptied; \
                  `vramscope advise` shows what each step would free.";
    Rule {
        expr: RuleExpr::ShareOf(&metric::GPU_TOTAL),
        hold: Nanos(10 * MINUTE.0),
        slack: 0.02,
        ..rule("nearly_full", &metric::GPU_USED, Threshold::Above(share), summary, advice)
    }
}

/// Memory and objects have separate metrics; both rules have the same name.
fn leak_suspect(metric: &'static Metric, hold: Nanos) -> Rule {
    let summary = "{program} (pid {pid}) leaks at {location}: {value} ({resource})";
    let advice = "`vramscope trace --agent URL -p {pid} --leak 1` shows the call stack and evidence \
                  that the agent has; restart the process if it cannot wait.";
    Rule { hold, ..rule("leak_suspect", metric, Threshold::Above(0.0), summary, advice) }
}

fn untracked_growth(bytes: Bytes) -> Rule {
    let summary =
        "untracked memory of {program} (pid {pid}) on GPU {gpu} grew by {value} in an hour";
    let advice = "Contexts, modules and driver buffers grow without an allocation call. Look for \
                  contexts or modules that are created repeatedly; restart the process if the GPU \
                  fills up.";
    Rule {
        expr: RuleExpr::Growth(HOUR),
        ..rule(
            "untracked_growth",
            &metric::UNTRACKED,
            Threshold::Above(bytes.0 as f64),
            summary,
            advice,
        )
    }
}

fn fragmentation(share: f64) -> Rule {
    let summary =
        "{value} of the PyTorch cache of {program} (pid {pid}) on GPU {gpu} is fragmented";
    let advice = "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or call \
                  torch.cuda.empty_cache() between phases of different sizes.";
    Rule {
        severity: Severity::Info,
        at_least: Some((&metric::CACHE_RESERVED, MIN_FRAGMENTED_CACHE_BYTES)),
        hold: Nanos(15 * MINUTE.0),
        slack: 0.05,
        ..rule("fragmentation", &metric::FRAGMENTATION, Threshold::Above(share), summary, advice)
    }
}

fn lost_events() -> Rule {
    let summary = "{value} events ({class}) lost in the last 10 minutes; values may be too low";
    let advice = "The host was too busy for the agent to keep up. Give it more CPU time, or trace less \
                  ([trace] stacks, allocators and objects).";
    Rule {
        expr: RuleExpr::Increase(EVENT_ALERT_WINDOW),
        ..rule("lost_events", &metric::LOST, Threshold::Above(0.0), summary, advice)
    }
}

fn degraded() -> Rule {
    let summary = "the agent dropped detail to stay within its budget (steps: {value}); memory accounting \
                   stays exact";
    let advice =
        "Raise max_cpu or max_memory in [trace], or use cheaper call stacks (stacks = \"fp\").";
    Rule {
        hold: Nanos(5 * MINUTE.0),
        ..rule("degraded", &metric::DEGRADED, Threshold::Above(0.0), summary, advice)
    }
}

fn not_ready() -> Rule {
    let summary = "the agent is running but not tracing";
    let advice = "Check its log, and run `vramscope doctor` on the host.";
    Rule {
        hold: Nanos(5 * MINUTE.0),
        ..rule("not_ready", &metric::READY, Threshold::Below(1.0), summary, advice)
    }
}
