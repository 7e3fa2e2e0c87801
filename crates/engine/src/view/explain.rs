//! Where the driver-reported memory of a process goes: parts that add up to the driver's value.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::model::{Bytes, OverheadCause, Precision};
use crate::snapshot::{
    CauseView, LibraryView, LimitView, ObjectCostView, OverheadView, ProcessView,
};

/// The memory of one process on all GPUs. The parts add up to `driver_bytes`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explanation<'a> {
    /// Process.
    pub process: &'a ProcessView,
    /// Memory that the driver reports for the process.
    pub driver_bytes: Bytes,
    /// Parts, largest first; the rest is the last.
    pub parts: Vec<ExplainedPart<'a>>,
    /// Limits that the process has set.
    pub limits: &'a [LimitView],
    /// Cost of objects by kind and site, most expensive first.
    pub objects: &'a [ObjectCostView],
}

/// A part of the memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExplainedPart<'a> {
    /// What it is.
    pub cause: PartCause<'a>,
    /// Size; only that of the rest and of memory allocated after the query can be negative.
    pub bytes: i64,
    /// Lower bound.
    pub min: u64,
    /// Upper bound.
    pub max: u64,
    /// How the size was obtained.
    pub precision: Precision,
    /// Number of allocations, objects or kernels; 0 where that does not apply.
    pub count: u64,
}

/// What a part is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PartCause<'a> {
    /// Traced allocations of a library.
    Library(&'a LibraryView),
    /// Memory without an allocating call.
    Overhead(OverheadCause),
    /// Traced memory that was freed after the driver was queried; negative if more was allocated.
    AfterQuery,
    /// What remains. Negative if traced memory is not in the driver's value yet.
    Rest,
}

impl PartCause<'_> {
    /// Name in JSON.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Library(_) => "library",
            Self::Overhead(cause) => cause.name(),
            Self::AfterQuery => "after_query",
            Self::Rest => "rest",
        }
    }

    /// Whether it is traced memory.
    pub const fn is_traced(&self) -> bool {
        matches!(self, Self::Library(_) | Self::AfterQuery)
    }

    /// Description for readers, with the number of objects.
    pub fn title(&self, count: u64) -> Cow<'_, str> {
        let number = |one: &str, many: &str| match count {
            0 => many.to_owned(),
            1 => format!("1 {one}"),
            n => format!("{n} {many}"),
        };
        match self {
            Self::Library(view) => Cow::Owned(format!("allocated by {}", view.library)),
            Self::Overhead(cause) => match cause {
                OverheadCause::Context => number("CUDA context", "CUDA contexts").into(),
                OverheadCause::Module => number("module", "modules and libraries").into(),
                OverheadCause::FirstLaunch => {
                    let kernels = number("kernel", "kernels");
                    format!("code and local memory of {kernels}").into()
                }
                OverheadCause::GraphExec => number("graph executable", "graph executables").into(),
                OverheadCause::Stream => number("stream", "streams").into(),
                OverheadCause::Limit => "heaps and stacks of cuCtxSetLimit".into(),
                OverheadCause::Pool => "memory that pools keep".into(),
                OverheadCause::GraphMemory => "memory that graphs keep".into(),
                OverheadCause::Rounding => "rounding of allocations".into(),
                OverheadCause::BeforeTrace => "from before the trace".into(),
            },
            Self::AfterQuery => "change since the report".into(),
            Self::Rest => "not explained".into(),
        }
    }

    /// What can be done about it.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Library(view) => library_advice(&view.library),
            Self::Overhead(cause) => match cause {
                OverheadCause::Context => {
                    "use fewer processes per GPU, or MPS, which shares one context"
                }
                OverheadCause::Module => "unload modules that are not needed, load each once",
                OverheadCause::FirstLaunch => {
                    "launch fewer different kernels; CUDA_MODULE_LOADING=LAZY loads only used ones"
                }
                OverheadCause::GraphExec => "capture fewer graphs or batch sizes, destroy old ones",
                OverheadCause::Stream => "create streams once and reuse them",
                OverheadCause::Limit => "lower limits: cudaDeviceSetLimit, cuCtxSetLimit",
                OverheadCause::Pool => "cuMemPoolTrimTo, or a lower release threshold",
                OverheadCause::GraphMemory => "cuDeviceGraphMemTrim",
                OverheadCause::Rounding => "make few large allocations instead of many small ones",
                OverheadCause::BeforeTrace => {
                    "trace from the start of the program, or run the agent, to see more"
                }
            },
            Self::AfterQuery => "traced memory is newer than the driver's value",
            Self::Rest => "local memory, device heap and printf buffer: see cuCtxSetLimit",
        }
    }
}

fn library_advice(library: &str) -> &'static str {
    match library {
        "PyTorch allocator" => "`vramscope report FILE fragmentation`, torch.cuda.empty_cache()",
        "NCCL" => "fewer communicators and channels, NCCL_BUFFSIZE",
        "cuBLAS" => "CUBLAS_WORKSPACE_CONFIG",
        "cuDNN" => "limit the workspace of convolutions",
        "cuFFT" => "destroy plans, or share a work area",
        "JAX" => "XLA_PYTHON_CLIENT_PREALLOCATE=false, XLA_PYTHON_CLIENT_MEM_FRACTION",
        "CuPy" => "free_all_blocks() of the memory pool, or a limit of its size",
        _ => "`vramscope trace --by site` shows the call stacks",
    }
}

/// Parts of one precision, and the rest, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PrecisionSums {
    /// Measured or counted.
    pub measured: u64,
    /// Bounded.
    pub bounded: u64,
    /// Estimated.
    pub estimated: u64,
    /// Not explained: the absolute value of the rest.
    pub unexplained: u64,
}

impl<'a> Explanation<'a> {
    /// Explains the memory of a process; `None` if the driver reports none.
    pub fn of(process: &'a ProcessView) -> Option<Self> {
        let driver_bytes = process.driver_bytes()?;
        let holds = |view: &&LibraryView| view.live_bytes.0 > 0;
        let libraries = process.libraries.iter().filter(holds).map(library_part);
        let causes = process.overhead.causes.iter().map(overhead_part);
        let mut parts: Vec<_> = libraries.chain(causes).chain(change_part(process)).collect();
        parts.sort_by_key(|part| Reverse(part.bytes));
        let sum = parts.iter().fold(0_i128, |sum, part| sum + i128::from(part.bytes));
        let rest = i128::from(driver_bytes.0) - sum;
        if rest != 0 {
            parts.push(signed_part(PartCause::Rest, rest));
        }
        let OverheadView { limits, objects, .. } = &process.overhead;
        Some(Self { process, driver_bytes, parts, limits, objects })
    }

    /// Sums by precision.
    pub fn sums(&self) -> PrecisionSums {
        let mut sums = PrecisionSums::default();
        let change = self.parts.iter().find(|part| part.cause == PartCause::AfterQuery);
        for part in self.parts.iter().filter(|part| part.cause != PartCause::AfterQuery) {
            let sum = match (&part.cause, part.precision) {
                (PartCause::Rest, _) => &mut sums.unexplained,
                (_, Precision::Measured) => &mut sums.measured,
                (_, Precision::Bounded) => &mut sums.bounded,
                (_, Precision::Estimated) => &mut sums.estimated,
            };
            *sum = sum.saturating_add(part.bytes.unsigned_abs());
        }
        sums.measured = sums.measured.saturating_add_signed(change.map_or(0, |part| part.bytes));
        sums
    }
}

fn signed(bytes: Bytes) -> i64 {
    i64::try_from(bytes.0).unwrap_or(i64::MAX)
}

/// Returns what of the traced memory the driver's value does not include yet, or still includes.
fn change_part(process: &ProcessView) -> Option<ExplainedPart<'_>> {
    let mut gpus: BTreeMap<_, (i128, i128)> = BTreeMap::new();
    for row in &process.devices {
        if let (Some(gpu), Some(then)) = (row.gpu, row.driver_traced) {
            let (before, now) = gpus.entry(gpu).or_default();
            *before = i128::from(then.0);
            *now += i128::from(row.live_bytes.0);
        }
    }
    let change: i128 = gpus.values().map(|(before, now)| before - now).sum();
    (change != 0).then(|| signed_part(PartCause::AfterQuery, change))
}

fn signed_part(cause: PartCause<'_>, bytes: i128) -> ExplainedPart<'_> {
    let bytes = i64::try_from(bytes).unwrap_or(if bytes < 0 { i64::MIN } else { i64::MAX });
    let size = bytes.unsigned_abs();
    ExplainedPart { cause, bytes, min: size, max: size, precision: Precision::Measured, count: 0 }
}

fn library_part(view: &LibraryView) -> ExplainedPart<'_> {
    ExplainedPart {
        cause: PartCause::Library(view),
        bytes: signed(view.live_bytes),
        min: view.live_bytes.0,
        max: view.live_bytes.0,
        precision: Precision::Measured,
        count: view.live_allocations,
    }
}

fn overhead_part<'a>(view: &CauseView) -> ExplainedPart<'a> {
    ExplainedPart {
        cause: PartCause::Overhead(view.cause),
        bytes: signed(view.bytes),
        min: view.min.0,
        max: view.max.0,
        precision: view.precision,
        count: view.count,
    }
}
