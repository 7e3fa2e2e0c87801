//! Events → rows.

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

/// Names driver functions.
pub(super) type FunctionName = fn(FunctionId) -> &'static str;

/// Adds the row of an event.
pub(super) fn event(sheet: &mut Sheet, event: &Event, function: FunctionName) {
    match &event.what {
        What::Process(facts) => {
            sheet.row("process");
            sheet.text(Column::Name, &*facts.name);
            sheet.number(Column::Uid, u64::from(facts.uid));
            sheet.number(Column::ProcessStartNs, facts.start);
            sheet.flag(Column::BeforeTrace, facts.before_trace);
        }
        What::Container(container) => containers::encode(sheet, container),
        What::ThreadName(name) => {
            sheet.row("thread_name");
            sheet.text(Column::Name, &**name);
        }
        What::Exec => sheet.row("exec"),
        What::Exit => sheet.row("exit"),
        What::ThreadExit => sheet.row("thread_exit"),
        What::Allocate(call) => allocate(sheet, call),
        What::Free(free) => {
            sheet.row("free");
            key(sheet, free.key);
            sheet.text(Column::FreeFunction, free.by.word());
            sheet.number(Column::Stream, free.stream.map(|stream| stream.0));
        }
        What::Vmm(call) => physical(sheet, *call),
        What::Pool(call) => pool(sheet, *call),
        What::Graph(call) => graph(sheet, *call),
        What::Failed(call) => failed(sheet, call, function),
        What::Context(change) => context(sheet, *change),
        What::Gpus(gpus) => {
            sheet.row("device_map");
            let gpus = gpus.iter().map(|gpu| gpu.map(|gpu| u64::from(gpu.0)));
            sheet.numbers(Column::DeviceGpus, gpus);
        }
        What::DriverAccount { gpu, bytes, only } => {
            sheet.row("driver_usage");
            sheet.number(Column::Gpu, u64::from(gpu.0));
            sheet.number(Column::Bytes, *bytes);
            sheet.flag(Column::IsOnlyGpu, *only);
        }
        What::GpuFree { gpu, bytes } => {
            sheet.row("gpu_free");
            sheet.number(Column::Gpu, u64::from(gpu.0));
            sheet.number(Column::Bytes, *bytes);
        }
        What::DriverAccountLost => sheet.row("driver_usage_lost"),
        What::Lost(lost) => losses(sheet, lost),
        What::Work(work) => self::work(sheet, work),
        What::Object(call) => objects::encode(sheet, *call),
        What::Tensor(call) => tensor(sheet, call),
        What::Torch(watch) => {
            sheet.row("torch_detected");
            let reason = match watch {
                TensorWatch::Begun => None,
                TensorWatch::Impossible(reason) => Some(reason.word()),
            };
            sheet.text(Column::Reason, reason);
        }
        What::Site(_) => sheet.row("stack"),
    }
    sheet.number(Column::TimeNs, event.at.0);
    sheet.number(Column::EntryNs, (event.entered != event.at).then_some(event.entered.0));
    sheet.number(Column::Pid, u64::from(event.pid.0));
    sheet.number(Column::Tid, u64::from(event.tid.0));
}

/// Adds the row of a frame.
pub(super) fn frame(sheet: &mut Sheet, id: u32, frame: &Frame) {
    sheet.row("frame");
    sheet.number(Column::FrameId, u64::from(id));
    sheet.text(Column::Function, &*frame.function);
    sheet.text(Column::File, frame.file.as_deref());
    sheet.number(Column::Line, u64::from(frame.line));
    sheet.text(Column::Module, frame.module.as_deref());
    sheet.text(Column::Language, frame.language.word());
    sheet.text(Column::Reason, frame.unknown.map(Word::word));
}

fn key(sheet: &mut Sheet, key: Key) {
    sheet.number(Column::Address, key.value);
    sheet.text(Column::AddressType, key.space.word());
}

fn place(sheet: &mut Sheet, place: Place) {
    match place {
        Place::Device(device) => {
            sheet.text(Column::Location, "device");
            sheet.number(Column::Device, u64::from(device.0));
        }
        Place::Host => sheet.text(Column::Location, "host"),
    }
}

fn allocate(sheet: &mut Sheet, call: &Allocate) {
    sheet.row("allocate");
    key(sheet, call.key);
    sheet.text(Column::Kind, call.kind.word());
    sheet.number(Column::Bytes, call.bytes);
    sheet.number(Column::Context, call.context.map(|context| context.0));
    sheet.number(Column::Device, call.device.map(|device| u64::from(device.0)));
    sheet.number(Column::Pool, call.pool.map(|pool| pool.0));
    sheet.number(Column::Stream, call.stream.map(|stream| stream.0));
    sheet.number(Column::SiteId, call.site.map(|site| u64::from(site.0)));
}

fn physical(sheet: &mut Sheet, call: VmmCall) {
    let mut about = |word, handle| {
        sheet.row(word);
        sheet.number(Column::Handle, handle);
    };
    match call {
        VmmCall::Create { handle, bytes, place: at, site } => {
            about("physical_create", handle.0);
            sheet.number(Column::Bytes, bytes);
            place(sheet, at);
            sheet.number(Column::SiteId, site.map(|site| u64::from(site.0)));
        }
        VmmCall::Import { handle } => about("physical_import", handle.0),
        VmmCall::Multicast { handle } => about("physical_multicast", handle.0),
        VmmCall::Retain { handle } => about("physical_retain", handle.0),
        VmmCall::Release { handle } => about("physical_release", handle.0),
        VmmCall::Map { address, bytes, handle } => {
            about("map", handle.0);
            range(sheet, address, bytes);
        }
        VmmCall::Unmap { address, bytes } => {
            sheet.row("unmap");
            range(sheet, address, bytes);
        }
        VmmCall::Reserve { address, bytes } => {
            sheet.row("reserve");
            range(sheet, address, bytes);
        }
        VmmCall::Unreserve { address, bytes } => {
            sheet.row("unreserve");
            range(sheet, address, bytes);
        }
    }
}

fn range(sheet: &mut Sheet, address: u64, bytes: u64) {
    sheet.number(Column::Address, address);
    sheet.number(Column::Bytes, bytes);
}

fn pool(sheet: &mut Sheet, call: PoolCall) {
    let mut about = |word, pool| {
        sheet.row(word);
        sheet.number(Column::Pool, pool);
    };
    match call {
        PoolCall::Created { pool, place: at } => {
            about("pool_create", pool.0);
            if let Some(at) = at {
                place(sheet, at);
            }
        }
        PoolCall::Destroyed { pool } => about("pool_destroy", pool.0),
        PoolCall::Trimmed { pool, keep } => {
            about("pool_trim", pool.0);
            sheet.number(Column::Bytes, keep);
        }
        PoolCall::ToldReserved { pool, bytes } => {
            about("pool_reserved", pool.0);
            sheet.number(Column::Bytes, bytes);
        }
        PoolCall::OfDevice { pool, device, current } => {
            about("device_pool", pool.0);
            sheet.number(Column::Device, u64::from(device.0));
            sheet.flag(Column::IsCurrent, current);
        }
    }
}

fn graph(sheet: &mut Sheet, call: GraphCall) {
    let mut about = |word, column, value| {
        sheet.row(word);
        sheet.number(column, value);
    };
    match call {
        GraphCall::CaptureBegan { stream, graph } => {
            about("capture_begin", Column::Stream, stream.0);
            sheet.number(Column::Graph, graph.map(|graph| graph.0));
        }
        GraphCall::CaptureEnded { stream, graph } => {
            about("capture_end", Column::Stream, stream.0);
            sheet.number(Column::Graph, graph.map(|graph| graph.0));
        }
        GraphCall::AllocNode { graph, address, bytes, place: at } => {
            about("node_allocate", Column::Graph, graph.0);
            range(sheet, address, bytes);
            place(sheet, at);
        }
        GraphCall::FreeNode { graph, address } => {
            about("node_free", Column::Graph, graph.0);
            sheet.number(Column::Address, address);
        }
        GraphCall::Instantiated { exec, graph, frees_before_launch } => {
            about("graph_instantiate", Column::GraphExec, exec.0);
            sheet.number(Column::Graph, graph.0);
            sheet.flag(Column::AutoFree, frees_before_launch);
        }
        GraphCall::Launched { exec } => about("graph_launch", Column::GraphExec, exec.0),
        GraphCall::ExecDestroyed { exec } => about("graph_exec_destroy", Column::GraphExec, exec.0),
        GraphCall::GraphDestroyed { graph } => about("graph_destroy", Column::Graph, graph.0),
        GraphCall::ToldReserved { device, bytes } => {
            about("graph_reserved", Column::Device, u64::from(device.0));
            sheet.number(Column::Bytes, bytes);
        }
        GraphCall::Trimmed { device } => {
            about("graph_trim", Column::Device, u64::from(device.0));
        }
    }
}

fn failed(sheet: &mut Sheet, call: &Failed, function: FunctionName) {
    sheet.row("call_failed");
    sheet.text(Column::Function, function(call.function));
    sheet.number(Column::FunctionId, u64::from(call.function.0));
    sheet.code(Column::Result, call.code);
    if let Some((kind, bytes)) = call.asked {
        sheet.text(Column::Kind, kind.word());
        sheet.number(Column::Bytes, bytes);
    }
    if let Some(freed) = call.freed {
        key(sheet, freed);
    }
    sheet.number(Column::Device, call.device.map(|device| u64::from(device.0)));
    sheet.number(Column::Context, call.context.map(|context| context.0));
    sheet.number(Column::SiteId, call.site.map(|site| u64::from(site.0)));
}

fn context(sheet: &mut Sheet, change: ContextChange) {
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
    sheet.row(word);
    sheet.number(Column::Context, context.map(|context| context.0));
    sheet.number(Column::Device, device.map(|device| u64::from(device.0)));
}

fn losses(sheet: &mut Sheet, lost: &Lost) {
    sheet.row("lost");
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
        sheet.number(column, count);
    }
}

fn tensor(sheet: &mut Sheet, call: &TensorCall) {
    match call.what {
        TensorTurn::Began { address, bytes, site } => {
            sheet.row("tensor_alloc");
            range(sheet, address, bytes);
            sheet.number(Column::SiteId, site.map(|site| u64::from(site.0)));
        }
        TensorTurn::Ended { address, bytes } => {
            sheet.row("tensor_free");
            range(sheet, address, bytes);
        }
        TensorTurn::Refused { bytes, site } => {
            sheet.row("tensor_oom");
            sheet.number(Column::Bytes, bytes);
            sheet.number(Column::SiteId, site.map(|site| u64::from(site.0)));
        }
    }
    sheet.number(Column::Device, u64::from(call.device.0));
    sheet.number(Column::AllocatedBytes, call.allocated);
    sheet.number(Column::ReservedBytes, call.reserved);
}

fn work(sheet: &mut Sheet, work: &Work) {
    match work {
        Work::Launches(launches) => self::launches(sheet, launches),
        Work::Named { kernel, name, by } => {
            sheet.row("kernel_name");
            sheet.number(Column::KernelHandle, kernel.0);
            sheet.text(Column::Name, &**name);
            sheet.text(Column::NameSource, by.word());
        }
        Work::Alias { function, kernel } => {
            sheet.row("kernel_alias");
            sheet.number(Column::KernelHandle, kernel.0);
            sheet.number(Column::AliasHandle, function.0);
        }
        Work::Nameless { kernel, why } => {
            sheet.row("kernel_unnamed");
            sheet.number(Column::KernelHandle, kernel.0);
            sheet.text(Column::Reason, why.word());
        }
        Work::Copies(copies) => self::copies(sheet, copies),
    }
}

fn launches(sheet: &mut Sheet, launches: &Launches) {
    sheet.row("launches");
    match launches.target {
        Launched::Kernel(kernel) => sheet.number(Column::KernelHandle, kernel.0),
        Launched::Graph(exec) => sheet.number(Column::GraphExec, exec.0),
    }
    sheet.number(Column::Calls, launches.calls);
    sheet.number(Column::Captured, launches.captured);
    sheet.number(Column::Checked, launches.checked);
    sheet.number(Column::Failed, launches.failed);
    sheet.number(Column::OtherShapes, launches.other_shapes);
    if let Some(last) = launches.last {
        sheet.numbers(Column::LastShape, shape(last).map(Some));
    }
    let shapes =
        launches.shapes.iter().flat_map(|(of, calls)| shape(*of).into_iter().chain([*calls]));
    sheet.numbers(Column::Shapes, shapes.map(Some));
}

fn shape(shape: Shape) -> [u64; 7] {
    let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
    [gx, gy, gz, bx, by, bz, shape.shared_bytes].map(u64::from)
}

fn copies(sheet: &mut Sheet, copies: &Copies) {
    sheet.row("copies");
    sheet.text(Column::Direction, copies.direction.word());
    if let Some((destination, source)) = copies.pointers {
        sheet.number(Column::Address, destination);
        sheet.number(Column::SourceAddress, source);
    }
    sheet.flag(Column::IsAsync, copies.asynchronous);
    sheet.number(Column::Calls, copies.calls);
    sheet.number(Column::Bytes, copies.bytes);
    sheet.number(Column::DurationNs, copies.nanos);
    let pairs = copies.bandwidths.iter().flat_map(|(bucket, calls)| [u64::from(*bucket), *calls]);
    sheet.numbers(Column::BandwidthHistogram, pairs.map(Some));
}
