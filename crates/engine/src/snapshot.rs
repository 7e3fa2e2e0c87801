//! The immutable view that every output reads. Made by [`crate::ledger::Ledger::snapshot`], at a
//! cost that depends on what is shown, not on how much is live.

mod activity;
mod certainty;

pub use activity::{CopyView, KernelView, WorkView};
pub use certainty::{Certainty, Loss, ReceivedCalls};

use crate::container::Container;
use crate::ids::{DeviceId, FunctionId, GpuId, Key, Pid, PoolId, ProcessKey, SiteId, Tid};
use crate::kind::{Kind, Layer};
use crate::stack::{Frame, SiteName};
use crate::tensor::TorchView;
use crate::units::{Bytes, Moment, Nanos};
use crate::verdict::{Anomaly, Judgement};

use std::collections::BTreeMap;
use std::sync::Arc;

pub use crate::object::{ObjectView, SiteObjectView};

/// How allocations, threads and processes are ordered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sort {
    /// Biggest first.
    #[default]
    Size,
    /// Oldest allocation first; processes and threads by their oldest allocation.
    Age,
    /// Most allocations first; allocations themselves by size.
    Count,
}

/// What a snapshot shows. Totals are never filtered, only lists are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    /// The most allocations listed per thread.
    pub top: usize,
    /// Leave smaller allocations out of the lists.
    pub min_size: Bytes,
    /// Leave younger allocations out of the lists.
    pub older: Nanos,
    /// The order.
    pub sort: Sort,
    /// The most sites listed, of all and of each process.
    pub top_sites: usize,
    /// Every process that ever ended counts in the list of all sites, not only those that run: for
    /// the last report.
    pub ended_sites: bool,
}

impl View {
    /// What is shown where nothing else is said.
    pub const DEFAULT: Self = Self {
        top: 10,
        min_size: Bytes(0),
        older: Nanos(0),
        sort: Sort::Size,
        top_sites: 10,
        ended_sites: false,
    };
}

impl Default for View {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Everything at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// The moment.
    pub at: Moment,
    /// Device memory of all processes that run.
    pub live_bytes: Bytes,
    /// Live allocations of every kind of all processes that run.
    pub live_allocations: u64,
    /// Whether every figure is exact, and if not, why.
    pub certainty: Certainty,
    /// Processes that run and have called the driver, and those that ended since the last snapshot.
    pub processes: Vec<ProcessView>,
    /// Out-of-memory errors since the last snapshot, the first ones of them.
    pub out_of_memory: Vec<OutOfMemory>,
    /// How many, by the GPU whose memory was asked for; `None` where it is not known, or none was.
    pub ran_out: Vec<(Option<GpuId>, u64)>,
    /// Where memory came from: sites of the processes that run, see [`View::ended_sites`].
    pub sites: Vec<SiteView>,
    /// How many there are; the list may be shorter.
    pub sites_total: u64,
    /// Allocating calls of those processes, of every kind.
    pub allocations_total: u64,
    /// Of those: that no stack is known of.
    pub without_stack: u64,
    /// Where blocks of frameworks' caches came from, with their figures; in no other sum.
    pub tensor_sites: Vec<SiteView>,
    /// How many there are; the list may be shorter.
    pub tensor_sites_total: u64,
    /// Places that leak, the worst first.
    pub suspects: Vec<Judgement>,
    /// How many there are; the list may be shorter.
    pub suspects_total: u64,
    /// What is thought of the biggest other places.
    pub judgements: Vec<Judgement>,
    /// What was unusual since the last snapshot; in the last report all that is remembered.
    pub anomalies: Vec<Anomaly>,
    /// The driver's own account of GPUs, in the order of their ids, where it was told.
    pub gpus: Vec<GpuView>,
}

/// A GPU, by the driver's own account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuView {
    /// Which.
    pub gpu: GpuId,
    /// Memory that nobody holds.
    pub free_bytes: Bytes,
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// It exited or was killed.
    Exited,
    /// It replaced its program.
    Replaced,
}

/// One process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessView {
    /// Who.
    pub key: ProcessKey,
    /// The owner; `None` when it could not be read.
    pub uid: Option<u32>,
    /// Its name (hostile text).
    pub name: Box<str>,
    /// The container that it runs in.
    pub container: Option<Arc<Container>>,
    /// Ended since the last snapshot: the figures are what it held at that moment.
    pub ended: Option<End>,
    /// It ran before tracing began and may hold memory that was never seen.
    pub before_trace: bool,
    /// Device memory it holds.
    pub live_bytes: Bytes,
    /// Live allocations of every kind.
    pub live_allocations: u64,
    /// The most device memory it held at one time.
    pub peak_bytes: Bytes,
    /// When that was.
    pub peak_at: Moment,
    /// The least and the most that the peak can have been, where calls of several threads overlapped
    /// so that nobody outside the driver can tell their order.
    pub peak_bounds: Option<(Bytes, Bytes)>,
    /// Allocating calls that succeeded, all kinds.
    pub allocations_total: u64,
    /// Frees by the program, all kinds: allocations that calls ended, a launch of a graph included.
    /// Imported memory counts once per opening, here as among the allocations and the releases.
    pub frees_total: u64,
    /// Allocations that a context's end released without a call.
    pub released_total: u64,
    /// Allocating calls that failed.
    pub failed_allocations: u64,
    /// Frees of pointers never seen: allocated before tracing, or by a call whose record was lost.
    pub unknown_frees: u64,
    /// Calls whose records arrived.
    pub received_calls: ReceivedCalls,
    /// Failed calls by function and code, most frequent first.
    pub failures: Vec<FailureCount>,
    /// Device memory by device; `None` collects what could not be attributed.
    pub devices: Vec<DeviceView>,
    /// Live bytes and allocations by kind; only kinds that hold something.
    pub kinds: Vec<KindView>,
    /// Threads that hold something.
    pub threads: Vec<ThreadView>,
    /// Memory pools that are in use or told something about themselves.
    pub pools: Vec<PoolView>,
    /// Address space that is reserved; never memory.
    pub reserved_addresses: Bytes,
    /// Mistakes that the driver forgave or refused.
    pub mistakes: Mistakes,
    /// Launches and copies, where they are counted.
    pub work: Option<WorkView>,
    /// Objects that are no memory, of every kind that it ever made or destroyed.
    pub objects: Vec<ObjectView>,
    /// What PyTorch's cache does with its part of that memory, where that was asked for.
    pub torch: Option<TorchView>,
    /// Where its memory and its objects came from.
    pub sites: Vec<SiteView>,
    /// How many sites there are; the list may be shorter.
    pub sites_total: u64,
    /// Losses in this process.
    pub certainty: Certainty,
}

impl ProcessView {
    /// What the driver's account of all GPUs has beyond what was traced, wherever that is.
    #[must_use]
    pub fn untracked(&self) -> Option<Bytes> {
        // A GPU that several devices are parts of has one account.
        let gpus: BTreeMap<_, _> = self
            .devices
            .iter()
            .filter_map(|row| Some((row.gpu?, row.untracked_max()?.0)))
            .collect();
        let all = gpus.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        let unplaced = self.devices.iter().map(|row| row.driver_unplaced.0).max();
        (!gpus.is_empty()).then(|| Bytes(all.saturating_sub(unplaced.unwrap_or(0))))
    }

    /// What is live of the process's own memory, on device and host: the kinds whose bytes are not
    /// somebody else's. What a pool holds is not among them, for what is allocated from it is.
    #[must_use]
    pub fn not_freed(&self) -> Bytes {
        let own = self.kinds.iter().filter(|view| {
            matches!(
                view.kind.layer(),
                Layer::Physical | Layer::Used | Layer::Managed | Layer::Host
            )
        });
        Bytes(own.fold(0, |sum, view| sum.saturating_add(view.live_bytes.0)))
    }
}

/// Failed calls of one function with one code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailureCount {
    /// The function.
    pub function: FunctionId,
    /// The `CUresult`.
    pub code: i32,
    /// How often.
    pub count: u64,
}

/// What one process holds on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceView {
    /// The device as the process counts them.
    pub device: Option<DeviceId>,
    /// Device memory.
    pub live_bytes: Bytes,
    /// The most device memory of this process on it at one time.
    pub peak_bytes: Bytes,
    /// The least and the most that the peak can have been, where overlapping calls leave it open.
    pub peak_bounds: Option<(Bytes, Bytes)>,
    /// Which GPU of the host that is, where it is known.
    pub gpu: Option<GpuId>,
    /// What the driver's own account says the process holds of that GPU.
    pub driver_bytes: Option<Bytes>,
    /// What was traced on that GPU when the account was asked: the two belong together.
    pub driver_traced: Option<Bytes>,
    /// What was traced then on devices that are not known: any part of it may be on that GPU.
    pub driver_unplaced: Bytes,
    /// What graphs reserve of the device, as the driver last told the program.
    pub graph_reserved: Option<Told>,
}

impl DeviceView {
    /// What the driver's account has beyond what was traced: contexts, code, local memory, the
    /// slack of pools, and what was allocated before the trace. At least this much, where memory on
    /// unknown devices was traced.
    #[must_use]
    pub fn untracked(&self) -> Option<Bytes> {
        let most = self.untracked_max()?;
        Some(Bytes(most.0.saturating_sub(self.driver_unplaced.0)))
    }

    /// The same if nothing of what was traced on unknown devices is on this GPU.
    #[must_use]
    pub fn untracked_max(&self) -> Option<Bytes> {
        let (driver, traced) = (self.driver_bytes?, self.driver_traced?);
        Some(Bytes(driver.0.saturating_sub(traced.0)))
    }
}

/// A figure that the driver told the program, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    /// The figure.
    pub bytes: Bytes,
    /// When it was told.
    pub at: Moment,
}

/// A memory pool of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolView {
    /// The pool; `None` is a device's default pool whose handle was never told.
    pub pool: Option<PoolId>,
    /// Its device; `None` for host memory and where it is not known.
    pub device: Option<DeviceId>,
    /// What is allocated from it.
    pub used: Bytes,
    /// How many allocations that is.
    pub allocations: u64,
    /// What it holds of the device, as the driver last told the program.
    pub reserved: Option<Told>,
    /// Destroyed by the program, and kept for what is still allocated from it.
    pub destroyed: bool,
}

/// Calls that show a bug in the program, whatever the driver said to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mistakes {
    /// Refused frees of something that was freed a moment before.
    pub double_frees: u64,
    /// Refused frees of something never seen.
    pub invalid_frees: u64,
    /// Frees through a function that is meant for another kind of memory.
    pub mismatched_frees: u64,
    /// Physical memory whose last handle was released while it was still mapped. Legal, and how
    /// some libraries work, but the memory stays until it is unmapped.
    pub released_while_mapped: u64,
}

impl Mistakes {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What one process holds of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KindView {
    /// The kind.
    pub kind: Kind,
    /// Bytes.
    pub live_bytes: Bytes,
    /// Allocations.
    pub live_allocations: u64,
    /// Allocations of unknown size, such as memory opened by an IPC handle. `live_bytes` does not
    /// include their bytes.
    pub unknown_sizes: u64,
}

/// What one thread allocated and is still live, whoever will free it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ThreadView {
    /// The thread.
    pub tid: Tid,
    /// Its name (hostile text).
    pub name: Box<str>,
    /// Device memory.
    pub live_bytes: Bytes,
    /// Allocations of every kind.
    pub live_allocations: u64,
    /// Live bytes and allocations by kind; only kinds that hold something.
    pub kinds: Vec<KindView>,
    /// The top of the list under the view's filters.
    pub allocations: Vec<AllocationView>,
}

/// One live allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocationView {
    /// The driver's name for it.
    pub key: Key,
    /// The device as the process counts them.
    pub device: Option<DeviceId>,
    /// How much.
    pub bytes: Bytes,
    /// The sort of memory.
    pub kind: Kind,
    /// Since when.
    pub age: Nanos,
    /// Where in the program.
    pub site: SiteName,
    /// It is much bigger than is usual: what is usual, for its site or its process.
    pub unusual: Option<Bytes>,
}

/// A place in the program that memory came from: everything that was allocated with one call stack.
/// Figures are of device memory; `kinds` has all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SiteView {
    /// Its name, which says also why there may be no frames.
    pub name: SiteName,
    /// The stack, innermost frame first.
    pub frames: Arc<[Frame]>,
    /// What is live of it.
    pub live_bytes: Bytes,
    /// How many allocations that is.
    pub live_allocations: u64,
    /// How much more is live than at the last snapshot; negative where it is less.
    pub grown: i64,
    /// All that was ever allocated.
    pub bytes_total: Bytes,
    /// How many allocations that was.
    pub allocations_total: u64,
    /// Of those: freed by calls. What ended with its context or process is not among them.
    pub freed_total: u64,
    /// The most that was live at one time. Where `peak_at` is not told, it is the sum of peaks that
    /// need not have been at the same time: of several processes, kinds, or ids of the same stack.
    pub peak_bytes: Bytes,
    /// When that was first reached.
    pub peak_at: Option<Moment>,
    /// The first and the last allocation, of any kind.
    pub seen: (Moment, Moment),
    /// How long those lived that were freed, of any kind: how many by the power of two of
    /// nanoseconds.
    pub lifetimes: Vec<(u8, u64)>,
    /// The longest of those lives.
    pub longest_lifetime: Option<Nanos>,
    /// What was live over time.
    pub growth: Growth,
    /// The same by kind, of every kind that it ever allocated.
    pub kinds: Vec<SiteKindView>,
    /// Objects that were made there; no figure above counts them.
    pub objects: Vec<SiteObjectView>,
    /// Who holds it; in lists of one process nobody.
    pub processes: Vec<SiteProcess>,
}

impl SiteView {
    /// The middle of the lives of those that were freed, to within a factor of two.
    #[must_use]
    pub fn median_lifetime(&self) -> Option<Nanos> {
        let all = self.lifetimes.iter().fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
        let mut below = 0_u64;
        let (power, _) = self.lifetimes.iter().find(|(_, count)| {
            below = below.saturating_add(*count);
            below >= all.div_ceil(2)
        })?;
        let from = 1_u64.checked_shl(u32::from(*power)).unwrap_or(u64::MAX);
        let middle = Nanos(from.saturating_add(from / 2));
        Some(self.longest_lifetime.map_or(middle, |longest| middle.min(longest)))
    }
}

/// What one site allocated of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SiteKindView {
    /// The kind.
    pub kind: Kind,
    /// What is live of it.
    pub live_bytes: Bytes,
    /// How many allocations that is.
    pub live_allocations: u64,
    /// Live allocations of unknown size.
    pub unknown_sizes: u64,
    /// All that was ever allocated.
    pub bytes_total: Bytes,
    /// How many allocations that was; of imported memory, every opening.
    pub allocations_total: u64,
    /// Of those: freed by calls.
    pub freed_total: u64,
    /// The most that was live at one time; see [`SiteView::peak_bytes`].
    pub peak_bytes: Bytes,
}

impl From<&SiteKindView> for KindView {
    fn from(view: &SiteKindView) -> Self {
        let SiteKindView { kind, live_bytes, live_allocations, unknown_sizes, .. } = *view;
        Self { kind, live_bytes, live_allocations, unknown_sizes }
    }
}

/// What one process holds of one site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SiteProcess {
    /// The process; `None` for many that ended long ago.
    pub pid: Option<Pid>,
    /// Device memory.
    pub live_bytes: Bytes,
    /// Allocations of it.
    pub live_allocations: u64,
    /// Live bytes and allocations of every kind; only kinds that hold something.
    pub kinds: Vec<KindView>,
}

/// How much device memory of a site was live over time. After the end of a process it stays what
/// the process had not freed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Growth {
    /// When the first window began: with the trace.
    pub start: Moment,
    /// How long each is.
    pub window: Nanos,
    /// What was live at the end of each; the last one is not over, and has what is live now.
    pub live: Vec<Bytes>,
}

/// An allocation that failed for lack of memory, and who held what at that moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutOfMemory {
    /// When.
    pub at: Moment,
    /// Who asked.
    pub pid: Pid,
    /// On which thread.
    pub tid: Tid,
    /// The process's name (hostile text).
    pub name: Box<str>,
    /// Of which device, as the process counts them.
    pub device: Option<DeviceId>,
    /// Which GPU of the host that is, where it is known.
    pub gpu: Option<GpuId>,
    /// What was asked for.
    pub asked: Option<(Kind, Bytes)>,
    /// Where in the program, as far as it is known when the snapshot is made.
    pub site: Option<SiteId>,
    /// What that site is called.
    pub site_name: SiteName,
    /// Its frames, innermost first, where they are known.
    pub frames: Arc<[Frame]>,
    /// Device memory of the processes at that moment, biggest first: pid, name, bytes on that GPU
    /// (on the device of the same ordinal where the GPU is not known, on all devices where the
    /// device is not known either).
    pub holders: Vec<(Pid, Box<str>, Bytes)>,
}
