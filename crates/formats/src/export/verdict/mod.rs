//! Verdicts and anomalies in words: the same in reports of traces and of files.

pub mod json;
pub mod text;

use engine::kind::Kind;
use engine::object::ObjectKind;
use engine::stack::{Frame, Language, SiteName};
use engine::units::Bytes;
use engine::verdict::{Anomaly, CacheTensors, Evidence, Judgement, Subject, Unusual, Verdict};

use super::analysis::frames;
use super::text::{age, span};

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

/// What is live, in words.
#[must_use]
pub fn live(subject: Subject, evidence: &Evidence) -> String {
    let Evidence { live, live_count, .. } = *evidence;
    let (one, many) = match subject {
        Subject::Objects(kind) => return objects(kind, live),
        Subject::Tensors => ("tensor".to_owned(), "tensors".to_owned()),
        Subject::Memory(Kind::Device) => ("allocation".to_owned(), "allocations".to_owned()),
        Subject::Memory(kind) => (format!("{kind} allocation"), format!("{kind} allocations")),
    };
    format!("{} in {live_count} {}", Bytes(live), if live_count == 1 { one } else { many })
}

/// The verdict in one sentence. Every claim in it is a number of the evidence, or follows from them.
#[must_use]
pub fn sentence(subject: Subject, verdict: Verdict, evidence: &Evidence) -> String {
    let held = live(subject, evidence);
    match verdict {
        Verdict::Leak => {
            let rate = quantity(subject, evidence.per_hour);
            let full = evidence.full_in.map_or_else(String::new, |time| {
                format!("; at this rate the device is full in {}", age(time))
            });
            format!("{held} live, and growing by {rate} an hour{full}")
        }
        Verdict::Plateau => format!("{held}: {}", level(subject, evidence)),
        Verdict::Cache => match &evidence.tensors {
            Some(tensors) => format!("{held}: {}", cache(tensors)),
            None => format!("{held}: {}; {}", level(subject, evidence), freed(subject, evidence)),
        },
        Verdict::RampUp => format!("{held}: {}", growth(subject, evidence)),
        Verdict::Burst => {
            format!("{held}: at most {} before", quantity(subject, evidence.peak))
        }
        Verdict::Periodic => format!(
            "{held}: rose and fell at least {} times, to at most {}",
            evidence.returns,
            quantity(subject, evidence.peak)
        ),
        Verdict::NotEnoughData => format!(
            "{held}: too little to judge, {} within {}",
            begun(subject, evidence),
            span(evidence.watched)
        ),
    }
}

/// What was live since half time.
fn level(subject: Subject, evidence: &Evidence) -> String {
    let (low, high) = evidence.level;
    let [low, high] = [low, high].map(|amount| quantity(subject, amount));
    if low == high {
        format!("{low} since half time")
    } else {
        format!("between {low} and {high} since half time")
    }
}

/// How what is growing has grown since half time.
fn growth(subject: Subject, evidence: &Evidence) -> String {
    let Evidence { lows, per_hour, .. } = evidence;
    let [half, last] = [lows.get(lows.len() / 2), lows.last()]
        .map(|low| quantity(subject, low.copied().unwrap_or(0)));
    let rate = match per_hour {
        0 => String::new(),
        rate => format!(", by {} an hour", quantity(subject, *rate)),
    };
    format!(
        "grew from {half} to {last} since half time{rate}; not long or steady enough for a leak"
    )
}

/// Why memory of PyTorch's cache is not a leak.
fn cache(tensors: &CacheTensors) -> String {
    let CacheTensors { live, peak, per_hour, cache_per_hour, .. } = *tensors;
    if tensors.explain_growth() {
        return format!(
            "PyTorch's cache; it grows by {} an hour, tensor sites that leak by {}",
            Bytes(cache_per_hour),
            Bytes(per_hour)
        );
    }
    format!(
        "PyTorch's cache; its tensors hold {}, at most {}, and are bounded",
        Bytes(live),
        Bytes(peak)
    )
}

/// How many were ever made or allocated.
fn begun(subject: Subject, evidence: &Evidence) -> String {
    let begun = evidence.begun;
    match subject {
        Subject::Objects(_) => format!("{begun} made"),
        Subject::Memory(_) | Subject::Tensors => format!("{begun} allocated"),
    }
}

/// How many of those were freed or destroyed.
fn freed(subject: Subject, evidence: &Evidence) -> String {
    let Evidence { begun, ended, .. } = *evidence;
    match (ended, subject) {
        (0, Subject::Objects(_)) => format!("none of {begun} made here was destroyed"),
        (0, _) => format!("none of {begun} allocated here was freed"),
        (n, Subject::Objects(_)) => format!("{n} of {begun} made here were destroyed"),
        (n, _) => format!("{n} of {begun} allocated here were freed"),
    }
}

/// What the verdict rests on, a line each.
#[must_use]
pub fn evidence(judged: &Judgement) -> Vec<String> {
    let of = &judged.evidence;
    let mut lines = Vec::new();
    if of.steps > 0 {
        let shrank = match of.shrinking_steps {
            0 => "shrank in none".to_owned(),
            n => format!("shrank in {n}"),
        };
        lines.push(format!(
            "grew in {} of {} steps of {}, {shrank}; watched for {}",
            of.growing_steps,
            of.steps,
            span(of.window),
            span(of.watched),
        ));
    }
    let lived = match (of.median_life, of.longest_life) {
        (Some(middle), Some(longest)) => {
            format!(", half of them within {}, all within {}", span(middle), span(longest))
        }
        _ => String::new(),
    };
    lines.push(format!("{}{lived}", freed(judged.subject, of)));
    if let (Some(middle), Some(oldest)) = (of.median_age, of.oldest) {
        let overdue = match of.overdue {
            0 => String::new(),
            much => format!(
                "; {} older than nearly all that were freed here became",
                quantity(judged.subject, much)
            ),
        };
        lines.push(format!(
            "half of what is live is older than {}, the oldest at most {}{overdue}",
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
        SiteName::Pending(_) => "(the stack is not told yet)".to_owned(),
        SiteName::Other => "(sites that are not kept apart)".to_owned(),
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
        SiteName::Pending(_) => "(not told yet)".to_owned(),
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
            "find what keeps the result of this line: a list, a dictionary, a closure or an \
             attribute. Keep numbers (`.item()`) or `.detach()`ed copies; a tensor that is kept \
             with its graph keeps everything that it was computed from"
                .to_owned()
        }
        Subject::Memory(_) if tensors.is_some() || through("libc10_cuda") => of_cache(tensors),
        Subject::Memory(kind) => {
            let by = freed_by(kind);
            match ended {
                0 => format!("none of {begun} was freed: call {by} when each is no longer needed"),
                n => format!(
                    "{n} of {begun} were freed: look for a path after this call (an error, an early \
                     return, a branch) that misses {by}"
                ),
            }
        }
        Subject::Objects(kind) => {
            let by = destroyed_by(kind);
            let python = frames.iter().any(|frame| frame.language == Language::Python);
            let kept = if python { ", or keep one and use it again" } else { "" };
            format!("call {by} for each{kept}; each one costs host and often device memory")
        }
    }
}

/// What to try where memory of PyTorch's cache leaks.
fn of_cache(tensors: Option<CacheTensors>) -> String {
    match tensors {
        None => {
            "this is PyTorch's cache: trace with --torch to see which lines keep tensors".to_owned()
        }
        Some(CacheTensors { bounded: true, peak, cache, .. }) => format!(
            "this is PyTorch's cache of {}, whose tensors never held more than {}: it may be \
             fragmented. Try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            Bytes(cache),
            Bytes(peak)
        ),
        Some(_) => {
            "this is PyTorch's cache, and its tensors grow, though no single line accounts for \
                    that: compare the tensor sites of `trace --torch --by site` over time"
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
        Kind::Graph => "a free node, or cudaFree of what the graph left",
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
            let share = if of_site { "all" } else { "nine of ten" };
            format!(
                "{bytes}{kind} at once{live}: {} {usual} ({share} of {of} allocations of {whose} before were at most that)",
                times(bytes, usual)
            )
        }
        Unusual::Growth { bytes, within, usual } => {
            format!(
                "{bytes}{kind} more within {}: {} {usual} (nine of ten such times brought at most that)",
                span(within),
                times(bytes, usual)
            )
        }
    }
}

/// `214 times the usual`, as a part of a sentence.
#[must_use]
pub fn times(bytes: Bytes, usual: Bytes) -> String {
    match bytes.0.checked_div(usual.0) {
        None => "far beyond the usual".to_owned(),
        Some(times @ 0..10) => {
            let tenths = u128::from(bytes.0) * 10 / u128::from(usual.0) % 10;
            format!("{times}.{tenths} times the usual")
        }
        Some(times) => format!("{times} times the usual"),
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
