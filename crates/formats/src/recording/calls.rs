//! Rows of calls: each is declared once, and encoded and decoded from that.

use engine::model::event::{ContextCall, GraphCall, MemoryLocation, PoolCall, VmmCall};
use engine::model::ids::{
    ContextId, DeviceId, GraphExecId, GraphId, PhysicalHandleId, PoolId, SiteId, StreamId,
};

use super::read::row_cells::{RowCells, RowError};
use super::schema::Column;
use super::write::batch_builder::BatchBuilder;

/// A value of one column, or of a column and those that belong to it.
pub(super) trait CellValue: Sized {
    /// Sets the value of the current row.
    fn put(self, batch: &mut BatchBuilder, column: Column);

    /// Returns the value; an error if it is missing or impossible.
    fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError>;
}

impl CellValue for u64 {
    fn put(self, batch: &mut BatchBuilder, column: Column) {
        batch.number(column, self);
    }

    fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
        cells.must(column, cells.u64(column))
    }
}

/// A flag that an older version did not write is false.
impl CellValue for bool {
    fn put(self, batch: &mut BatchBuilder, column: Column) {
        batch.flag(column, self);
    }

    fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
        Ok(cells.flag(column).unwrap_or(false))
    }
}

/// Implements [`CellValue`] for ids, by the width of their column.
macro_rules! id_cells {
    ($($id:ident $width:ident),* $(,)?) => {$(
        impl CellValue for $id {
            fn put(self, batch: &mut BatchBuilder, column: Column) {
                batch.number(column, u64::from(self.0));
            }

            fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
                cells.must(column, cells.$width(column)).map($id)
            }
        }
    )*};
}

id_cells! {
    ContextId u64, GraphExecId u64, GraphId u64, PhysicalHandleId u64, PoolId u64, StreamId u64,
    SiteId u32, DeviceId u16,
}

/// A location has its device in another column.
impl CellValue for MemoryLocation {
    fn put(self, batch: &mut BatchBuilder, column: Column) {
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

impl<T: CellValue> CellValue for Option<T> {
    fn put(self, batch: &mut BatchBuilder, column: Column) {
        if let Some(value) = self {
            value.put(batch, column);
        }
    }

    fn get(cells: RowCells<'_>, column: Column) -> Result<Self, RowError> {
        if cells.is_null(column) { Ok(None) } else { T::get(cells, column).map(Some) }
    }
}

/// A call that is one row.
pub(super) trait CallRow: Sized {
    /// Adds the row.
    fn encode(self, batch: &mut BatchBuilder);

    /// Decodes a row; none if it is not of these calls.
    fn decode(word: &str, cells: RowCells<'_>) -> Result<Option<Self>, RowError>;
}

/// Declares the rows of calls: the row type, the variant, and the column of each of its fields.
macro_rules! call_rows {
    ($($call:ident { $($word:literal $variant:ident { $($field:ident: $column:ident),* },)* })*) => {$(
        impl CallRow for $call {
            fn encode(self, batch: &mut BatchBuilder) {
                match self {
                    $(Self::$variant { $($field),* } => {
                        batch.row($word);
                        $($field.put(batch, Column::$column);)*
                    })*
                }
            }

            fn decode(word: &str, cells: RowCells<'_>) -> Result<Option<Self>, RowError> {
                Ok(Some(match word {
                    $($word => Self::$variant {
                        $($field: CellValue::get(cells, Column::$column)?),*
                    },)*
                    _ => return Ok(None),
                }))
            }
        }
    )*};
}

call_rows! {
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
