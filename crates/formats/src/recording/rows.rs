//! Rows of events: each is declared once, and encoded and decoded from that.

use engine::model::{
    AddressType, Allocate, AllocationKey, Allocator, BlockOp, BlocksUnavailable, ContextCall,
    ContextId, ContextLimit, CopyActivity, CopyDirection, DeviceId, EventKind, Free, FreeFunction,
    GpuActivity, GpuId, GraphCall, GraphExecId, GraphId, KernelId, KernelLaunches, Language,
    LaunchShape, LaunchTarget, MarkKind, MemoryKind, MemoryLocation, MigInstance, NameSource,
    ObjectCall, ObjectKind, PhysicalHandleId, PoolCall, PoolId, ProcessInfo, Sampling,
    SamplingInterval, ShareCall, ShareId, SiteId, StreamId, UnknownReason, UnnamedReason, VmmCall,
};

use super::read::row_cells::{RowCells, RowError};
use super::schema::Column;
use super::write::batch_builder::BatchBuilder;

/// A value of one column, or of a column and those that belong to it.
pub(super) trait CellValue: Sized {
    /// Sets the value of the current row.
    fn put(&self, batch: &mut BatchBuilder, column: Column);

    /// Returns the value; an error if it is missing or impossible.
    fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError>;
}

impl CellValue for u64 {
    fn put(&self, batch: &mut BatchBuilder, column: Column) {
        batch.number(column, *self);
    }

    fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
        let absent = (column.is_zero_if_absent() && cells.is_null(column)).then_some(0);
        cells.must(column, cells.u64(column).or(absent))
    }
}

/// The interval, and whether the block was skipped.
impl CellValue for Sampling {
    fn put(&self, batch: &mut BatchBuilder, column: Column) {
        if let Some(interval) = self.interval() {
            batch.number(column, interval.bytes().0);
            batch.flag(Column::Skipped, matches!(self, Self::Skipped(_)));
        }
    }

    fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
        let interval = cells.u64(column).and_then(SamplingInterval::from_bytes);
        let sampled = match cells.flag(Column::Skipped) {
            Some(true) => Self::Skipped,
            _ => Self::Sampled,
        };
        Ok(interval.map_or(Self::All, sampled))
    }
}

/// A flag that an older version did not write is false.
impl CellValue for bool {
    fn put(&self, batch: &mut BatchBuilder, column: Column) {
        batch.flag(column, *self);
    }

    fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
        Ok(cells.flag(column).unwrap_or(false))
    }
}

impl CellValue for u32 {
    fn put(&self, batch: &mut BatchBuilder, column: Column) {
        batch.number(column, u64::from(*self));
    }

    fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
        cells.must(column, cells.u32(column))
    }
}

impl CellValue for Box<str> {
    fn put(&self, batch: &mut BatchBuilder, column: Column) {
        batch.text(column, &**self);
    }

    fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
        cells.must(column, cells.text(column)).map(Into::into)
    }
}

/// Implements [`CellValue`] for ids, by the width of their column.
macro_rules! id_cells {
    ($($id:ident $width:ident),* $(,)?) => {$(
        impl CellValue for $id {
            fn put(&self, batch: &mut BatchBuilder, column: Column) {
                batch.number(column, u64::from(self.0));
            }

            fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
                cells.must(column, cells.$width(column)).map($id)
            }
        }
    )*};
}
id_cells! {
    ContextId u64, GraphExecId u64, GraphId u64, KernelId u64, PhysicalHandleId u64, PoolId u64,
    ShareId u64, StreamId u64, SiteId u32, DeviceId u16, GpuId u16,
}

/// Implements [`CellValue`] for enums, by the names of their values; with the value that a missing
/// name stands for, if there is one.
macro_rules! word_cells {
    ($($type:ident $name:expr $(=> $absent:expr)?),* $(,)?) => {$(
        impl CellValue for $type {
            fn put(&self, batch: &mut BatchBuilder, column: Column) {
                batch.text(column, $name(*self));
            }

            fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
                let word = cells.text(column);
                let found = Self::ALL.into_iter().find(|value| Some($name(*value)) == word);
                $(let found = found.or(word.is_none().then_some($absent));)?
                cells.must(column, found)
            }
        }
    )*};
}
word_cells! {
    AddressType AddressType::name, CopyDirection CopyDirection::name,
    FreeFunction FreeFunction::name, Language Language::name,
    ContextLimit ContextLimit::name, MarkKind MarkKind::name => MarkKind::Point,
    NameSource NameSource::name => NameSource::Call, ObjectKind ObjectKind::name, BlocksUnavailable BlocksUnavailable::name,
    Allocator Allocator::name => Allocator::PyTorch,
    UnknownReason reason_name, UnnamedReason UnnamedReason::name,
}

/// Returns the name of a reason in recordings, which is older than that in reports.
const fn reason_name(reason: UnknownReason) -> &'static str {
    match reason {
        UnknownReason::Unmapped => "unmapped",
        UnknownReason::Jit => "jit",
        UnknownReason::Unreadable => "unreadable",
        other => other.name(),
    }
}

/// Kinds of a later version are unknown memory.
impl CellValue for MemoryKind {
    fn put(&self, batch: &mut BatchBuilder, column: Column) {
        batch.text(column, self.name());
    }

    fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
        let known = |word: &str| Self::from_name(word).unwrap_or(Self::Unknown);
        cells.must(column, cells.text(column).map(known))
    }
}

/// An address has its type in another column.
impl CellValue for AllocationKey {
    fn put(&self, batch: &mut BatchBuilder, column: Column) {
        self.value.put(batch, column);
        self.space.put(batch, Column::AddressType);
    }

    fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
        let space = AddressType::get(cells, Column::AddressType)?;
        Ok(Self { space, value: u64::get(cells, column)? })
    }
}

/// The destination of a copy; the source is in another column.
impl CellValue for (u64, u64) {
    fn put(&self, batch: &mut BatchBuilder, column: Column) {
        self.0.put(batch, column);
        self.1.put(batch, Column::SourceAddress);
    }

    fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
        Ok((u64::get(cells, column)?, u64::get(cells, Column::SourceAddress)?))
    }
}

/// A location has its device in another column.
impl CellValue for MemoryLocation {
    fn put(&self, batch: &mut BatchBuilder, column: Column) {
        match self {
            Self::Device(device) => {
                batch.text(column, "device");
                device.put(batch, Column::Device);
            }
            Self::Host => batch.text(column, "host"),
        }
    }

    fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
        match cells.text(column) {
            Some("device") => DeviceId::get(cells, Column::Device).map(Self::Device),
            Some("host") => Ok(Self::Host),
            _ => Err(cells.bad(column)),
        }
    }
}

/// Kernels and graphs are in different columns.
impl CellValue for LaunchTarget {
    fn put(&self, batch: &mut BatchBuilder, column: Column) {
        match self {
            Self::Kernel(kernel) => kernel.put(batch, column),
            Self::Graph(exec) => exec.put(batch, Column::GraphExec),
        }
    }

    fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
        match Option::get(cells, Column::GraphExec)? {
            Some(exec) => Ok(Self::Graph(exec)),
            None => KernelId::get(cells, column).map(Self::Kernel),
        }
    }
}

impl CellValue for LaunchShape {
    fn put(&self, batch: &mut BatchBuilder, column: Column) {
        batch.numbers(column, shape_numbers(self).map(Some));
    }

    fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
        cells.must(column, shape(&cells.all_numbers(column)?))
    }
}

/// Shapes, each followed by its calls.
impl CellValue for Vec<(LaunchShape, u64)> {
    fn put(&self, batch: &mut BatchBuilder, column: Column) {
        let groups =
            self.iter().flat_map(|(of, calls)| shape_numbers(of).into_iter().chain([*calls]));
        batch.numbers(column, groups.map(Some));
    }

    fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
        let numbers = cells.all_numbers(column)?;
        let groups = numbers.chunks(8).map(|group| {
            let (calls, of) = group.split_last()?;
            Some((shape(of)?, *calls))
        });
        cells.must(column, groups.collect())
    }
}

fn shape_numbers(shape: &LaunchShape) -> [u64; 7] {
    let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
    [gx, gy, gz, bx, by, bz, shape.shared_bytes].map(u64::from)
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

/// Buckets, each followed by its calls.
impl CellValue for Vec<(u8, u64)> {
    fn put(&self, batch: &mut BatchBuilder, column: Column) {
        let pairs = self.iter().flat_map(|(bucket, calls)| [u64::from(*bucket), *calls]);
        batch.numbers(column, pairs.map(Some));
    }

    fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
        let numbers = cells.all_numbers(column)?;
        let pairs = numbers.chunks(2).map(|pair| match *pair {
            [bucket, calls] => Some((u8::try_from(bucket).ok()?, calls)),
            _ => None,
        });
        cells.must(column, pairs.collect())
    }
}

impl<T: CellValue> CellValue for Option<T> {
    fn put(&self, batch: &mut BatchBuilder, column: Column) {
        if let Some(value) = self {
            value.put(batch, column);
        }
    }

    fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
        if cells.is_null(column) { Ok(None) } else { T::get(cells, column).map(Some) }
    }
}

/// Values of a row, in several columns.
pub(super) trait RowFields: Sized {
    /// Sets the values of the current row.
    fn put_all(&self, batch: &mut BatchBuilder);

    /// Returns the values; an error if one is missing or impossible.
    fn get_all(cells: RowCells<'_>) -> Result<Self, RowError>;
}

impl<T: RowFields> RowFields for Box<T> {
    fn put_all(&self, batch: &mut BatchBuilder) {
        (**self).put_all(batch);
    }

    fn get_all(cells: RowCells<'_>) -> Result<Self, RowError> {
        T::get_all(cells).map(Self::new)
    }
}

/// Declares the columns of the fields of structs.
macro_rules! row_fields {
    ($($type:ident { $($field:ident: $column:ident),* $(,)? })*) => {$(
        impl RowFields for $type {
            fn put_all(&self, batch: &mut BatchBuilder) {
                $(self.$field.put(batch, Column::$column);)*
            }

            fn get_all(cells: RowCells<'_>) -> Result<Self, RowError> {
                Ok(Self { $($field: CellValue::get(cells, Column::$column)?),* })
            }
        }
    )*};
}
row_fields! {
    ProcessInfo { name: Name, uid: Uid, start: ProcessStartNs, before_trace: BeforeTrace }
    Allocate {
        key: Address, kind: Kind, bytes: Bytes, context: Context, device: Device, pool: Pool,
        stream: Stream, site: SiteId,
    }
    MigInstance { uuid: Uuid, profile: Name }
    Free { key: Address, by: FreeFunction, stream: Stream }
    KernelLaunches {
        target: KernelHandle, calls: Calls, captured: Captured, checked: Checked, failed: Failed,
        other_shapes: OtherShapes, last: LastShape, shapes: ShapeCounts,
    }
    CopyActivity {
        direction: CopyDirection, pointers: Address, asynchronous: IsAsync, calls: Calls,
        bytes: Bytes, nanos: DurationNs, bandwidths: BandwidthHistogram,
    }
}

/// An event or call that is one row.
pub(super) trait CallRow: Sized {
    /// Adds the row.
    fn encode(&self, batch: &mut BatchBuilder);

    /// Decodes a row; none if it is not of these calls.
    fn decode(word: &str, cells: RowCells<'_>) -> Result<Option<Self>, RowError>;
}

/// Declares rows: the row type, the variant, and the column of each of its fields or the struct that
/// has them. `[_]`: other variants are not rows of this list.
macro_rules! call_rows {
    ($($call:ident $([$others:pat])? {
        $($word:literal $variant:ident $({ $($field:ident: $column:ident),* })? $(($fields:ident))?,)*
    })*) => {$(
        impl CallRow for $call {
            fn encode(&self, batch: &mut BatchBuilder) {
                match self {
                    $(Self::$variant $({ $($field),* })? $(($fields))? => {
                        batch.row($word);
                        $($($field.put(batch, Column::$column);)*)?
                        $($fields.put_all(batch);)?
                    })*
                    $($others => {})?
                }
            }

            fn decode(word: &str, cells: RowCells<'_>) -> Result<Option<Self>, RowError> {
                Ok(Some(match word {
                    $($word => {
                        $(let $fields = RowFields::get_all(cells)?;)?
                        Self::$variant
                            $({ $($field: CellValue::get(cells, Column::$column)?),* })?
                            $(($fields))?
                    })*
                    _ => return Ok(None),
                }))
            }
        }
    )*};
}
call_rows! {
    EventKind [_] {
        "process" Process(info),
        "container" Container(container),
        "program" Identity(identity),
        "exec" Exec,
        "exit" Exit,
        "thread_exit" ThreadExit,
        "allocate" Allocate(call),
        "free" Free(call),
        "driver_usage" DriverUsage { gpu: Gpu, bytes: Bytes, only: IsOnlyGpu },
        "gpu_free" GpuFree { gpu: Gpu, bytes: Bytes },
        "driver_usage_lost" DriverUsageLost,
        "mig_instance" MigInstance(mig),
        "context_limit" Limit { limit: ContextLimit, value: Bytes },
        "mark" Mark { kind: MarkKind, label: Name },
        "unknown_calls" UnknownCalls { function: Function, calls: Calls },
    }
    ShareCall {
        "export" Exported { key: Address, share: ShareId },
        "import" Imported { key: Address, share: ShareId },
    }
    GpuActivity {
        "launches" Launches(launches),
        "kernel_name" Named { kernel: KernelHandle, name: Name, source: NameSource },
        "kernel_alias" Alias { kernel: KernelHandle, function: AliasHandle },
        "kernel_unnamed" Unnamed { kernel: KernelHandle, reason: Reason },
        "copies" Copies(copies),
    }
    ObjectCall {
        "object_create" Created { kind: Kind, handle: Handle, context: Context, site: SiteId },
        "object_image" Image { kind: Kind, handle: Handle, bytes: Bytes },
        "object_destroy" Destroyed { kind: Kind, handle: Handle },
    }
    BlockOp {
        "tensor_alloc" Allocated { address: Address, bytes: Bytes, site: SiteId, sampling: SamplingInterval },
        "tensor_free" Freed { address: Address, bytes: Bytes },
        "tensor_oom" OutOfMemory { bytes: Bytes, site: SiteId },
    }
    VmmCall {
        "physical_create" Create { handle: Handle, bytes: Bytes, location: Location, site: SiteId },
        "physical_import" Import { handle: Handle },
        "physical_multicast" Multicast { handle: Handle },
        "physical_retain" Retain { handle: Handle },
        "physical_release" Release { handle: Handle },
        "map" Map { address: Address, bytes: Bytes, handle: Handle },
        "unmap" Unmap { address: Address, bytes: Bytes },
        "reserve" Reserve { address: Address, bytes: Bytes },
        "unreserve" Unreserve { address: Address, bytes: Bytes },
    }
    PoolCall {
        "pool_create" Created { pool: Pool, location: Location },
        "pool_destroy" Destroyed { pool: Pool },
        "pool_trim" Trimmed { pool: Pool, keep: Bytes },
        "pool_reserved" ReservedReported { pool: Pool, bytes: Bytes },
        "device_pool" OfDevice { pool: Pool, device: Device, current: IsCurrent },
    }
    GraphCall {
        "capture_begin" CaptureBegan { stream: Stream, graph: Graph },
        "capture_end" CaptureEnded { stream: Stream, graph: Graph },
        "node_allocate" AllocNode { graph: Graph, address: Address, bytes: Bytes, location: Location },
        "node_free" FreeNode { graph: Graph, address: Address },
        "graph_instantiate" Instantiated { exec: GraphExec, graph: Graph, frees_before_launch: AutoFree },
        "graph_launch" Launched { exec: GraphExec },
        "graph_exec_destroy" ExecDestroyed { exec: GraphExec },
        "graph_destroy" GraphDestroyed { graph: Graph },
        "graph_reserved" ReservedReported { device: Device, bytes: Bytes },
        "graph_trim" Trimmed { device: Device },
    }
    ContextCall {
        "context_create" Created { context: Context, device: Device },
        "context_destroy" Destroyed { context: Context },
        "primary_retain" PrimaryRetained { context: Context, device: Device },
        "primary_release" PrimaryReleased { device: Device },
        "primary_reset" PrimaryReset { device: Device },
        "context_discovered" Learned { context: Context, device: Device },
    }
}
