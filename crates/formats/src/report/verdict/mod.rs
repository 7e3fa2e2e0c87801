//! Verdicts and anomalies as text: the same in reports of traces and of files.

pub mod json;

use engine::model::{Bytes, CallStack, MemoryKind, ObjectKind, SiteName};
use engine::verdict::{
    Anomaly, AnomalyKind, CacheTensors, Evidence, Resource, SiteVerdict, Verdict,
};

use super::analysis::frames;
use super::live::text::{format_age, format_count, format_duration};
use crate::sanitize::sanitize;

/// Formats a quantity of a resource: bytes, or a number of objects.
pub fn quantity(resource: Resource, amount: u64) -> String {
    match resource {
        Resource::Objects(kind) => objects(kind, amount),
        Resource::Memory(_) | Resource::Blocks(_) => Bytes(amount).to_string(),
    }
}

/// Returns `1 stream` or `2 graph executables`.
pub fn objects(kind: ObjectKind, number: u64) -> String {
    let (one, many) = match kind {
        ObjectKind::Stream => ("stream", "streams"),
        ObjectKind::Event => ("event", "events"),
        ObjectKind::Graph => ("graph", "graphs"),
        ObjectKind::GraphExec => ("graph executable", "graph executables"),
        ObjectKind::Module => ("module", "modules"),
        ObjectKind::Library => ("library", "libraries"),
        ObjectKind::Context => ("context", "contexts"),
        ObjectKind::GreenContext => ("green context", "green contexts"),
        ObjectKind::Texture => ("texture object", "texture objects"),
        ObjectKind::Surface => ("surface object", "surface objects"),
        ObjectKind::Pool => ("memory pool", "memory pools"),
        ObjectKind::Linker => ("linker", "linkers"),
    };
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Returns live memory or objects: `24.00 MiB in 3 allocations`, `2 streams`.
pub fn live(resource: Resource, evidence: &Evidence) -> String {
    match number(resource, evidence.live_count) {
        Some(number) => format!("{} in {number}", Bytes(evidence.live)),
        None => quantity(resource, evidence.live),
    }
}

/// Returns the start of a summary: `24.00 MiB live in 3 allocations`, `2 streams live`.
fn live_phrase(resource: Resource, evidence: &Evidence) -> String {
    match number(resource, evidence.live_count) {
        Some(number) => format!("{} live in {number}", Bytes(evidence.live)),
        None => format!("{} live", quantity(resource, evidence.live)),
    }
}

/// Returns `3 tensors` or `1 pinned allocation`; `None` for objects, whose quantity is their
/// number.
fn number(resource: Resource, count: u64) -> Option<String> {
    let noun = match resource {
        Resource::Objects(_) => return None,
        Resource::Blocks(allocator) => allocator.noun().to_owned(),
        Resource::Memory(MemoryKind::Device) => "allocation".to_owned(),
        Resource::Memory(kind) => format!("{kind} allocation"),
    };
    Some(format!("{count} {noun}{}", if count == 1 { "" } else { "s" }))
}

/// Returns the verdict in one sentence. Every statement is a number of the evidence, or follows
/// from them.
pub fn summary(resource: Resource, verdict: Verdict, evidence: &Evidence) -> String {
    let live = live_phrase(resource, evidence);
    match verdict {
        Verdict::Leak => {
            let rate = quantity(resource, evidence.growth_per_hour);
            let full = evidence
                .time_until_full
                .map_or_else(String::new, |time| format!("; GPU full in {}", format_age(time)));
            let freed = match evidence.freed_at_end {
                0 => "",
                _ if evidence.is_freeing => "; being freed",
                _ => "; freed at exit",
            };
            format!("{live}, growing {rate}/h{full}{freed}")
        }
        Verdict::Plateau => format!("{live}: {}", level(resource, evidence)),
        Verdict::Cache => match &evidence.tensors {
            Some(tensors) => format!("{live}: {}", cache(tensors)),
            None => format!("{live}: {}; {}", level(resource, evidence), freed(resource, evidence)),
        },
        Verdict::RampUp => format!("{live}: {}", growth(resource, evidence)),
        Verdict::Burst => {
            format!("{live}: down from a peak of {}", quantity(resource, evidence.peak))
        }
        Verdict::Periodic => format!(
            "{live}: rose and fell at least {} times, peak {}",
            evidence.returns,
            quantity(resource, evidence.peak)
        ),
        Verdict::NotEnoughData => {
            let rest = evidence.time_to_verdict.map_or_else(String::new, |time| {
                format!("; growing, too early to tell, {} to go", format_age(time))
            });
            format!(
                "{live}: not enough data, {} in {}{rest}",
                created(resource, evidence),
                format_duration(evidence.observed)
            )
        }
    }
}

/// Returns the live amount in the second half of the observation.
fn level(resource: Resource, evidence: &Evidence) -> String {
    let (low, high) = evidence.level;
    let [low, high] = [low, high].map(|amount| quantity(resource, amount));
    if low == high {
        format!("stable at {low} in the second half of the observation")
    } else {
        format!("{low} to {high} in the second half of the observation")
    }
}

/// Returns the growth in the second half of the observation.
fn growth(resource: Resource, evidence: &Evidence) -> String {
    let Evidence { window_min: lows, growth_per_hour: per_hour, .. } = evidence;
    let [half, last] = [lows.get(lows.len() / 2), lows.last()]
        .map(|low| quantity(resource, low.copied().unwrap_or(0)));
    let rate = match per_hour {
        0 => String::new(),
        rate => format!(", {}/h", quantity(resource, *rate)),
    };
    let end = evidence.time_to_verdict.map_or_else(
        || "too short or too irregular for a leak".to_owned(),
        |time| format!("too early to tell, {} to go", format_age(time)),
    );
    format!("grew from {half} to {last} in the second half of the observation{rate}; {end}")
}

/// Returns why memory of PyTorch's cache is not a leak.
fn cache(tensors: &CacheTensors) -> String {
    let CacheTensors { live, peak, growth_per_hour, cache_growth_per_hour, .. } = *tensors;
    if tensors.explain_growth() {
        return format!(
            "PyTorch's cache, growing {}/h; leaking tensor sites grow {}/h",
            Bytes(cache_growth_per_hour),
            Bytes(growth_per_hour)
        );
    }
    format!("PyTorch's cache; tensors are bounded: {}, peak {}", Bytes(live), Bytes(peak))
}

/// Returns how many were created or allocated.
fn created(resource: Resource, evidence: &Evidence) -> String {
    let created = evidence.created;
    match resource {
        Resource::Objects(_) => format!("{created} created"),
        Resource::Memory(_) | Resource::Blocks(_) => format_count(created),
    }
}

/// Returns how many of those were freed or destroyed.
fn freed(resource: Resource, evidence: &Evidence) -> String {
    let Evidence { created, freed, .. } = *evidence;
    match resource {
        Resource::Objects(_) => format!("{freed} of {created} destroyed"),
        Resource::Memory(_) | Resource::Blocks(_) => {
            format!("{freed} of {created} allocations freed")
        }
    }
}

/// Returns the evidence for a verdict, one line each.
pub fn evidence(verdict: &SiteVerdict) -> Vec<String> {
    let evidence = &verdict.evidence;
    let mut lines = Vec::new();
    if evidence.steps > 0 {
        lines.push(format!(
            "grew in {} of {} windows of {}, shrank in {}; observed for {}",
            evidence.growing_steps,
            evidence.steps,
            format_duration(evidence.window),
            evidence.shrinking_steps,
            format_duration(evidence.observed),
        ));
    }
    let lifetimes = match (evidence.median_life, evidence.longest_life) {
        (Some(median), Some(longest)) => {
            format!(
                " (median lifetime at most {}, maximum {})",
                format_duration(median),
                format_duration(longest)
            )
        }
        _ => String::new(),
    };
    lines.push(format!("{}{lifetimes}", freed(verdict.resource, evidence)));
    if let (Some(median), Some(oldest)) = (evidence.median_age, evidence.oldest) {
        let overdue = match evidence.overdue {
            0 => String::new(),
            amount => format!(
                "; {} older than 99 % of those {}",
                quantity(verdict.resource, amount),
                if verdict.resource.is_bytes() { "freed" } else { "destroyed" }
            ),
        };
        lines.push(format!(
            "live: median age at least {}, oldest at most {}{overdue}",
            format_duration(median),
            format_duration(oldest)
        ));
    }
    if let Some(interval) = evidence.sampling {
        lines.push(format!("estimated from blocks that are sampled every {}", interval.bytes()));
    }
    if let Some(keeper) = &evidence.kept_by {
        lines.push(format!("kept by {}", sanitize(keeper)));
    }
    if evidence.freed_at_end > 0 {
        let amount = quantity(verdict.resource, evidence.freed_at_end);
        let when = if evidence.is_freeing { "since it grew" } else { "only at exit" };
        lines.push(format!("{amount} of it freed {when}; the values are from before that"));
    }
    lines
}

/// Returns the line of the program that allocated, and what it called for that.
pub fn location(site: SiteName, stack: &CallStack) -> String {
    match site {
        SiteName::Unknown => "(no stack)".to_owned(),
        SiteName::Pending(_) => "(resolving symbols)".to_owned(),
        SiteName::Other => "(site limit reached)".to_owned(),
        SiteName::Resolved(_) => frames::label(stack) + &frames::via(stack),
    }
}

/// Returns the callers of that line, innermost first.
pub fn callers(stack: &CallStack, max: usize) -> Vec<String> {
    frames::callers(stack, max)
}

/// Returns the line for a metric label: shorter, and without directories.
pub fn short_location(site: SiteName, stack: &CallStack) -> String {
    match site {
        SiteName::Unknown => "(no stack)".to_owned(),
        SiteName::Pending(_) => "(resolving symbols)".to_owned(),
        SiteName::Other => String::new(),
        SiteName::Resolved(_) => frames::location(stack),
    }
}

/// Returns the text of a verdict.
pub const fn verdict_label(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Leak => "leak",
        Verdict::Plateau => "plateau",
        Verdict::Cache => "cache",
        Verdict::RampUp => "ramp-up",
        Verdict::Burst => "burst",
        Verdict::Periodic => "periodic",
        Verdict::NotEnoughData => "not enough data",
    }
}

/// Returns an anomaly in one sentence, without time and site.
pub fn anomaly_summary(anomaly: &Anomaly) -> String {
    let kind = match anomaly.kind {
        MemoryKind::Device => String::new(),
        kind => format!(" {kind}"),
    };
    match anomaly.details {
        AnomalyKind::Size { bytes, baseline, of, of_site, live, .. } => {
            let scope = if of_site { "this site" } else { "this process" };
            let live = if live { "" } else { " (no longer live)" };
            let rank = if of_site { "maximum" } else { "90th percentile" };
            format!(
                "single{kind} allocation of {bytes}{live}: {} {baseline} ({rank} of {of} earlier allocations of {scope})",
                ratio_phrase(bytes, baseline)
            )
        }
        AnomalyKind::Growth { bytes, within, baseline } => {
            let grew = match anomaly.kind {
                MemoryKind::Device => "grew".to_owned(),
                kind => format!("{kind} memory grew"),
            };
            format!(
                "{grew} by {bytes} in {}: {} {baseline} (90th percentile)",
                format_duration(within),
                ratio_phrase(bytes, baseline)
            )
        }
    }
}

/// Returns `214x the baseline`, as part of a sentence.
pub fn ratio_phrase(bytes: Bytes, baseline: Bytes) -> String {
    match bytes.0.checked_div(baseline.0) {
        None => "far above the baseline".to_owned(),
        Some(times @ 0..10) => {
            let tenths = u128::from(bytes.0) * 10 / u128::from(baseline.0) % 10;
            format!("{times}.{tenths}x the baseline")
        }
        Some(times) => format!("{times}x the baseline"),
    }
}

/// Returns the name of the memory or object kind.
pub const fn kind(resource: Resource) -> &'static str {
    match resource {
        Resource::Memory(kind) => kind.name(),
        Resource::Blocks(allocator) => allocator.kind().name(),
        Resource::Objects(kind) => kind.name(),
    }
}
