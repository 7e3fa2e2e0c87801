//! Three tables in the layout that scripts for Nsight Systems use: allocations with a call stack,
//! allocations of which only the driver function is known, and the rest. Each allocation and its
//! free are in one of them.

use std::io::{self, Write};

use engine::model::{
    AllocationChange, ChangeKind, EndReason, Frame, Language, MemoryKind, StackTable, Timestamp,
};

use crate::report::analysis::field;

const COLUMNS: &str =
    "PID\taddress\tstart_time\tbytes\tmem_kind\tmem_op_type\tvar_name\tcall_stack";

/// One table and its row count.
#[derive(Debug)]
pub struct TableOutput<W> {
    writer: W,
    /// Number of rows below the header.
    pub rows: u64,
}

/// The three tables.
#[derive(Debug)]
pub struct NsysTables<W> {
    /// Allocations with a call stack.
    pub valid: TableOutput<W>,
    /// Allocations with neither a call stack nor a driver function.
    pub invalid: TableOutput<W>,
    /// Allocations of which only the driver function is known.
    pub driver: TableOutput<W>,
    /// Number of omitted pool reservations: allocations from pools are already listed.
    pub left_out: u64,
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

impl<W: Write> NsysTables<W> {
    /// Writes the headers.
    pub fn new(valid: W, invalid: W, driver: W) -> io::Result<Self> {
        Ok(Self {
            valid: TableOutput::new(valid)?,
            invalid: TableOutput::new(invalid)?,
            driver: TableOutput::new(driver)?,
            left_out: 0,
        })
    }

    /// Writes a change. Times are relative to `origin`. Memory that was live at process exit has no
    /// free row, because no call freed it.
    pub fn change(
        &mut self,
        change: &AllocationChange,
        stacks: &StackTable,
        origin: Timestamp,
    ) -> io::Result<()> {
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
            change.site.map(|site| stacks.frames(site).collect()).unwrap_or_default();
        let synthetic = frames.iter().find(|frame| frame.language == Language::Synthetic);
        let synthetic = synthetic.map_or("", |frame| &*frame.function);
        let is_static = change.kind.is_static();
        let variable = if is_static { synthetic } else { "" };
        let stack: Vec<String> = frames
            .iter()
            .filter(|frame| frame.language != Language::Synthetic)
            .map(|frame| entry(frame))
            .collect();
        let (out, stack) = match (stack.is_empty(), synthetic.is_empty() || is_static) {
            (false, _) => (&mut self.valid, stack.join(" -> ")),
            (true, false) => (&mut self.driver, synthetic.to_owned()),
            (true, true) => (&mut self.invalid, String::new()),
        };
        out.rows += 1;
        writeln!(
            out.writer,
            "{}\t{}\t{}\t{}\t{kind}\t{operation}\t{}\t{}",
            change.pid,
            change.key.value,
            (change.at - origin).0,
            change.bytes,
            field(variable),
            field(&stack),
        )
    }

    /// Flushes all tables.
    pub fn finish(&mut self) -> io::Result<()> {
        for out in [&mut self.valid, &mut self.invalid, &mut self.driver] {
            out.writer.flush()?;
        }
        Ok(())
    }
}

impl<W: Write> TableOutput<W> {
    fn new(mut writer: W) -> io::Result<Self> {
        writeln!(writer, "{COLUMNS}")?;
        Ok(Self { writer, rows: 0 })
    }

    /// Returns the writer.
    pub fn into_inner(self) -> W {
        self.writer
    }
}

/// Formats a frame as `[function] (module)`.
fn entry(frame: &Frame) -> String {
    let function = if frame.function.is_empty() { "Unknown" } else { &*frame.function };
    let module = frame.module.as_deref().or(frame.file.as_deref()).unwrap_or("Unknown");
    format!("[{function}] ({module})")
}
