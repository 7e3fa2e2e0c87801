//! Random events with few names, so that they interact.

use engine::container::{Container, Pod, Runtime};
use engine::event::{
    Allocate, ContextChange, Failed, Free, FreeBy, GraphCall, INVALID_VALUE, Lost, OUT_OF_MEMORY,
    Place, PoolCall, ProcessFacts, SiteFacts, VmmCall, What,
};
use engine::ids::{
    ContextId, DeviceId, ExecId, FunctionId, GpuId, GraphId, HandleId, Key, Pid, PoolId, SiteId,
    Space, StreamId,
};
use engine::kind::Kind;
use engine::object::{ObjectCall, ObjectKind};
use engine::snapshot::{Sort, View};
use engine::stack::Frame;
use engine::units::{Bytes, Nanos};
use proptest::option;
use proptest::prelude::*;

/// One step of a test.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Pid, tid, duration of the call, and the event.
    Event(u32, u32, u64, What),
    Look(View),
}

fn id() -> impl Strategy<Value = u64> + Clone {
    0..4_u64
}

fn key() -> impl Strategy<Value = Key> {
    let space = prop_oneof![8 => Just(Space::Address), 1 => Just(Space::Handle)];
    (space, 0..6_u64).prop_map(|(space, value)| Key { space, value })
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        4 => Just(Kind::Device),
        4 => Just(Kind::Async),
        // The driver does not allocate cache blocks: those have separate events.
        4 => (0..Kind::COUNT)
            .prop_map(|index| Kind::ALL[index])
            .prop_filter("a driver kind", |kind| *kind != Kind::Torch),
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

fn allocate() -> impl Strategy<Value = What> {
    let place = (option::of(context()), option::weighted(0.3, device()));
    let from = (option::weighted(0.3, id().prop_map(PoolId)), option::of(stream()));
    let site = option::of((0..3_u32).prop_map(SiteId));
    (key(), kind(), size(), place, from, site).prop_map(
        |(key, kind, bytes, (context, device), (pool, stream), site)| {
            What::Allocate(Allocate { key, kind, bytes, context, device, pool, stream, site })
        },
    )
}

fn stream() -> impl Strategy<Value = StreamId> {
    (1..5_u64).prop_map(StreamId)
}

fn location() -> impl Strategy<Value = Place> {
    prop_oneof![3 => device().prop_map(Place::Device), 1 => Just(Place::Host)]
}

fn free() -> impl Strategy<Value = What> {
    let by = prop_oneof![
        4 => Just(FreeBy::Free),
        4 => Just(FreeBy::FreeAsync),
        1 => Just(FreeBy::FreeHost),
        1 => Just(FreeBy::Unregister),
        1 => Just(FreeBy::DestroyArray),
        1 => Just(FreeBy::CloseImport),
        1 => Just(FreeBy::DestroyExternal),
    ];
    (key(), by, option::of(stream()))
        .prop_map(|(key, by, stream)| What::Free(Free { key, by, stream }))
}

fn vmm() -> impl Strategy<Value = What> {
    let handle = || id().prop_map(HandleId);
    let range = || (0..12_u64, 0..7_u64);
    let site = option::of((0..3_u32).prop_map(SiteId));
    let call = prop_oneof![
        4 => (handle(), size(), location(), site).prop_map(|(handle, bytes, place, site)| {
            VmmCall::Create { handle, bytes, place, site }
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
    call.prop_map(What::Vmm)
}

fn pool() -> impl Strategy<Value = What> {
    let pool = || id().prop_map(PoolId);
    let call = prop_oneof![
        (pool(), option::weighted(0.8, location()))
            .prop_map(|(pool, place)| PoolCall::Created { pool, place }),
        pool().prop_map(|pool| PoolCall::Destroyed { pool }),
        pool().prop_map(|pool| PoolCall::Trimmed { pool, keep: 0 }),
        (pool(), size()).prop_map(|(pool, bytes)| PoolCall::ToldReserved { pool, bytes }),
        (pool(), device(), any::<bool>())
            .prop_map(|(pool, device, current)| { PoolCall::OfDevice { pool, device, current } }),
    ];
    call.prop_map(What::Pool)
}

fn graph() -> impl Strategy<Value = What> {
    let graph = || (0..2_u64).prop_map(GraphId);
    let exec = || (0..2_u64).prop_map(ExecId);
    let address = || 0..6_u64;
    let call = prop_oneof![
        3 => (stream(), option::weighted(0.3, graph()))
            .prop_map(|(stream, graph)| GraphCall::CaptureBegan { stream, graph }),
        4 => (stream(), option::weighted(0.8, graph()))
            .prop_map(|(stream, graph)| GraphCall::CaptureEnded { stream, graph }),
        5 => (graph(), address(), size(), location()).prop_map(|(graph, address, bytes, place)| {
            GraphCall::AllocNode { graph, address, bytes, place }
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
            .prop_map(|(device, bytes)| GraphCall::ToldReserved { device, bytes }),
        1 => device().prop_map(|device| GraphCall::Trimmed { device }),
    ];
    call.prop_map(What::Graph)
}

fn gpus() -> impl Strategy<Value = What> {
    let gpu = || (0..3_u16).prop_map(GpuId);
    prop_oneof![
        prop::collection::vec(option::of(gpu()), 0..3).prop_map(|gpus| What::Gpus(gpus.into())),
        (gpu(), size(), any::<bool>()).prop_map(|(gpu, bytes, only)| What::DriverAccount {
            gpu,
            bytes,
            only
        }),
        (gpu(), size()).prop_map(|(gpu, bytes)| What::GpuFree { gpu, bytes }),
        Just(What::DriverAccountLost),
    ]
}

fn container() -> impl Strategy<Value = What> {
    let pod = ("[uv]", option::of("[pq]")).prop_map(|(uid, name)| Pod {
        uid: uid.into(),
        name: name.map(Into::into),
        namespace: None,
        container: None,
    });
    ("[cd]", option::of(pod), option::of((1..3_u32).prop_map(Pid))).prop_map(
        |(id, pod, pid_inside)| {
            let runtime = Runtime::Docker;
            What::Container(Box::new(Container { id: id.into(), runtime, pod, pid_inside }))
        },
    )
}

fn change() -> impl Strategy<Value = What> {
    let change = prop_oneof![
        (context(), device())
            .prop_map(|(context, device)| ContextChange::Created { context, device }),
        context().prop_map(|context| ContextChange::Destroyed { context }),
        (context(), device())
            .prop_map(|(context, device)| ContextChange::PrimaryRetained { context, device }),
        device().prop_map(|device| ContextChange::PrimaryReleased { device }),
        device().prop_map(|device| ContextChange::PrimaryReset { device }),
        (context(), device())
            .prop_map(|(context, device)| ContextChange::Learned { context, device }),
    ];
    change.prop_map(What::Context)
}

fn failed() -> impl Strategy<Value = What> {
    let code = prop_oneof![Just(OUT_OF_MEMORY), Just(INVALID_VALUE), Just(400), Just(700)];
    let about = (option::of((kind(), size())), option::of(key()));
    let site = option::of((0..4_u32).prop_map(SiteId));
    (0..3_u16, code, about, option::of(device()), option::of(context()), site).prop_map(
        |(function, code, (asked, freed), device, context, site)| {
            let function = FunctionId(function);
            What::Failed(Failed { function, code, asked, freed, device, context, site })
        },
    )
}

/// The frames of a site; some sites have equal frames.
fn site() -> impl Strategy<Value = What> {
    (0..4_u32, prop::collection::vec("[fg]", 0..2)).prop_map(|(site, functions)| {
        let frame = |name: &String| Frame { function: name.as_str().into(), ..Frame::default() };
        let frames = functions.iter().map(frame).collect();
        What::Site(SiteFacts { site: SiteId(site), frames })
    })
}

fn object() -> impl Strategy<Value = What> {
    let name = || (prop::sample::select(ObjectKind::ALL.to_vec()), 0..2_u64);
    let place = (option::of(context()), option::of((0..4_u32).prop_map(SiteId)));
    let call = prop_oneof![
        5 => (name(), place).prop_map(|((kind, handle), (context, site))| {
            ObjectCall::Created { kind, handle, context, site }
        }),
        4 => name().prop_map(|(kind, handle)| ObjectCall::Destroyed { kind, handle }),
    ];
    call.prop_map(What::Object)
}

fn life() -> impl Strategy<Value = What> {
    let facts =
        (0..3_u64, 0..3_u32, any::<bool>(), "[ab]").prop_map(|(start, uid, before_trace, name)| {
            What::Process(ProcessFacts { start, uid, name: name.into(), before_trace })
        });
    prop_oneof![
        4 => facts,
        1 => Just(What::Exec),
        1 => Just(What::Exit),
        2 => Just(What::ThreadExit),
        2 => "[xy]".prop_map(|name| What::ThreadName(name.into())),
    ]
}

fn lost() -> impl Strategy<Value = What> {
    (0..2_u64, size(), 0..2_u64, 0..2_u64, 0..2_u64, 0..2_u64, 0..2_u64).prop_map(
        |(allocations, allocated_bytes, frees, failures, other, stacks, objects)| {
            What::Lost(Lost {
                allocations,
                allocated_bytes,
                frees,
                failures,
                other,
                stacks,
                objects,
                ..Lost::default()
            })
        },
    )
}

fn view() -> impl Strategy<Value = View> {
    let sort = prop_oneof![Just(Sort::Size), Just(Sort::Age), Just(Sort::Count)];
    let older = prop_oneof![Just(0), 0..600_u64];
    let sites = (prop_oneof![0..5_usize, Just(usize::MAX)], any::<bool>());
    (0..5_usize, prop_oneof![Just(0), 0..10_u64], older, sort, sites).prop_map(
        |(top, min_size, older, sort, (top_sites, ended_sites))| View {
            top,
            min_size: Bytes(min_size),
            older: Nanos(older),
            sort,
            top_sites,
            ended_sites,
        },
    )
}

pub(crate) fn step(losses: bool) -> impl Strategy<Value = Step> {
    let what = prop_oneof![
        24 => allocate(),
        14 => free(),
        10 => vmm(),
        5 => pool(),
        14 => graph(),
        18 => prop_oneof![1 => change(), 2 => object()],
        3 => failed(),
        2 => prop_oneof![gpus(), container()],
        4 => prop_oneof![life(), site()],
        u32::from(losses) => lost(),
    ];
    let event = (0..3_u32, 1..4_u32, 0..60_u64, what)
        .prop_map(|(pid, tid, took, what)| Step::Event(pid, tid, took, what));
    prop_oneof![12 => event, 1 => view().prop_map(Step::Look)]
}
