//! Encoding of events as rows.

use engine::event::{
    Allocate, ContextChange, Event, Failed, GraphCall, Lost, Place, PoolCall, VmmCall, What,
};
use engine::ids::{FunctionId, Key};
use engine::stack::Frame;
use engine::tensor::{TensorCall, TensorTurn, TensorWatch};
use engine::work::{Copies, Launched, Launches, Shape, Work};

use super::schema::Column;
use super::sheet::Sheet;
use super::words::Word;
use super::{containers, objects};

/// Returns the names of driver functions.
pub(super) type FunctionName = fn(FunctionId) -> &'static str;

/// Adds the row of an event.
pub(super) fn event(batch: &mut Sheet, event: &Event, function: FunctionName) {
    match &event.what {
        What::Process(facts) => {
            batch.row("process");
            batch.text(Column::Name, &*facts.name);
            batch.number(Column::Uid, u64::from(facts.uid));
            batch.number(Column::ProcessStartNs, facts.start);
            batch.flag(Column::BeforeTrace, facts.before_trace);
        }
        What::Container(container) => containers::encode(batch, container),
        What::ThreadName(name) => {
            batch.row("thread_name");
            batch.text(Column::Name, &**name);
        }
        What::Exec => batch.row("exec"),
        What::Exit => batch.row("exit"),
        What::ThreadExit => batch.row("thread_exit"),
        What::Allocate(call) => allocate(batch, call),
        What::Free(free) => {
            batch.row("free");
            key(batch, free.key);
            batch.text(Column::FreeFunction, free.by.word());
            batch.number(Column::Stream, free.stream.map(|stream| stream.0));
        }
        What::Vmm(call) => physical(batch, *call),
        What::Pool(call) => pool(batch, *call),
        What::Graph(call) => graph(batch, *call),
        What::Failed(call) => failed(batch, call, function),
        What::Context(change) => context(batch, *change),
        What::Gpus(gpus) => {
            batch.row("device_map");
            let gpus = gpus.iter().map(|gpu| gpu.map(|gpu| u64::from(gpu.0)));
            batch.numbers(Column::DeviceGpus, gpus);
        }
        What::DriverAccount { gpu, bytes, only } => {
            batch.row("driver_usage");
            batch.number(Column::Gpu, u64::from(gpu.0));
            batch.number(Column::Bytes, *bytes);
            batch.flag(Column::IsOnlyGpu, *only);
        }
        What::GpuFree { gpu, bytes } => {
            batch.row("gpu_free");
            batch.number(Column::Gpu, u64::from(gpu.0));
            batch.number(Column::Bytes, *bytes);
        }
        What::DriverAccountLost => batch.row("driver_usage_lost"),
        What::Lost(lost) => losses(batch, lost),
        What::Work(work) => self::work(batch, work),
        What::Object(call) => objects::encode(batch, *call),
        What::Tensor(call) => tensor(batch, call),
        What::Torch(tracking) => {
            batch.row("torch_detected");
            let reason = match tracking {
                TensorWatch::Begun => None,
                TensorWatch::Impossible(reason) => Some(reason.word()),
            };
            batch.text(Column::Reason, reason);
        }
        What::Site(_) => batch.row("stack"),
    }
    batch.number(Column::TimeNs, event.at.0);
    batch.number(Column::EntryNs, (event.entered != event.at).then_some(event.entered.0));
    batch.number(Column::Pid, u64::from(event.pid.0));
    batch.number(Column::Tid, u64::from(event.tid.0));
}

/// Adds the row of a frame.
pub(super) fn frame(batch: &mut Sheet, id: u32, frame: &Frame) {
    batch.row("frame");
    batch.number(Column::FrameId, u64::from(id));
    batch.text(Column::Function, &*frame.function);
    batch.text(Column::File, frame.file.as_deref());
    batch.number(Column::Line, u64::from(frame.line));
    batch.text(Column::Module, frame.module.as_deref());
    batch.text(Column::Language, frame.language.word());
    batch.text(Column::Reason, frame.unknown.map(Word::word));
}

fn key(batch: &mut Sheet, key: Key) {
    batch.number(Column::Address, key.value);
    batch.text(Column::AddressType, key.space.word());
}

fn location(batch: &mut Sheet, location: Place) {
    match location {
        Place::Device(device) => {
            batch.text(Column::Location, "device");
            batch.number(Column::Device, u64::from(device.0));
        }
        Place::Host => batch.text(Column::Location, "host"),
    }
}

fn allocate(batch: &mut Sheet, call: &Allocate) {
    batch.row("allocate");
    key(batch, call.key);
    batch.text(Column::Kind, call.kind.word());
    batch.number(Column::Bytes, call.bytes);
    batch.number(Column::Context, call.context.map(|context| context.0));
    batch.number(Column::Device, call.device.map(|device| u64::from(device.0)));
    batch.number(Column::Pool, call.pool.map(|pool| pool.0));
    batch.number(Column::Stream, call.stream.map(|stream| stream.0));
    batch.number(Column::SiteId, call.site.map(|site| u64::from(site.0)));
}

fn physical(batch: &mut Sheet, call: VmmCall) {
    let mut about = |word, handle| {
        batch.row(word);
        batch.number(Column::Handle, handle);
    };
    match call {
        VmmCall::Create { handle, bytes, place: at, site } => {
            about("physical_create", handle.0);
            batch.number(Column::Bytes, bytes);
            location(batch, at);
            batch.number(Column::SiteId, site.map(|site| u64::from(site.0)));
        }
        VmmCall::Import { handle } => about("physical_import", handle.0),
        VmmCall::Multicast { handle } => about("physical_multicast", handle.0),
        VmmCall::Retain { handle } => about("physical_retain", handle.0),
        VmmCall::Release { handle } => about("physical_release", handle.0),
        VmmCall::Map { address, bytes, handle } => {
            about("map", handle.0);
            range(batch, address, bytes);
        }
        VmmCall::Unmap { address, bytes } => {
            batch.row("unmap");
            range(batch, address, bytes);
        }
        VmmCall::Reserve { address, bytes } => {
            batch.row("reserve");
            range(batch, address, bytes);
        }
        VmmCall::Unreserve { address, bytes } => {
            batch.row("unreserve");
            range(batch, address, bytes);
        }
    }
}

fn range(batch: &mut Sheet, address: u64, bytes: u64) {
    batch.number(Column::Address, address);
    batch.number(Column::Bytes, bytes);
}

fn pool(batch: &mut Sheet, call: PoolCall) {
    let mut about = |word, pool| {
        batch.row(word);
        batch.number(Column::Pool, pool);
    };
    match call {
        PoolCall::Created { pool, place: at } => {
            about("pool_create", pool.0);
            if let Some(at) = at {
                location(batch, at);
            }
        }
        PoolCall::Destroyed { pool } => about("pool_destroy", pool.0),
        PoolCall::Trimmed { pool, keep } => {
            about("pool_trim", pool.0);
            batch.number(Column::Bytes, keep);
        }
        PoolCall::ToldReserved { pool, bytes } => {
            about("pool_reserved", pool.0);
            batch.number(Column::Bytes, bytes);
        }
        PoolCall::OfDevice { pool, device, current } => {
            about("device_pool", pool.0);
            batch.number(Column::Device, u64::from(device.0));
            batch.flag(Column::IsCurrent, current);
        }
    }
}

fn graph(batch: &mut Sheet, call: GraphCall) {
    let mut about = |word, column, value| {
        batch.row(word);
        batch.number(column, value);
    };
    match call {
        GraphCall::CaptureBegan { stream, graph } => {
            about("capture_begin", Column::Stream, stream.0);
            batch.number(Column::Graph, graph.map(|graph| graph.0));
        }
        GraphCall::CaptureEnded { stream, graph } => {
            about("capture_end", Column::Stream, stream.0);
            batch.number(Column::Graph, graph.map(|graph| graph.0));
        }
        GraphCall::AllocNode { graph, address, bytes, place: at } => {
            about("node_allocate", Column::Graph, graph.0);
            range(batch, address, bytes);
            location(batch, at);
        }
        GraphCall::FreeNode { graph, address } => {
            about("node_free", Column::Graph, graph.0);
            batch.number(Column::Address, address);
        }
        GraphCall::Instantiated { exec, graph, frees_before_launch } => {
            about("graph_instantiate", Column::GraphExec, exec.0);
            batch.number(Column::Graph, graph.0);
            batch.flag(Column::AutoFree, frees_before_launch);
        }
        GraphCall::Launched { exec } => about("graph_launch", Column::GraphExec, exec.0),
        GraphCall::ExecDestroyed { exec } => about("graph_exec_destroy", Column::GraphExec, exec.0),
        GraphCall::GraphDestroyed { graph } => about("graph_destroy", Column::Graph, graph.0),
        GraphCall::ToldReserved { device, bytes } => {
            about("graph_reserved", Column::Device, u64::from(device.0));
            batch.number(Column::Bytes, bytes);
        }
        GraphCall::Trimmed { device } => {
            about("graph_trim", Column::Device, u64::from(device.0));
        }
    }
}

fn failed(batch: &mut Sheet, call: &Failed, function: FunctionName) {
    batch.row("call_failed");
    batch.text(Column::Function, function(call.function));
    batch.number(Column::FunctionId, u64::from(call.function.0));
    batch.code(Column::Result, call.code);
    if let Some((kind, bytes)) = call.asked {
        batch.text(Column::Kind, kind.word());
        batch.number(Column::Bytes, bytes);
    }
    if let Some(freed) = call.freed {
        key(batch, freed);
    }
    batch.number(Column::Device, call.device.map(|device| u64::from(device.0)));
    batch.number(Column::Context, call.context.map(|context| context.0));
    batch.number(Column::SiteId, call.site.map(|site| u64::from(site.0)));
}

fn context(batch: &mut Sheet, change: ContextChange) {
    let (word, context, device) = match change {
        ContextChange::Created { context, device } => {
            ("context_create", Some(context), Some(device))
        }
        ContextChange::Destroyed { context } => ("context_destroy", Some(context), None),
        ContextChange::PrimaryRetained { context, device } => {
            ("primary_retain", Some(context), Some(device))
        }
        ContextChange::PrimaryReleased { device } => ("primary_release", None, Some(device)),
        ContextChange::PrimaryReset { device } => ("primary_reset", None, Some(device)),
        ContextChange::Learned { context, device } => {
            ("context_discovered", Some(context), Some(device))
        }
    };
    batch.row(word);
    batch.number(Column::Context, context.map(|context| context.0));
    batch.number(Column::Device, device.map(|device| u64::from(device.0)));
}

fn losses(batch: &mut Sheet, lost: &Lost) {
    batch.row("lost");
    for (column, count) in [
        (Column::LostAllocations, lost.allocations),
        (Column::Bytes, lost.allocated_bytes),
        (Column::LostFrees, lost.frees),
        (Column::LostFailures, lost.failures),
        (Column::LostOther, lost.other),
        (Column::LostLaunches, lost.launches),
        (Column::LostCopies, lost.copies),
        (Column::LostStacks, lost.stacks),
        (Column::LostObjects, lost.objects),
        (Column::LostTensors, lost.tensors),
        (Column::LostProcesses, lost.processes),
    ] {
        batch.number(column, count);
    }
}

fn tensor(batch: &mut Sheet, call: &TensorCall) {
    match call.what {
        TensorTurn::Began { address, bytes, site } => {
            batch.row("tensor_alloc");
            range(batch, address, bytes);
            batch.number(Column::SiteId, site.map(|site| u64::from(site.0)));
        }
        TensorTurn::Ended { address, bytes } => {
            batch.row("tensor_free");
            range(batch, address, bytes);
        }
        TensorTurn::Refused { bytes, site } => {
            batch.row("tensor_oom");
            batch.number(Column::Bytes, bytes);
            batch.number(Column::SiteId, site.map(|site| u64::from(site.0)));
        }
    }
    batch.number(Column::Device, u64::from(call.device.0));
    batch.number(Column::AllocatedBytes, call.allocated);
    batch.number(Column::ReservedBytes, call.reserved);
}

fn work(batch: &mut Sheet, work: &Work) {
    match work {
        Work::Launches(launches) => self::launches(batch, launches),
        Work::Named { kernel, name, by } => {
            batch.row("kernel_name");
            batch.number(Column::KernelHandle, kernel.0);
            batch.text(Column::Name, &**name);
            batch.text(Column::NameSource, by.word());
        }
        Work::Alias { function, kernel } => {
            batch.row("kernel_alias");
            batch.number(Column::KernelHandle, kernel.0);
            batch.number(Column::AliasHandle, function.0);
        }
        Work::Nameless { kernel, why } => {
            batch.row("kernel_unnamed");
            batch.number(Column::KernelHandle, kernel.0);
            batch.text(Column::Reason, why.word());
        }
        Work::Copies(copies) => self::copies(batch, copies),
    }
}

fn launches(batch: &mut Sheet, launches: &Launches) {
    batch.row("launches");
    match launches.target {
        Launched::Kernel(kernel) => batch.number(Column::KernelHandle, kernel.0),
        Launched::Graph(exec) => batch.number(Column::GraphExec, exec.0),
    }
    batch.number(Column::Calls, launches.calls);
    batch.number(Column::Captured, launches.captured);
    batch.number(Column::Checked, launches.checked);
    batch.number(Column::Failed, launches.failed);
    batch.number(Column::OtherShapes, launches.other_shapes);
    if let Some(last) = launches.last {
        batch.numbers(Column::LastShape, shape(last).map(Some));
    }
    let shapes =
        launches.shapes.iter().flat_map(|(of, calls)| shape(*of).into_iter().chain([*calls]));
    batch.numbers(Column::Shapes, shapes.map(Some));
}

fn shape(shape: Shape) -> [u64; 7] {
    let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
    [gx, gy, gz, bx, by, bz, shape.shared_bytes].map(u64::from)
}

fn copies(batch: &mut Sheet, copies: &Copies) {
    batch.row("copies");
    batch.text(Column::Direction, copies.direction.word());
    if let Some((destination, source)) = copies.pointers {
        batch.number(Column::Address, destination);
        batch.number(Column::SourceAddress, source);
    }
    batch.flag(Column::IsAsync, copies.asynchronous);
    batch.number(Column::Calls, copies.calls);
    batch.number(Column::Bytes, copies.bytes);
    batch.number(Column::DurationNs, copies.nanos);
    let pairs = copies.bandwidths.iter().flat_map(|(bucket, calls)| [u64::from(*bucket), *calls]);
    batch.numbers(Column::BandwidthHistogram, pairs.map(Some));
}
