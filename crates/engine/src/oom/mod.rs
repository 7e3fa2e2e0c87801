//! Cause of an out-of-memory error, derived from the state of the device, its holders, caches and
//! the host. Missing information lowers the confidence of the result.

mod breakdown;
mod holder_summary;

pub use breakdown::MemoryBreakdown;

use crate::model::named::named_enum;
use crate::model::{Bytes, DeviceId, GpuId, MemoryKind, MemoryLayer, Pid};
use crate::snapshot::Snapshot;
use crate::verdict::Confidence;

/// Resource that a failed call requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestedResource {
    /// Memory of a kind and size.
    Memory(MemoryKind, Bytes),
    /// Virtual addresses without memory, of unknown size.
    Addresses,
    /// An object that needs memory: a context, module or graph.
    Other,
}

impl RequestedResource {
    /// Requested size, if known.
    pub const fn bytes(self) -> Option<Bytes> {
        match self {
            Self::Memory(_, bytes) => Some(bytes),
            Self::Addresses | Self::Other => None,
        }
    }
}

/// State at the time of a failed call.
#[derive(Clone, Copy, Debug)]
pub struct OomContext<'a> {
    /// Requesting process; 0 if there was none.
    pub pid: Pid,
    /// Requested resource.
    pub requested: RequestedResource,
    /// Requested device, by its ordinal in the process.
    pub device: Option<DeviceId>,
    /// GPU of the host that corresponds to `device`.
    pub gpu: Option<GpuId>,
    /// Traced device memory of each process on it at that time.
    pub holders: &'a [(Pid, Bytes)],
    /// Snapshot from shortly afterwards, for driver-reported usage, caches and pools.
    pub snapshot: &'a Snapshot,
    /// Total memory of the GPU.
    pub total: Option<Bytes>,
    /// Unused memory of the requester's PyTorch cache at that time, if tensors are tracked: the
    /// cache may have released it before the snapshot.
    pub cached: Option<Bytes>,
    /// Memory of the host.
    pub host: HostMemory,
    /// Signs that the GPU is shared.
    pub hints: &'a [GpuSharingHint],
}

/// Memory and limits of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostMemory {
    /// Memory available to programs.
    pub available: Option<Bytes>,
    /// Limit of locked memory of the process; `None` if unlimited or unknown.
    pub locked_limit: Option<Bytes>,
    /// Limit of the address space of the process; `None` if unlimited or unknown.
    pub address_limit: Option<Bytes>,
}

named_enum! {
    /// A sign that the GPU is shared.
    pub enum GpuSharingHint {
        /// An MPS server is running, which can limit its clients.
        Mps => "mps_server",
        /// The process has loaded a library that intercepts driver calls and limits memory.
        SharingLibrary => "gpu_sharing_library",
        /// PyTorch's allocator gave up although the driver rejected nothing.
        MemoryFraction => "torch_memory_fraction",
    }
}

impl GpuSharingHint {
    /// Description, as a clause.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Mps => {
                "an MPS server is running (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT can limit its clients)"
            }
            Self::SharingLibrary => "the process has loaded a GPU sharing library (libvgpu.so)",
            Self::MemoryFraction => {
                "PyTorch gave up and the driver rejected nothing \
                 (torch.cuda.set_per_process_memory_fraction)"
            }
        }
    }
}

named_enum! {
    /// Cause of an out-of-memory error.
    pub enum OomCause {
        /// The device is full, or has too little free memory.
        DeviceExhausted => "device_exhausted",
        /// A framework's cache has enough unused memory, but fragmented or not released.
        CacheFragmentation => "cache_fragmentation",
        /// A driver pool has enough unused memory that cannot serve this request.
        PoolFragmentation => "pool_fragmentation",
        /// The request is larger than the device.
        RequestExceedsDevice => "request_exceeds_device",
        /// The device has enough free memory: a quota limits the process.
        Quota => "quota",
        /// The virtual address space is exhausted.
        AddressSpaceExhausted => "address_space_exhausted",
        /// Host memory, or the limit of locked memory, is exhausted.
        HostMemoryExhausted => "host_memory_exhausted",
        /// There is not enough information.
        Unknown => "unknown",
    }
}

impl OomCause {
    /// Whether freeing device memory of other processes would help.
    pub const fn is_device_memory(self) -> bool {
        match self {
            Self::DeviceExhausted
            | Self::CacheFragmentation
            | Self::PoolFragmentation
            | Self::Unknown => true,
            Self::RequestExceedsDevice
            | Self::Quota
            | Self::AddressSpaceExhausted
            | Self::HostMemoryExhausted => false,
        }
    }
}

/// Cause of an out-of-memory error, with evidence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OomDiagnosis {
    /// The cause.
    pub cause: OomCause,
    /// Confidence in the cause.
    pub confidence: Confidence,
    /// The cause in one sentence; process names in it are untrusted.
    pub sentence: String,
    /// Values that support it.
    pub memory: MemoryBreakdown,
    /// Signs that the GPU is shared.
    pub hints: Vec<GpuSharingHint>,
}

/// Memory that a device needs beyond the requested size: rounding to pages, page tables.
const DEVICE_SLACK_BYTES: u64 = 64 << 20;

/// Allocation granularity of device memory.
const DEVICE_PAGE_BYTES: u64 = 2 << 20;

/// A device is full if at most 1/20 of it is free.
const FULL_DIVISOR: u64 = 20;

/// Determines the cause.
pub fn diagnose(oom: &OomContext<'_>) -> OomDiagnosis {
    let memory = MemoryBreakdown::of(oom);
    let (cause, confidence, sentence) = match oom.requested {
        RequestedResource::Addresses => addresses(oom),
        RequestedResource::Memory(kind, bytes) => match kind.layer() {
            MemoryLayer::Host => host(oom, "page-locked host memory", bytes),
            MemoryLayer::Managed => managed(oom, bytes),
            _ => device(oom, &memory, Some(bytes)),
        },
        RequestedResource::Other => device(oom, &memory, None),
    };
    let hints = oom.hints.to_vec();
    OomDiagnosis { cause, confidence, sentence, memory, hints }
}

/// Estimates the free memory of the GPU at that time.
pub fn estimated_free(oom: &OomContext<'_>) -> Option<Bytes> {
    MemoryBreakdown::of(oom).free_estimated
}

type CauseFinding = (OomCause, Confidence, String);

fn addresses(oom: &OomContext<'_>) -> CauseFinding {
    let limit = oom.host.address_limit;
    let limit_text = limit.map_or_else(
        || "no address space limit is known for the process".to_owned(),
        |limit| format!("the process is limited to {limit} (ulimit -v)"),
    );
    let confidence = if limit.is_some() { Confidence::Likely } else { Confidence::Possible };
    let sentence = format!("virtual address space exhausted: {limit_text}");
    (OomCause::AddressSpaceExhausted, confidence, sentence)
}

fn host(oom: &OomContext<'_>, resource: &str, requested: Bytes) -> CauseFinding {
    let HostMemory { available, locked_limit, .. } = oom.host;
    let (confidence, reason) = match (available, locked_limit) {
        (Some(available), _) if available < requested => {
            (Confidence::Certain, format!("the host has {available} available"))
        }
        (_, Some(limit)) if limit < requested => {
            (Confidence::Likely, format!("the process may lock {limit} (ulimit -l)"))
        }
        (Some(available), Some(limit)) => (
            Confidence::Possible,
            format!(
                "the host has {available} available and the process may lock {limit}; a cgroup \
                 limit, or memory that it has already locked, may be the reason"
            ),
        ),
        (Some(available), None) => (
            Confidence::Possible,
            format!("the host has {available} available; a cgroup limit may be the reason"),
        ),
        (None, _) => (Confidence::Possible, "available host memory is unknown".to_owned()),
    };
    (
        OomCause::HostMemoryExhausted,
        confidence,
        format!("{requested} of {resource} requested; {reason}"),
    )
}

/// Managed memory can exceed the device: it also uses host memory.
fn managed(oom: &OomContext<'_>, requested: Bytes) -> CauseFinding {
    host(oom, "managed memory, which also uses host memory,", requested)
}

fn device(
    oom: &OomContext<'_>,
    memory: &MemoryBreakdown,
    requested: Option<Bytes>,
) -> CauseFinding {
    let request = requested
        .map_or_else(|| "memory for the call itself".to_owned(), |bytes| format!("{bytes}"));
    if let (Some(requested), Some(total)) = (requested, memory.total)
        && requested > total
    {
        let sentence = format!("{requested} requested; the device has {total} in total");
        return (OomCause::RequestExceedsDevice, Confidence::Certain, sentence);
    }
    let need = requested.map_or(0, |requested| {
        requested.0.div_ceil(DEVICE_PAGE_BYTES).saturating_mul(DEVICE_PAGE_BYTES)
    });
    let enough = need.saturating_add(DEVICE_SLACK_BYTES).saturating_add(need / 32);
    match memory.free_estimated {
        // There is enough only if contexts are as small as estimated.
        Some(free) if free.0 >= enough && free.0 - enough < memory.context_uncertainty.0 => {
            let (cause, confidence, sentence) = full(oom, memory, requested, &request, Some(free));
            (cause, confidence.min(Confidence::Likely), sentence)
        }
        Some(free) if free.0 >= enough => quota(oom, memory, &request, free),
        Some(free) => full(oom, memory, requested, &request, Some(free)),
        None => without_driver_report(oom, memory, requested, &request),
    }
}

/// The device has enough free memory, but the call failed.
fn quota(
    oom: &OomContext<'_>,
    memory: &MemoryBreakdown,
    request: &str,
    free: Bytes,
) -> CauseFinding {
    let held = memory.requester;
    let signs: Vec<&str> = oom.hints.iter().map(|hint| hint.description()).collect();
    let (confidence, reason) = if signs.is_empty() {
        (
            Confidence::Possible,
            "a quota limits this process (MPS, container or vGPU); which one is not visible from \
             outside"
                .to_owned(),
        )
    } else {
        (Confidence::Likely, format!("a quota limits this process: {}", signs.join("; ")))
    };
    let sentence = format!(
        "about {free} was free, but a request for {request} failed: {reason}; the process held {held}"
    );
    (OomCause::Quota, confidence, sentence)
}

/// The device has too little free memory: check whether a cache or pool holds it unused.
fn full(
    oom: &OomContext<'_>,
    memory: &MemoryBreakdown,
    requested: Option<Bytes>,
    request: &str,
    free: Option<Bytes>,
) -> CauseFinding {
    let enough = |held: Bytes| requested.is_some_and(|bytes| held >= bytes && bytes.0 > 0);
    let state = state(memory, free);
    if let Some((unused, exact)) = memory.cache_unused.filter(|(unused, _)| enough(*unused)) {
        let confidence = if exact { Confidence::Certain } else { Confidence::Likely };
        let sentence = format!(
            "{state}, but PyTorch's cache in the same process had {unused} unused, and {request} was \
             requested: the cache is fragmented, or had not released it"
        );
        return (OomCause::CacheFragmentation, confidence, sentence);
    }
    if let Some(unused) = memory.pool_unused.filter(|unused| enough(*unused)) {
        let sentence = format!(
            "{state}, but memory pools of the same process had {unused} reserved and unused, and \
             {request} was requested"
        );
        return (OomCause::PoolFragmentation, Confidence::Likely, sentence);
    }
    let free_text = free.map_or_else(String::new, |free| format!(", about {free} free"));
    let sentence = format!(
        "{state}: {request} requested{free_text}; {}",
        holder_summary::sentence(oom, memory, free)
    );
    let confidence = if free.is_some() { Confidence::Certain } else { Confidence::Likely };
    (OomCause::DeviceExhausted, confidence, sentence)
}

/// Describes a device with too little free memory; "full" only if almost nothing is free. If free
/// memory is unknown, it is estimated from traced memory.
fn state(memory: &MemoryBreakdown, free: Option<Bytes>) -> String {
    let Some(total) = memory.total else { return "the device was full".to_owned() };
    let free = free.map_or(total.0.saturating_sub(memory.traced.0), |free| free.0);
    if free <= total.0 / FULL_DIVISOR {
        format!("the {total} device was full")
    } else {
        format!("the {total} device had too little free memory")
    }
}

/// Free memory is unknown.
fn without_driver_report(
    oom: &OomContext<'_>,
    memory: &MemoryBreakdown,
    requested: Option<Bytes>,
    request: &str,
) -> CauseFinding {
    let held = memory.traced;
    let more =
        held.0.saturating_add(requested.unwrap_or_default().0).saturating_add(DEVICE_SLACK_BYTES);
    match memory.total {
        Some(total) if more >= total.0 => full(oom, memory, requested, request, None),
        Some(total) => {
            let sentence = format!(
                "{request} requested on a {total} device; {held} traced; free memory is unknown (the \
                 driver could not be queried), so a full device and a quota look the same"
            );
            (OomCause::Unknown, Confidence::Possible, sentence)
        }
        None => {
            let sentence = format!(
                "{request} requested; total and free memory are unknown (the driver could not be \
                 queried); {held} traced"
            );
            (OomCause::Unknown, Confidence::Possible, sentence)
        }
    }
}
