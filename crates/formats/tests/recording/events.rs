//! Strategies for all events.

use engine::container::{Container, Pod, Runtime};
use engine::event::{
    Allocate, ContextChange, Event, Failed, Free, FreeBy, GraphCall, Lost, Place, PoolCall,
    ProcessFacts, SiteFacts, VmmCall, What,
};
use engine::ids::{
    ContextId, DeviceId, ExecId, FunctionId, GpuId, GraphId, HandleId, KernelId, Key, Pid, PoolId,
    SiteId, Space, StreamId, Tid,
};
use engine::kind::Kind;
use engine::object::{ObjectCall, ObjectKind};
use engine::stack::{Frame, Language, Unknown};
use engine::tensor::{NoTensors, TensorCall, TensorTurn, TensorWatch};
use engine::units::Moment;
use engine::work::{Copies, Direction, Launched, Launches, NamedBy, NoName, Shape, Work};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::{BoxedStrategy, Just, Strategy, any};
use proptest::prop_oneof;
use proptest::sample::select;

fn name() -> impl Strategy<Value = Box<str>> {
    "\\PC{0,12}".prop_map(Into::into)
}

fn key() -> impl Strategy<Value = Key> {
    let spaces = [Space::Address, Space::Handle, Space::Array, Space::Pool, Space::External];
    (select(spaces.to_vec()), any::<u64>()).prop_map(|(space, value)| Key { space, value })
}

fn device() -> impl Strategy<Value = DeviceId> {
    any::<u16>().prop_map(DeviceId)
}

fn location() -> impl Strategy<Value = Place> {
    prop_oneof![device().prop_map(Place::Device), Just(Place::Host)]
}

fn site() -> impl Strategy<Value = Option<SiteId>> {
    option::of(any::<u32>().prop_map(SiteId))
}

fn allocate() -> impl Strategy<Value = What> {
    let ids = (
        option::of(any::<u64>().prop_map(ContextId)),
        option::of(device()),
        option::of(any::<u64>().prop_map(PoolId)),
        option::of(any::<u64>().prop_map(StreamId)),
    );
    (key(), select(Kind::ALL.to_vec()), any::<u64>(), ids, site()).prop_map(
        |(key, kind, bytes, (context, device, pool, stream), site)| {
            What::Allocate(Allocate { key, kind, bytes, context, device, pool, stream, site })
        },
    )
}

fn free() -> impl Strategy<Value = What> {
    let families = [
        FreeBy::Free,
        FreeBy::FreeAsync,
        FreeBy::FreeHost,
        FreeBy::Unregister,
        FreeBy::DestroyArray,
        FreeBy::CloseImport,
        FreeBy::DestroyExternal,
    ];
    (key(), select(families.to_vec()), option::of(any::<u64>().prop_map(StreamId)))
        .prop_map(|(key, by, stream)| What::Free(Free { key, by, stream }))
}

fn vmm() -> BoxedStrategy<VmmCall> {
    let handle = || any::<u64>().prop_map(HandleId);
    let range = || (any::<u64>(), any::<u64>());
    prop_oneof![
        (handle(), any::<u64>(), location(), site()).prop_map(|(handle, bytes, place, site)| {
            VmmCall::Create { handle, bytes, place, site }
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
            .prop_map(|(pool, place)| PoolCall::Created { pool, place }),
        pool().prop_map(|pool| PoolCall::Destroyed { pool }),
        (pool(), any::<u64>()).prop_map(|(pool, keep)| PoolCall::Trimmed { pool, keep }),
        (pool(), any::<u64>()).prop_map(|(pool, bytes)| PoolCall::ToldReserved { pool, bytes }),
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
    let exec = || any::<u64>().prop_map(ExecId);
    prop_oneof![
        (stream(), option::of(graph()))
            .prop_map(|(stream, graph)| GraphCall::CaptureBegan { stream, graph }),
        (stream(), option::of(graph()))
            .prop_map(|(stream, graph)| GraphCall::CaptureEnded { stream, graph }),
        (graph(), any::<u64>(), any::<u64>(), location()).prop_map(
            |(graph, address, bytes, place)| GraphCall::AllocNode { graph, address, bytes, place }
        ),
        (graph(), any::<u64>()).prop_map(|(graph, address)| GraphCall::FreeNode { graph, address }),
        (exec(), graph(), any::<bool>()).prop_map(|(exec, graph, frees_before_launch)| {
            GraphCall::Instantiated { exec, graph, frees_before_launch }
        }),
        exec().prop_map(|exec| GraphCall::Launched { exec }),
        exec().prop_map(|exec| GraphCall::ExecDestroyed { exec }),
        graph().prop_map(|graph| GraphCall::GraphDestroyed { graph }),
        (device(), any::<u64>())
            .prop_map(|(device, bytes)| GraphCall::ToldReserved { device, bytes }),
        device().prop_map(|device| GraphCall::Trimmed { device }),
    ]
    .boxed()
}

fn failed() -> impl Strategy<Value = What> {
    let functions = 0..super::FUNCTIONS.len() as u16;
    let asked = option::of((select(Kind::ALL.to_vec()), any::<u64>()));
    let context = option::of(any::<u64>().prop_map(ContextId));
    let rest = (option::of(key()), option::of(device()), context, site());
    (functions, any::<i32>(), asked, rest).prop_map(
        |(function, code, asked, (freed, device, context, site))| {
            let function = FunctionId(function);
            What::Failed(Failed { function, code, asked, freed, device, context, site })
        },
    )
}

fn context() -> BoxedStrategy<ContextChange> {
    let context = || any::<u64>().prop_map(ContextId);
    prop_oneof![
        (context(), device())
            .prop_map(|(context, device)| ContextChange::Created { context, device }),
        context().prop_map(|context| ContextChange::Destroyed { context }),
        (context(), device())
            .prop_map(|(context, device)| ContextChange::PrimaryRetained { context, device }),
        device().prop_map(|device| ContextChange::PrimaryReleased { device }),
        device().prop_map(|device| ContextChange::PrimaryReset { device }),
        (context(), device())
            .prop_map(|(context, device)| ContextChange::Learned { context, device }),
    ]
    .boxed()
}

fn shape() -> impl Strategy<Value = Shape> {
    any::<([u32; 3], [u32; 3], u32)>().prop_map(|(grid, block, shared_bytes)| Shape {
        grid,
        block,
        shared_bytes,
    })
}

fn work() -> BoxedStrategy<Work> {
    let kernel = || any::<u64>().prop_map(KernelId);
    let target = prop_oneof![
        kernel().prop_map(Launched::Kernel),
        any::<u64>().prop_map(|exec| Launched::Graph(ExecId(exec))),
    ];
    let shapes = vec((shape(), any::<u64>()), 0..4);
    let directions = [
        Direction::HostToDevice,
        Direction::DeviceToHost,
        Direction::DeviceToDevice,
        Direction::HostToHost,
        Direction::Peer,
        Direction::Array,
        Direction::Fill,
        Direction::Unknown,
    ];
    let sums = any::<(bool, u64, u64, u64)>();
    let copies =
        (select(directions.to_vec()), any::<Option<(u64, u64)>>(), sums, any::<Vec<(u8, u64)>>());
    prop_oneof![
        (target, any::<[u64; 5]>(), option::of(shape()), shapes).prop_map(
            |(target, [calls, captured, checked, failed, other_shapes], last, shapes)| {
                Work::Launches(Launches {
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
        (kernel(), name(), select(vec![NamedBy::Call, NamedBy::Memory]))
            .prop_map(|(kernel, name, by)| Work::Named { kernel, name, by }),
        (kernel(), kernel()).prop_map(|(function, kernel)| Work::Alias { function, kernel }),
        (kernel(), select(vec![NoName::BeforeTrace, NoName::Unreadable, NoName::Lost]))
            .prop_map(|(kernel, why)| Work::Nameless { kernel, why }),
        copies.prop_map(
            |(direction, pointers, (asynchronous, calls, bytes, nanos), bandwidths)| {
                let copies =
                    Copies { direction, pointers, asynchronous, calls, bytes, nanos, bandwidths };
                Work::Copies(Box::new(copies))
            }
        ),
    ]
    .boxed()
}

fn process() -> impl Strategy<Value = What> {
    (any::<(u64, u32, bool)>(), name()).prop_map(|((start, uid, before_trace), name)| {
        What::Process(ProcessFacts { start, uid, name, before_trace })
    })
}

fn lost() -> impl Strategy<Value = What> {
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
            What::Lost(Lost {
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
    ]
    .boxed()
}

fn frame() -> impl Strategy<Value = Frame> {
    let unknown = select(vec![
        Unknown::Stripped,
        Unknown::Unmapped,
        Unknown::Jit,
        Unknown::Unreadable,
        Unknown::NotTold,
        Unknown::Gone,
        Unknown::Probed,
        Unknown::Interpreter,
        Unknown::Deep,
        Unknown::NoRule,
    ]);
    let language = select(vec![Language::Native, Language::Python, Language::Remark]);
    let text = || option::of("[ab/]{0,2}".prop_map(|text: String| text.into()));
    ("[fg]?", text(), 0..3_u32, text(), language, option::of(unknown)).prop_map(
        |(function, file, line, module, language, unknown)| {
            let function = function.as_str().into();
            Frame { function, file, line, module, language, unknown }
        },
    )
}

fn facts() -> impl Strategy<Value = What> {
    (any::<u32>(), vec(frame(), 0..9)).prop_map(|(site, frames)| {
        What::Site(SiteFacts { site: SiteId(site), frames: frames.into() })
    })
}

fn tensor() -> impl Strategy<Value = What> {
    let turn = prop_oneof![
        (any::<(u64, u64)>(), site())
            .prop_map(|((address, bytes), site)| { TensorTurn::Began { address, bytes, site } }),
        any::<(u64, u64)>().prop_map(|(address, bytes)| TensorTurn::Ended { address, bytes }),
        (any::<u64>(), site()).prop_map(|(bytes, site)| TensorTurn::Refused { bytes, site }),
    ];
    (turn, device(), any::<(u64, u64)>()).prop_map(|(what, device, (allocated, reserved))| {
        What::Tensor(TensorCall { what, device, allocated, reserved })
    })
}

fn container() -> impl Strategy<Value = What> {
    let name = || option::of(name());
    let pod =
        (name(), name(), name(), any::<String>()).prop_map(|(name, namespace, container, uid)| {
            Pod { uid: uid.into(), name, namespace, container }
        });
    let runtime = select(Runtime::ALL.to_vec());
    (any::<String>(), runtime, option::of(pod), option::of(any::<u32>())).prop_map(
        |(id, runtime, pod, inside)| {
            let pid_inside = inside.map(Pid);
            What::Container(Box::new(Container { id: id.into(), runtime, pod, pid_inside }))
        },
    )
}

fn watch() -> impl Strategy<Value = TensorWatch> {
    let reason = select(NoTensors::ALL.to_vec()).prop_map(TensorWatch::Impossible);
    prop_oneof![Just(TensorWatch::Begun), reason]
}

/// Fails to compile when there is a new event, which then belongs in [`what`].
fn listed(what: &What) {
    match what {
        What::Process(_)
        | What::Container(_)
        | What::ThreadName(_)
        | What::Exec
        | What::Exit
        | What::ThreadExit
        | What::Allocate(_)
        | What::Free(_)
        | What::Vmm(_)
        | What::Pool(_)
        | What::Graph(_)
        | What::Failed(_)
        | What::Context(_)
        | What::Gpus(_)
        | What::DriverAccount { .. }
        | What::GpuFree { .. }
        | What::DriverAccountLost
        | What::Lost(_)
        | What::Work(_)
        | What::Object(_)
        | What::Tensor(_)
        | What::Torch(_)
        | What::Site(_) => {}
    }
}

fn what() -> BoxedStrategy<What> {
    let gpu = || any::<u16>().prop_map(GpuId);
    prop_oneof![
        process(),
        container(),
        name().prop_map(What::ThreadName),
        select(vec![What::Exec, What::Exit, What::ThreadExit, What::DriverAccountLost]),
        allocate(),
        free(),
        vmm().prop_map(What::Vmm),
        pool().prop_map(What::Pool),
        graph().prop_map(What::Graph),
        failed(),
        context().prop_map(What::Context),
        vec(option::of(gpu()), 0..9).prop_map(|gpus| What::Gpus(gpus.into())),
        (gpu(), any::<u64>(), any::<bool>()).prop_map(|(gpu, bytes, only)| What::DriverAccount {
            gpu,
            bytes,
            only
        }),
        (gpu(), any::<u64>()).prop_map(|(gpu, bytes)| What::GpuFree { gpu, bytes }),
        lost(),
        work().prop_map(What::Work),
        object().prop_map(What::Object),
        facts(),
        tensor(),
        watch().prop_map(What::Torch),
    ]
    .boxed()
}

/// Generates any event.
pub(crate) fn event() -> impl Strategy<Value = Event> {
    let moments = prop_oneof![any::<u64>().prop_map(|at| (at, at)), any::<(u64, u64)>(),];
    (any::<(u32, u32)>(), moments, what()).prop_map(|((pid, tid), (entered, at), what)| {
        listed(&what);
        let (entered, at) = (Moment(entered), Moment(at));
        Event { pid: Pid(pid), tid: Tid(tid), entered, at, what }
    })
}
