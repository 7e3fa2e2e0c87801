//! The immutable state that all outputs read. Created by [`crate::ledger::Ledger::snapshot`], at a
//! cost that depends on what is shown, not on the number of live allocations.

mod activity;
mod ended_history;
mod libraries;
mod list_scope;
mod measurement;
mod not_freed;
mod out_of_memory;
mod overhead;
mod shared_memory;
mod sites;
mod uncertainty;

pub use activity::{ActivityView, CopyView, KernelView};
pub use ended_history::EndedHistory;
pub use libraries::LibraryView;
pub use list_scope::ListScope;
pub use measurement::{KeptSite, Measurement, TensorLevels};
pub use not_freed::{NotFreed, NotFreedSite};
pub use out_of_memory::{FrameworkOom, OutOfMemory};
pub use overhead::{CauseView, LimitView, ObjectCostView, OverheadView};
pub use shared_memory::{ShareRole, SharedMemoryView};
pub use sites::{SiteHistory, SiteKindView, SiteProcess, SiteView};
pub use uncertainty::{LostTotals, ReceivedCalls, Uncertainty};

use crate::model::{
    AllocationKey, Allocator, AllocatorView, Bytes, Container, DeviceHolder, DeviceId, FunctionId,
    GpuId, Mark, MemoryKind, MemoryLayer, MigInstance, Nanos, Pid, PoolId, ProcessIdentity,
    ProcessKey, SiteName, Tid, Timestamp,
};
use crate::verdict::{Anomaly, SiteVerdict};

use std::collections::BTreeMap;
use std::sync::Arc;

pub use crate::model::cuda_object::{ObjectView, SiteObjectView};

/// Sort order of allocations, threads and processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SortOrder {
    /// Largest first.
    #[default]
    Size,
    /// Oldest allocation first; processes and threads by their oldest allocation.
    Age,
    /// Most allocations first; allocations themselves by size.
    Count,
}

/// Options of a snapshot. Only lists are filtered, never totals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotOptions {
    /// Maximum number of allocations listed per thread.
    pub top: usize,
    /// Smaller allocations are not listed.
    pub min_size: Bytes,
    /// Younger allocations are not listed.
    pub min_age: Nanos,
    /// Sort order.
    pub sort: SortOrder,
    /// Maximum number of sites listed, overall and per process.
    pub top_sites: usize,
    /// Include the sites of all ended processes in the list of all sites: for the last report.
    pub ended_sites: bool,
    /// Processes whose sites and allocations are listed.
    pub lists: ListScope,
}

impl SnapshotOptions {
    /// Default options.
    pub const DEFAULT: Self = Self {
        top: 10,
        min_size: Bytes(0),
        min_age: Nanos(0),
        sort: SortOrder::Size,
        top_sites: 10,
        ended_sites: false,
        lists: ListScope::All,
    };

    /// Maximum number of sites listed of a process.
    pub fn sites_of(&self, pid: Pid) -> usize {
        if self.lists.includes(pid) { self.top_sites } else { 0 }
    }
}

impl Default for SnapshotOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Maximum number of functions in [`Snapshot::unknown_calls`]; the last one stands for all others.
pub const MAX_UNKNOWN_FUNCTIONS: usize = 64;

/// State of the ledger at one time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// Time of the snapshot.
    pub at: Timestamp,
    /// Time since the first event of the trace.
    pub observed: Nanos,
    /// Whether running processes may go on, so that short growth stays undecided. Files of other
    /// tools are classified as of their end.
    pub is_live: bool,
    /// Live device memory of all running processes.
    pub live_bytes: Bytes,
    /// Live allocations of all kinds of all running processes.
    pub live_allocations: u64,
    /// Whether all values are exact, and if not, why.
    pub uncertainty: Uncertainty,
    /// Calls of memory functions that this version does not know, by function (untrusted), over the
    /// whole trace.
    pub unknown_calls: BTreeMap<Box<str>, u64>,
    /// Running processes that have called the driver, and processes that ended since the last
    /// snapshot.
    pub processes: Vec<ProcessView>,
    /// The first out-of-memory errors since the last snapshot.
    pub out_of_memory: Vec<OutOfMemory>,
    /// Number of out-of-memory errors by the GPU whose memory was requested; `None` if it is
    /// unknown, or other memory was requested.
    pub ooms_by_gpu: Vec<(Option<GpuId>, u64)>,
    /// Allocation sites of running processes, see [`SnapshotOptions::ended_sites`].
    pub sites: Vec<SiteView>,
    /// Number of sites; the list may be shorter.
    pub sites_total: u64,
    /// Number of allocating calls of those processes, of all kinds.
    pub allocations_total: u64,
    /// Of those: without a known stack.
    pub without_stack: u64,
    /// Sites of blocks in frameworks' caches, with their own totals; not included elsewhere.
    pub tensor_sites: Vec<SiteView>,
    /// Number of such sites; the list may be shorter.
    pub tensor_sites_total: u64,
    /// Sites that leak, worst first.
    pub suspects: Vec<SiteVerdict>,
    /// Number of suspects; the list may be shorter.
    pub suspects_total: u64,
    /// Verdicts on the largest other sites.
    pub other_verdicts: Vec<SiteVerdict>,
    /// Anomalies since the last snapshot; in the last report, all that are kept.
    pub anomalies: Vec<Anomaly>,
    /// Driver-reported memory of GPUs, ordered by id, where known.
    pub gpus: Vec<GpuView>,
    /// Processes that have a GPU open and that the driver does not list, oldest first.
    pub device_holders: Vec<DeviceHolder>,
    /// Marks since the last snapshot; in the last report, the newest.
    pub marks: Vec<Mark>,
    /// Memory that ended processes had not freed, only with [`SnapshotOptions::ended_sites`].
    pub not_freed: Vec<NotFreed>,
}

impl Snapshot {
    /// Returns the processes that have not ended.
    pub fn running(&self) -> impl Iterator<Item = &ProcessView> + Clone {
        self.processes.iter().filter(|process| process.ended.is_none())
    }

    /// Uncertainty of all processes that the snapshot lists. Its bounds include the memory that
    /// ended processes had not freed.
    pub fn listed_uncertainty(&self) -> Uncertainty {
        let mut uncertainty = self.uncertainty.clone();
        for process in self.processes.iter().filter(|process| process.ended.is_some()) {
            let own = &process.uncertainty;
            let add = |sum: Bytes, more: Bytes| Bytes(sum.0.saturating_add(more.0));
            uncertainty.live_min = add(uncertainty.live_min, own.live_min);
            uncertainty.live_max = add(uncertainty.live_max, own.live_max);
            uncertainty.before_trace |= own.before_trace;
            uncertainty.unknown_context += own.unknown_context;
            uncertainty.ambiguous_calls += own.ambiguous_calls;
        }
        uncertainty
    }
}

/// Growth that is too short for a verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Undecided {
    /// Number of sites.
    pub sites: u64,
    /// Time until all of them can be classified.
    pub wait: Nanos,
}

impl Snapshot {
    /// Marks it as the state when capture ended early: nothing after it was seen. Processes that
    /// exited before are still exact.
    pub fn mark_capture_ended(&mut self, at: Timestamp) {
        self.uncertainty.capture_ended = Some(at);
        for process in self.processes.iter_mut().filter(|process| process.ended.is_none()) {
            process.uncertainty.capture_ended = Some(at);
        }
    }
}

/// A GPU, as reported by the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuView {
    /// GPU.
    pub gpu: GpuId,
    /// Free memory.
    pub free_bytes: Bytes,
    /// Growth of its used memory per hour; `None` if it was observed for too short a time.
    pub growth_per_hour: Option<i64>,
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessEnd {
    /// It exited or was killed.
    Exited,
    /// It executed another program.
    Exec,
}

/// One process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProcessView {
    /// Process.
    pub key: ProcessKey,
    /// User id of the owner; `None` if it could not be read.
    pub uid: Option<u32>,
    /// Name (untrusted).
    pub name: Box<str>,
    /// Program and user, where known.
    pub identity: ProcessIdentity,
    /// Container that it runs in.
    pub container: Option<Arc<Container>>,
    /// MIG instance on which it runs.
    pub mig: Option<Arc<MigInstance>>,
    /// Set if it ended since the last snapshot; the values are those at its end.
    pub ended: Option<ProcessEnd>,
    /// Whether it ran before tracing began, so that it may hold memory from before the trace.
    pub before_trace: bool,
    /// Live device memory.
    pub live_bytes: Bytes,
    /// Live allocations of all kinds.
    pub live_allocations: u64,
    /// Peak of the live device memory.
    pub peak_bytes: Bytes,
    /// When the peak was reached.
    pub peak_at: Timestamp,
    /// Lower and upper bound of the peak, if calls of several threads overlapped in a way that
    /// leaves their order in the driver unknown.
    pub peak_bounds: Option<(Bytes, Bytes)>,
    /// Successful allocating calls of all kinds.
    pub allocations_total: u64,
    /// Frees by the program, of all kinds: allocations ended by calls, including graph launches.
    /// Imported memory counts once per opening, here as well as in allocations and releases.
    pub frees_total: u64,
    /// Allocations released by the end of a context, without a call.
    pub released_total: u64,
    /// Failed allocating calls.
    pub failed_allocations: u64,
    /// Frees of unknown pointers: allocated before tracing, or by a call whose record was lost.
    pub unknown_frees: u64,
    /// Calls whose records arrived.
    pub received_calls: ReceivedCalls,
    /// Failed calls by function and code, most frequent first.
    pub failures: Vec<FailedCallCount>,
    /// Device memory by device; `None` contains memory that could not be attributed.
    pub devices: Vec<DeviceView>,
    /// Live bytes and allocations by kind; only kinds with live memory.
    pub kinds: Vec<KindView>,
    /// Threads with live memory.
    pub threads: Vec<ThreadView>,
    /// Memory pools with allocations or a known reserve.
    pub pools: Vec<PoolView>,
    /// Size of reserved address space, which is not memory.
    pub reserved_addresses: Bytes,
    /// Memory that it shares with other processes.
    pub shared_memory: Vec<SharedMemoryView>,
    /// API misuse that the driver accepted or rejected.
    pub api_misuse: ApiMisuse,
    /// Launches and copies, if they are counted.
    pub activity: Option<ActivityView>,
    /// CUDA objects, of all kinds that it ever created or destroyed.
    pub objects: Vec<ObjectView>,
    /// Use of that memory by allocators inside the process, if requested.
    pub allocators: Vec<AllocatorView>,
    /// Sites of its memory and objects.
    pub sites: Vec<SiteView>,
    /// Number of sites; the list may be shorter. 0 if [`SnapshotOptions::lists`] excludes them.
    pub sites_total: u64,
    /// What it holds by library, largest first.
    pub libraries: Vec<LibraryView>,
    /// Driver-reported memory beyond traced allocations, by cause.
    pub overhead: OverheadView,
    /// Growth of its driver-reported usage per hour, or of its live device memory if the driver
    /// reports none; `None` if it was observed for too short a time, or ended.
    pub growth_per_hour: Option<i64>,
    /// Sites that grow, but not yet for long enough for a verdict.
    pub undecided: Option<Undecided>,
    /// Losses in this process.
    pub uncertainty: Uncertainty,
}

impl ProcessView {
    /// PyTorch's cache, if the process has one.
    pub fn torch(&self) -> impl Iterator<Item = &AllocatorView> {
        self.allocators.iter().filter(|view| view.allocator == Allocator::PyTorch)
    }

    /// Program, or else the name of the process (untrusted).
    pub fn program(&self) -> &str {
        self.identity.program_or(&self.name)
    }

    /// Driver-reported usage on all GPUs, if the driver reports any.
    pub fn driver_bytes(&self) -> Option<Bytes> {
        let rows = self.devices.iter();
        let gpus: BTreeMap<_, _> =
            rows.filter_map(|row| Some((row.gpu?, row.driver_bytes?.0))).collect();
        let all = gpus.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        (!gpus.is_empty()).then_some(Bytes(all))
    }

    /// Driver-reported usage on all GPUs minus traced memory.
    pub fn untracked(&self) -> Option<Bytes> {
        // Driver-reported usage is per GPU, even if several devices are parts of it.
        let gpus: BTreeMap<_, _> = self
            .devices
            .iter()
            .filter_map(|row| Some((row.gpu?, row.untracked_max()?.0)))
            .collect();
        let all = gpus.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        let unplaced = self.devices.iter().map(|row| row.driver_unplaced.0).max();
        (!gpus.is_empty()).then(|| Bytes(all.saturating_sub(unplaced.unwrap_or(0))))
    }

    /// Live memory of the process itself, on device and host. Excludes imported memory and pool
    /// reserves; allocations from pools are included.
    pub fn not_freed(&self) -> Bytes {
        let own = self.kinds.iter().filter(|view| {
            matches!(
                view.kind.layer(),
                MemoryLayer::Physical
                    | MemoryLayer::Used
                    | MemoryLayer::Managed
                    | MemoryLayer::Host
            )
        });
        Bytes(own.fold(0, |sum, view| sum.saturating_add(view.live_bytes.0)))
    }
}

/// Failed calls of one function with one code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailedCallCount {
    /// Function.
    pub function: FunctionId,
    /// `CUresult`.
    pub code: i32,
    /// Number of calls.
    pub count: u64,
}

/// Memory of one process on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceView {
    /// Device ordinal in the process.
    pub device: Option<DeviceId>,
    /// Live device memory.
    pub live_bytes: Bytes,
    /// Peak of the device memory of this process on it.
    pub peak_bytes: Bytes,
    /// Lower and upper bound of the peak, if overlapping calls leave it undetermined.
    pub peak_bounds: Option<(Bytes, Bytes)>,
    /// GPU of the host, if known.
    pub gpu: Option<GpuId>,
    /// Driver-reported usage of the process on that GPU.
    pub driver_bytes: Option<Bytes>,
    /// Traced memory on that GPU at the time of the driver's report.
    pub driver_traced: Option<Bytes>,
    /// Traced memory on unknown devices at that time: any part of it may be on that GPU.
    pub driver_unplaced: Bytes,
    /// Memory that graphs reserve on the device, as last reported by the driver.
    pub graph_reserved: Option<DriverReported>,
}

impl DeviceView {
    /// Driver-reported usage minus traced memory: contexts, code, local memory, pool slack, and
    /// memory from before the trace. A lower bound if memory on unknown devices was traced.
    pub fn untracked(&self) -> Option<Bytes> {
        let most = self.untracked_max()?;
        Some(Bytes(most.0.saturating_sub(self.driver_unplaced.0)))
    }

    /// The same if no traced memory on unknown devices is on this GPU.
    pub fn untracked_max(&self) -> Option<Bytes> {
        let (driver, traced) = (self.driver_bytes?, self.driver_traced?);
        Some(Bytes(driver.0.saturating_sub(traced.0)))
    }
}

/// A value that the driver reported to the program, with its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriverReported {
    /// Value.
    pub bytes: Bytes,
    /// Time of the report.
    pub at: Timestamp,
}

/// A memory pool of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolView {
    /// Pool; `None` is a device's default pool whose handle is unknown.
    pub pool: Option<PoolId>,
    /// Device; `None` for host memory or if it is unknown.
    pub device: Option<DeviceId>,
    /// Memory allocated from it.
    pub used: Bytes,
    /// Number of live allocations.
    pub allocations: u64,
    /// Device memory that it holds, as last reported by the driver.
    pub reserved: Option<DriverReported>,
    /// Whether it was destroyed by the program, and is kept because of its live allocations.
    pub destroyed: bool,
}

/// Calls that indicate a bug in the program, whether or not the driver accepted them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ApiMisuse {
    /// Rejected frees of a pointer or handle that was freed recently.
    pub double_frees: u64,
    /// Rejected frees of an unknown pointer or handle.
    pub invalid_frees: u64,
    /// Frees with a function that is meant for another kind of memory.
    pub mismatched_frees: u64,
    /// Physical memory whose last handle was released while it was mapped. This is legal, and some
    /// libraries rely on it, but the memory stays allocated until it is unmapped.
    pub released_while_mapped: u64,
}

impl ApiMisuse {
    /// Whether there was no misuse.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Live memory of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KindView {
    /// Kind.
    pub kind: MemoryKind,
    /// Live bytes.
    pub live_bytes: Bytes,
    /// Live allocations.
    pub live_allocations: u64,
    /// Allocations of unknown size, such as memory opened with an IPC handle. Not included in
    /// `live_bytes`.
    pub unknown_sizes: u64,
}

/// Live memory that one thread allocated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadView {
    /// Thread.
    pub tid: Tid,
    /// Name (untrusted).
    pub name: Box<str>,
    /// Live device memory.
    pub live_bytes: Bytes,
    /// Live allocations of all kinds.
    pub live_allocations: u64,
    /// Live bytes and allocations by kind; only kinds with live memory.
    pub kinds: Vec<KindView>,
    /// Top allocations, filtered and sorted by the options.
    pub allocations: Vec<AllocationView>,
}

/// One live allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocationView {
    /// Key.
    pub key: AllocationKey,
    /// Device ordinal in the process.
    pub device: Option<DeviceId>,
    /// Size.
    pub bytes: Bytes,
    /// Memory kind.
    pub kind: MemoryKind,
    /// Age.
    pub age: Nanos,
    /// Allocation site.
    pub site: SiteName,
    /// Baseline of its site or process, if this allocation is a size anomaly.
    pub baseline: Option<Bytes>,
}
