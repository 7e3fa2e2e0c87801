//! The view model as text and JSON: the same in live reports, reports on files and the agent's
//! responses.

pub mod json;
mod last;
mod leak_details;
pub(crate) mod notes;
mod out_of_memory;
pub mod page;
pub(crate) mod table;
pub mod text;
pub(crate) mod units;

pub(crate) use last::{gpu_lines, headline, leak_pids, write_last};
pub use leak_details::write_leak;
pub(crate) use leak_details::{fold_phrase, leak_details, write_stack};
pub use notes::text as note_text;
pub(crate) use out_of_memory::{out_of_memory_line, out_of_memory_request, write_out_of_memory};
pub(crate) use table::shorten_place;
pub(crate) use table::{fit, without_directories};
pub use table::{shorten, wrap};
pub use text::verdict_line;
pub use units::{compact_size, duration_words};

use engine::model::{Bytes, CallStack, Frame, Language, MemoryKind, SiteName};
use engine::view::{GpuFacts, Leak, LeakResource};

pub(crate) use super::analysis::frames::base;

use super::analysis::frames;
use super::verdict;
use crate::export::GpuLabel;

/// Returns the GPUs in the form that views take.
pub fn gpu_facts(gpus: &[GpuLabel]) -> Vec<GpuFacts<'_>> {
    gpus.iter()
        .map(|gpu| GpuFacts { id: gpu.id, name: &gpu.name, total: Bytes(gpu.total_bytes) })
        .collect()
}

/// Returns the line and function of a leak: `train.py:8,9,10 evaluate`.
pub fn leak_location(leak: &Leak<'_>) -> String {
    location(leak.stack, &leak.lines)
}

/// Returns a place without its file name if that is the program, which is shown next to it.
pub(crate) fn place_in<'a>(program: &str, place: &'a str) -> &'a str {
    place.strip_prefix(program).filter(|rest| rest.starts_with(':')).unwrap_or(place)
}

/// Returns the line and function of a stack.
pub(crate) fn stack_location(stack: &CallStack) -> String {
    let line = stack.responsible().map(|frame| frame.line).filter(|line| *line > 0);
    location(stack, line.as_slice())
}

/// Returns the line and function of a site, or why they are unknown.
pub fn site_location(name: SiteName, stack: &CallStack) -> String {
    match name {
        SiteName::Resolved(_) => stack_location(stack),
        other => verdict::location(other, stack),
    }
}

/// Returns `file:line function` of the headline, without directories, or as much of that as is
/// known.
fn location(stack: &CallStack, lines: &[u32]) -> String {
    let Some(frame) = frames::headline(stack) else { return "(no call stack)".to_owned() };
    let function = short_function(&frame);
    let lines: Vec<String> = lines.iter().take(MAX_LINES).map(u32::to_string).collect();
    match (&frame.file, &frame.module) {
        (Some(file), _) if lines.is_empty() => format!("{} {function}", base(file)),
        (Some(file), _) => format!("{}:{} {function}", base(file), lines.join(",")),
        (None, Some(module)) => format!("{} {function}", base(module)),
        (None, None) => function,
    }
}

/// Maximum number of lines in a location.
const MAX_LINES: usize = 4;

/// Returns the function without parameters, template arguments and namespaces; a method keeps its
/// class, if that is written with a capital letter.
pub(crate) fn short_function(frame: &Frame) -> String {
    let name = frames::function(frame);
    let is_plain = frame.function.is_empty() || frame.language != Language::Native;
    if is_plain || name.starts_with('<') {
        return name.into_owned();
    }
    let mut depth = 0_u32;
    let mut plain = String::new();
    for c in name.chars() {
        match c {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' | ')' | ']' | '}' => depth = depth.saturating_sub(1),
            c if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    // A return type comes before the name of a template, qualifiers after the parameters.
    let mut words = plain.split(' ').rev();
    let word = words.find(|word| !["", "const", "volatile", "noexcept", "&", "&&"].contains(word));
    let parts: Vec<&str> =
        word.unwrap_or_default().split("::").filter(|part| !part.is_empty()).collect();
    match parts[..] {
        [] => name.into_owned(),
        [.., class, function] if class.starts_with(char::is_uppercase) => {
            format!("{class}::{function}")
        }
        [.., function] => function.to_owned(),
    }
}

/// Returns what a leak holds: a size and a number, or only a number of objects. `~` marks estimates.
pub(crate) fn held(leak: &Leak<'_>) -> (String, String) {
    let (size, number) = held_of(leak.resource, leak.kind, leak.live, leak.live_count);
    let is_estimate = leak.sites.iter().any(|one| one.evidence.sampling.is_some());
    (if is_estimate { format!("~{size}") } else { size }, number)
}

fn held_of(
    resource: LeakResource,
    kind: Option<MemoryKind>,
    live: u64,
    count: u64,
) -> (String, String) {
    let plural = |one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let number = match resource {
        LeakResource::Objects(kind) => return (String::new(), verdict::objects(kind, live)),
        LeakResource::Blocks(allocator) => plural(allocator.noun()),
        LeakResource::Managed => plural("managed alloc"),
        LeakResource::Host => match kind {
            Some(kind) => format!("{count} {}", kind.name()),
            None => plural("host alloc"),
        },
        LeakResource::Device => plural("alloc"),
    };
    (compact_size(live), number)
}

/// Returns all that a leak holds: `1.20G in 60 allocs, 60 modules`.
fn held_phrase(leak: &Leak<'_>) -> String {
    let also =
        leak.also.iter().map(|part| held_of(part.resource, None, part.live, part.live_count));
    let all = std::iter::once(held(leak))
        .chain(also)
        .map(|(size, count)| if size.is_empty() { count } else { format!("{size} in {count}") });
    all.collect::<Vec<_>>().join(", ")
}

/// Returns the growth of a leak next to what it holds: `274G/h`, `177k/h`.
pub(crate) fn rate(leak: &Leak<'_>) -> String {
    let rate = leak.growth_per_hour;
    match leak.resource {
        LeakResource::Objects(_) => format!("{}/h", units::compact_count(rate)),
        _ => format!("{}/h", compact_size(rate)),
    }
}

/// Returns the growth of a leak: `274G/h`, `69.1G/h host`, `177k events/h`.
pub(crate) fn growth(leak: &Leak<'_>) -> String {
    let rate = leak.growth_per_hour;
    match leak.resource {
        LeakResource::Objects(kind) => {
            let name = verdict::objects(kind, 2).trim_start_matches("2 ").to_owned();
            format!("{} {name}/h", units::compact_count(rate))
        }
        LeakResource::Host => format!("{}/h host", compact_size(rate)),
        LeakResource::Managed => format!("{}/h managed", compact_size(rate)),
        LeakResource::Device | LeakResource::Blocks(_) => format!("{}/h", compact_size(rate)),
    }
}

/// Returns a leak in one line.
pub fn leak_sentence(leak: &Leak<'_>) -> String {
    let pid = leak.processes.first().and_then(|process| process.pid);
    let pid = pid.map_or_else(|| "exited".to_owned(), |pid| format!("pid {pid}"));
    let more = match leak.processes.len() {
        0 | 1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    let full = leak
        .time_until_full
        .map_or_else(String::new, |time| format!("; GPU full in {}", duration_words(time)));
    format!(
        "leak ({}): {} in {} ({pid}{more}): {}, growing {}{full}",
        leak.confidence.name(),
        leak_location(leak),
        leak.program,
        held_phrase(leak),
        growth(leak),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_lose_parameters_and_outer_namespaces() {
        for (name, short) in [
            ("evaluate", "evaluate"),
            ("<module>", "<module>"),
            ("workload::cuda::Driver::alloc", "Driver::alloc"),
            ("void ns::fill<float, 3>(float*, std::vector<int> const&)", "fill"),
            ("at::Tensor::to(c10::Device) const", "Tensor::to"),
            (
                "<alloc::vec::Vec<T> as core::ops::Drop>::drop",
                "<alloc::vec::Vec<T> as core::ops::Drop>::drop",
            ),
            ("main::{closure#0}", "main"),
            ("(anonymous namespace)::upload(int)", "upload"),
        ] {
            let frame = Frame { function: name.into(), ..Frame::default() };
            assert_eq!(short_function(&frame), short, "{name}");
        }
    }

    #[test]
    fn locations_have_no_directories() {
        let frame = Frame {
            function: "step".into(),
            file: Some("/srv/app/train.py".into()),
            ..Frame::default()
        };
        let of = |frame: &Frame, lines: &[u32]| location(&[frame.clone()].into(), lines);
        assert_eq!(of(&frame, &[8, 9]), "train.py:8,9 step");
        assert_eq!(of(&frame, &[]), "train.py step");
        let native = Frame { file: None, module: Some("/lib/libx.so".into()), ..frame };
        assert_eq!(of(&native, &[]), "libx.so step");
        assert_eq!(location(&CallStack::default(), &[]), "(no call stack)");
    }
}
