//! Golden records, as the probes write them, and random bytes.

mod fuzz;

use engine::model::cuda_object::{ObjectCall, ObjectKind};
use engine::model::event::{
    Allocate, ContextCall, Event, EventKind, Free, FreeFunction, GraphCall, LostDelta,
    MemoryLocation, PoolCall, VmmCall,
};
use engine::model::ids::{
    AddressType, AllocationKey, ContextId, DeviceId, GraphExecId, GraphId, PhysicalHandleId,
    PoolId, SiteId, StreamId,
};
use engine::model::memory_kind::MemoryKind;

use super::{Handles, Record, RecordBody, StackRef};
use crate::hooks::HOOKS;
use crate::wire::{self, Call, CallDescriptor};

/// A record of a call, field by field as in `wire.h`.
struct RecordBytes {
    kind: u32,
    hook: u16,
    result: i32,
    context: u64,
    args: [u64; 6],
    outs: [u64; 2],
    device: i32,
    flags: u32,
    /// Tokens of the native and the Python stack.
    stack: [u64; 2],
    descriptor: Vec<u8>,
}

impl RecordBytes {
    fn of(symbol: &str) -> Self {
        let hook = HOOKS.iter().position(|hook| hook.symbol == symbol).unwrap();
        Self {
            kind: wire::VS_CALL,
            hook: hook as u16,
            result: 0,
            context: 0xc0,
            args: [0; 6],
            outs: [0; 2],
            device: -1,
            flags: wire::VS_CONTEXT_KNOWN,
            stack: [0; 2],
            descriptor: Vec::new(),
        }
    }

    fn args(mut self, args: &[u64]) -> Self {
        self.args[..args.len()].copy_from_slice(args);
        self
    }

    fn out(mut self, value: u64) -> Self {
        self.outs[0] = value;
        self
    }

    fn result(mut self, code: i32) -> Self {
        self.result = code;
        self
    }

    fn descriptor(mut self, fields: &[(usize, u64, usize)]) -> Self {
        self.kind = wire::VS_CALL_DESCRIPTOR;
        self.descriptor = vec![0; size_of::<CallDescriptor>() - size_of::<Call>()];
        for (offset, value, bytes) in fields {
            self.descriptor[*offset..offset + bytes]
                .copy_from_slice(&value.to_ne_bytes()[..*bytes]);
        }
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend((self.kind as u16).to_ne_bytes());
        bytes.extend(self.hook.to_ne_bytes());
        bytes.extend(self.result.to_ne_bytes());
        bytes.extend(7_u32.to_ne_bytes());
        bytes.extend(8_u32.to_ne_bytes());
        bytes.extend(200_u64.to_ne_bytes());
        bytes.extend(100_u64.to_ne_bytes());
        bytes.extend(self.context.to_ne_bytes());
        self.args.iter().chain(&self.outs).for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.extend(self.device.to_ne_bytes());
        bytes.extend(self.flags.to_ne_bytes());
        self.stack.iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.extend(&self.descriptor);
        bytes
    }

    fn record(&self) -> Record {
        Record::parse(&self.bytes()).unwrap()
    }

    /// Returns the events of the record, and the stacks that were resolved for them.
    fn all_events(&self, objects: bool, handles: &mut Handles) -> (Vec<Event>, Vec<StackRef>) {
        let (mut events, mut stacks) = (Vec::new(), Vec::new());
        let mut site = |stack| {
            stacks.push(stack);
            Some(SiteId(stacks.len() as u32))
        };
        self.record().events(handles, objects, &mut site, &mut events);
        (events, stacks)
    }

    /// Returns the first event.
    fn event(&self) -> Option<Event> {
        self.all_events(false, &mut Handles::default()).0.into_iter().next()
    }

    fn kind(&self) -> EventKind {
        self.event().unwrap().kind
    }
}

fn allocated(key: AllocationKey, kind: MemoryKind, bytes: u64) -> EventKind {
    EventKind::Allocate(Allocate {
        key,
        kind,
        bytes,
        context: Some(ContextId(0xc0)),
        device: None,
        pool: None,
        stream: None,
        site: None,
    })
}

#[test]
fn plain_allocations_and_frees() {
    let event = RecordBytes::of("cuMemAlloc_v2").args(&[1, 4096]).out(0x7f00).event().unwrap();
    assert_eq!((event.pid.0, event.tid.0, event.entry_time.0, event.time.0), (7, 8, 100, 200));
    assert_eq!(event.kind, allocated(AllocationKey::address(0x7f00), MemoryKind::Device, 4096));
    let mut pitched = RecordBytes::of("cuMemAllocPitch_v2").args(&[1, 2, 1000, 10]).out(0x7f00);
    pitched.outs[1] = 1024;
    assert_eq!(
        pitched.kind(),
        allocated(AllocationKey::address(0x7f00), MemoryKind::Device, 10240)
    );
    let registered = RecordBytes::of("cuMemHostRegister_v2").args(&[0x5000, 64]).kind();
    assert_eq!(registered, allocated(AllocationKey::address(0x5000), MemoryKind::Registered, 64));
    let free = RecordBytes::of("cuMemFree_v2").args(&[0x7f00]);
    let freed = Free { key: AllocationKey::address(0x7f00), by: FreeFunction::Free, stream: None };
    assert_eq!(free.kind(), EventKind::Free(freed));
    assert_eq!(RecordBytes::of("cuMemFree_v2").event(), None, "a free of null has no effect");
}

#[test]
fn device_is_used_only_if_context_is_unknown() {
    let mut record = RecordBytes::of("cuMemAlloc_v2").args(&[1, 1]).out(1);
    record.flags = wire::VS_DEVICE_KNOWN;
    record.device = 3;
    let EventKind::Allocate(allocate) = record.kind() else { panic!() };
    assert_eq!((allocate.device, allocate.context), (Some(DeviceId(3)), None));
    record.flags |= wire::VS_CONTEXT_KNOWN;
    let EventKind::Allocate(allocate) = record.kind() else { panic!() };
    assert_eq!((allocate.device, allocate.context), (None, Some(ContextId(0xc0))));
}

#[test]
fn failures_carry_requested_bytes_or_freed_key() {
    let EventKind::Failed(failed) =
        RecordBytes::of("cuMemAlloc_v2").args(&[1, 1 << 42]).result(2).kind()
    else {
        panic!()
    };
    assert_eq!((failed.code, failed.requested), (2, Some((MemoryKind::Device, 1 << 42))));
    let EventKind::Failed(failed) =
        RecordBytes::of("cuMemFree_v2").args(&[0x7f00]).result(1).kind()
    else {
        panic!()
    };
    assert_eq!((failed.requested, failed.freed), (None, Some(AllocationKey::address(0x7f00))));
}

#[test]
fn capture_end_follows_the_flag_of_the_probe() {
    let second = |record: &RecordBytes| {
        let (events, _) = record.all_events(false, &mut Handles::default());
        events.into_iter().nth(1).map(|event| event.kind)
    };
    let ended = |graph| EventKind::Graph(GraphCall::CaptureEnded { stream: StreamId(5), graph });
    for result in [1, 900, 908] {
        let failed = RecordBytes::of("cuStreamEndCapture").args(&[5, 1]).result(result);
        assert!(matches!(failed.kind(), EventKind::Failed(failed) if failed.code == result));
        assert_eq!(second(&failed), None, "{result}");
        let ended_capture = RecordBytes { flags: wire::VS_CAPTURE_ENDED, ..failed };
        assert!(matches!(ended_capture.kind(), EventKind::Failed(failed) if failed.code == result));
        assert_eq!(second(&ended_capture), Some(ended(None)), "{result}");
    }
    let ended_capture =
        RecordBytes { flags: wire::VS_CAPTURE_ENDED, ..RecordBytes::of("cuStreamEndCapture") };
    let ended_capture = ended_capture.args(&[5, 1]).out(0x77);
    assert_eq!((ended_capture.kind(), second(&ended_capture)), (ended(Some(GraphId(0x77))), None));
    let unreadable =
        RecordBytes { flags: wire::VS_CAPTURE_ENDED | wire::VS_OUT_UNREADABLE, ..ended_capture };
    assert_eq!(unreadable.kind(), EventKind::Lost(LostDelta { other: 1, ..LostDelta::default() }));
    assert_eq!(second(&unreadable), Some(ended(None)));
}

#[test]
fn unreadable_results_are_losses() {
    let unreadable = |symbol: &str| {
        let record = RecordBytes { flags: wire::VS_OUT_UNREADABLE, ..RecordBytes::of(symbol) };
        record.args(&[1, 4096]).event().map(|event| event.kind)
    };
    for symbol in [
        "cuCtxCreate_v2",
        "cuDevicePrimaryCtxRetain",
        "cuStreamCreate",
        "cuGreenCtxCreate",
        "cuCtxFromGreenCtx",
        "cuMemAddressReserve",
        "cuGraphInstantiateWithFlags",
        "cuMemPoolImportFromShareableHandle",
    ] {
        let lost = EventKind::Lost(LostDelta { other: 1, ..LostDelta::default() });
        assert_eq!(unreadable(symbol), Some(lost), "{symbol}");
    }
    let imported = EventKind::Lost(LostDelta { allocations: 1, ..LostDelta::default() });
    assert_eq!(unreadable("cuMemImportFromShareableHandle"), Some(imported));
    for symbol in ["cuMemPoolGetAttribute", "cuDeviceGetDefaultMemPool", "cuKernelGetFunction"] {
        assert_eq!(unreadable(symbol), None, "{symbol} is only a query");
    }
    let array = RecordBytes::of("cuArrayCreate_v2").out(0x77).descriptor(&[]);
    let array = RecordBytes { flags: wire::VS_OUT_UNREADABLE, ..array };
    let allocated_bytes = wire::VS_UNKNOWN_BYTES as u64;
    let lost = LostDelta { allocations: 1, allocated_bytes, ..LostDelta::default() };
    assert_eq!(array.kind(), EventKind::Lost(lost));
}

#[test]
fn allocation_with_unreadable_address_is_a_loss() {
    let mut record = RecordBytes::of("cuMemAlloc_v2").args(&[1, 4096]);
    record.flags |= wire::VS_OUT_UNREADABLE;
    let lost = LostDelta { allocations: 1, allocated_bytes: 4096, ..LostDelta::default() };
    assert_eq!(record.kind(), EventKind::Lost(lost));
}

#[test]
fn stream_ordered_allocation_has_pool_and_stream() {
    let EventKind::Allocate(allocate) =
        RecordBytes::of("cuMemAllocFromPoolAsync").args(&[1, 512, 0x9, 0x5]).out(0x7f00).kind()
    else {
        panic!()
    };
    assert_eq!(allocate.kind, MemoryKind::Async);
    assert_eq!((allocate.pool, allocate.stream), (Some(PoolId(9)), Some(StreamId(5))));
    let freed = Free {
        key: AllocationKey::address(0x7f00),
        by: FreeFunction::FreeAsync,
        stream: Some(StreamId(5)),
    };
    assert_eq!(RecordBytes::of("cuMemFreeAsync").args(&[0x7f00, 5]).kind(), EventKind::Free(freed));
}

#[test]
fn virtual_memory_management() {
    let create = RecordBytes::of("cuMemCreate").args(&[1, 2 << 20]).out(0x11);
    let on_device = create.descriptor(&[(8, 1, 4), (12, 1, 4)]);
    let location = MemoryLocation::Device(DeviceId(1));
    let created =
        VmmCall::Create { handle: PhysicalHandleId(0x11), bytes: 2 << 20, location, site: None };
    assert_eq!(on_device.kind(), EventKind::Vmm(created));
    let on_host = RecordBytes::of("cuMemCreate").args(&[1, 64]).out(0x12).descriptor(&[(8, 3, 4)]);
    let EventKind::Vmm(VmmCall::Create { location, .. }) = on_host.kind() else { panic!() };
    assert_eq!(location, MemoryLocation::Host);
    let map = RecordBytes::of("cuMemMap").args(&[0x7f00, 64, 0, 0x11]).kind();
    let mapped = VmmCall::Map { address: 0x7f00, bytes: 64, handle: PhysicalHandleId(0x11) };
    assert_eq!(map, EventKind::Vmm(mapped));
    let retain = RecordBytes::of("cuMemRetainAllocationHandle").args(&[1, 0x7f00]).out(0x11).kind();
    assert_eq!(retain, EventKind::Vmm(VmmCall::Retain { handle: PhysicalHandleId(0x11) }));
}

#[test]
fn array_size_follows_from_the_descriptor() {
    let key = AllocationKey { space: AddressType::Array, value: 0xa };
    let array = |symbol: &str, fields: &[(usize, u64, usize)], levels: u64| {
        RecordBytes::of(symbol).args(&[1, 2, levels]).out(0xa).descriptor(fields).kind()
    };
    let flat = &[(0, 100, 8), (8, 50, 8), (16, 0x20, 4), (20, 4, 4)];
    let bytes = 100 * 50 * 16;
    assert_eq!(array("cuArrayCreate_v2", flat, 0), allocated(key, MemoryKind::Array, bytes));
    let line = &[(0, 100, 8), (16, 0x10, 4), (20, 1, 4)];
    assert_eq!(array("cuArrayCreate_v2", line, 0), allocated(key, MemoryKind::Array, 200));
    let deep = &[(0, 16, 8), (8, 16, 8), (16, 4, 8), (24, 1, 4), (28, 1, 4)];
    assert_eq!(array("cuArray3DCreate_v2", deep, 0), allocated(key, MemoryKind::Array, 1024));
    let mip = 1024 + 8 * 8 * 2 + 4 * 4;
    assert_eq!(array("cuMipmappedArrayCreate", deep, 3), allocated(key, MemoryKind::Array, mip));
    let sparse = &[(0, 16, 8), (8, 16, 8), (24, 1, 4), (28, 1, 4), (32, 0x40, 4)];
    assert_eq!(array("cuArray3DCreate_v2", sparse, 0), allocated(key, MemoryKind::Array, 0));
}

#[test]
fn pools_and_graphs() {
    let reserved = RecordBytes::of("cuMemPoolGetAttribute").args(&[9, 5]).out(64 << 20).kind();
    let expected = PoolCall::ReservedReported { pool: PoolId(9), bytes: 64 << 20 };
    assert_eq!(reserved, EventKind::Pool(expected));
    assert_eq!(RecordBytes::of("cuMemPoolGetAttribute").args(&[9, 4]).event(), None);
    let node = |symbol: &str, base: usize| {
        let fields =
            [(base + 8, 1, 4), (base + 12, 0, 4), (base + 104, 512, 8), (base + 112, 0x7f00, 8)];
        let mut fields = fields.to_vec();
        if base > 0 {
            fields.push((0, 10, 4));
        }
        RecordBytes::of(symbol).args(&[1, 0x6]).descriptor(&fields).kind()
    };
    let expected = EventKind::Graph(GraphCall::AllocNode {
        graph: GraphId(6),
        address: 0x7f00,
        bytes: 512,
        location: MemoryLocation::Device(DeviceId(0)),
    });
    assert_eq!(node("cuGraphAddMemAllocNode", 0), expected);
    assert_eq!(node("cuGraphAddNode", 16), expected);
    let exec = RecordBytes::of("cuGraphInstantiateWithFlags").args(&[1, 6, 1]).out(0xe).kind();
    let frees_before_launch = true;
    let expected =
        GraphCall::Instantiated { exec: GraphExecId(0xe), graph: GraphId(6), frees_before_launch };
    assert_eq!(exec, EventKind::Graph(expected));
}

#[test]
fn device_is_the_lower_half_of_the_register() {
    let mut record = RecordBytes::of("cuDevicePrimaryCtxRetain").args(&[1, 0xdead_beef_0000_0001]);
    record.outs[0] = 0xc1;
    let (context, device) = (ContextId(0xc1), DeviceId(1));
    let retained = ContextCall::PrimaryRetained { context, device };
    assert_eq!(record.kind(), EventKind::Context(retained));
}

#[test]
fn device_uuid_is_decoded() {
    let fields = [(0, 0x0706_0504_0302_0100, 8), (8, 0x0f0e_0d0c_0b0a_0908, 8)];
    let record = RecordBytes::of("cuDeviceGetUuid_v2").args(&[1, 1]).descriptor(&fields);
    let RecordBody::Call(call) = record.record().body else { panic!() };
    let uuid = call.device_uuid().unwrap();
    assert_eq!(uuid.device, DeviceId(1));
    assert_eq!(uuid.uuid, std::array::from_fn(|i| i as u8));
}

#[test]
fn decode_never_panics_on_random_records() {
    let coverage = fuzz::run(crate::random::seed());
    // Every kind of `wire.h`: complete, one byte shorter and one byte longer.
    let sizes = fuzz::kinds().into_iter().map(|kind| (kind, fuzz::size(kind)));
    let lengths = sizes.flat_map(|(kind, size)| [(kind, size - 1), (kind, size), (kind, size + 1)]);
    let missed: Vec<_> = lengths.filter(|length| !coverage.lengths.contains(length)).collect();
    assert_eq!(missed, []);
    // Every row, for a successful and a failed call. Some are handled inside the probes.
    let rows = 0..HOOKS.len();
    let sent = rows.clone().filter(|row| !fuzz::is_handled_by_probes(&HOOKS[*row]));
    assert_eq!(coverage.successes, sent.collect());
    assert_eq!(coverage.failures, rows.collect());
    assert_eq!(coverage.decoded, fuzz::DECODED.into());
    assert_eq!(coverage.events, fuzz::EVENTS.into());
    assert_eq!(coverage.stacks, ["addresses", "copy", "python"].into());
    assert!(Record::parse(&[]).is_err());
}

#[test]
fn call_references_its_stack() {
    let mut record = RecordBytes::of("cuMemAlloc_v2");
    record.args[1] = 100;
    record.outs[0] = 0x1000;
    let site = |record: &RecordBytes| {
        let (events, stacks) = record.all_events(true, &mut Handles::default());
        let site = match &events[0].kind {
            EventKind::Allocate(allocate) => allocate.site,
            EventKind::Failed(failed) => failed.site,
            other => panic!("{other:?}"),
        };
        (site, stacks)
    };
    assert_eq!(site(&record), (None, vec![]));
    record.stack = [5, 6];
    let hook = record.hook;
    for known in [false, true] {
        record.flags = if known { wire::VS_STACK_KNOWN } else { 0 };
        let expected = StackRef { hook, stack: 5, known, python: 6 };
        assert_eq!(site(&record), (Some(SiteId(1)), vec![expected]));
    }
    // A failed call also has a stack: it shows where memory ran out.
    record.result = 2;
    assert_eq!(site(&record).0, Some(SiteId(1)));
}

#[test]
fn context_of_an_allocation_is_that_of_its_stream() {
    let mut handles = Handles::default();
    let mut context = |record: RecordBytes| {
        let (events, _) = record.all_events(false, &mut handles);
        events.into_iter().find_map(|event| match event.kind {
            EventKind::Allocate(allocate) => Some(allocate.context.map(|context| context.0)),
            _ => None,
        })
    };
    let allocate = |context| RecordBytes {
        context,
        ..RecordBytes::of("cuMemAllocAsync").args(&[1, 64, 5]).out(0x7f00)
    };
    assert_eq!(context(allocate(0xc1)), Some(Some(0xc1)));
    assert_eq!(context(RecordBytes::of("cuStreamCreate").out(5)), None);
    assert_eq!(context(allocate(0xc1)), Some(Some(0xc0)));
    assert_eq!(context(RecordBytes::of("cuStreamDestroy_v2").args(&[5])), None);
    assert_eq!(context(allocate(0xc1)), Some(Some(0xc1)));
}

#[test]
fn capture_into_an_existing_graph_creates_no_graph() {
    let mut handles = Handles::default();
    let mut objects = |record: RecordBytes| {
        let (events, _) = record.all_events(true, &mut handles);
        events.iter().filter(|event| matches!(event.kind, EventKind::Object(_))).count()
    };
    let begin = |graph| RecordBytes::of("cuStreamBeginCaptureToGraph").args(&[5, graph]);
    let end = || RecordBytes::of("cuStreamEndCapture").args(&[5, 1]).out(9);
    assert_eq!([objects(begin(9)), objects(end()), objects(end())], [0, 0, 1]);
    assert_eq!([objects(begin(8)), objects(end())], [0, 1]);
}

/// Returns the effect of a record on an object.
fn object_event(record: &RecordBytes) -> Option<EventKind> {
    let (events, _) = record.all_events(true, &mut Handles::default());
    let (without, _) = record.all_events(false, &mut Handles::default());
    let object = events.into_iter().nth(without.len())?;
    assert_eq!((object.entry_time.0, object.time.0), (100, 200));
    Some(object.kind)
}

fn created(kind: ObjectKind, context: Option<u64>) -> EventKind {
    let context = context.map(ContextId);
    EventKind::Object(ObjectCall::Created { kind, handle: 0x77, context, site: None })
}

#[test]
fn objects_that_end_with_a_context_carry_it() {
    for (symbol, kind) in [
        ("cuStreamCreate", ObjectKind::Stream),
        ("cuStreamCreateWithPriority", ObjectKind::Stream),
        ("cuGreenCtxStreamCreate", ObjectKind::Stream),
        ("cuEventCreate", ObjectKind::Event),
        ("cuIpcOpenEventHandle", ObjectKind::Event),
        ("cuModuleLoad", ObjectKind::Module),
        ("cuModuleLoadData", ObjectKind::Module),
        ("cuModuleLoadDataEx", ObjectKind::Module),
        ("cuModuleLoadFatBinary", ObjectKind::Module),
        ("cuTexObjectCreate", ObjectKind::Texture),
        ("cuSurfObjectCreate", ObjectKind::Surface),
        ("cuLinkCreate", ObjectKind::Linker),
        ("cuLinkCreate_v2", ObjectKind::Linker),
    ] {
        let record = RecordBytes::of(symbol).out(0x77);
        assert_eq!(object_event(&record).unwrap(), created(kind, Some(0xc0)), "{symbol}");
    }
    let lost = RecordBytes { flags: 0, ..RecordBytes::of("cuEventCreate").out(0x77) };
    assert_eq!(object_event(&lost).unwrap(), created(ObjectKind::Event, None));
}

#[test]
fn objects_that_outlive_a_context_carry_none() {
    for (symbol, kind) in [
        ("cuGraphCreate", ObjectKind::Graph),
        ("cuGraphClone", ObjectKind::Graph),
        ("cuGraphInstantiate_v2", ObjectKind::GraphExec),
        ("cuGraphInstantiateWithFlags", ObjectKind::GraphExec),
        ("cuLibraryLoadData", ObjectKind::Library),
        ("cuLibraryLoadFromFile", ObjectKind::Library),
        ("cuCtxCreate_v2", ObjectKind::Context),
        ("cuGreenCtxCreate", ObjectKind::GreenContext),
        ("cuMemPoolImportFromShareableHandle", ObjectKind::Pool),
    ] {
        let record = RecordBytes::of(symbol).out(0x77);
        assert_eq!(object_event(&record).unwrap(), created(kind, None), "{symbol}");
    }
    let pool = RecordBytes::of("cuMemPoolCreate").out(0x77).descriptor(&[(8, 1, 4)]);
    assert_eq!(object_event(&pool).unwrap(), created(ObjectKind::Pool, None));
    let captured = RecordBytes::of("cuStreamEndCapture").args(&[5, 1]).out(0x77);
    assert_eq!(object_event(&captured), Some(created(ObjectKind::Graph, None)));
    let not_requested = RecordBytes::of("cuStreamEndCapture").args(&[5, 0]);
    assert_eq!(object_event(&not_requested), None);
}

#[test]
fn destroyed_object_is_argument_0() {
    for (symbol, kind) in [
        ("cuStreamDestroy_v2", ObjectKind::Stream),
        ("cuStreamDestroy", ObjectKind::Stream),
        ("cuEventDestroy_v2", ObjectKind::Event),
        ("cuEventDestroy", ObjectKind::Event),
        ("cuGraphDestroy", ObjectKind::Graph),
        ("cuGraphExecDestroy", ObjectKind::GraphExec),
        ("cuModuleUnload", ObjectKind::Module),
        ("cuLibraryUnload", ObjectKind::Library),
        ("cuCtxDestroy_v2", ObjectKind::Context),
        ("cuGreenCtxDestroy", ObjectKind::GreenContext),
        ("cuTexObjectDestroy", ObjectKind::Texture),
        ("cuSurfObjectDestroy", ObjectKind::Surface),
        ("cuMemPoolDestroy", ObjectKind::Pool),
        ("cuLinkDestroy", ObjectKind::Linker),
    ] {
        let record = RecordBytes::of(symbol).args(&[0x77]);
        let destroyed = EventKind::Object(ObjectCall::Destroyed { kind, handle: 0x77 });
        assert_eq!(object_event(&record), Some(destroyed), "{symbol}");
    }
}

#[test]
fn unreadable_object_is_lost_and_failed_call_gives_none() {
    let lost = EventKind::Lost(LostDelta { objects: 1, ..LostDelta::default() });
    let unreadable = RecordBytes {
        flags: wire::VS_OUT_UNREADABLE,
        ..RecordBytes::of("cuEventCreate").out(0x77)
    };
    assert_eq!(object_event(&unreadable).unwrap(), lost);
    assert_eq!(object_event(&RecordBytes::of("cuEventCreate")).unwrap(), lost);
    assert_ne!(object_event(&RecordBytes::of("cuTexObjectCreate")).unwrap(), lost);
    let failed = RecordBytes::of("cuEventCreate").result(2);
    assert_eq!(object_event(&failed), None);
    assert!(matches!(failed.event().unwrap().kind, EventKind::Failed(_)));
    assert_eq!(object_event(&RecordBytes::of("cuMemAlloc_v2").out(0x77)), None);
    assert_eq!(RecordBytes::of("cuEventCreate").out(0x77).event(), None);
}

#[test]
fn object_has_the_stack_of_its_call() {
    let record = RecordBytes { stack: [9, 4], ..RecordBytes::of("cuModuleLoadData").out(0x77) };
    let hook = record.hook;
    let expected = StackRef { hook, stack: 9, known: false, python: 4 };
    let (events, stacks) = record.all_events(true, &mut Handles::default());
    assert_eq!(stacks, [expected]);
    let Some(EventKind::Object(ObjectCall::Created { site, .. })) = events.last().map(|e| &e.kind)
    else {
        panic!("{events:?}")
    };
    assert_eq!(*site, Some(SiteId(1)));
}
