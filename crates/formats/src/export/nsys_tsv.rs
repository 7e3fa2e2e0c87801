//! Three tables in the layout that scripts for Nsight Systems use: allocations with a call stack,
//! allocations of which only the driver function is known, and the rest. Each allocation and its
//! free are in one of them.

use std::io::{self, Write};

use engine::model::{AllocationChange, ChangeKind, EndReason, Frame, Language, MemoryKind};

use super::format_writer::FormatWriter;
use crate::import::collecting_sink::FileInfo;
use crate::report::analysis::field;

const COLUMNS: &str =
    "PID\taddress\tstart_time\tbytes\tmem_kind\tmem_op_type\tvar_name\tcall_stack";

/// File names of the tables: allocations with a call stack, with neither a call stack nor a driver
/// function, and with a driver function only.
pub const FILES: [&str; 3] = ["valid.tsv", "invalid.tsv", "driver.tsv"];

/// Writes the three tables.
#[derive(Debug)]
pub struct NsysTables<'a, W> {
    /// In the order of [`FILES`].
    tables: &'a mut [W; 3],
    /// Number of omitted pool reservations: allocations from pools are already listed.
    left_out: u64,
}

/// Returns the Nsight Systems name of a kind; none for kinds that it does not report as memory.
pub const fn kind_name(kind: MemoryKind) -> Option<&'static str> {
    Some(match kind {
        MemoryKind::Device
        | MemoryKind::Physical
        | MemoryKind::Graph
        | MemoryKind::Async
        | MemoryKind::Torch
        | MemoryKind::CuPy
        | MemoryKind::Xla
        | MemoryKind::Rmm
        | MemoryKind::OnnxRuntime => "CUDA_MEMOPR_MEMORY_KIND_DEVICE",
        MemoryKind::Array => "CUDA_MEMOPR_MEMORY_KIND_ARRAY",
        MemoryKind::Managed => "CUDA_MEMOPR_MEMORY_KIND_MANAGED",
        MemoryKind::Pinned
        | MemoryKind::Registered
        | MemoryKind::HostPhysical
        | MemoryKind::HostAsync => "CUDA_MEMOPR_MEMORY_KIND_PINNED",
        MemoryKind::Pageable => "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE",
        MemoryKind::Static => "CUDA_MEMOPR_MEMORY_KIND_DEVICE_STATIC",
        MemoryKind::ManagedStatic => "CUDA_MEMOPR_MEMORY_KIND_MANAGED_STATIC",
        MemoryKind::Imported | MemoryKind::Unknown => "CUDA_MEMOPR_MEMORY_KIND_UNKNOWN",
        MemoryKind::Pool => return None,
    })
}

impl<'a, W: Write> NsysTables<'a, W> {
    /// Writes the headers.
    pub fn new(tables: &'a mut [W; 3]) -> io::Result<Self> {
        tables.iter_mut().try_for_each(|table| writeln!(table, "{COLUMNS}"))?;
        Ok(Self { tables, left_out: 0 })
    }
}

impl<W: Write> FormatWriter for NsysTables<'_, W> {
    /// Memory that was live at process exit has no free row, because no call freed it.
    fn change(&mut self, change: &AllocationChange, info: &FileInfo) -> io::Result<()> {
        let operation = match change.action {
            ChangeKind::Allocated => "CUDA_DEV_MEM_EVENT_OPR_ALLOCATION",
            ChangeKind::Ended {
                reason: EndReason::Freed | EndReason::Replaced | EndReason::Released,
                ..
            } => "CUDA_DEV_MEM_EVENT_OPR_DEALLOCATION",
            ChangeKind::Ended { reason: EndReason::ProcessExited, .. }
            | ChangeKind::Updated { .. } => return Ok(()),
        };
        let Some(kind) = kind_name(change.kind) else {
            self.left_out += 1;
            return Ok(());
        };
        let frames: Vec<&Frame> =
            change.site.map(|site| info.stacks.frames(site).collect()).unwrap_or_default();
        let synthetic = frames.iter().find(|frame| frame.language == Language::Synthetic);
        let synthetic = synthetic.map_or("", |frame| &*frame.function);
        let is_static = change.kind.is_static();
        let variable = if is_static { synthetic } else { "" };
        let stack: Vec<String> = frames
            .iter()
            .filter(|frame| frame.language != Language::Synthetic)
            .map(|frame| entry(frame))
            .collect();
        let [valid, invalid, driver] = &mut *self.tables;
        let (out, stack) = match (stack.is_empty(), synthetic.is_empty() || is_static) {
            (false, _) => (valid, stack.join(" -> ")),
            (true, false) => (driver, synthetic.to_owned()),
            (true, true) => (invalid, String::new()),
        };
        writeln!(
            out,
            "{}\t{}\t{}\t{}\t{kind}\t{operation}\t{}\t{}",
            change.pid,
            change.key.value,
            (change.at - info.origin()).0,
            change.bytes,
            field(variable),
            field(&stack),
        )
    }

    fn finish(self: Box<Self>, _: &FileInfo) -> io::Result<Vec<String>> {
        self.tables.iter_mut().try_for_each(Write::flush)?;
        let note = format!(
            "{} changes of pool reservations skipped; allocations from pools are included",
            self.left_out
        );
        Ok(if self.left_out > 0 { vec![note] } else { Vec::new() })
    }
}

/// Formats a frame as `[function] (module)`.
fn entry(frame: &Frame) -> String {
    let function = if frame.function.is_empty() { "Unknown" } else { &*frame.function };
    let module = frame.module.as_deref().or(frame.file.as_deref()).unwrap_or("Unknown");
    format!("[{function}] ({module})")
}
