//! Parts of the object of a snapshot: containers, CUDA objects, allocators, out-of-memory
//! errors.

use engine::model::{AllocatorPoolView, AllocatorView, Bytes, Container, Pid, Pod, SamplingView};
use engine::snapshot::{ObjectView, OutOfMemory, SharedMemoryView, SiteObjectView};

use super::GpuJson;
use crate::export::ReportContext;
use crate::report::frame_json::{FrameJson, frames};
use crate::report::json_objects::{Word, json_objects};
use crate::sanitize::sanitized;

json_objects! {
    /// Container of a process.
    pub(crate) struct ContainerJson(container: &Container): Deserialize {
        id: String = sanitized(&container.id),
        runtime: Word = container.runtime.name().into(),
        pid?: Option<u32> = container.container_pid.map(|pid| pid.0),
        pod?: Option<PodJson> = container.pod.as_ref().map(PodJson::new),
    }

    pub(crate) struct PodJson(pod: &Pod): Deserialize {
        uid: String = sanitized(&pod.uid),
        name: Option<String> = pod.name.as_deref().map(sanitized),
        namespace: Option<String> = pod.namespace.as_deref().map(sanitized),
        container: Option<String> = pod.container.as_deref().map(sanitized),
    }

    /// Memory that a process shares with another one.
    pub(crate) struct SharedMemoryJson(view: &SharedMemoryView): Deserialize {
        role: Word = view.role.name().into(),
        /// The other process; null if it is not traced.
        pid: Option<u32> = view.peer.as_ref().map(|(pid, _)| pid.0),
        program: Option<String> = view.peer.as_ref().map(|(_, program)| sanitized(program)),
        bytes: u64 = view.bytes.0,
        allocations: u64 = view.allocations,
        /// Only if the size of some is unknown.
        unknown_sizes?: Option<u64> = Some(view.unknown_sizes).filter(|count| *count > 0),
        /// Whether the exporter no longer holds it.
        kept_alive: bool = view.kept_alive,
    }

    /// Objects of one kind of a process.
    pub(crate) struct ObjectCountsJson(view: &ObjectView): Deserialize {
        kind: Word = view.kind.name().into(),
        live: u64 = view.live,
        created: u64 = view.created,
        destroyed: u64 = view.destroyed,
        released: u64 = view.released,
        peak: u64 = view.peak,
        unmatched_destroys: u64 = view.unknown_destroys,
        /// Objects beyond the limit of tracked ones.
        unattributed?: Option<u64> = (view.untracked > 0).then_some(view.untracked),
    }

    /// Objects of one kind of a site.
    pub(crate) struct SiteObjectsJson(view: &SiteObjectView): Deserialize {
        kind: Word = view.kind.name().into(),
        live: u64 = view.live,
        created: u64 = view.created,
        destroyed: u64 = view.destroyed,
    }

    /// The cache of one process.
    pub(crate) struct AllocatorJson(view: &AllocatorView, context: &ReportContext): Deserialize {
        allocator: Word = view.allocator.name().into(),
        exact: bool = view.is_exact(),
        lost_events: u64 = view.lost,
        dropped_blocks: u64 = view.unlisted,
        /// Whether it was used before it was traced.
        late?: Option<bool> = view.late.then_some(true),
        /// Reason why no blocks are tracked.
        unavailable_reason?: Option<Word> = view.reason.map(|reason| reason.name().into()),
        unavailable_summary?: Option<Word> = view.reason.map(|reason| reason.reason(view.allocator).into()),
        /// Driver memory whose inside is not visible.
        opaque_allocations?: Option<u64> = view.opaque.map(|(count, _)| count),
        opaque_bytes?: Option<u64> = view.opaque.map(|(_, bytes)| bytes.0),
        /// Only if the call stacks of its blocks were sampled.
        sampling?: Option<SamplingJson> =
            view.sampling.map(|sampling| SamplingJson::new(sampling, context)),
        pools: Vec<AllocatorPoolJson> =
            view.pools.iter().map(|pool| AllocatorPoolJson::new(pool, context)).collect(),
    }

    /// Sampling of call stacks.
    pub(crate) struct SamplingJson(of: SamplingView, context: &ReportContext): Deserialize {
        since: String = context.clock.precise(of.since),
        interval_bytes: u64 = of.interval.bytes().0,
        skipped_blocks: u64 = of.skipped,
    }

    pub(crate) struct AllocatorPoolJson(view: &AllocatorPoolView, context: &ReportContext): Deserialize
    let { let layout = view.fragmentation.ok(); }
    {
        device: Option<u16> = view.device.map(|device| device.0),
        /// Only if there can be several pools per device.
        pool?: Option<String> = (view.pool != 0).then(|| format!("{:#x}", view.pool)),
        allocated_bytes: u64 = view.allocated.0,
        reserved_bytes: u64 = view.reserved.0,
        cached_bytes: u64 = view.cached().0,
        peak_bytes: u64 = view.peak.0,
        peak_time?: Option<String> =
            (view.peak.0 > 0).then(|| context.clock.precise(view.peak_at)),
        live_blocks: u64 = view.blocks,
        tracked_bytes: u64 = view.tracked_bytes.0,
        allocations_total: u64 = view.allocations_total,
        frees_total: u64 = view.frees_total,
        unmatched_frees: u64 = view.unmatched_frees,
        ooms_total: u64 = view.ooms_total,
        releasable_bytes?: Option<u64> = layout.map(|layout| layout.releasable.0),
        fragmented_bytes?: Option<u64> = layout.map(|layout| layout.fragmented.0),
        largest_free_bytes?: Option<u64> = layout.map(|layout| layout.largest_gap.0),
        fragmentation_unknown_reason?: Option<Word> =
            view.fragmentation.err().map(|reason| reason.name().into()),
    }

    pub(crate) struct OutOfMemoryJson(oom: &OutOfMemory, context: &ReportContext): Deserialize {
        time: String = context.clock.precise(oom.at),
        pid: u32 = oom.pid.0,
        tid: u32 = oom.tid.0,
        process: String = sanitized(&oom.name),
        device: Option<u16> = oom.device.map(|device| device.0),
        gpu?: Option<GpuJson> = oom.gpu.map(|gpu| GpuJson::new(gpu, context)),
        requested_bytes: Option<u64> = oom.requested.map(|(_, bytes)| bytes.0),
        kind: Option<Word> = oom.requested.map(|(kind, _)| kind.name().into()),
        source: Word = if oom.framework.is_some() { "pytorch".into() } else { "driver".into() },
        torch_requested_bytes?: Option<u64> = oom.framework.map(|one| one.requested.0),
        torch_allocated_bytes?: Option<u64> = oom.framework.map(|one| one.allocated.0),
        torch_reserved_bytes?: Option<u64> = oom.framework.map(|one| one.reserved.0),
        recovered: bool = oom.recovered.is_some(),
        freed_for_retry_bytes?: Option<u64> = oom.recovered.map(|bytes| bytes.0),
        site: String = oom.site_name.to_string(),
        frames: Vec<FrameJson> = frames(&oom.frames),
        holders: Vec<HolderJson> = oom.holders.iter().map(HolderJson::new).collect(),
    }

    pub(crate) struct HolderJson(holder: &(Pid, Box<str>, Bytes)): Deserialize {
        pid: u32 = holder.0.0,
        process: String = sanitized(&holder.1),
        live_bytes: u64 = holder.2.0,
    }
}
