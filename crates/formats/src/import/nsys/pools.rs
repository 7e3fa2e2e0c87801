//! Sizes of pools. Only the last state of each is reported: it is the one at the end of the file.

use engine::model::{DeviceId, Pid, PoolTotals, Timestamp};
use hashbrown::HashMap;

use super::processes::Processes;
use super::sqlite::database::Database;
use super::sqlite::record::RecordRow;
use super::sqlite::table::{RowOrder, RowReader, Table};
use crate::import::{ImportError, ImportSink};

/// Last known state of a pool, and its time in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PoolState {
    pub(super) start: i64,
    pub(super) device: Option<DeviceId>,
    pub(super) reserved: Option<i64>,
    pub(super) used: i64,
}

/// Pools by process and address.
#[derive(Debug, Default)]
pub(super) struct PoolTable(HashMap<(u32, i64), PoolState>);

impl PoolTable {
    /// Updates the state of a pool, unless a newer one is known.
    pub(super) fn report(&mut self, process: u32, pool: i64, state: PoolState) {
        let known = self.0.entry((process, pool)).or_insert(state);
        if state.start >= known.start {
            *known = state;
        }
    }

    /// Reads the table of pool events.
    pub(super) fn read(
        &mut self,
        database: &Database,
        processes: &mut Processes,
    ) -> Result<(), ImportError> {
        let Some(table) = Table::find(database, "CUDA_GPU_MEMORY_POOL_EVENTS", COLUMNS)? else {
            return Ok(());
        };
        let mut reader = PoolReader { found: Self::default(), processes };
        table.rows(database, RowOrder::Stored, &mut reader)?;
        for ((process, pool), state) in reader.found.0 {
            self.report(process, pool, state);
        }
        Ok(())
    }

    /// Reports the state of all pools at the end, by time.
    pub(super) fn finish(self, processes: &Processes, zero: i64, sink: &mut dyn ImportSink) {
        let mut pools: Vec<_> = self.0.into_iter().collect();
        pools.sort_by_key(|&((process, pool), state)| (state.start, process, pool));
        for ((process, pool), state) in pools {
            sink.pool(&PoolTotals {
                pid: processes.pid_of(process).unwrap_or(Pid(0)),
                device: state.device,
                pool: pool as u64,
                reserved: state.reserved.map(|reserved| u64::try_from(reserved).unwrap_or(0)),
                used: u64::try_from(state.used).unwrap_or(0),
                at: Timestamp(state.start.wrapping_sub(zero) as u64),
            });
        }
    }
}

const COLUMNS: [&str; 7] = [
    "start",
    "globalPid",
    "deviceId",
    "address",
    "operationType",
    "localMemoryPoolSize",
    "localMemoryPoolUtilizedSize",
];

/// Operation type of a destroyed pool.
const DESTROYED: i64 = 2;

struct PoolReader<'a> {
    found: PoolTable,
    processes: &'a mut Processes,
}

impl RowReader<7> for PoolReader<'_> {
    fn begin(&mut self) -> Result<(), ImportError> {
        self.found = PoolTable::default();
        Ok(())
    }

    fn row(&mut self, row: &RecordRow<'_, 7>) -> Result<(), ImportError> {
        let (Some(start), Some(global), Some(pool)) = (row.int(0), row.int(1), row.int(3)) else {
            return Ok(());
        };
        let Some(process) = self.processes.number(global) else { return Ok(()) };
        let device = row.int(2).and_then(|id| u16::try_from(id).ok()).map(DeviceId);
        let destroyed = row.int(4) == Some(DESTROYED);
        let reserved = if destroyed { Some(0) } else { row.int(5) };
        let used = if destroyed { 0 } else { row.int(6).unwrap_or(0) };
        self.found.report(process, pool, PoolState { start, device, reserved, used });
        Ok(())
    }
}
