//! Processes and their sites.

use std::sync::Arc;

use engine::model::{
    AddressType, AllocationKey, Allocator, AllocatorPoolView, AllocatorView, BlocksUnavailable,
    Bytes, CacheFragmentation, CallStack, Container, ContainerRuntime, CopyDirection, DeviceId,
    FragmentationUnknown, GpuId, GraphExecId, KernelId, LaunchTarget, MemoryKind, Nanos,
    ObjectKind, Pid, Pod, ProcessIdentity, ProcessKey, SamplingInterval, SamplingView, Tid,
    Timestamp,
};
use engine::snapshot::{
    ActivityView, AllocationView, CopyView, DeviceView, KernelView, KindView, ObjectView,
    ProcessEnd, ProcessView, ShareRole, SharedMemoryView, SiteHistory, SiteKindView,
    SiteObjectView, SiteProcess, SiteView, ThreadView,
};

use super::{site_name, time, uncertainty};
use crate::report::json_objects::Word;
use crate::report::kernels::json::{ActivityJson, CopiesJson, KernelJson};
use crate::report::live::json::{
    AllocationJson, AllocatorJson, AllocatorPoolJson, ContainerJson, DeviceJson,
    LifetimeBucketJson, ObjectCountsJson, ProcessJson, SamplingJson, SharedMemoryJson, SiteJson,
    SiteKindJson, SiteObjectsJson, SiteProcessJson, ThreadJson,
};

/// Rates of an answer are per second.
const SECOND: Nanos = Nanos::from_millis(1000);

fn kind(name: &str) -> MemoryKind {
    MemoryKind::from_name(name).unwrap_or(MemoryKind::Unknown)
}

/// Reads a process; its sites are in another answer.
pub(super) fn read(entry: &ProcessJson, at: Timestamp) -> ProcessView {
    let text = |text: &str| Some(text).filter(|text| !text.is_empty()).map(Into::into);
    let identity = ProcessIdentity {
        program: text(&entry.row.program),
        user: text(&entry.row.user),
        ..ProcessIdentity::default()
    };
    ProcessView {
        key: ProcessKey { pid: Pid(entry.pid), start: 0 },
        uid: entry.uid,
        name: entry.name.as_str().into(),
        identity,
        container: entry.container.as_ref().map(|one| Arc::new(container(one))),
        ended: entry.exited.then_some(ProcessEnd::Exited),
        before_trace: entry.before_trace,
        live_bytes: Bytes(entry.live_bytes),
        live_allocations: entry.live_allocations,
        peak_bytes: Bytes(entry.peak_bytes),
        peak_at: entry.peak_time.as_deref().map_or(at, time),
        allocations_total: entry.allocations_total,
        frees_total: entry.frees_total,
        devices: entry.devices.iter().map(device).collect(),
        kinds: kinds(entry),
        threads: entry.threads.iter().map(thread).collect(),
        shared_memory: entry.shared_memory.iter().filter_map(shared_memory).collect(),
        activity: entry.activity.as_ref().map(activity),
        objects: entry.objects.iter().filter_map(objects).collect(),
        allocators: entry.allocators.iter().filter_map(allocator).collect(),
        sites_total: entry.sites_total,
        growth_per_hour: entry.row.growth_bytes_per_hour,
        uncertainty: uncertainty(entry.uncertainty.as_ref(), entry.live_bytes),
        ..ProcessView::default()
    }
}

fn container(entry: &ContainerJson) -> Container {
    let runtime = ContainerRuntime::from_name(&entry.runtime);
    let text = |text: &Option<String>| text.as_deref().map(Into::into);
    Container {
        id: entry.id.as_str().into(),
        runtime: runtime.unwrap_or(ContainerRuntime::Unknown),
        pod: entry.pod.as_ref().map(|pod| Pod {
            uid: pod.uid.as_str().into(),
            name: text(&pod.name),
            namespace: text(&pod.namespace),
            container: text(&pod.container),
        }),
        container_pid: None,
    }
}

fn device(entry: &DeviceJson) -> DeviceView {
    let least = entry.untracked_bytes.unwrap_or(0);
    let most = entry.untracked_bytes_max.unwrap_or(least);
    DeviceView {
        device: entry.device.map(DeviceId),
        live_bytes: Bytes(entry.live_bytes),
        peak_bytes: Bytes(entry.peak_bytes),
        gpu: entry.gpu.as_ref().map(|gpu| GpuId(gpu.index)),
        driver_bytes: entry.driver_bytes.map(Bytes),
        driver_traced: entry.driver_bytes.map(|bytes| Bytes(bytes.saturating_sub(most))),
        driver_unplaced: Bytes(most.saturating_sub(least)),
        ..DeviceView::default()
    }
}

fn shared_memory(entry: &SharedMemoryJson) -> Option<SharedMemoryView> {
    let program = entry.program.as_deref().unwrap_or_default();
    Some(SharedMemoryView {
        role: ShareRole::from_name(&entry.role)?,
        peer: entry.pid.map(|pid| (Pid(pid), program.into())),
        bytes: Bytes(entry.bytes),
        allocations: entry.allocations,
        unknown_sizes: entry.unknown_sizes.unwrap_or(0),
        kept_alive: entry.kept_alive,
    })
}

fn kinds(entry: &ProcessJson) -> Vec<KindView> {
    let count = |name: &str| entry.live_allocations_by_kind.get(name).copied().unwrap_or(0);
    let view = |(name, bytes): (&Word, &u64)| KindView {
        kind: kind(name),
        live_bytes: Bytes(*bytes),
        live_allocations: count(name),
        unknown_sizes: 0,
    };
    entry.live_bytes_by_kind.iter().map(view).collect()
}

fn thread(entry: &ThreadJson) -> ThreadView {
    let allocation = |one: &AllocationJson| AllocationView {
        key: AllocationKey {
            space: AddressType::from_name(&one.address_type).unwrap_or(AddressType::Pointer),
            value: hex(&one.address),
        },
        device: one.device.map(DeviceId),
        bytes: Bytes(one.bytes),
        kind: kind(&one.kind),
        age: Nanos::from_millis(one.age_ms),
        site: site_name(&one.site),
        baseline: None,
    };
    ThreadView {
        tid: Tid(entry.tid),
        name: entry.name.as_str().into(),
        live_bytes: Bytes(entry.live_bytes),
        live_allocations: entry.live_allocations,
        kinds: Vec::new(),
        allocations: entry.allocations.iter().map(allocation).collect(),
    }
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or(0)
}

fn activity(entry: &ActivityJson) -> ActivityView {
    let kernel = |one: &KernelJson| KernelView {
        target: match &*one.kind {
            "graph" => LaunchTarget::Graph(GraphExecId(hex(&one.handle))),
            _ => LaunchTarget::Kernel(KernelId(hex(&one.handle))),
        },
        name: one.symbol.as_deref().map(Into::into),
        handles: one.handles,
        launches: one.launches,
        recent: one.launches_per_second.round() as u64,
        captured: one.captured,
        failed: one.failed,
        checked: one.checked,
        ..KernelView::default()
    };
    let copies = |one: &CopiesJson| {
        Some(CopyView {
            direction: CopyDirection::from_name(&one.direction)?,
            asynchronous: one.mode == "async",
            calls: one.calls,
            bytes: Bytes(one.bytes),
            recent_bytes: Bytes(one.recent_bytes_per_second as u64),
            time: Nanos(0),
            bandwidths: Vec::new(),
        })
    };
    ActivityView {
        launches: entry.launches_total,
        window: SECOND,
        kernels_total: entry.kernels.len() as u64,
        kernels: entry.kernels.iter().map(kernel).collect(),
        copies: entry.copies.iter().filter_map(copies).collect(),
        ..ActivityView::default()
    }
}

fn objects(entry: &ObjectCountsJson) -> Option<ObjectView> {
    Some(ObjectView {
        kind: ObjectKind::from_name(&entry.kind)?,
        live: entry.live,
        created: entry.created,
        destroyed: entry.destroyed,
        released: entry.released,
        peak: entry.peak,
        unknown_destroys: 0,
        untracked: 0,
    })
}

/// Reads an allocator; one of a later version is skipped.
fn allocator(entry: &AllocatorJson) -> Option<AllocatorView> {
    let opaque = entry.opaque_allocations.zip(entry.opaque_bytes);
    Some(AllocatorView {
        allocator: Allocator::from_name(&entry.allocator)?,
        pools: entry.pools.iter().map(allocator_pool).collect(),
        lost: entry.lost_events,
        unlisted: entry.dropped_blocks,
        late: entry.late == Some(true),
        reason: entry.unavailable_reason.as_deref().and_then(BlocksUnavailable::from_name),
        opaque: opaque.map(|(count, bytes)| (count, Bytes(bytes))),
        sampling: entry.sampling.as_ref().and_then(sampling),
    })
}

fn sampling(entry: &SamplingJson) -> Option<SamplingView> {
    let interval = SamplingInterval::from_bytes(entry.interval_bytes)?;
    Some(SamplingView { since: time(&entry.since), interval, skipped: entry.skipped_blocks })
}

fn allocator_pool(entry: &AllocatorPoolJson) -> AllocatorPoolView {
    let layout = entry.releasable_bytes.zip(entry.fragmented_bytes);
    let fragmentation = match (layout, entry.fragmentation_unknown_reason.as_deref()) {
        (Some((releasable, fragmented)), _) => Ok(CacheFragmentation {
            releasable: Bytes(releasable),
            fragmented: Bytes(fragmented),
            largest_gap: Bytes(entry.largest_free_bytes.unwrap_or(0)),
        }),
        (None, reason) => Err(reason
            .and_then(FragmentationUnknown::from_name)
            .unwrap_or(FragmentationUnknown::BlocksUnknown)),
    };
    AllocatorPoolView {
        device: entry.device.map(DeviceId),
        pool: entry.pool.as_deref().and_then(hexadecimal).unwrap_or(0),
        allocated: Bytes(entry.allocated_bytes),
        reserved: Bytes(entry.reserved_bytes),
        peak: Bytes(entry.peak_bytes),
        peak_at: Timestamp(0),
        blocks: entry.live_blocks,
        tracked_bytes: Bytes(entry.tracked_bytes),
        allocations_total: entry.allocations_total,
        frees_total: entry.frees_total,
        unmatched_frees: 0,
        ooms_total: entry.ooms_total,
        fragmentation,
    }
}

/// Parses `0x7f00`.
fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// Reads a site.
pub(super) fn site(entry: &SiteJson, frames: CallStack) -> SiteView {
    let of_kind = |one: &SiteKindJson| SiteKindView {
        kind: kind(&one.kind),
        live_bytes: Bytes(one.live_bytes),
        live_allocations: one.live_allocations,
        unknown_sizes: 0,
        bytes_total: Bytes(one.bytes_total),
        allocations_total: one.allocations_total,
        freed_total: one.frees_total,
        peak_bytes: Bytes(one.peak_bytes),
    };
    let of_objects = |one: &SiteObjectsJson| {
        Some(SiteObjectView {
            kind: ObjectKind::from_name(&one.kind)?,
            live: one.live,
            created: one.created,
            destroyed: one.destroyed,
        })
    };
    let of_process = |one: &SiteProcessJson| SiteProcess {
        pid: one.pid.map(Pid),
        live_bytes: Bytes(one.live_bytes),
        live_allocations: one.live_allocations,
        kinds: Vec::new(),
    };
    let bucket = |one: &LifetimeBucketJson| {
        (u8::try_from(one.min_ns.max(1).ilog2()).unwrap_or(0), one.count)
    };
    SiteView {
        name: site_name(&entry.id),
        frames,
        live_bytes: Bytes(entry.live_bytes),
        live_allocations: entry.live_allocations,
        grown: entry.delta_bytes,
        bytes_total: Bytes(entry.bytes_total),
        allocations_total: entry.allocations_total,
        freed_total: entry.frees_total,
        sampling: entry.sampling_interval_bytes.and_then(SamplingInterval::from_bytes),
        peak_bytes: Bytes(entry.peak_bytes),
        peak_at: None,
        seen: (Timestamp(0), Timestamp(0)),
        lifetimes: entry.lifetime_histogram.iter().map(bucket).collect(),
        longest_lifetime: entry.max_lifetime_ns.map(Nanos),
        growth: SiteHistory {
            start: time(&entry.history.since),
            window: Nanos(entry.history.window_ns),
            live: entry.history.live_bytes.iter().copied().map(Bytes).collect(),
        },
        kinds: entry.kinds.iter().map(of_kind).collect(),
        objects: entry.objects.iter().filter_map(of_objects).collect(),
        processes: entry.processes.iter().map(of_process).collect(),
    }
}
