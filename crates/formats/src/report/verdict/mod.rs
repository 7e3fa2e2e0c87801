//! Verdicts and anomalies as text: the same in reports of traces and of files.

pub mod json;
pub mod text;

use engine::model::cuda_object::ObjectKind;
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::{Frame, Language, SiteName};
use engine::model::units::Bytes;
use engine::verdict::{
    Anomaly, AnomalyKind, CacheTensors, Evidence, Resource, SiteVerdict, Verdict,
};

use super::analysis::frames;
use super::live::text::{format_age, format_count, format_duration};

/// Formats a quantity of a resource: bytes, or a number of objects.
#[must_use]
pub fn quantity(resource: Resource, amount: u64) -> String {
    match resource {
        Resource::Objects(kind) => objects(kind, amount),
        Resource::Memory(_) | Resource::Tensors => Bytes(amount).to_string(),
    }
}

/// Returns `1 stream` or `2 graph executables`.
#[must_use]
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
#[must_use]
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
        Resource::Tensors => "tensor".to_owned(),
        Resource::Memory(MemoryKind::Device) => "allocation".to_owned(),
        Resource::Memory(kind) => format!("{kind} allocation"),
    };
    Some(format!("{count} {noun}{}", if count == 1 { "" } else { "s" }))
}

/// Returns the verdict in one sentence. Every statement is a number of the evidence, or follows
/// from them.
#[must_use]
pub fn summary(resource: Resource, verdict: Verdict, evidence: &Evidence) -> String {
    let live = live_phrase(resource, evidence);
    match verdict {
        Verdict::Leak => {
            let rate = quantity(resource, evidence.growth_per_hour);
            let full = evidence
                .time_until_full
                .map_or_else(String::new, |time| format!("; GPU full in {}", format_age(time)));
            format!("{live}, growing {rate}/h{full}")
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
        Verdict::NotEnoughData => format!(
            "{live}: not enough data, {} in {}",
            created(resource, evidence),
            format_duration(evidence.observed)
        ),
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
    format!(
        "grew from {half} to {last} in the second half of the observation{rate}; too short or too \
         irregular for a leak"
    )
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
        Resource::Memory(_) | Resource::Tensors => format_count(created),
    }
}

/// Returns how many of those were freed or destroyed.
fn freed(resource: Resource, evidence: &Evidence) -> String {
    let Evidence { created, freed, .. } = *evidence;
    match resource {
        Resource::Objects(_) => format!("{freed} of {created} destroyed"),
        Resource::Memory(_) | Resource::Tensors => {
            format!("{freed} of {created} allocations freed")
        }
    }
}

/// Returns the evidence for a verdict, one line each.
#[must_use]
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
    lines
}

/// Returns the line of the program that allocated.
#[must_use]
pub fn location(site: SiteName, frames: &[Frame]) -> String {
    match site {
        SiteName::Unknown => "(no stack)".to_owned(),
        SiteName::Pending(_) => "(resolving symbols)".to_owned(),
        SiteName::Other => "(site limit reached)".to_owned(),
        SiteName::Resolved(_) => frames::label(&frames.iter().collect::<Vec<_>>()),
    }
}

/// Returns the callers of that line, innermost first.
#[must_use]
pub fn callers(frames: &[Frame], max: usize) -> Vec<String> {
    frames::callers(&frames.iter().collect::<Vec<_>>(), max)
}

/// Returns the line for a metric label: shorter, and without directories.
#[must_use]
pub fn short_location(site: SiteName, frames: &[Frame]) -> String {
    match site {
        SiteName::Unknown => "(no stack)".to_owned(),
        SiteName::Pending(_) => "(resolving symbols)".to_owned(),
        SiteName::Other => String::new(),
        SiteName::Resolved(_) => frames::location(&frames.iter().collect::<Vec<_>>()),
    }
}

/// Returns the text of a verdict.
#[must_use]
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

/// Returns advice against a leak.
#[must_use]
pub fn advice(resource: Resource, evidence: &Evidence, frames: &[&Frame]) -> String {
    let through = |module: &str| {
        frames.iter().any(|frame| frame.module.as_deref().is_some_and(|path| path.contains(module)))
    };
    let Evidence { created, freed, tensors, .. } = *evidence;
    match resource {
        Resource::Tensors => {
            "something keeps the result of this line alive (a list, dict, closure or attribute): \
             store `.item()` or a `.detach()`ed copy instead"
                .to_owned()
        }
        Resource::Memory(_) if tensors.is_some() || through("libc10_cuda") => cache_advice(tensors),
        Resource::Memory(kind) => {
            let by = freed_by(kind);
            match freed {
                0 => format!("never freed: call {by} when done"),
                n => format!(
                    "{n} of {created} are freed: look for an error path or early return that skips {by}"
                ),
            }
        }
        Resource::Objects(kind) => {
            let by = destroyed_by(kind);
            let python = frames.iter().any(|frame| frame.language == Language::Python);
            let reuse = if python { ", or reuse one" } else { "" };
            format!("call {by} for each one{reuse}; each uses host and often device memory")
        }
    }
}

/// Returns advice for leaks in PyTorch's cache.
fn cache_advice(tensors: Option<CacheTensors>) -> String {
    match tensors {
        None => "this is PyTorch's cache; run with --torch to see which lines keep tensors alive"
            .to_owned(),
        Some(CacheTensors { bounded: true, peak, cache, .. }) => format!(
            "this is PyTorch's cache ({}), but its tensors peaked at {}: it may be fragmented; set \
             PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            Bytes(cache),
            Bytes(peak)
        ),
        Some(_) => {
            "this is PyTorch's cache, and its tensors grow, but no single line explains it: \
             compare the tensor sites of `trace --torch --by site` over time"
                .to_owned()
        }
    }
}

const fn freed_by(kind: MemoryKind) -> &'static str {
    match kind {
        MemoryKind::Async | MemoryKind::HostAsync => "cudaFreeAsync",
        MemoryKind::Pinned => "cudaFreeHost",
        MemoryKind::Registered => "cudaHostUnregister",
        MemoryKind::Array => "cudaFreeArray",
        MemoryKind::Physical | MemoryKind::HostPhysical => "cuMemUnmap and cuMemRelease",
        MemoryKind::Imported => "cudaIpcCloseMemHandle",
        MemoryKind::Graph => "a free node, or cudaFree after the graph",
        _ => "cudaFree",
    }
}

const fn destroyed_by(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Stream => "cudaStreamDestroy",
        ObjectKind::Event => "cudaEventDestroy",
        ObjectKind::Graph => "cudaGraphDestroy",
        ObjectKind::GraphExec => "cudaGraphExecDestroy",
        ObjectKind::Module => "cuModuleUnload",
        ObjectKind::Library => "cuLibraryUnload",
        ObjectKind::Context => "cuCtxDestroy",
        ObjectKind::GreenContext => "cuGreenCtxDestroy",
        ObjectKind::Texture => "cudaDestroyTextureObject",
        ObjectKind::Surface => "cudaDestroySurfaceObject",
        ObjectKind::Pool => "cudaMemPoolDestroy",
        ObjectKind::Linker => "cuLinkDestroy",
    }
}

/// Returns an anomaly in one sentence, without time and site.
#[must_use]
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
#[must_use]
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
#[must_use]
pub const fn kind(resource: Resource) -> &'static str {
    match resource {
        Resource::Memory(kind) => kind.name(),
        Resource::Tensors => MemoryKind::Torch.name(),
        Resource::Objects(kind) => kind.name(),
    }
}
