//! Out-of-memory errors: the request, its line, and the holders of the memory.

use std::io::{self, Write};

use engine::model::{Bytes, MemoryKind};
use engine::snapshot::OutOfMemory;

use super::leak_details::write_stack;
use super::stack_location;
use crate::export::GpuLabel;
use crate::report::live::text::{TextStyle, device_name};
use crate::report::text_page::TextPage;
use crate::sanitize::sanitize;
use crate::wall_clock::WallClock;

/// Maximum number of listed holders.
const MAX_HOLDERS: usize = 10;

/// Maximum number of different errors in a report.
const MAX_ERRORS: usize = 5;

/// Writes the out-of-memory errors of a report. A program that tries again and again is listed once.
pub(crate) fn write_out_of_memory(
    out: &mut TextPage<'_>,
    all: &[OutOfMemory],
    gpus: &[GpuLabel],
    clock: &WallClock,
) -> io::Result<()> {
    let key = |it: &OutOfMemory| (it.pid, it.requested, it.site_name, it.recovered.is_some());
    let mut errors: Vec<(&OutOfMemory, &OutOfMemory, usize)> = Vec::new();
    for oom in all {
        match errors.iter_mut().find(|(first, ..)| key(first) == key(oom)) {
            Some((_, last, count)) => (*last, *count) = (oom, *count + 1),
            None => errors.push((oom, oom, 1)),
        }
    }
    let earlier = errors.len().saturating_sub(MAX_ERRORS);
    match errors.iter().take(earlier).map(|(.., count)| count).sum() {
        0 => {}
        1 => writeln!(out, "… 1 earlier out-of-memory error (see --json)")?,
        more => writeln!(out, "… {more} earlier out-of-memory errors (see --json)")?,
    }
    for (first, last, count) in errors.iter().skip(earlier) {
        write_error(out, first, gpus, clock)?;
        if *count > 1 {
            writeln!(out, "  … {} more like this, until {}", count - 1, clock.second(last.at))?;
        }
    }
    Ok(())
}

/// Writes an out-of-memory error; one that the program did not notice as a single line.
fn write_error(
    out: &mut TextPage<'_>,
    oom: &OutOfMemory,
    gpus: &[GpuLabel],
    clock: &WallClock,
) -> io::Result<()> {
    let text = sanitize(&out_of_memory_line(oom, gpus, clock)).into_owned();
    let is_noticed = oom.recovered.is_none();
    out.wrapped(if is_noticed { TextStyle::alarm } else { TextStyle::dim }, &text, 2)?;
    if !is_noticed {
        return Ok(());
    }
    write_stack(out, &oom.frames)?;
    for (index, (pid, program, bytes)) in oom.holders.iter().take(MAX_HOLDERS).enumerate() {
        let title = if index == 0 { "held by" } else { "" };
        writeln!(out, "  {title:7} {bytes:>12}  {} (pid {pid})", sanitize(program))?;
    }
    if let Some(more @ 1..) = oom.holders.len().checked_sub(MAX_HOLDERS) {
        writeln!(out, "  … {more} more process{}", if more == 1 { "" } else { "es" })?;
    }
    Ok(())
}

/// Returns what was requested, by which process and line, and when, as one sentence.
pub(crate) fn out_of_memory_line(
    oom: &OutOfMemory,
    gpus: &[GpuLabel],
    clock: &WallClock,
) -> String {
    let at = clock.second(oom.at);
    let thread = if oom.tid.0 == oom.pid.0 { String::new() } else { format!(", tid {}", oom.tid) };
    let what = if oom.recovered.is_some() { "retry" } else { "OUT OF MEMORY" };
    let request = out_of_memory_request(oom, gpus);
    format!("{what} at {at}: {} (pid {}{thread}) {request}", oom.name, oom.pid)
}

/// Returns what was requested, where, and what came of it.
pub(crate) fn out_of_memory_request(oom: &OutOfMemory, gpus: &[GpuLabel]) -> String {
    let requested = oom.requested.map_or_else(
        || "memory".to_owned(),
        |(kind, bytes)| {
            if kind == MemoryKind::Device { bytes.to_string() } else { format!("{bytes} {kind}") }
        },
    );
    let device = device_name(oom.device);
    if let Some(freed) = oom.recovered {
        return format!(
            "requested {requested} on {device}, and got it after PyTorch freed {freed} of its cache"
        );
    }
    let place = match oom.frames.is_empty() {
        true => String::new(),
        false => format!(" at {}", stack_location(&oom.frames)),
    };
    let too_large = larger_than(oom, gpus)
        .map_or_else(String::new, |total| format!(", which is more than the whole GPU ({total})"));
    let framework = oom.framework.map_or_else(String::new, |one| {
        format!(
            "; PyTorch gave up on {}: {} in tensors, {} reserved",
            one.requested, one.allocated, one.reserved
        )
    });
    format!("requested {requested} on {device}{place}{too_large}{framework}")
}

/// Returns the total memory of the GPU if the request exceeds it.
fn larger_than(oom: &OutOfMemory, gpus: &[GpuLabel]) -> Option<Bytes> {
    let (kind, requested) = oom.requested?;
    let gpu = match (oom.gpu, gpus) {
        (Some(id), _) => gpus.iter().find(|gpu| gpu.id == id)?,
        (None, [only]) => only,
        (None, _) => return None,
    };
    let is_larger = gpu.total_bytes > 0 && requested.0 > gpu.total_bytes;
    (is_larger && kind == MemoryKind::Device).then_some(Bytes(gpu.total_bytes))
}

#[cfg(test)]
mod tests {
    use engine::model::{CallStack, Pid, SiteName, Tid, Timestamp};

    use super::*;

    fn error(second: u64, pid: u32, bytes: u64) -> OutOfMemory {
        OutOfMemory {
            at: Timestamp(second * 1_000_000_000),
            pid: Pid(pid),
            tid: Tid(pid),
            name: "train".into(),
            device: None,
            gpu: None,
            requested: Some((MemoryKind::Device, Bytes(bytes))),
            site: None,
            site_name: SiteName::Unknown,
            frames: CallStack::default(),
            framework: None,
            recovered: None,
            holders: vec![(Pid(9), "other".into(), Bytes(1 << 20))],
        }
    }

    fn written(all: &[OutOfMemory]) -> String {
        let clock = WallClock::fixed(Timestamp(0), 0);
        let mut out = Vec::new();
        let page = &mut TextPage::new(&mut out, TextStyle::default());
        write_out_of_memory(page, all, &[], &clock).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn repeated_errors_are_listed_once() {
        let mut all: Vec<_> = (0..200).map(|second| error(second, 7, 512)).collect();
        all.insert(3, error(3, 8, 512));
        let text = written(&all);
        assert_eq!(text.matches("OUT OF MEMORY").count(), 2, "{text}");
        assert!(text.contains("… 199 more like this, until 00:03:19"), "{text}");
        let many: Vec<_> = (0..8).map(|number| error(number, 7, number)).collect();
        let text = written(&many);
        assert!(text.starts_with("… 3 earlier out-of-memory errors"), "{text}");
        assert!(text.contains("requested 7 B") && !text.contains("requested 2 B"), "{text}");
    }
}
