//! Decoding of rows: events, and the metadata of the recording.

use std::collections::HashMap;

use engine::model::{
    AllocatorTotals, BlockEvent, BlockOp, BlockTracking, ContextCall, Event, EventKind, FailedCall,
    Frame, FunctionId, GpuActivity, GpuId, GraphCall, LostDelta, ObjectCall, ObjectKind, Pid,
    PoolCall, ShareCall, SiteFrames, Tid, Timestamp, UnknownReason, VmmCall,
};

use super::super::function_table::{FunctionLookup, FunctionTable};
use super::super::rows::{CallRow, CellValue};
use super::super::schema::Column;
use super::super::{RecordingRow, WallClock};
use super::row_cells::{RowCells, RowError};
use crate::export::GpuLabel;
use crate::sanitize::sanitized;

/// Tables that grow while rows are read.
pub(crate) struct IdTables<'a> {
    pub(crate) functions: &'a mut FunctionTable,
    pub(crate) lookup: FunctionLookup,
    pub(crate) frames: &'a mut HashMap<u32, Frame>,
}

/// Maximum number of frames of a file. Later frames are unknown in stacks.
const MAX_FRAME_ROWS: usize = 1 << 20;

/// Maximum number of frames of a stack.
const MAX_STACK_FRAMES: usize = 4096;

/// Returns whether a row defines a site.
pub(crate) fn is_of_site(cells: RowCells<'_>) -> bool {
    matches!(cells.text(Column::RowType), Some("frame" | "stack"))
}

/// Decodes a row; none if only later rows need it.
pub(crate) fn row(
    cells: RowCells<'_>,
    tables: &mut IdTables<'_>,
) -> Result<Option<RecordingRow>, RowError> {
    let word = cells.must(Column::RowType, cells.text(Column::RowType))?;
    Ok(Some(match word {
        "metadata" => RecordingRow::About {
            key: CellValue::get(cells, Column::Name)?,
            value: CellValue::get(cells, Column::Value)?,
        },
        "clock" => clock(cells)?,
        "gpu" => RecordingRow::Gpu(GpuLabel {
            id: CellValue::get(cells, Column::Gpu)?,
            uuid: cells.text(Column::Uuid).unwrap_or_default().to_owned(),
            name: cells.text(Column::Name).unwrap_or_default().to_owned(),
            total_bytes: CellValue::get(cells, Column::Bytes)?,
        }),
        "frame" => {
            let (id, frame) = frame(cells)?;
            if tables.frames.len() < MAX_FRAME_ROWS || tables.frames.contains_key(&id) {
                tables.frames.insert(id, frame);
            }
            return Ok(None);
        }
        "report" => RecordingRow::Tick(Timestamp(u64::get(cells, Column::TimeNs)?)),
        "end" => RecordingRow::End(Timestamp(u64::get(cells, Column::TimeNs)?)),
        word => match event_kind(word, cells, tables)? {
            Some(kind) => RecordingRow::Event(event(cells, kind)?),
            None => RecordingRow::Unknown,
        },
    }))
}

fn event(cells: RowCells<'_>, kind: EventKind) -> Result<Event, RowError> {
    let at = u64::get(cells, Column::TimeNs)?;
    Ok(Event {
        pid: Pid(CellValue::get(cells, Column::Pid)?),
        tid: Tid(CellValue::get(cells, Column::Tid)?),
        entry_time: Timestamp(cells.u64(Column::EntryNs).unwrap_or(at)),
        time: Timestamp(at),
        kind,
    })
}

fn clock(cells: RowCells<'_>) -> Result<RecordingRow, RowError> {
    let start = Timestamp(u64::get(cells, Column::TimeNs)?);
    let utc = cells.must(Column::WallTime, cells.time(Column::WallTime))?;
    let offset = cells.i32(Column::UtcOffsetSeconds).unwrap_or(0);
    Ok(RecordingRow::Clock(WallClock::recorded(start, utc, cells.text(Column::TimeZone), offset)))
}

fn frame(cells: RowCells<'_>) -> Result<(u32, Frame), RowError> {
    let frame = Frame {
        function: cells.text(Column::Function).unwrap_or_default().into(),
        file: cells.text(Column::File).map(Into::into),
        line: cells.u32(Column::Line).unwrap_or(0),
        module: cells.text(Column::Module).map(Into::into),
        language: Option::get(cells, Column::Language)?.unwrap_or_default(),
        unknown: CellValue::get(cells, Column::Reason)?,
    };
    Ok((u32::get(cells, Column::FrameId)?, frame))
}

fn stack(cells: RowCells<'_>, known: &HashMap<u32, Frame>) -> Result<SiteFrames, RowError> {
    let site = CellValue::get(cells, Column::SiteId)?;
    let frame = |number: u64| {
        let id = u32::try_from(number).map_err(|_| cells.bad(Column::FrameIds))?;
        let unknown = || Frame { unknown: Some(UnknownReason::NotRecorded), ..Frame::default() };
        Ok(known.get(&id).cloned().unwrap_or_else(unknown))
    };
    let numbers = cells.all_numbers(Column::FrameIds)?;
    let frames: Result<_, RowError> =
        numbers.into_iter().take(MAX_STACK_FRAMES).map(frame).collect();
    Ok(SiteFrames { site, frames: frames? })
}

/// Decodes the kind of an event, if this version supports the row type.
fn event_kind(
    word: &str,
    cells: RowCells<'_>,
    tables: &mut IdTables<'_>,
) -> Result<Option<EventKind>, RowError> {
    Ok(Some(match word {
        "stack" => EventKind::Site(stack(cells, tables.frames)?),
        "thread_name" => EventKind::ThreadName(CellValue::get(cells, Column::Name)?),
        "kept_by" => {
            let text = cells.must(Column::Value, cells.text(Column::Value))?;
            let address = cells.must(Column::Address, cells.u64(Column::Address))?;
            EventKind::KeptBy(address, sanitized(text).into())
        }
        "call_failed" => EventKind::Failed(failed(cells, tables)?),
        "device_map" => EventKind::Gpus(gpus(cells)?),
        "lost" => {
            let count = |class| cells.u64(Column::of_loss(class)).unwrap_or(0);
            EventKind::Lost(LostDelta::from_counts(count))
        }
        // The second word is that of files in which PyTorch was the only allocator.
        "allocator_detected" | "torch_detected" => {
            let reason = Option::get(cells, Column::Reason)?;
            let tracking = reason.map_or(BlockTracking::Active, BlockTracking::Unavailable);
            EventKind::Allocator(CellValue::get(cells, Column::Allocator)?, tracking)
        }
        // Objects of a kind of a later version are skipped.
        "object_create" | "object_destroy" | "object_image"
            if cells.text(Column::Kind).is_some_and(is_unknown) =>
        {
            return Ok(None);
        }
        word => return call(word, cells),
    }))
}

fn is_unknown(object_kind: &str) -> bool {
    ObjectKind::from_name(object_kind).is_none()
}

fn call(word: &str, cells: RowCells<'_>) -> Result<Option<EventKind>, RowError> {
    // The most common rows.
    if let Some(kind) = EventKind::decode(word, cells)? {
        return Ok(Some(kind));
    }
    let call = VmmCall::decode(word, cells)?.map(EventKind::Vmm);
    let call = call.or(PoolCall::decode(word, cells)?.map(EventKind::Pool));
    let call = call.or(GraphCall::decode(word, cells)?.map(EventKind::Graph));
    let call = call.or(ShareCall::decode(word, cells)?.map(EventKind::Share));
    let call = call.or(ContextCall::decode(word, cells)?.map(EventKind::Context));
    let call = call.or(ObjectCall::decode(word, cells)?.map(EventKind::Object));
    let call = call.or(GpuActivity::decode(word, cells)?.map(EventKind::Activity));
    let (None, Some(op)) = (&call, BlockOp::decode(word, cells)?) else { return Ok(call) };
    let allocated = Option::get(cells, Column::AllocatedBytes)?;
    let reserved = Option::get(cells, Column::ReservedBytes)?;
    let totals = allocated.zip(reserved);
    Ok(Some(EventKind::Block(BlockEvent {
        allocator: CellValue::get(cells, Column::Allocator)?,
        op,
        pool: Option::get(cells, Column::Pool)?.unwrap_or(0),
        device: CellValue::get(cells, Column::Device)?,
        totals: totals.map(|(allocated, reserved)| AllocatorTotals { allocated, reserved }),
    })))
}

fn failed(cells: RowCells<'_>, tables: &mut IdTables<'_>) -> Result<FailedCall, RowError> {
    let function = cells.must(Column::Function, cells.text(Column::Function))?;
    let recorded = FunctionId(cells.u16(Column::FunctionId).unwrap_or(u16::MAX));
    let requested = match Option::get(cells, Column::Kind)? {
        None => None,
        Some(kind) => Some((kind, u64::get(cells, Column::Bytes)?)),
    };
    Ok(FailedCall {
        function: tables.functions.id(function, recorded, tables.lookup),
        code: cells.must(Column::Result, cells.i32(Column::Result))?,
        requested,
        freed: CellValue::get(cells, Column::Address)?,
        device: CellValue::get(cells, Column::Device)?,
        context: CellValue::get(cells, Column::Context)?,
        site: CellValue::get(cells, Column::SiteId)?,
    })
}

fn gpus(cells: RowCells<'_>) -> Result<Box<[Option<GpuId>]>, RowError> {
    let gpu = |number: Option<u64>| number.map(u16::try_from).transpose();
    let gpus: Result<Vec<_>, _> = cells.numbers(Column::DeviceGpus).into_iter().map(gpu).collect();
    let gpus = gpus.map_err(|_| cells.bad(Column::DeviceGpus))?;
    Ok(gpus.into_iter().map(|gpu| gpu.map(GpuId)).collect())
}
