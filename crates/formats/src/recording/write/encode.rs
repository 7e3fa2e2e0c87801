//! Encoding of events as rows.

use engine::model::{
    BlockEvent, BlockTracking, Event, EventKind, FailedCall, Frame, FunctionId, LostDelta,
};

use super::super::rows::{CallRow, CellValue};
use super::super::schema::Column;
use super::batch_builder::BatchBuilder;

/// Returns the names of driver functions.
pub(crate) type FunctionName = fn(FunctionId) -> &'static str;

/// Adds the row of an event.
pub(crate) fn event(batch: &mut BatchBuilder, event: &Event, function: FunctionName) {
    match &event.kind {
        EventKind::ThreadName(name) => {
            batch.row("thread_name");
            name.put(batch, Column::Name);
        }
        EventKind::Vmm(call) => call.encode(batch),
        EventKind::Pool(call) => call.encode(batch),
        EventKind::Graph(call) => call.encode(batch),
        EventKind::Share(call) => call.encode(batch),
        EventKind::Failed(call) => failed(batch, call, function),
        EventKind::Context(call) => call.encode(batch),
        EventKind::Gpus(gpus) => {
            batch.row("device_map");
            let gpus = gpus.iter().map(|gpu| gpu.map(|gpu| u64::from(gpu.0)));
            batch.numbers(Column::DeviceGpus, gpus);
        }
        EventKind::Lost(lost) => losses(batch, lost),
        EventKind::Activity(activity) => activity.encode(batch),
        EventKind::Object(call) => call.encode(batch),
        EventKind::Block(BlockEvent { allocator, op, pool, device, totals }) => {
            op.encode(batch);
            allocator.put(batch, Column::Allocator);
            (*pool != 0).then_some(*pool).put(batch, Column::Pool);
            device.put(batch, Column::Device);
            totals.map(|totals| totals.allocated).put(batch, Column::AllocatedBytes);
            totals.map(|totals| totals.reserved).put(batch, Column::ReservedBytes);
        }
        EventKind::Allocator(allocator, tracking) => {
            batch.row("allocator_detected");
            allocator.put(batch, Column::Allocator);
            if let BlockTracking::Unavailable(reason) = tracking {
                reason.put(batch, Column::Reason);
            }
        }
        EventKind::Site(_) => batch.row("stack"),
        EventKind::KeptBy(address, text) => {
            batch.row("kept_by");
            batch.number(Column::Address, *address);
            text.put(batch, Column::Value);
        }
        // About the host, not about the traced processes.
        EventKind::DeviceHolders(_) => {}
        other => other.encode(batch),
    }
    batch.number(Column::TimeNs, event.time.0);
    batch.number(Column::EntryNs, (event.entry_time != event.time).then_some(event.entry_time.0));
    batch.number(Column::Pid, u64::from(event.pid.0));
    batch.number(Column::Tid, u64::from(event.tid.0));
}

/// Adds the row of a frame.
pub(crate) fn frame(batch: &mut BatchBuilder, id: u32, frame: &Frame) {
    batch.row("frame");
    id.put(batch, Column::FrameId);
    batch.text(Column::Function, &*frame.function);
    batch.text(Column::File, frame.file.as_deref());
    frame.line.put(batch, Column::Line);
    batch.text(Column::Module, frame.module.as_deref());
    frame.language.put(batch, Column::Language);
    frame.unknown.put(batch, Column::Reason);
}

fn failed(batch: &mut BatchBuilder, call: &FailedCall, function: FunctionName) {
    batch.row("call_failed");
    batch.text(Column::Function, function(call.function));
    batch.number(Column::FunctionId, u64::from(call.function.0));
    batch.code(Column::Result, call.code);
    if let Some((kind, bytes)) = call.requested {
        kind.put(batch, Column::Kind);
        bytes.put(batch, Column::Bytes);
    }
    call.freed.put(batch, Column::Address);
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
