//! Strategies for all events.

use engine::model::activity::{
    CopyActivity, CopyDirection, GpuActivity, KernelLaunches, LaunchShape, LaunchTarget,
    NameSource, UnnamedReason,
};
use engine::model::blocks::{
    Allocator, AllocatorTotals, BlockEvent, BlockOp, BlockTracking, BlocksUnavailable,
};
use engine::model::container::{Container, ContainerRuntime, Pod};
use engine::model::cuda_object::{ObjectCall, ObjectKind};
use engine::model::event::{
    Allocate, ContextCall, Event, EventKind, FailedCall, Free, FreeFunction, GraphCall, LostDelta,
    MemoryLocation, PoolCall, ProcessInfo, ShareCall, SiteFrames, VmmCall,
};
use engine::model::ids::{
    AddressType, AllocationKey, ContextId, DeviceId, FunctionId, GpuId, GraphExecId, GraphId,
    KernelId, PhysicalHandleId, Pid, PoolId, ShareId, SiteId, StreamId, Tid,
};
use engine::model::mark::MarkKind;
use engine::model::memory_kind::MemoryKind;
use engine::model::mig::MigInstance;
use engine::model::overhead::ContextLimit;
use engine::model::program::{ProcessGroup, ProcessIdentity};
use engine::model::sampling::{Sampling, SamplingInterval};
use engine::model::stack::{Frame, Language, UnknownReason};
use engine::model::units::Timestamp;
use formats::sanitize::sanitized;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{BoxedStrategy, Just, Strategy, any};
use proptest::prop_oneof;
use proptest::sample::select;

fn name() -> impl Strategy<Value = Box<str>> {
    "\\PC{0,12}".prop_map(Into::into)
}

fn key() -> impl Strategy<Value = AllocationKey> {
    let spaces = [
        AddressType::Pointer,
        AddressType::Handle,
        AddressType::Array,
        AddressType::Pool,
        AddressType::External,
    ];
    (select(spaces.to_vec()), any::<u64>())
        .prop_map(|(space, value)| AllocationKey { space, value })
}

fn device() -> impl Strategy<Value = DeviceId> {
    any::<u16>().prop_map(DeviceId)
}

fn location() -> impl Strategy<Value = MemoryLocation> {
    prop_oneof![device().prop_map(MemoryLocation::Device), Just(MemoryLocation::Host)]
}

fn site() -> impl Strategy<Value = Option<SiteId>> {
    option::of(any::<u32>().prop_map(SiteId))
}

fn allocate() -> impl Strategy<Value = EventKind> {
    let ids = (
        option::of(any::<u64>().prop_map(ContextId)),
        option::of(device()),
        option::of(any::<u64>().prop_map(PoolId)),
        option::of(any::<u64>().prop_map(StreamId)),
    );
    (key(), select(MemoryKind::ALL.to_vec()), any::<u64>(), ids, site()).prop_map(
        |(key, kind, bytes, (context, device, pool, stream), site)| {
            EventKind::Allocate(Allocate { key, kind, bytes, context, device, pool, stream, site })
        },
    )
}

fn free() -> impl Strategy<Value = EventKind> {
    let families = [
        FreeFunction::Free,
        FreeFunction::FreeAsync,
        FreeFunction::FreeHost,
        FreeFunction::Unregister,
        FreeFunction::DestroyArray,
        FreeFunction::CloseImport,
        FreeFunction::DestroyExternal,
    ];
    (key(), select(families.to_vec()), option::of(any::<u64>().prop_map(StreamId)))
        .prop_map(|(key, by, stream)| EventKind::Free(Free { key, by, stream }))
}

fn share() -> impl Strategy<Value = ShareCall> {
    (key(), any::<u64>().prop_map(ShareId), any::<bool>()).prop_map(|(key, share, imported)| {
        if imported {
            ShareCall::Imported { key, share }
        } else {
            ShareCall::Exported { key, share }
        }
    })
}

fn vmm() -> BoxedStrategy<VmmCall> {
    let handle = || any::<u64>().prop_map(PhysicalHandleId);
    let range = || (any::<u64>(), any::<u64>());
    prop_oneof![
        (handle(), any::<u64>(), location(), site()).prop_map(|(handle, bytes, location, site)| {
            VmmCall::Create { handle, bytes, location, site }
        }),
        handle().prop_map(|handle| VmmCall::Import { handle }),
        handle().prop_map(|handle| VmmCall::Multicast { handle }),
        handle().prop_map(|handle| VmmCall::Retain { handle }),
        handle().prop_map(|handle| VmmCall::Release { handle }),
        (range(), handle()).prop_map(|((address, bytes), handle)| VmmCall::Map {
            address,
            bytes,
            handle
        }),
        range().prop_map(|(address, bytes)| VmmCall::Unmap { address, bytes }),
        range().prop_map(|(address, bytes)| VmmCall::Reserve { address, bytes }),
        range().prop_map(|(address, bytes)| VmmCall::Unreserve { address, bytes }),
    ]
    .boxed()
}

fn pool() -> BoxedStrategy<PoolCall> {
    let pool = || any::<u64>().prop_map(PoolId);
    prop_oneof![
        (pool(), option::of(location()))
            .prop_map(|(pool, location)| PoolCall::Created { pool, location }),
        pool().prop_map(|pool| PoolCall::Destroyed { pool }),
        (pool(), any::<u64>()).prop_map(|(pool, keep)| PoolCall::Trimmed { pool, keep }),
        (pool(), any::<u64>()).prop_map(|(pool, bytes)| PoolCall::ReservedReported { pool, bytes }),
        (pool(), device(), any::<bool>()).prop_map(|(pool, device, current)| PoolCall::OfDevice {
            pool,
            device,
            current
        }),
    ]
    .boxed()
}

fn graph() -> BoxedStrategy<GraphCall> {
    let stream = || any::<u64>().prop_map(StreamId);
    let graph = || any::<u64>().prop_map(GraphId);
    let exec = || any::<u64>().prop_map(GraphExecId);
    prop_oneof![
        (stream(), option::of(graph()))
            .prop_map(|(stream, graph)| GraphCall::CaptureBegan { stream, graph }),
        (stream(), option::of(graph()))
            .prop_map(|(stream, graph)| GraphCall::CaptureEnded { stream, graph }),
        (graph(), any::<u64>(), any::<u64>(), location()).prop_map(
            |(graph, address, bytes, location)| GraphCall::AllocNode {
                graph,
                address,
                bytes,
                location
            }
        ),
        (graph(), any::<u64>()).prop_map(|(graph, address)| GraphCall::FreeNode { graph, address }),
        (exec(), graph(), any::<bool>()).prop_map(|(exec, graph, frees_before_launch)| {
            GraphCall::Instantiated { exec, graph, frees_before_launch }
        }),
        exec().prop_map(|exec| GraphCall::Launched { exec }),
        exec().prop_map(|exec| GraphCall::ExecDestroyed { exec }),
        graph().prop_map(|graph| GraphCall::GraphDestroyed { graph }),
        (device(), any::<u64>())
            .prop_map(|(device, bytes)| GraphCall::ReservedReported { device, bytes }),
        device().prop_map(|device| GraphCall::Trimmed { device }),
    ]
    .boxed()
}

fn failed() -> impl Strategy<Value = EventKind> {
    let functions = 0..super::FUNCTIONS.len() as u16;
    let requested = option::of((select(MemoryKind::ALL.to_vec()), any::<u64>()));
    let context = option::of(any::<u64>().prop_map(ContextId));
    let rest = (option::of(key()), option::of(device()), context, site());
    (functions, any::<i32>(), requested, rest).prop_map(
        |(function, code, requested, (freed, device, context, site))| {
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

fn context() -> BoxedStrategy<ContextCall> {
    let context = || any::<u64>().prop_map(ContextId);
    prop_oneof![
        (context(), device())
            .prop_map(|(context, device)| ContextCall::Created { context, device }),
        context().prop_map(|context| ContextCall::Destroyed { context }),
        (context(), device())
            .prop_map(|(context, device)| ContextCall::PrimaryRetained { context, device }),
        device().prop_map(|device| ContextCall::PrimaryReleased { device }),
        device().prop_map(|device| ContextCall::PrimaryReset { device }),
        (context(), device())
            .prop_map(|(context, device)| ContextCall::Learned { context, device }),
    ]
    .boxed()
}

fn shape() -> impl Strategy<Value = LaunchShape> {
    any::<([u32; 3], [u32; 3], u32)>().prop_map(|(grid, block, shared_bytes)| LaunchShape {
        grid,
        block,
        shared_bytes,
    })
}

fn activity() -> BoxedStrategy<GpuActivity> {
    let kernel = || any::<u64>().prop_map(KernelId);
    let target = prop_oneof![
        kernel().prop_map(LaunchTarget::Kernel),
        any::<u64>().prop_map(|exec| LaunchTarget::Graph(GraphExecId(exec))),
    ];
    let shapes = vec((shape(), any::<u64>()), 0..4);
    let directions = [
        CopyDirection::HostToDevice,
        CopyDirection::DeviceToHost,
        CopyDirection::DeviceToDevice,
        CopyDirection::HostToHost,
        CopyDirection::Peer,
        CopyDirection::Array,
        CopyDirection::Memset,
        CopyDirection::Unknown,
    ];
    let sums = any::<(bool, u64, u64, u64)>();
    let copies =
        (select(directions.to_vec()), any::<Option<(u64, u64)>>(), sums, any::<Vec<(u8, u64)>>());
    prop_oneof![
        (target, any::<[u64; 5]>(), option::of(shape()), shapes).prop_map(
            |(target, [calls, captured, checked, failed, other_shapes], last, shapes)| {
                GpuActivity::Launches(KernelLaunches {
                    target,
                    calls,
                    captured,
                    checked,
                    failed,
                    last,
                    shapes,
                    other_shapes,
                })
            }
        ),
        (kernel(), name(), select(vec![NameSource::Call, NameSource::Memory]))
            .prop_map(|(kernel, name, source)| GpuActivity::Named { kernel, name, source }),
        (kernel(), kernel()).prop_map(|(function, kernel)| GpuActivity::Alias { function, kernel }),
        (
            kernel(),
            select(vec![
                UnnamedReason::BeforeTrace,
                UnnamedReason::Unreadable,
                UnnamedReason::Lost
            ])
        )
            .prop_map(|(kernel, reason)| GpuActivity::Unnamed { kernel, reason }),
        copies.prop_map(
            |(direction, pointers, (asynchronous, calls, bytes, nanos), bandwidths)| {
                let copies = CopyActivity {
                    direction,
                    pointers,
                    asynchronous,
                    calls,
                    bytes,
                    nanos,
                    bandwidths,
                };
                GpuActivity::Copies(Box::new(copies))
            }
        ),
    ]
    .boxed()
}

fn process() -> impl Strategy<Value = EventKind> {
    (any::<(u64, u32, bool)>(), name()).prop_map(|((start, uid, before_trace), name)| {
        EventKind::Process(ProcessInfo { start, uid, name, before_trace })
    })
}

fn identity() -> impl Strategy<Value = EventKind> {
    let group = (
        (option::of(name()), option::of(name())),
        option::of(any::<u32>()),
        option::of((any::<u32>(), name())),
    )
        .prop_map(|((job, release), rank, tree)| ProcessGroup {
            job,
            release,
            rank,
            tree: tree.map(|(pid, program)| (Pid(pid), program)),
        });
    (option::of(name()), option::of(name()), group).prop_map(|(program, user, group)| {
        EventKind::Identity(Box::new(ProcessIdentity { program, user, group }))
    })
}

fn lost() -> impl Strategy<Value = EventKind> {
    any::<[u64; 11]>().prop_map(
        |[
            allocations,
            allocated_bytes,
            frees,
            failures,
            other,
            launches,
            copies,
            stacks,
            objects,
            tensors,
            processes,
        ]| {
            EventKind::Lost(LostDelta {
                allocations,
                allocated_bytes,
                frees,
                failures,
                other,
                launches,
                copies,
                stacks,
                objects,
                tensors,
                processes,
            })
        },
    )
}

fn object() -> BoxedStrategy<ObjectCall> {
    let name = || (select(ObjectKind::ALL.to_vec()), any::<u64>());
    let context = option::of(any::<u64>().prop_map(ContextId));
    prop_oneof![
        (name(), context, site()).prop_map(|((kind, handle), context, site)| {
            ObjectCall::Created { kind, handle, context, site }
        }),
        name().prop_map(|(kind, handle)| ObjectCall::Destroyed { kind, handle }),
        (name(), any::<u64>()).prop_map(|((kind, handle), bytes)| ObjectCall::Image {
            kind,
            handle,
            bytes
        }),
    ]
    .boxed()
}

fn frame() -> impl Strategy<Value = Frame> {
    let unknown = select(vec![
        UnknownReason::NoSymbol,
        UnknownReason::Unmapped,
        UnknownReason::Jit,
        UnknownReason::Unreadable,
        UnknownReason::NotRecorded,
        UnknownReason::ProcessExited,
        UnknownReason::HiddenByUretprobe,
        UnknownReason::UnsupportedInterpreter,
        UnknownReason::Truncated,
        UnknownReason::NoUnwindInfo,
    ]);
    let language = select(vec![Language::Native, Language::Python, Language::Synthetic]);
    let text = || option::of("[ab/]{0,2}".prop_map(|text: String| text.into()));
    ("[fg]?", text(), 0..3_u32, text(), language, option::of(unknown)).prop_map(
        |(function, file, line, module, language, unknown)| {
            let function = function.as_str().into();
            Frame { function, file, line, module, language, unknown }
        },
    )
}

fn site_frames() -> impl Strategy<Value = EventKind> {
    (any::<u32>(), vec(frame(), 0..9)).prop_map(|(site, frames)| {
        EventKind::Site(SiteFrames { site: SiteId(site), frames: frames.into() })
    })
}

fn sampling() -> impl Strategy<Value = Sampling> {
    let interval = (1..64_u8).prop_map(|power| SamplingInterval::from_log2(power).unwrap());
    (interval, 0..3).prop_map(|(interval, number)| match number {
        0 => Sampling::All,
        1 => Sampling::Sampled(interval),
        _ => Sampling::Skipped(interval),
    })
}

fn tensor() -> impl Strategy<Value = EventKind> {
    let op = prop_oneof![
        (any::<(u64, u64)>(), site(), sampling()).prop_map(|((address, bytes), site, sampling)| {
            BlockOp::Allocated { address, bytes, site, sampling }
        }),
        any::<(u64, u64)>().prop_map(|(address, bytes)| BlockOp::Freed { address, bytes }),
        (any::<u64>(), site()).prop_map(|(bytes, site)| BlockOp::OutOfMemory { bytes, site }),
    ];
    let totals = any::<(u64, u64)>()
        .prop_map(|(allocated, reserved)| AllocatorTotals { allocated, reserved });
    let pool = (allocator(), any::<u64>(), option::of(device()), option::of(totals));
    (op, pool).prop_map(|(op, (allocator, pool, device, totals))| {
        EventKind::Block(BlockEvent { allocator, op, pool, device, totals })
    })
}

fn allocator() -> impl Strategy<Value = Allocator> {
    proptest::sample::select(&Allocator::ALL[..])
}

fn container() -> impl Strategy<Value = EventKind> {
    let name = || option::of(name());
    let pod =
        (name(), name(), name(), any::<String>()).prop_map(|(name, namespace, container, uid)| {
            Pod { uid: uid.into(), name, namespace, container }
        });
    let runtime = select(ContainerRuntime::ALL.to_vec());
    (any::<String>(), runtime, option::of(pod), option::of(any::<u32>())).prop_map(
        |(id, runtime, pod, inside)| {
            let pid_inside = inside.map(Pid);
            EventKind::Container(Box::new(Container {
                id: id.into(),
                runtime,
                pod,
                container_pid: pid_inside,
            }))
        },
    )
}

fn watch() -> impl Strategy<Value = BlockTracking> {
    let reason = select(BlocksUnavailable::ALL.to_vec()).prop_map(BlockTracking::Unavailable);
    prop_oneof![Just(BlockTracking::Active), reason]
}

/// Fails to compile when there is a new event, which then belongs in [`kind`].
fn listed(kind: &EventKind) {
    match kind {
        EventKind::Process(_)
        | EventKind::Container(_)
        | EventKind::Identity(_)
        | EventKind::ThreadName(_)
        | EventKind::Exec
        | EventKind::Exit
        | EventKind::ThreadExit
        | EventKind::Allocate(_)
        | EventKind::Free(_)
        | EventKind::Vmm(_)
        | EventKind::Pool(_)
        | EventKind::Graph(_)
        | EventKind::Share(_)
        | EventKind::Failed(_)
        | EventKind::Context(_)
        | EventKind::Gpus(_)
        | EventKind::DriverUsage { .. }
        | EventKind::GpuFree { .. }
        | EventKind::DeviceHolders(_)
        | EventKind::Mark { .. }
        | EventKind::Limit { .. }
        | EventKind::MigInstance(_)
        | EventKind::DriverUsageLost
        | EventKind::UnknownCalls { .. }
        | EventKind::Lost(_)
        | EventKind::Activity(_)
        | EventKind::Object(_)
        | EventKind::Block(_)
        | EventKind::Allocator(..)
        | EventKind::KeptBy(..)
        | EventKind::Site(_) => {}
    }
}

fn kind() -> BoxedStrategy<EventKind> {
    let gpu = || any::<u16>().prop_map(GpuId);
    prop_oneof![
        process(),
        identity(),
        container(),
        name().prop_map(EventKind::ThreadName),
        (any::<u64>(), name())
            .prop_map(|(address, text)| EventKind::KeptBy(address, sanitized(&text).into())),
        (name(), any::<u64>())
            .prop_map(|(function, calls)| EventKind::UnknownCalls { function, calls }),
        select(vec![
            EventKind::Exec,
            EventKind::Exit,
            EventKind::ThreadExit,
            EventKind::DriverUsageLost
        ]),
        allocate(),
        free(),
        vmm().prop_map(EventKind::Vmm),
        pool().prop_map(EventKind::Pool),
        graph().prop_map(EventKind::Graph),
        share().prop_map(EventKind::Share),
        failed(),
        context().prop_map(EventKind::Context),
        vec(option::of(gpu()), 0..9).prop_map(|gpus| EventKind::Gpus(gpus.into())),
        (gpu(), any::<u64>(), any::<bool>())
            .prop_map(|(gpu, bytes, only)| EventKind::DriverUsage { gpu, bytes, only }),
        (gpu(), any::<u64>()).prop_map(|(gpu, bytes)| EventKind::GpuFree { gpu, bytes }),
        (name(), name()).prop_map(|(uuid, profile)| EventKind::MigInstance(Box::new(
            MigInstance { uuid, profile }
        ))),
        (select(ContextLimit::ALL.to_vec()), any::<u64>())
            .prop_map(|(limit, value)| EventKind::Limit { limit, value }),
        (select(MarkKind::ALL.to_vec()), name())
            .prop_map(|(kind, label)| EventKind::Mark { kind, label }),
        lost(),
        activity().prop_map(EventKind::Activity),
        object().prop_map(EventKind::Object),
        site_frames(),
        tensor(),
        (allocator(), watch()).prop_map(|(allocator, to)| EventKind::Allocator(allocator, to)),
    ]
    .boxed()
}

/// Generates any event.
pub(crate) fn event() -> impl Strategy<Value = Event> {
    let times = prop_oneof![any::<u64>().prop_map(|at| (at, at)), any::<(u64, u64)>(),];
    (any::<(u32, u32)>(), times, kind()).prop_map(|((pid, tid), (entered, at), kind)| {
        listed(&kind);
        let (entered, at) = (Timestamp(entered), Timestamp(at));
        Event { pid: Pid(pid), tid: Tid(tid), entry_time: entered, time: at, kind }
    })
}
