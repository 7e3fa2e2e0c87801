//! Decoding of rows: events, and the metadata of the recording.

use std::collections::HashMap;

use engine::model::activity::{
    CopyActivity, GpuActivity, KernelLaunches, LaunchShape, LaunchTarget, NameSource,
};
use engine::model::event::{
    Allocate, ContextCall, Event, EventKind, FailedCall, Free, GraphCall, LostDelta, PoolCall,
    ProcessInfo, SiteFrames, VmmCall,
};
use engine::model::ids::{
    AllocationKey, ContextId, DeviceId, FunctionId, GpuId, GraphExecId, KernelId, Pid, PoolId,
    SiteId, StreamId, Tid,
};
use engine::model::memory_kind::MemoryKind;
use engine::model::program::{ProcessGroup, ProcessIdentity};
use engine::model::stack::{Frame, UnknownReason};
use engine::model::tensor::{TensorEvent, TensorOp, TensorTracking};
use engine::model::units::Timestamp;

use super::super::calls::{CallRow, CellValue};
use super::super::function_table::{FunctionLookup, FunctionTable};
use super::super::schema::Column;
use super::super::{RecordingRow, WallClock, containers, objects};
use super::row_cells::{RowCells, RowError};
use crate::export::GpuLabel;

/// Tables that grow while rows are read.
pub(in crate::recording) struct IdTables<'a> {
    pub(in crate::recording) functions: &'a mut FunctionTable,
    pub(in crate::recording) lookup: FunctionLookup,
    pub(in crate::recording) frames: &'a mut HashMap<u32, Frame>,
}

/// Maximum number of frames of a file. Later frames are unknown in stacks.
const MAX_FRAME_ROWS: usize = 1 << 20;

/// Maximum number of frames of a stack.
const MAX_STACK_FRAMES: usize = 4096;

/// Returns whether a row defines a site.
pub(in crate::recording) fn is_of_site(cells: RowCells<'_>) -> bool {
    matches!(cells.text(Column::RowType), Some("frame" | "stack"))
}

/// Decodes a row; none if only later rows need it.
pub(in crate::recording) fn row(
    cells: RowCells<'_>,
    tables: &mut IdTables<'_>,
) -> Result<Option<RecordingRow>, RowError> {
    let word = cells.must(Column::RowType, cells.text(Column::RowType))?;
    Ok(Some(match word {
        "metadata" => RecordingRow::About {
            key: cells.must_text(Column::Name)?,
            value: cells.must_text(Column::Value)?,
        },
        "clock" => clock(cells)?,
        "gpu" => RecordingRow::Gpu(GpuLabel {
            id: GpuId(cells.must(Column::Gpu, cells.u16(Column::Gpu))?),
            uuid: cells.text(Column::Uuid).unwrap_or_default().to_owned(),
            name: cells.text(Column::Name).unwrap_or_default().to_owned(),
            total_bytes: cells.must_u64(Column::Bytes)?,
        }),
        "frame" => {
            let (id, frame) = frame(cells)?;
            if tables.frames.len() < MAX_FRAME_ROWS || tables.frames.contains_key(&id) {
                tables.frames.insert(id, frame);
            }
            return Ok(None);
        }
        "report" => RecordingRow::Tick(Timestamp(cells.must_u64(Column::TimeNs)?)),
        "end" => RecordingRow::End(Timestamp(cells.must_u64(Column::TimeNs)?)),
        word => match event_kind(word, cells, tables)? {
            Some(kind) => RecordingRow::Event(event(cells, kind)?),
            None => RecordingRow::Unknown,
        },
    }))
}

impl RowCells<'_> {
    fn must_u64(self, column: Column) -> Result<u64, RowError> {
        self.must(column, self.u64(column))
    }

    fn must_text(self, column: Column) -> Result<Box<str>, RowError> {
        self.must(column, self.text(column)).map(Into::into)
    }

    fn kernel(self) -> Result<KernelId, RowError> {
        self.must_u64(Column::KernelHandle).map(KernelId)
    }

    fn site(self) -> Option<SiteId> {
        self.u32(Column::SiteId).map(SiteId)
    }

    fn key(self) -> Result<AllocationKey, RowError> {
        let space = self.word(Column::AddressType)?;
        Ok(AllocationKey {
            space: self.must(Column::AddressType, space)?,
            value: self.must_u64(Column::Address)?,
        })
    }

    /// Returns the kind; kinds of a later version are unknown memory.
    fn kind(self) -> Option<MemoryKind> {
        let known = |word: &str| MemoryKind::from_name(word);
        self.text(Column::Kind).map(|word| known(word).unwrap_or(MemoryKind::Unknown))
    }

    fn count(self, column: Column) -> u64 {
        self.u64(column).unwrap_or(0)
    }
}

fn event(cells: RowCells<'_>, kind: EventKind) -> Result<Event, RowError> {
    let at = cells.must_u64(Column::TimeNs)?;
    Ok(Event {
        pid: Pid(cells.must(Column::Pid, cells.u32(Column::Pid))?),
        tid: Tid(cells.must(Column::Tid, cells.u32(Column::Tid))?),
        entry_time: Timestamp(cells.u64(Column::EntryNs).unwrap_or(at)),
        time: Timestamp(at),
        kind,
    })
}

fn clock(cells: RowCells<'_>) -> Result<RecordingRow, RowError> {
    let start = Timestamp(cells.must_u64(Column::TimeNs)?);
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
        language: cells.word(Column::Language)?.unwrap_or_default(),
        unknown: cells.word(Column::Reason)?,
    };
    Ok((cells.must(Column::FrameId, cells.u32(Column::FrameId))?, frame))
}

fn stack(cells: RowCells<'_>, known: &HashMap<u32, Frame>) -> Result<SiteFrames, RowError> {
    let site = SiteId(cells.must(Column::SiteId, cells.u32(Column::SiteId))?);
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

fn identity(cells: RowCells<'_>) -> ProcessIdentity {
    let tree = cells.u32(Column::TreePid).zip(cells.text(Column::TreeProgram));
    ProcessIdentity {
        program: cells.text(Column::Name).map(Into::into),
        user: cells.text(Column::User).map(Into::into),
        group: ProcessGroup {
            job: cells.text(Column::Job).map(Into::into),
            release: cells.text(Column::Release).map(Into::into),
            rank: cells.u32(Column::Rank),
            tree: tree.map(|(pid, program)| (Pid(pid), program.into())),
        },
    }
}

/// Decodes the kind of an event, if this version supports the row type.
fn event_kind(
    word: &str,
    cells: RowCells<'_>,
    tables: &mut IdTables<'_>,
) -> Result<Option<EventKind>, RowError> {
    Ok(Some(match word {
        "stack" => EventKind::Site(stack(cells, tables.frames)?),
        "process" => EventKind::Process(ProcessInfo {
            start: cells.count(Column::ProcessStartNs),
            uid: cells.must(Column::Uid, cells.u32(Column::Uid))?,
            name: cells.must_text(Column::Name)?,
            before_trace: cells.flag(Column::BeforeTrace).unwrap_or(false),
        }),
        "container" => EventKind::Container(Box::new(containers::decode(cells)?)),
        "program" => EventKind::Identity(Box::new(identity(cells))),
        "thread_name" => EventKind::ThreadName(cells.must_text(Column::Name)?),
        "exec" => EventKind::Exec,
        "exit" => EventKind::Exit,
        "thread_exit" => EventKind::ThreadExit,
        "allocate" => EventKind::Allocate(Allocate {
            key: cells.key()?,
            kind: cells.must(Column::Kind, cells.kind())?,
            bytes: cells.must_u64(Column::Bytes)?,
            context: cells.u64(Column::Context).map(ContextId),
            device: cells.u16(Column::Device).map(DeviceId),
            pool: cells.u64(Column::Pool).map(PoolId),
            stream: cells.u64(Column::Stream).map(StreamId),
            site: cells.site(),
        }),
        "free" => {
            let by = cells.word(Column::FreeFunction)?;
            EventKind::Free(Free {
                key: cells.key()?,
                by: cells.must(Column::FreeFunction, by)?,
                stream: cells.u64(Column::Stream).map(StreamId),
            })
        }
        "call_failed" => EventKind::Failed(failed(cells, tables)?),
        "device_map" => EventKind::Gpus(gpus(cells)?),
        "driver_usage" => EventKind::DriverUsage {
            gpu: GpuId(cells.must(Column::Gpu, cells.u16(Column::Gpu))?),
            bytes: cells.must_u64(Column::Bytes)?,
            only: cells.flag(Column::IsOnlyGpu).unwrap_or(false),
        },
        "gpu_free" => EventKind::GpuFree {
            gpu: GpuId(cells.must(Column::Gpu, cells.u16(Column::Gpu))?),
            bytes: cells.must_u64(Column::Bytes)?,
        },
        "driver_usage_lost" => EventKind::DriverUsageLost,
        "lost" => {
            let count = |class| cells.count(Column::of_loss(class));
            EventKind::Lost(LostDelta::from_counts(count))
        }
        word => {
            let vmm = VmmCall::decode(word, cells)?.map(EventKind::Vmm);
            let call = match vmm.or(PoolCall::decode(word, cells)?.map(EventKind::Pool)) {
                Some(call) => Some(call),
                None => GraphCall::decode(word, cells)?.map(EventKind::Graph),
            };
            let call = match call.or(ContextCall::decode(word, cells)?.map(EventKind::Context)) {
                Some(call) => Some(call),
                None => objects::decode(word, cells)?.map(EventKind::Object),
            };
            return Ok(match call.or(activity(word, cells)?.map(EventKind::Activity)) {
                Some(call) => Some(call),
                None => tensor(word, cells)?,
            });
        }
    }))
}

fn activity(word: &str, cells: RowCells<'_>) -> Result<Option<GpuActivity>, RowError> {
    Ok(Some(match word {
        "launches" => GpuActivity::Launches(launches(cells)?),
        "kernel_name" => {
            let source = cells.word(Column::NameSource)?;
            let (kernel, name) = (cells.kernel()?, cells.must_text(Column::Name)?);
            GpuActivity::Named { kernel, name, source: source.unwrap_or(NameSource::Call) }
        }
        "kernel_alias" => GpuActivity::Alias {
            function: KernelId(cells.must_u64(Column::AliasHandle)?),
            kernel: cells.kernel()?,
        },
        "kernel_unnamed" => {
            let reason = cells.word(Column::Reason)?;
            GpuActivity::Unnamed {
                kernel: cells.kernel()?,
                reason: cells.must(Column::Reason, reason)?,
            }
        }
        "copies" => GpuActivity::Copies(Box::new(copies(cells)?)),
        _ => return Ok(None),
    }))
}

fn tensor(word: &str, cells: RowCells<'_>) -> Result<Option<EventKind>, RowError> {
    let address = || cells.must_u64(Column::Address);
    let bytes = || cells.must_u64(Column::Bytes);
    let op = match word {
        "tensor_alloc" => {
            TensorOp::Allocated { address: address()?, bytes: bytes()?, site: cells.site() }
        }
        "tensor_free" => TensorOp::Freed { address: address()?, bytes: bytes()? },
        "tensor_oom" => TensorOp::OutOfMemory { bytes: bytes()?, site: cells.site() },
        "torch_detected" => {
            let reason = cells.word(Column::Reason)?;
            let tracking = reason.map_or(TensorTracking::Active, TensorTracking::Unavailable);
            return Ok(Some(EventKind::Torch(tracking)));
        }
        _ => return Ok(None),
    };
    Ok(Some(EventKind::Tensor(TensorEvent {
        op,
        device: DeviceId::get(cells, Column::Device)?,
        allocated: cells.must_u64(Column::AllocatedBytes)?,
        reserved: cells.must_u64(Column::ReservedBytes)?,
    })))
}

fn failed(cells: RowCells<'_>, tables: &mut IdTables<'_>) -> Result<FailedCall, RowError> {
    let function = cells.must(Column::Function, cells.text(Column::Function))?;
    let recorded = FunctionId(cells.u16(Column::FunctionId).unwrap_or(u16::MAX));
    let requested = match cells.kind() {
        None => None,
        Some(kind) => Some((kind, cells.must_u64(Column::Bytes)?)),
    };
    Ok(FailedCall {
        function: tables.functions.id(function, recorded, tables.lookup),
        code: cells.must(Column::Result, cells.i32(Column::Result))?,
        requested,
        freed: if cells.is_null(Column::Address) { None } else { Some(cells.key()?) },
        device: cells.u16(Column::Device).map(DeviceId),
        context: cells.u64(Column::Context).map(ContextId),
        site: cells.site(),
    })
}

fn gpus(cells: RowCells<'_>) -> Result<Box<[Option<GpuId>]>, RowError> {
    let gpu = |number: Option<u64>| number.map(u16::try_from).transpose();
    let gpus: Result<Vec<_>, _> = cells.numbers(Column::DeviceGpus).into_iter().map(gpu).collect();
    let gpus = gpus.map_err(|_| cells.bad(Column::DeviceGpus))?;
    Ok(gpus.into_iter().map(|gpu| gpu.map(GpuId)).collect())
}

fn launches(cells: RowCells<'_>) -> Result<KernelLaunches, RowError> {
    let target = match cells.u64(Column::GraphExec) {
        Some(exec) => LaunchTarget::Graph(GraphExecId(exec)),
        None => LaunchTarget::Kernel(cells.kernel()?),
    };
    let last = match &*cells.all_numbers(Column::LastShape)? {
        [] => None,
        numbers => Some(cells.must(Column::LastShape, shape(numbers))?),
    };
    let numbers = cells.all_numbers(Column::ShapeCounts)?;
    let shapes = numbers.chunks(8).map(|group| {
        let (calls, of) = group.split_last()?;
        Some((shape(of)?, *calls))
    });
    let shapes: Option<Vec<_>> = shapes.collect();
    Ok(KernelLaunches {
        target,
        calls: cells.must_u64(Column::Calls)?,
        captured: cells.count(Column::Captured),
        checked: cells.count(Column::Checked),
        failed: cells.count(Column::Failed),
        last,
        shapes: cells.must(Column::ShapeCounts, shapes)?,
        other_shapes: cells.count(Column::OtherShapes),
    })
}

fn shape(numbers: &[u64]) -> Option<LaunchShape> {
    let small: Result<Vec<u32>, _> = numbers.iter().map(|number| u32::try_from(*number)).collect();
    match *small.ok()? {
        [gx, gy, gz, bx, by, bz, shared_bytes] => {
            Some(LaunchShape { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes })
        }
        _ => None,
    }
}

fn copies(cells: RowCells<'_>) -> Result<CopyActivity, RowError> {
    let direction = cells.word(Column::CopyDirection)?;
    let numbers = cells.all_numbers(Column::BandwidthHistogram)?;
    let pairs = numbers.chunks(2).map(|pair| match *pair {
        [bucket, calls] => Some((u8::try_from(bucket).ok()?, calls)),
        _ => None,
    });
    let bandwidths: Option<Vec<_>> = pairs.collect();
    Ok(CopyActivity {
        direction: cells.must(Column::CopyDirection, direction)?,
        pointers: cells.u64(Column::Address).zip(cells.u64(Column::SourceAddress)),
        asynchronous: cells.flag(Column::IsAsync).unwrap_or(false),
        calls: cells.must_u64(Column::Calls)?,
        bytes: cells.must_u64(Column::Bytes)?,
        nanos: cells.count(Column::DurationNs),
        bandwidths: cells.must(Column::BandwidthHistogram, bandwidths)?,
    })
}
