//! Encoding of events as rows.

use engine::model::activity::{
    CopyActivity, GpuActivity, KernelLaunches, LaunchShape, LaunchTarget,
};
use engine::model::event::{Allocate, Event, EventKind, FailedCall, LostDelta};
use engine::model::ids::{AllocationKey, FunctionId};
use engine::model::program::ProcessGroup;
use engine::model::stack::Frame;
use engine::model::tensor::{TensorEvent, TensorOp, TensorTracking};

use super::super::calls::{CallRow, CellValue};
use super::super::enum_names::EnumName;
use super::super::schema::Column;
use super::super::{containers, objects};
use super::batch_builder::BatchBuilder;

/// Returns the names of driver functions.
pub(in crate::recording) type FunctionName = fn(FunctionId) -> &'static str;

/// Adds the row of an event.
pub(in crate::recording) fn event(batch: &mut BatchBuilder, event: &Event, function: FunctionName) {
    match &event.kind {
        EventKind::Process(info) => {
            batch.row("process");
            batch.text(Column::Name, &*info.name);
            batch.number(Column::Uid, u64::from(info.uid));
            batch.number(Column::ProcessStartNs, info.start);
            batch.flag(Column::BeforeTrace, info.before_trace);
        }
        EventKind::Container(container) => containers::encode(batch, container),
        EventKind::Identity(identity) => {
            batch.row("program");
            batch.text(Column::Name, identity.program.as_deref());
            batch.text(Column::User, identity.user.as_deref());
            let ProcessGroup { job, release, rank, tree } = &identity.group;
            batch.text(Column::Job, job.as_deref());
            batch.text(Column::Release, release.as_deref());
            batch.number(Column::Rank, rank.map(u64::from));
            batch.number(Column::TreePid, tree.as_ref().map(|(pid, _)| u64::from(pid.0)));
            batch.text(Column::TreeProgram, tree.as_ref().map(|(_, program)| &**program));
        }
        EventKind::ThreadName(name) => {
            batch.row("thread_name");
            batch.text(Column::Name, &**name);
        }
        EventKind::Exec => batch.row("exec"),
        EventKind::Exit => batch.row("exit"),
        EventKind::ThreadExit => batch.row("thread_exit"),
        EventKind::Allocate(call) => allocate(batch, call),
        EventKind::Free(free) => {
            batch.row("free");
            key(batch, free.key);
            batch.text(Column::FreeFunction, free.by.word());
            free.stream.put(batch, Column::Stream);
        }
        EventKind::Vmm(call) => call.encode(batch),
        EventKind::Pool(call) => call.encode(batch),
        EventKind::Graph(call) => call.encode(batch),
        EventKind::Failed(call) => failed(batch, call, function),
        EventKind::Context(call) => call.encode(batch),
        EventKind::Gpus(gpus) => {
            batch.row("device_map");
            let gpus = gpus.iter().map(|gpu| gpu.map(|gpu| u64::from(gpu.0)));
            batch.numbers(Column::DeviceGpus, gpus);
        }
        EventKind::DriverUsage { gpu, bytes, only } => {
            batch.row("driver_usage");
            batch.number(Column::Gpu, u64::from(gpu.0));
            batch.number(Column::Bytes, *bytes);
            batch.flag(Column::IsOnlyGpu, *only);
        }
        EventKind::GpuFree { gpu, bytes } => {
            batch.row("gpu_free");
            batch.number(Column::Gpu, u64::from(gpu.0));
            batch.number(Column::Bytes, *bytes);
        }
        // About the host, not about the traced processes.
        EventKind::DeviceHolders(_) => {}
        EventKind::DriverUsageLost => batch.row("driver_usage_lost"),
        EventKind::Lost(lost) => losses(batch, lost),
        EventKind::Activity(activity) => self::activity(batch, activity),
        EventKind::Object(call) => objects::encode(batch, *call),
        EventKind::Tensor(call) => tensor(batch, call),
        EventKind::Torch(tracking) => {
            batch.row("torch_detected");
            let reason = match tracking {
                TensorTracking::Active => None,
                TensorTracking::Unavailable(reason) => Some(reason.word()),
            };
            batch.text(Column::Reason, reason);
        }
        EventKind::Site(_) => batch.row("stack"),
    }
    batch.number(Column::TimeNs, event.time.0);
    batch.number(Column::EntryNs, (event.entry_time != event.time).then_some(event.entry_time.0));
    batch.number(Column::Pid, u64::from(event.pid.0));
    batch.number(Column::Tid, u64::from(event.tid.0));
}

/// Adds the row of a frame.
pub(in crate::recording) fn frame(batch: &mut BatchBuilder, id: u32, frame: &Frame) {
    batch.row("frame");
    batch.number(Column::FrameId, u64::from(id));
    batch.text(Column::Function, &*frame.function);
    batch.text(Column::File, frame.file.as_deref());
    batch.number(Column::Line, u64::from(frame.line));
    batch.text(Column::Module, frame.module.as_deref());
    batch.text(Column::Language, frame.language.word());
    batch.text(Column::Reason, frame.unknown.map(EnumName::word));
}

fn key(batch: &mut BatchBuilder, key: AllocationKey) {
    batch.number(Column::Address, key.value);
    batch.text(Column::AddressType, key.space.word());
}

fn allocate(batch: &mut BatchBuilder, call: &Allocate) {
    batch.row("allocate");
    key(batch, call.key);
    batch.text(Column::Kind, call.kind.word());
    batch.number(Column::Bytes, call.bytes);
    call.context.put(batch, Column::Context);
    call.device.put(batch, Column::Device);
    call.pool.put(batch, Column::Pool);
    call.stream.put(batch, Column::Stream);
    call.site.put(batch, Column::SiteId);
}

fn range(batch: &mut BatchBuilder, address: u64, bytes: u64) {
    batch.number(Column::Address, address);
    batch.number(Column::Bytes, bytes);
}

fn failed(batch: &mut BatchBuilder, call: &FailedCall, function: FunctionName) {
    batch.row("call_failed");
    batch.text(Column::Function, function(call.function));
    batch.number(Column::FunctionId, u64::from(call.function.0));
    batch.code(Column::Result, call.code);
    if let Some((kind, bytes)) = call.requested {
        batch.text(Column::Kind, kind.word());
        batch.number(Column::Bytes, bytes);
    }
    if let Some(freed) = call.freed {
        key(batch, freed);
    }
    call.device.put(batch, Column::Device);
    call.context.put(batch, Column::Context);
    call.site.put(batch, Column::SiteId);
}

fn losses(batch: &mut BatchBuilder, lost: &LostDelta) {
    batch.row("lost");
    for (class, count) in lost.counts() {
        batch.number(Column::of_loss(class), count);
    }
}

fn tensor(batch: &mut BatchBuilder, call: &TensorEvent) {
    match call.op {
        TensorOp::Allocated { address, bytes, site } => {
            batch.row("tensor_alloc");
            range(batch, address, bytes);
            site.put(batch, Column::SiteId);
        }
        TensorOp::Freed { address, bytes } => {
            batch.row("tensor_free");
            range(batch, address, bytes);
        }
        TensorOp::OutOfMemory { bytes, site } => {
            batch.row("tensor_oom");
            batch.number(Column::Bytes, bytes);
            site.put(batch, Column::SiteId);
        }
    }
    call.device.put(batch, Column::Device);
    batch.number(Column::AllocatedBytes, call.allocated);
    batch.number(Column::ReservedBytes, call.reserved);
}

fn activity(batch: &mut BatchBuilder, activity: &GpuActivity) {
    match activity {
        GpuActivity::Launches(launches) => self::launches(batch, launches),
        GpuActivity::Named { kernel, name, source } => {
            batch.row("kernel_name");
            batch.number(Column::KernelHandle, kernel.0);
            batch.text(Column::Name, &**name);
            batch.text(Column::NameSource, source.word());
        }
        GpuActivity::Alias { function, kernel } => {
            batch.row("kernel_alias");
            batch.number(Column::KernelHandle, kernel.0);
            batch.number(Column::AliasHandle, function.0);
        }
        GpuActivity::Unnamed { kernel, reason } => {
            batch.row("kernel_unnamed");
            batch.number(Column::KernelHandle, kernel.0);
            batch.text(Column::Reason, reason.word());
        }
        GpuActivity::Copies(copies) => self::copies(batch, copies),
    }
}

fn launches(batch: &mut BatchBuilder, launches: &KernelLaunches) {
    batch.row("launches");
    match launches.target {
        LaunchTarget::Kernel(kernel) => batch.number(Column::KernelHandle, kernel.0),
        LaunchTarget::Graph(exec) => batch.number(Column::GraphExec, exec.0),
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
    batch.numbers(Column::ShapeCounts, shapes.map(Some));
}

fn shape(shape: LaunchShape) -> [u64; 7] {
    let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
    [gx, gy, gz, bx, by, bz, shape.shared_bytes].map(u64::from)
}

fn copies(batch: &mut BatchBuilder, copies: &CopyActivity) {
    batch.row("copies");
    batch.text(Column::CopyDirection, copies.direction.word());
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
