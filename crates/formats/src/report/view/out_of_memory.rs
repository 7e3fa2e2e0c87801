//! Out-of-memory errors: the request, its line, and the holders of the memory.

use std::io::{self, Write};

use engine::model::{Bytes, MemoryKind};
use engine::snapshot::OutOfMemory;

use super::leak_details::write_stack;
use super::{stack_location, table};
use crate::export::GpuLabel;
use crate::report::live::text::{TextStyle, device_name};
use crate::sanitize::sanitize;
use crate::wall_clock::WallClock;

/// Maximum number of listed holders.
const MAX_HOLDERS: usize = 10;

/// Writes an out-of-memory error; one that the program did not notice as a single line.
pub(crate) fn write_out_of_memory(
    out: &mut dyn Write,
    oom: &OutOfMemory,
    gpus: &[GpuLabel],
    clock: &WallClock,
    style: TextStyle,
) -> io::Result<()> {
    let text = sanitize(&out_of_memory_line(oom, gpus, clock)).into_owned();
    let is_noticed = oom.recovered.is_none();
    for line in table::wrap(&text, style.width, 2) {
        let line = if is_noticed { style.alarm(&line) } else { style.dim(&line) };
        writeln!(out, "{line}")?;
    }
    if !is_noticed {
        return Ok(());
    }
    write_stack(out, &oom.frames, style)?;
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
    let requested = oom.requested.map_or_else(
        || "memory".to_owned(),
        |(kind, bytes)| {
            if kind == MemoryKind::Device { bytes.to_string() } else { format!("{bytes} {kind}") }
        },
    );
    let at = clock.second(oom.at);
    let thread = if oom.tid.0 == oom.pid.0 { String::new() } else { format!(", tid {}", oom.tid) };
    let who = format!("{} (pid {}{thread})", oom.name, oom.pid);
    let device = device_name(oom.device);
    if let Some(freed) = oom.recovered {
        return format!(
            "retry at {at}: {who} requested {requested} on {device}, and got it after PyTorch freed \
             {freed} of its cache"
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
    format!(
        "OUT OF MEMORY at {at}: {who} requested {requested} on {device}{place}{too_large}{framework}"
    )
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
