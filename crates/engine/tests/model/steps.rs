//! Random events with few names, so that they interact.

use engine::model::container::{Container, ContainerRuntime, Pod};
use engine::model::cuda_object::{ObjectCall, ObjectKind};
use engine::model::event::{
    Allocate, ContextCall, EventKind, FailedCall, Free, FreeFunction, GraphCall, INVALID_VALUE,
    LostDelta, MemoryLocation, OUT_OF_MEMORY, PoolCall, ProcessInfo, SiteFrames, VmmCall,
};
use engine::model::ids::{
    AddressType, AllocationKey, ContextId, DeviceId, FunctionId, GpuId, GraphExecId, GraphId,
    PhysicalHandleId, Pid, PoolId, SiteId, StreamId,
};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::Frame;
use engine::model::units::{Bytes, Nanos};
use engine::snapshot::{SnapshotOptions, SortOrder};
use proptest::option;
use proptest::prelude::*;

/// One step of a test.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Pid, tid, duration of the call, and the event.
    Event(u32, u32, u64, EventKind),
    Snapshot(SnapshotOptions),
}

fn id() -> impl Strategy<Value = u64> + Clone {
    0..4_u64
}

fn key() -> impl Strategy<Value = AllocationKey> {
    let space = prop_oneof![8 => Just(AddressType::Pointer), 1 => Just(AddressType::Handle)];
    (space, 0..6_u64).prop_map(|(space, value)| AllocationKey { space, value })
}

fn kind() -> impl Strategy<Value = MemoryKind> {
    prop_oneof![
        4 => Just(MemoryKind::Device),
        4 => Just(MemoryKind::Async),
        // The driver does not allocate cache blocks: those have separate events.
        4 => (0..MemoryKind::COUNT)
            .prop_map(|index| MemoryKind::ALL[index])
            .prop_filter("a driver kind", |kind| kind.allocator().is_none()),
    ]
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(4), Just(4), 1..20_u64]
}

fn device() -> impl Strategy<Value = DeviceId> {
    (0..2_u16).prop_map(DeviceId)
}

fn context() -> impl Strategy<Value = ContextId> {
    (0..4_u64).prop_map(ContextId)
}

fn allocate() -> impl Strategy<Value = EventKind> {
    let target = (option::of(context()), option::weighted(0.3, device()));
    let from = (option::weighted(0.3, id().prop_map(PoolId)), option::of(stream()));
    let site = option::of((0..3_u32).prop_map(SiteId));
    (key(), kind(), size(), target, from, site).prop_map(
        |(key, kind, bytes, (context, device), (pool, stream), site)| {
            EventKind::Allocate(Allocate { key, kind, bytes, context, device, pool, stream, site })
        },
    )
}

fn stream() -> impl Strategy<Value = StreamId> {
    (1..5_u64).prop_map(StreamId)
}

fn location() -> impl Strategy<Value = MemoryLocation> {
    prop_oneof![3 => device().prop_map(MemoryLocation::Device), 1 => Just(MemoryLocation::Host)]
}

fn free() -> impl Strategy<Value = EventKind> {
    let by = prop_oneof![
        4 => Just(FreeFunction::Free),
        4 => Just(FreeFunction::FreeAsync),
        1 => Just(FreeFunction::FreeHost),
        1 => Just(FreeFunction::Unregister),
        1 => Just(FreeFunction::DestroyArray),
        1 => Just(FreeFunction::CloseImport),
        1 => Just(FreeFunction::DestroyExternal),
    ];
    (key(), by, option::of(stream()))
        .prop_map(|(key, by, stream)| EventKind::Free(Free { key, by, stream }))
}

fn vmm() -> impl Strategy<Value = EventKind> {
    let handle = || id().prop_map(PhysicalHandleId);
    let range = || (0..12_u64, 0..7_u64);
    let site = option::of((0..3_u32).prop_map(SiteId));
    let call = prop_oneof![
        4 => (handle(), size(), location(), site).prop_map(|(handle, bytes, location, site)| {
            VmmCall::Create { handle, bytes, location, site }
        }),
        2 => handle().prop_map(|handle| VmmCall::Import { handle }),
        1 => handle().prop_map(|handle| VmmCall::Multicast { handle }),
        2 => handle().prop_map(|handle| VmmCall::Retain { handle }),
        6 => handle().prop_map(|handle| VmmCall::Release { handle }),
        6 => (range(), handle()).prop_map(|((address, bytes), handle)| {
            VmmCall::Map { address, bytes, handle }
        }),
        6 => range().prop_map(|(address, bytes)| VmmCall::Unmap { address, bytes }),
        1 => range().prop_map(|(address, bytes)| VmmCall::Reserve { address, bytes }),
        1 => range().prop_map(|(address, bytes)| VmmCall::Unreserve { address, bytes }),
    ];
    call.prop_map(EventKind::Vmm)
}

fn pool() -> impl Strategy<Value = EventKind> {
    let pool = || id().prop_map(PoolId);
    let call = prop_oneof![
        (pool(), option::weighted(0.8, location()))
            .prop_map(|(pool, location)| PoolCall::Created { pool, location }),
        pool().prop_map(|pool| PoolCall::Destroyed { pool }),
        pool().prop_map(|pool| PoolCall::Trimmed { pool, keep: 0 }),
        (pool(), size()).prop_map(|(pool, bytes)| PoolCall::ReservedReported { pool, bytes }),
        (pool(), device(), any::<bool>())
            .prop_map(|(pool, device, current)| { PoolCall::OfDevice { pool, device, current } }),
    ];
    call.prop_map(EventKind::Pool)
}

fn graph() -> impl Strategy<Value = EventKind> {
    let graph = || (0..2_u64).prop_map(GraphId);
    let exec = || (0..2_u64).prop_map(GraphExecId);
    let address = || 0..6_u64;
    let call = prop_oneof![
        3 => (stream(), option::weighted(0.3, graph()))
            .prop_map(|(stream, graph)| GraphCall::CaptureBegan { stream, graph }),
        4 => (stream(), option::weighted(0.8, graph()))
            .prop_map(|(stream, graph)| GraphCall::CaptureEnded { stream, graph }),
        5 => (graph(), address(), size(), location()).prop_map(|(graph, address, bytes, location)| {
            GraphCall::AllocNode { graph, address, bytes, location }
        }),
        4 => (graph(), address())
            .prop_map(|(graph, address)| GraphCall::FreeNode { graph, address }),
        5 => (exec(), graph(), any::<bool>()).prop_map(|(exec, graph, frees_before_launch)| {
            GraphCall::Instantiated { exec, graph, frees_before_launch }
        }),
        8 => exec().prop_map(|exec| GraphCall::Launched { exec }),
        1 => exec().prop_map(|exec| GraphCall::ExecDestroyed { exec }),
        2 => graph().prop_map(|graph| GraphCall::GraphDestroyed { graph }),
        1 => (device(), size())
            .prop_map(|(device, bytes)| GraphCall::ReservedReported { device, bytes }),
        1 => device().prop_map(|device| GraphCall::Trimmed { device }),
    ];
    call.prop_map(EventKind::Graph)
}

fn gpus() -> impl Strategy<Value = EventKind> {
    let gpu = || (0..3_u16).prop_map(GpuId);
    prop_oneof![
        prop::collection::vec(option::of(gpu()), 0..3)
            .prop_map(|gpus| EventKind::Gpus(gpus.into())),
        (gpu(), size(), any::<bool>()).prop_map(|(gpu, bytes, only)| EventKind::DriverUsage {
            gpu,
            bytes,
            only
        }),
        (gpu(), size()).prop_map(|(gpu, bytes)| EventKind::GpuFree { gpu, bytes }),
        Just(EventKind::DriverUsageLost),
    ]
}

fn container() -> impl Strategy<Value = EventKind> {
    let pod = ("[uv]", option::of("[pq]")).prop_map(|(uid, name)| Pod {
        uid: uid.into(),
        name: name.map(Into::into),
        namespace: None,
        container: None,
    });
    ("[cd]", option::of(pod), option::of((1..3_u32).prop_map(Pid))).prop_map(
        |(id, pod, container_pid)| {
            let runtime = ContainerRuntime::Docker;
            EventKind::Container(Box::new(Container { id: id.into(), runtime, pod, container_pid }))
        },
    )
}

fn context_call() -> impl Strategy<Value = EventKind> {
    let call = prop_oneof![
        (context(), device())
            .prop_map(|(context, device)| ContextCall::Created { context, device }),
        context().prop_map(|context| ContextCall::Destroyed { context }),
        (context(), device())
            .prop_map(|(context, device)| ContextCall::PrimaryRetained { context, device }),
        device().prop_map(|device| ContextCall::PrimaryReleased { device }),
        device().prop_map(|device| ContextCall::PrimaryReset { device }),
        (context(), device())
            .prop_map(|(context, device)| ContextCall::Learned { context, device }),
    ];
    call.prop_map(EventKind::Context)
}

fn failed() -> impl Strategy<Value = EventKind> {
    let code = prop_oneof![Just(OUT_OF_MEMORY), Just(INVALID_VALUE), Just(400), Just(700)];
    let subject = (option::of((kind(), size())), option::of(key()));
    let site = option::of((0..4_u32).prop_map(SiteId));
    (0..3_u16, code, subject, option::of(device()), option::of(context()), site).prop_map(
        |(function, code, (requested, freed), device, context, site)| {
            let function = FunctionId(function);
            EventKind::Failed(FailedCall {
                function,
                code,
                requested,
                freed,
                device,
                context,
                site,
            })
        },
    )
}

/// The frames of a site; some sites have equal frames.
fn site() -> impl Strategy<Value = EventKind> {
    (0..4_u32, prop::collection::vec("[fg]", 0..2)).prop_map(|(site, functions)| {
        let frame = |name: &String| Frame { function: name.as_str().into(), ..Frame::default() };
        let frames = functions.iter().map(frame).collect();
        EventKind::Site(SiteFrames { site: SiteId(site), frames })
    })
}

fn object() -> impl Strategy<Value = EventKind> {
    let name = || (prop::sample::select(ObjectKind::ALL.to_vec()), 0..2_u64);
    let origin = (option::of(context()), option::of((0..4_u32).prop_map(SiteId)));
    let call = prop_oneof![
        5 => (name(), origin).prop_map(|((kind, handle), (context, site))| {
            ObjectCall::Created { kind, handle, context, site }
        }),
        4 => name().prop_map(|(kind, handle)| ObjectCall::Destroyed { kind, handle }),
    ];
    call.prop_map(EventKind::Object)
}

fn lifecycle() -> impl Strategy<Value = EventKind> {
    let process =
        (0..3_u64, 0..3_u32, any::<bool>(), "[ab]").prop_map(|(start, uid, before_trace, name)| {
            EventKind::Process(ProcessInfo { start, uid, name: name.into(), before_trace })
        });
    prop_oneof![
        4 => process,
        1 => Just(EventKind::Exec),
        1 => Just(EventKind::Exit),
        2 => Just(EventKind::ThreadExit),
        2 => "[xy]".prop_map(|name| EventKind::ThreadName(name.into())),
    ]
}

fn lost() -> impl Strategy<Value = EventKind> {
    (0..2_u64, size(), 0..2_u64, 0..2_u64, 0..2_u64, 0..2_u64, 0..2_u64).prop_map(
        |(allocations, allocated_bytes, frees, failures, other, stacks, objects)| {
            EventKind::Lost(LostDelta {
                allocations,
                allocated_bytes,
                frees,
                failures,
                other,
                stacks,
                objects,
                ..LostDelta::default()
            })
        },
    )
}

fn options() -> impl Strategy<Value = SnapshotOptions> {
    let sort = prop_oneof![Just(SortOrder::Size), Just(SortOrder::Age), Just(SortOrder::Count)];
    let min_age = prop_oneof![Just(0), 0..600_u64];
    let sites = (prop_oneof![0..5_usize, Just(usize::MAX)], any::<bool>());
    (0..5_usize, prop_oneof![Just(0), 0..10_u64], min_age, sort, sites).prop_map(
        |(top, min_size, min_age, sort, (top_sites, ended_sites))| SnapshotOptions {
            top,
            min_size: Bytes(min_size),
            min_age: Nanos(min_age),
            sort,
            top_sites,
            ended_sites,
            ..SnapshotOptions::default()
        },
    )
}

pub(crate) fn step(losses: bool) -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        24 => allocate(),
        14 => free(),
        10 => vmm(),
        5 => pool(),
        14 => graph(),
        18 => prop_oneof![1 => context_call(), 2 => object()],
        3 => failed(),
        2 => prop_oneof![gpus(), container()],
        4 => prop_oneof![lifecycle(), site()],
        u32::from(losses) => lost(),
    ];
    let event = (0..3_u32, 1..4_u32, 0..60_u64, kind)
        .prop_map(|(pid, tid, duration, kind)| Step::Event(pid, tid, duration, kind));
    prop_oneof![12 => event, 1 => options().prop_map(Step::Snapshot)]
}
