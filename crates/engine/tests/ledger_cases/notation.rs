//! A small notation for traces, one event per line:
//!
//! ```text
//! 7 process 100 uid=1000 name=python before     # pid 7, started at 100, started before the trace
//! 7 container 3f2a podman pod=77 inside=5        # the container and its known fields
//! 7.8 name loader                               # thread 8 of process 7
//! 7.8 alloc 0x10 8M device C1 gpu0 site3        # key, size, kind; the rest is optional
//! 7.8 alloc 0x20 8M async C1 pool5 stream3
//! 7.9 free 0x10 by=async stream3                # default: by=free
//! 7.9 fail f5 2 device 1G C1 gpu0               # function, code; the request
//! 7.9 fail f5 1 freed=0x10                      # the argument of the free
//! 7.8 ctx create C1 gpu0                        # destroy C1, retain C1 gpu0, release gpu0, …
//! 7.8 vmm create h0x10 8M gpu0                  # or host; import, multicast, retain, release h0x10
//! 7.8 vmm map 0x100 8M h0x10                    # unmap, reserve, unreserve 0x100 8M
//! 7.8 export 0x10 share5                        # import 0x20 share5: after its alloc or vmm import
//! 7.8 pool create pool5 gpu0                    # or host; destroy, trim pool5, reserved pool5 8M
//! 7.8 pool of pool5 gpu0 current                # or without the last word
//! 7.8 graph begin stream3                       # with a graph: adds to it; end stream3 G1
//! 7.8 graph alloc G1 0x10 8M gpu0               # or host; free G1 0x10, destroy G1
//! 7.8 graph instantiate E1 G1 frees             # launch E1, drop E1, reserved gpu0 8M, trim gpu0
//! 7.8 create stream 0x10 C1 site3               # any kind of object; destroy stream 0x10
//! 0 frames site3 step main                      # the functions of a stack, innermost first
//! 7 gpus GPU3 none GPU1                         # by ordinal
//! 7 usage GPU3 8M                                # driver-reported
//! 0 gpu_free GPU3 8M
//! 7.8 exit                                      # the thread; `7 exit`, `7 exec`: the process
//! 7 lost allocations=1 bytes=8M frees=2 failures=1 other=1
//! ```
//!
//! Keys are addresses; `h0x10` is a handle, `a0x10` an array, `p0x10` a pool, `e0x10` external
//! memory. Line n happens at 10·n, entered 5 earlier; `@50-60` at the end of a line overrides that.

use engine::ledger::Ledger;
use engine::model::blocks::{BlockEvent, BlockOp};
use engine::model::container::{Container, ContainerRuntime, Pod};
use engine::model::cuda_object::{ObjectCall, ObjectKind};
use engine::model::event::{
    Allocate, ContextCall, Event, EventKind, FailedCall, Free, FreeFunction, GraphCall, LostDelta,
    MemoryLocation, PoolCall, ProcessInfo, ShareCall, SiteFrames, VmmCall,
};
use engine::model::ids::{
    AddressType, AllocationKey, ContextId, DeviceId, FunctionId, GpuId, GraphExecId, GraphId,
    PhysicalHandleId, Pid, PoolId, ShareId, SiteId, StreamId, Tid,
};
use engine::model::memory_kind::MemoryKind;
use engine::model::sampling::Sampling;
use engine::model::stack::Frame;
use engine::model::units::Timestamp;

/// Returns the ledger after a trace.
pub(crate) fn ledger(trace: &str) -> Ledger {
    let mut ledger = Ledger::new();
    for event in events(trace) {
        ledger.apply(&event);
    }
    ledger
}

/// Returns the events of a trace.
pub(crate) fn events(trace: &str) -> Vec<Event> {
    let text = |line: &str| line.split('#').next().unwrap_or("").trim().to_owned();
    let lines = trace.lines().map(text).filter(|line| !line.is_empty());
    lines.zip(1..).map(|(line, number)| event(&line, number)).collect()
}

fn event(line: &str, number: u64) -> Event {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    let (mut entered, mut at) = (number * 10 - 5, number * 10);
    if let Some(times) = words.last().and_then(|word| word.strip_prefix('@')) {
        let (from, to) = times.split_once('-').unwrap_or((times, times));
        (entered, at) = (decimal(from), decimal(to));
        words.pop();
    }
    let (pid, tid) = words[0].split_once('.').unwrap_or((words[0], words[0]));
    let of_thread = words[0].contains('.');
    Event {
        pid: Pid(decimal(pid) as u32),
        tid: Tid(decimal(tid) as u32),
        entry_time: Timestamp(entered),
        time: Timestamp(at),
        kind: event_kind(&words[1..], of_thread),
    }
}

fn event_kind(words: &[&str], of_thread: bool) -> EventKind {
    let rest = &words[1..];
    match words[0] {
        "process" => EventKind::Process(ProcessInfo {
            start: decimal(rest[0]),
            uid: value(rest, "uid").map_or(0, |uid| decimal(uid) as u32),
            name: value(rest, "name").unwrap_or("").into(),
            before_trace: rest.contains(&"before"),
        }),
        "container" => EventKind::Container(Box::new(container(rest))),
        "name" => EventKind::ThreadName(rest[0].into()),
        "exec" => EventKind::Exec,
        "exit" if of_thread => EventKind::ThreadExit,
        "exit" => EventKind::Exit,
        "alloc" => EventKind::Allocate(Allocate {
            key: key(rest[0]),
            bytes: size(rest[1]),
            kind: kind(rest[2]),
            context: find(rest, "C").map(ContextId),
            device: device(rest),
            pool: find(rest, "pool").map(PoolId),
            stream: find(rest, "stream").map(StreamId),
            site: find(rest, "site").map(|number| SiteId(number as u32)),
        }),
        "free" => EventKind::Free(Free {
            key: key(rest[0]),
            by: free_by(value(rest, "by").unwrap_or("free")),
            stream: find(rest, "stream").map(StreamId),
        }),
        "fail" => EventKind::Failed(FailedCall {
            function: FunctionId(find(rest, "f").unwrap() as u16),
            code: rest[1].parse().unwrap(),
            requested: kinds().find_map(|kind| {
                let position = rest.iter().position(|word| *word == kind.name())?;
                Some((kind, size(rest[position + 1])))
            }),
            freed: value(rest, "freed").map(key),
            context: find(rest, "C").map(ContextId),
            device: device(rest),
            site: find(rest, "S").map(|site| SiteId(site as u32)),
        }),
        "ctx" => EventKind::Context(context_call(rest)),
        "vmm" => EventKind::Vmm(vmm(rest)),
        "export" | "import" => EventKind::Share(share(words)),
        "pool" => EventKind::Pool(pool(rest)),
        "graph" => EventKind::Graph(graph(rest)),
        "gpus" => EventKind::Gpus(rest.iter().map(|word| gpu(word)).collect()),
        "usage" => EventKind::DriverUsage {
            gpu: gpu(rest[0]).unwrap(),
            bytes: size(rest[1]),
            only: rest.contains(&"only"),
        },
        "tensor" => EventKind::Block(tensor(rest)),
        "gpu_free" => EventKind::GpuFree { gpu: gpu(rest[0]).unwrap(), bytes: size(rest[1]) },
        "usage_lost" => EventKind::DriverUsageLost,
        "lost" => EventKind::Lost(lost(rest)),
        "unknown" => EventKind::UnknownCalls {
            function: rest[0].into(),
            calls: value(rest, "calls").map_or(0, decimal),
        },
        "create" => EventKind::Object(ObjectCall::Created {
            kind: object(rest[0]),
            handle: key(rest[1]).value,
            context: find(rest, "C").map(ContextId),
            site: find(rest, "site").map(|number| SiteId(number as u32)),
        }),
        "destroy" => {
            let (kind, handle) = (object(rest[0]), key(rest[1]).value);
            EventKind::Object(ObjectCall::Destroyed { kind, handle })
        }
        "image" => {
            let (kind, handle) = (object(rest[0]), key(rest[1]).value);
            EventKind::Object(ObjectCall::Image { kind, handle, bytes: size(rest[2]) })
        }
        "limit" => EventKind::Limit { limit: rest[0].parse().unwrap(), value: size(rest[1]) },
        "frames" => EventKind::Site(SiteFrames {
            site: SiteId(find(rest, "site").unwrap() as u32),
            frames: rest[1..].iter().map(|name| frame(name)).collect(),
        }),
        other => panic!("unknown event: {other}"),
    }
}

fn lost(words: &[&str]) -> LostDelta {
    LostDelta {
        allocations: value(words, "allocations").map_or(0, decimal),
        allocated_bytes: value(words, "bytes").map_or(0, size),
        frees: value(words, "frees").map_or(0, decimal),
        failures: value(words, "failures").map_or(0, decimal),
        other: value(words, "other").map_or(0, decimal),
        launches: value(words, "launches").map_or(0, decimal),
        copies: value(words, "copies").map_or(0, decimal),
        stacks: value(words, "stacks").map_or(0, decimal),
        objects: value(words, "objects").map_or(0, decimal),
        tensors: value(words, "tensors").map_or(0, decimal),
        processes: value(words, "processes").map_or(0, decimal),
    }
}

fn container(words: &[&str]) -> Container {
    Container {
        id: words[0].into(),
        runtime: *ContainerRuntime::ALL.iter().find(|runtime| runtime.name() == words[1]).unwrap(),
        pod: value(words, "pod").map(|uid| Pod {
            uid: uid.into(),
            name: value(words, "name").map(Into::into),
            namespace: None,
            container: None,
        }),
        container_pid: value(words, "inside").map(|pid| Pid(decimal(pid) as u32)),
    }
}

/// Parses `step`, or `liba.so:step` with its module.
fn frame(word: &str) -> Frame {
    match word.split_once(':') {
        Some((module, function)) => {
            let module = Some(format!("/usr/lib/{module}").into());
            Frame { function: function.into(), module, ..Frame::default() }
        }
        None => Frame { function: word.into(), ..Frame::default() },
    }
}

fn context_call(words: &[&str]) -> ContextCall {
    let context = || ContextId(find(words, "C").unwrap());
    let device = || device(words).unwrap();
    match words[0] {
        "create" => ContextCall::Created { context: context(), device: device() },
        "destroy" => ContextCall::Destroyed { context: context() },
        "retain" => ContextCall::PrimaryRetained { context: context(), device: device() },
        "release" => ContextCall::PrimaryReleased { device: device() },
        "reset" => ContextCall::PrimaryReset { device: device() },
        "learn" => ContextCall::Learned { context: context(), device: device() },
        other => panic!("unknown context call: {other}"),
    }
}

fn vmm(words: &[&str]) -> VmmCall {
    let handle = || {
        let keys = words.iter().filter(|word| word.starts_with('h') && word.contains("0x"));
        PhysicalHandleId(keys.map(|word| key(word)).next().unwrap().value)
    };
    let address = || key(words[1]).value;
    match words[0] {
        "create" => VmmCall::Create {
            handle: handle(),
            bytes: size(words[2]),
            location: location(words).unwrap(),
            site: find(words, "site").map(|number| SiteId(number as u32)),
        },
        "import" => VmmCall::Import { handle: handle() },
        "multicast" => VmmCall::Multicast { handle: handle() },
        "retain" => VmmCall::Retain { handle: handle() },
        "release" => VmmCall::Release { handle: handle() },
        "map" => VmmCall::Map { address: address(), bytes: size(words[2]), handle: handle() },
        "unmap" => VmmCall::Unmap { address: address(), bytes: size(words[2]) },
        "reserve" => VmmCall::Reserve { address: address(), bytes: size(words[2]) },
        "unreserve" => VmmCall::Unreserve { address: address(), bytes: size(words[2]) },
        other => panic!("unknown VMM call: {other}"),
    }
}

fn share(words: &[&str]) -> ShareCall {
    let (key, share) = (key(words[1]), ShareId(find(words, "share").unwrap()));
    match words[0] {
        "export" => ShareCall::Exported { key, share },
        _ => ShareCall::Imported { key, share },
    }
}

fn pool(words: &[&str]) -> PoolCall {
    let pool = PoolId(find(words, "pool").unwrap());
    match words[0] {
        "create" => PoolCall::Created { pool, location: location(words) },
        "destroy" => PoolCall::Destroyed { pool },
        "trim" => PoolCall::Trimmed { pool, keep: 0 },
        "reserved" => PoolCall::ReservedReported { pool, bytes: size(words[2]) },
        "of" => PoolCall::OfDevice {
            pool,
            device: device(words).unwrap(),
            current: words.contains(&"current"),
        },
        other => panic!("unknown pool call: {other}"),
    }
}

fn graph(words: &[&str]) -> GraphCall {
    let to = find(words, "G").map(GraphId);
    let graph = || to.unwrap();
    let exec = || GraphExecId(find(words, "E").unwrap());
    let stream = || StreamId(find(words, "stream").unwrap());
    let device = || device(words).unwrap();
    match words[0] {
        "begin" => GraphCall::CaptureBegan { stream: stream(), graph: to },
        "end" => GraphCall::CaptureEnded { stream: stream(), graph: to },
        "alloc" => GraphCall::AllocNode {
            graph: graph(),
            address: key(words[2]).value,
            bytes: size(words[3]),
            location: location(words).unwrap(),
        },
        "free" => GraphCall::FreeNode { graph: graph(), address: key(words[2]).value },
        "destroy" => GraphCall::GraphDestroyed { graph: graph() },
        "instantiate" => GraphCall::Instantiated {
            exec: exec(),
            graph: graph(),
            frees_before_launch: words.contains(&"frees"),
        },
        "launch" => GraphCall::Launched { exec: exec() },
        "drop" => GraphCall::ExecDestroyed { exec: exec() },
        "reserved" => GraphCall::ReservedReported { device: device(), bytes: size(words[2]) },
        "trim" => GraphCall::Trimmed { device: device() },
        other => panic!("unknown graph call: {other}"),
    }
}

fn free_by(word: &str) -> FreeFunction {
    match word {
        "free" => FreeFunction::Free,
        "async" => FreeFunction::FreeAsync,
        "host" => FreeFunction::FreeHost,
        "unregister" => FreeFunction::Unregister,
        "array" => FreeFunction::DestroyArray,
        "close" => FreeFunction::CloseImport,
        "external" => FreeFunction::DestroyExternal,
        other => panic!("unknown function family: {other}"),
    }
}

fn device(words: &[&str]) -> Option<DeviceId> {
    find(words, "gpu").map(|number| DeviceId(number as u16))
}

fn location(words: &[&str]) -> Option<MemoryLocation> {
    let host = words.contains(&"host").then_some(MemoryLocation::Host);
    host.or_else(|| device(words).map(MemoryLocation::Device))
}

fn gpu(word: &str) -> Option<GpuId> {
    word.strip_prefix("GPU").map(|number| GpuId(decimal(number) as u16))
}

fn kinds() -> impl Iterator<Item = MemoryKind> {
    MemoryKind::ALL.into_iter()
}

fn kind(word: &str) -> MemoryKind {
    kinds().find(|kind| kind.name() == word).unwrap()
}

fn object(word: &str) -> ObjectKind {
    ObjectKind::ALL.into_iter().find(|kind| kind.name() == word).unwrap()
}

fn key(word: &str) -> AllocationKey {
    let (space, number) = word.split_once("0x").unwrap();
    let space = match space {
        "" => AddressType::Pointer,
        "h" => AddressType::Handle,
        "a" => AddressType::Array,
        "p" => AddressType::Pool,
        "e" => AddressType::External,
        other => panic!("unknown address type: {other}"),
    };
    AllocationKey { space, value: u64::from_str_radix(number, 16).unwrap() }
}

/// Returns the number of the word that is `prefix` followed by digits.
fn find(words: &[&str], prefix: &str) -> Option<u64> {
    words.iter().find_map(|word| word.strip_prefix(prefix)?.parse().ok())
}

/// Returns the text after `name=`.
fn value<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

fn size(word: &str) -> u64 {
    let units = [("K", 10), ("M", 20), ("G", 30)];
    let scaled = units
        .iter()
        .find_map(|(unit, shift)| word.strip_suffix(unit).map(|number| decimal(number) << shift));
    scaled.unwrap_or_else(|| decimal(word))
}

fn decimal(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("not a number: {word}"))
}

/// Parses `tensor ADDRESS SIZE gpuN siteN of ALLOCATED RESERVED`, or `tensor ADDRESS SIZE gpuN ends
/// of …`.
fn tensor(rest: &[&str]) -> BlockEvent {
    let (address, bytes) = (key(rest[0]).value, size(rest[1]));
    let site = find(rest, "site").map(|number| SiteId(number as u32));
    let of = rest.iter().position(|word| *word == "of").unwrap();
    let op = if rest.contains(&"ends") {
        BlockOp::Freed { address, bytes }
    } else {
        BlockOp::Allocated { address, bytes, site, sampling: Sampling::All }
    };
    BlockEvent::pytorch(op, device(rest).unwrap(), size(rest[of + 1]), size(rest[of + 2]))
}
