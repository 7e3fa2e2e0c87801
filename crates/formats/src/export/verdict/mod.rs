//! Verdicts and anomalies in words: the same in reports of traces and of files.

pub mod json;
pub mod text;

use engine::kind::Kind;
use engine::object::ObjectKind;
use engine::stack::{Frame, Language, SiteName};
use engine::units::Bytes;
use engine::verdict::{Anomaly, CacheTensors, Evidence, Judgement, Subject, Unusual, Verdict};

use super::analysis::frames;
use super::text::{age, count, span};

/// A quantity of what is judged: bytes, or a number of objects.
#[must_use]
pub fn quantity(subject: Subject, amount: u64) -> String {
    match subject {
        Subject::Objects(kind) => objects(kind, amount),
        Subject::Memory(_) | Subject::Tensors => Bytes(amount).to_string(),
    }
}

/// `1 stream`, `2 graph executables`.
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

/// Live memory or objects: `24.00 MiB in 3 allocations`, `2 streams`.
#[must_use]
pub fn live(subject: Subject, evidence: &Evidence) -> String {
    match number(subject, evidence.live_count) {
        Some(number) => format!("{} in {number}", Bytes(evidence.live)),
        None => quantity(subject, evidence.live),
    }
}

/// The same as the beginning of a sentence: `24.00 MiB live in 3 allocations`, `2 streams live`.
fn held(subject: Subject, evidence: &Evidence) -> String {
    match number(subject, evidence.live_count) {
        Some(number) => format!("{} live in {number}", Bytes(evidence.live)),
        None => format!("{} live", quantity(subject, evidence.live)),
    }
}

/// `3 tensors`, `1 pinned allocation`; `None` for objects, whose quantity is their number.
fn number(subject: Subject, count: u64) -> Option<String> {
    let what = match subject {
        Subject::Objects(_) => return None,
        Subject::Tensors => "tensor".to_owned(),
        Subject::Memory(Kind::Device) => "allocation".to_owned(),
        Subject::Memory(kind) => format!("{kind} allocation"),
    };
    Some(format!("{count} {what}{}", if count == 1 { "" } else { "s" }))
}

/// The verdict in one sentence. Every claim in it is a number of the evidence, or follows from them.
#[must_use]
pub fn sentence(subject: Subject, verdict: Verdict, evidence: &Evidence) -> String {
    let held = held(subject, evidence);
    match verdict {
        Verdict::Leak => {
            let rate = quantity(subject, evidence.per_hour);
            let full = evidence
                .full_in
                .map_or_else(String::new, |time| format!("; GPU full in {}", age(time)));
            format!("{held}, growing {rate}/h{full}")
        }
        Verdict::Plateau => format!("{held}: {}", level(subject, evidence)),
        Verdict::Cache => match &evidence.tensors {
            Some(tensors) => format!("{held}: {}", cache(tensors)),
            None => format!("{held}: {}; {}", level(subject, evidence), freed(subject, evidence)),
        },
        Verdict::RampUp => format!("{held}: {}", growth(subject, evidence)),
        Verdict::Burst => {
            format!("{held}: down from a peak of {}", quantity(subject, evidence.peak))
        }
        Verdict::Periodic => format!(
            "{held}: rose and fell at least {} times, peak {}",
            evidence.returns,
            quantity(subject, evidence.peak)
        ),
        Verdict::NotEnoughData => format!(
            "{held}: not enough data, {} in {}",
            begun(subject, evidence),
            span(evidence.watched)
        ),
    }
}

/// What was live in the second half of the observation.
fn level(subject: Subject, evidence: &Evidence) -> String {
    let (low, high) = evidence.level;
    let [low, high] = [low, high].map(|amount| quantity(subject, amount));
    if low == high {
        format!("stable at {low} in the second half of the observation")
    } else {
        format!("{low} to {high} in the second half of the observation")
    }
}

/// How it grew in the second half of the observation.
fn growth(subject: Subject, evidence: &Evidence) -> String {
    let Evidence { lows, per_hour, .. } = evidence;
    let [half, last] = [lows.get(lows.len() / 2), lows.last()]
        .map(|low| quantity(subject, low.copied().unwrap_or(0)));
    let rate = match per_hour {
        0 => String::new(),
        rate => format!(", {}/h", quantity(subject, *rate)),
    };
    format!(
        "grew from {half} to {last} in the second half of the observation{rate}; too short or too \
         irregular for a leak"
    )
}

/// Why memory of PyTorch's cache is not a leak.
fn cache(tensors: &CacheTensors) -> String {
    let CacheTensors { live, peak, per_hour, cache_per_hour, .. } = *tensors;
    if tensors.explain_growth() {
        return format!(
            "PyTorch's cache, growing {}/h; leaking tensor sites grow {}/h",
            Bytes(cache_per_hour),
            Bytes(per_hour)
        );
    }
    format!("PyTorch's cache; tensors are bounded: {}, peak {}", Bytes(live), Bytes(peak))
}

/// How many were ever made or allocated.
fn begun(subject: Subject, evidence: &Evidence) -> String {
    let begun = evidence.begun;
    match subject {
        Subject::Objects(_) => format!("{begun} created"),
        Subject::Memory(_) | Subject::Tensors => count(begun),
    }
}

/// How many of those were freed or destroyed.
fn freed(subject: Subject, evidence: &Evidence) -> String {
    let Evidence { begun, ended, .. } = *evidence;
    match subject {
        Subject::Objects(_) => format!("{ended} of {begun} destroyed"),
        Subject::Memory(_) | Subject::Tensors => format!("{ended} of {begun} allocations freed"),
    }
}

/// What the verdict rests on, a line each.
#[must_use]
pub fn evidence(judged: &Judgement) -> Vec<String> {
    let of = &judged.evidence;
    let mut lines = Vec::new();
    if of.steps > 0 {
        lines.push(format!(
            "grew in {} of {} windows of {}, shrank in {}; observed for {}",
            of.growing_steps,
            of.steps,
            span(of.window),
            of.shrinking_steps,
            span(of.watched),
        ));
    }
    let lived = match (of.median_life, of.longest_life) {
        (Some(middle), Some(longest)) => {
            format!(" (median lifetime at most {}, maximum {})", span(middle), span(longest))
        }
        _ => String::new(),
    };
    lines.push(format!("{}{lived}", freed(judged.subject, of)));
    if let (Some(middle), Some(oldest)) = (of.median_age, of.oldest) {
        let overdue = match of.overdue {
            0 => String::new(),
            much => format!(
                "; {} older than 99 % of those {}",
                quantity(judged.subject, much),
                if judged.subject.is_bytes() { "freed" } else { "destroyed" }
            ),
        };
        lines.push(format!(
            "live: median age at least {}, oldest at most {}{overdue}",
            span(middle),
            span(oldest)
        ));
    }
    lines
}

/// The line of the program that is accused.
#[must_use]
pub fn place(site: SiteName, frames: &[Frame]) -> String {
    match site {
        SiteName::Unknown => "(no stack)".to_owned(),
        SiteName::Pending(_) => "(resolving symbols)".to_owned(),
        SiteName::Other => "(site limit reached)".to_owned(),
        SiteName::Told(_) => frames::label(&frames.iter().collect::<Vec<_>>()),
    }
}

/// Who called that line, the innermost first.
#[must_use]
pub fn callers(frames: &[Frame], most: usize) -> Vec<String> {
    frames::callers(&frames.iter().collect::<Vec<_>>(), most)
}

/// The same for a label of a metric: shorter, and without folders.
#[must_use]
pub fn short_place(site: SiteName, frames: &[Frame]) -> String {
    match site {
        SiteName::Unknown => "(no stack)".to_owned(),
        SiteName::Pending(_) => "(resolving symbols)".to_owned(),
        SiteName::Other => String::new(),
        SiteName::Told(_) => frames::place(&frames.iter().collect::<Vec<_>>()),
    }
}

/// A verdict for people.
#[must_use]
pub const fn words(verdict: Verdict) -> &'static str {
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

/// What to try against a leak.
#[must_use]
pub fn advice(subject: Subject, evidence: &Evidence, frames: &[&Frame]) -> String {
    let through = |module: &str| {
        frames.iter().any(|frame| frame.module.as_deref().is_some_and(|path| path.contains(module)))
    };
    let Evidence { begun, ended, tensors, .. } = *evidence;
    match subject {
        Subject::Tensors => {
            "something keeps the result of this line alive (a list, dict, closure or attribute): \
             store `.item()` or a `.detach()`ed copy instead"
                .to_owned()
        }
        Subject::Memory(_) if tensors.is_some() || through("libc10_cuda") => of_cache(tensors),
        Subject::Memory(kind) => {
            let by = freed_by(kind);
            match ended {
                0 => format!("never freed: call {by} when done"),
                n => format!(
                    "{n} of {begun} are freed: look for an error path or early return that skips {by}"
                ),
            }
        }
        Subject::Objects(kind) => {
            let by = destroyed_by(kind);
            let python = frames.iter().any(|frame| frame.language == Language::Python);
            let reuse = if python { ", or reuse one" } else { "" };
            format!("call {by} for each one{reuse}; each uses host and often device memory")
        }
    }
}

/// What to try where memory of PyTorch's cache leaks.
fn of_cache(tensors: Option<CacheTensors>) -> String {
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

const fn freed_by(kind: Kind) -> &'static str {
    match kind {
        Kind::Async | Kind::HostAsync => "cudaFreeAsync",
        Kind::Pinned => "cudaFreeHost",
        Kind::Registered => "cudaHostUnregister",
        Kind::Array => "cudaFreeArray",
        Kind::Physical | Kind::HostPhysical => "cuMemUnmap and cuMemRelease",
        Kind::Imported => "cudaIpcCloseMemHandle",
        Kind::Graph => "a free node, or cudaFree after the graph",
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

/// An anomaly in one sentence, without time and place.
#[must_use]
pub fn unusual(anomaly: &Anomaly) -> String {
    let kind = match anomaly.kind {
        Kind::Device => String::new(),
        kind => format!(" {kind}"),
    };
    match anomaly.what {
        Unusual::Size { bytes, usual, of, of_site, live, .. } => {
            let whose = if of_site { "this site" } else { "this process" };
            let live = if live { "" } else { " (no longer live)" };
            let rank = if of_site { "maximum" } else { "90th percentile" };
            format!(
                "single{kind} allocation of {bytes}{live}: {} {usual} ({rank} of {of} earlier allocations of {whose})",
                times(bytes, usual)
            )
        }
        Unusual::Growth { bytes, within, usual } => {
            let grew = match anomaly.kind {
                Kind::Device => "grew".to_owned(),
                kind => format!("{kind} memory grew"),
            };
            format!(
                "{grew} by {bytes} in {}: {} {usual} (90th percentile)",
                span(within),
                times(bytes, usual)
            )
        }
    }
}

/// `214x the baseline`, as a part of a sentence.
#[must_use]
pub fn times(bytes: Bytes, usual: Bytes) -> String {
    match bytes.0.checked_div(usual.0) {
        None => "far above the baseline".to_owned(),
        Some(times @ 0..10) => {
            let tenths = u128::from(bytes.0) * 10 / u128::from(usual.0) % 10;
            format!("{times}.{tenths}x the baseline")
        }
        Some(times) => format!("{times}x the baseline"),
    }
}

/// The kind of memory or object that is judged, as a word.
#[must_use]
pub const fn kind(subject: Subject) -> &'static str {
    match subject {
        Subject::Memory(kind) => kind.name(),
        Subject::Tensors => Kind::Torch.name(),
        Subject::Objects(kind) => kind.name(),
    }
}
