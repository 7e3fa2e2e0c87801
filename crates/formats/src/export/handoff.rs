//! Three tables in the shape that scripts around Nsight Systems use: allocations with a call stack,
//! those of which only the driver function is known, and the rest. Each allocation is in one of them,
//! with its beginning and its end.

use std::io::{self, Write};

use engine::change::{Change, How, Turn};
use engine::kind::Kind;
use engine::stack::{Frame, Language, Stacks};
use engine::units::Moment;

use super::analysis::field;

const COLUMNS: &str =
    "PID\taddress\tstart_time\tbytes\tmem_kind\tmem_op_type\tvar_name\tcall_stack";

/// Where a table goes, and how many rows it has.
#[derive(Debug)]
pub struct Out<W> {
    writer: W,
    /// Rows below the header.
    pub rows: u64,
}

/// The three tables.
#[derive(Debug)]
pub struct Tables<W> {
    /// With a call stack.
    pub valid: Out<W>,
    /// With neither a call stack nor a driver function.
    pub invalid: Out<W>,
    /// With the driver function only.
    pub driver: Out<W>,
    /// Reserves of pools: what is allocated from them is there already.
    pub left_out: u64,
}

/// How Nsight Systems spells a kind; none for what it does not tell as memory of its own.
#[must_use]
pub const fn kind_name(kind: Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::Device | Kind::Physical | Kind::Graph | Kind::Async | Kind::Torch => {
            "CUDA_MEMOPR_MEMORY_KIND_DEVICE"
        }
        Kind::Array => "CUDA_MEMOPR_MEMORY_KIND_ARRAY",
        Kind::Managed => "CUDA_MEMOPR_MEMORY_KIND_MANAGED",
        Kind::Pinned | Kind::Registered | Kind::HostPhysical | Kind::HostAsync => {
            "CUDA_MEMOPR_MEMORY_KIND_PINNED"
        }
        Kind::Pageable => "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE",
        Kind::Static => "CUDA_MEMOPR_MEMORY_KIND_DEVICE_STATIC",
        Kind::ManagedStatic => "CUDA_MEMOPR_MEMORY_KIND_MANAGED_STATIC",
        Kind::Imported | Kind::Unknown => "CUDA_MEMOPR_MEMORY_KIND_UNKNOWN",
        Kind::Pool => return None,
    })
}

impl<W: Write> Tables<W> {
    /// Writes the headers.
    pub fn new(valid: W, invalid: W, driver: W) -> io::Result<Self> {
        Ok(Self {
            valid: Out::new(valid)?,
            invalid: Out::new(invalid)?,
            driver: Out::new(driver)?,
            left_out: 0,
        })
    }

    /// Writes a change. Times count from `origin`. What its process left at its end has no row, as
    /// no call freed it.
    pub fn change(&mut self, change: &Change, stacks: &Stacks, origin: Moment) -> io::Result<()> {
        let operation = match change.what {
            Turn::Began => "CUDA_DEV_MEM_EVENT_OPR_ALLOCATION",
            Turn::Ended { how: How::Freed | How::Replaced | How::Released, .. } => {
                "CUDA_DEV_MEM_EVENT_OPR_DEALLOCATION"
            }
            Turn::Ended { how: How::Exited, .. } | Turn::Learned { .. } => return Ok(()),
        };
        let Some(kind) = kind_name(change.kind) else {
            self.left_out += 1;
            return Ok(());
        };
        let frames: Vec<&Frame> =
            change.site.map(|site| stacks.frames(site).collect()).unwrap_or_default();
        let remark = frames.iter().find(|frame| frame.language == Language::Remark);
        let remark = remark.map_or("", |frame| &*frame.function);
        let is_static = change.kind.is_static();
        let variable = if is_static { remark } else { "" };
        let stack: Vec<String> = frames
            .iter()
            .filter(|frame| frame.language != Language::Remark)
            .map(|frame| entry(frame))
            .collect();
        let (out, stack) = match (stack.is_empty(), remark.is_empty() || is_static) {
            (false, _) => (&mut self.valid, stack.join(" -> ")),
            (true, false) => (&mut self.driver, remark.to_owned()),
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

    /// Makes sure that everything is written.
    pub fn finish(&mut self) -> io::Result<()> {
        for out in [&mut self.valid, &mut self.invalid, &mut self.driver] {
            out.writer.flush()?;
        }
        Ok(())
    }
}

impl<W: Write> Out<W> {
    fn new(mut writer: W) -> io::Result<Self> {
        writeln!(writer, "{COLUMNS}")?;
        Ok(Self { writer, rows: 0 })
    }

    /// What was written to.
    pub fn into_inner(self) -> W {
        self.writer
    }
}

/// `[function] (module)`.
fn entry(frame: &Frame) -> String {
    let function = if frame.function.is_empty() { "Unknown" } else { &*frame.function };
    let module = frame.module.as_deref().or(frame.file.as_deref()).unwrap_or("Unknown");
    format!("[{function}] ({module})")
}
