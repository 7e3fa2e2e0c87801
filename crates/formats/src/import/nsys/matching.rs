//! Rows of the memory table as changes: each allocation is matched with its free.

use std::collections::VecDeque;
use std::path::Path;

use engine::model::{
    AllocationChange, AllocationKey, ChangeKind, DeviceId, EndReason, MemoryKind, PoolId, StreamId,
    Tid, Timestamp,
};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::allocation::{KindClass, LiveAllocation, MatchKey, class, graph_key, is_same_memory};
use super::metadata::{EnumTables, MemoryOperation};
use super::pools::{PoolState, PoolTable};
use super::prescan::ManagedVariable;
use super::processes::Processes;
use super::sqlite::record::RecordRow;
use super::sqlite::string_table::text;
use super::sqlite::table::RowReader;
use super::stacks::calls::synthetic_site;
use super::warnings::Warnings;
use crate::import::{ImportError, ImportSink};

pub(super) const COLUMNS: [&str; 15] = [
    "start",
    "globalPid",
    "address",
    "bytes",
    "memKind",
    "memoryOperationType",
    "correlationId",
    "deviceId",
    "contextId",
    "streamId",
    "localMemoryPoolAddress",
    "localMemoryPoolSize",
    "localMemoryPoolUtilizedSize",
    "importedMemoryPoolAddress",
    "name",
];

/// Columns that every row needs.
pub(super) const REQUIRED: [usize; 6] = [0, 1, 2, 3, 4, 5];

/// Context id of events outside of any context: libraries are loaded without one.
const NO_CONTEXT: i64 = 0xffff_ffff;

/// Rows between two calls of [`ImportSink::progress`].
const PROGRESS_ROWS: u64 = 1 << 18;

/// Counts of rows with problems.
#[derive(Debug, Default)]
struct RowWarnings {
    types: u64,
    sizes: u64,
    operations: u64,
    unknown_kinds: u64,
    unmatched: u64,
    other_size: u64,
    replaced: u64,
    processes: u64,
}

/// Matches rows, in the order of time.
pub(super) struct Matcher<'a> {
    pub(super) path: &'a Path,
    pub(super) enums: &'a EnumTables,
    pub(super) processes: &'a mut Processes,
    pub(super) variables: HashMap<(u32, i64), Vec<ManagedVariable>>,
    pub(super) zero: i64,
    pub(super) rows: u64,
    pub(super) sink: &'a mut dyn ImportSink,
    pub(super) state: MatchProgress,
}

/// State of the matching.
#[derive(Debug, Default)]
pub(super) struct MatchProgress {
    live: HashMap<MatchKey, LiveAllocation>,
    /// Memory of graphs, which has no address: live allocations by process, oldest first.
    graphs: HashMap<u32, VecDeque<(u64, LiveAllocation)>>,
    serial: u64,
    pub(super) pools: PoolTable,
    row_warnings: RowWarnings,
    seen: u64,
    /// Number of rows that were used.
    pub(super) used: u64,
}

/// A row with valid values.
struct MemoryRow {
    start: i64,
    process: u32,
    address: i64,
    bytes: i64,
    kind: MemoryKind,
    class: KindClass,
}

impl RowReader<15> for Matcher<'_> {
    fn begin(&mut self) -> Result<(), ImportError> {
        if self.state.seen == 0 {
            return Ok(());
        }
        // Changes that were passed on cannot be withdrawn.
        Err(ImportError::Broken {
            path: self.path.into(),
            problem: "the file is damaged".into(),
            location: format!("table {}, after row {}", super::EVENTS, self.state.seen),
            advice: "copy it again, or export it again: nsys export --type sqlite".into(),
        })
    }

    #[inline]
    fn row(&mut self, row: &RecordRow<'_, 15>) -> Result<(), ImportError> {
        self.state.seen += 1;
        if self.state.seen.is_multiple_of(PROGRESS_ROWS) {
            self.sink.progress(self.state.seen, self.rows);
        }
        let Some((event, operation)) = self.parse(row) else { return Ok(()) };
        self.state.used += 1;
        if let Some(pool) = row.int(10) {
            self.update_pool(&event, pool, operation, row);
        }
        match (event.kind == MemoryKind::Graph, operation) {
            (false, MemoryOperation::Allocation) => self.allocated(&event, row),
            (false, MemoryOperation::Free) => self.freed(&event),
            (true, MemoryOperation::Allocation) => {
                let live = self.live(&event, row);
                self.state.serial += 1;
                let serial = self.state.serial;
                self.state.graphs.entry(event.process).or_default().push_back((serial, live));
                self.emit(
                    event.process,
                    graph_key(serial),
                    &live,
                    event.start,
                    ChangeKind::Allocated,
                );
            }
            (true, MemoryOperation::Free) => self.graph_freed(&event),
        }
        Ok(())
    }
}

impl Matcher<'_> {
    #[inline]
    fn parse(&mut self, row: &RecordRow<'_, 15>) -> Option<(MemoryRow, MemoryOperation)> {
        let row_warnings = &mut self.state.row_warnings;
        let (Some(start), Some(global), Some(address), Some(bytes), Some(kind), Some(operation)) =
            (row.int(0), row.int(1), row.int(2), row.int(3), row.int(4), row.int(5))
        else {
            row_warnings.types += 1;
            return None;
        };
        let Some(operation) = self.enums.operation(operation) else {
            row_warnings.operations += 1;
            return None;
        };
        if bytes < 0 {
            row_warnings.sizes += 1;
            return None;
        }
        let Some(process) = self.processes.number(global) else {
            row_warnings.processes += 1;
            return None;
        };
        let kind = self.enums.kind(kind).unwrap_or_else(|| {
            row_warnings.unknown_kinds += 1;
            MemoryKind::Unknown
        });
        let class = class(kind);
        let kind = match kind {
            MemoryKind::Device if address == 0 => MemoryKind::Graph,
            MemoryKind::Device if row.int(13).is_some_and(|pool| pool != 0) => MemoryKind::Imported,
            MemoryKind::Device if row.int(10).is_some() => MemoryKind::Async,
            MemoryKind::Pinned if row.int(10).is_some() => MemoryKind::HostAsync,
            kind => kind,
        };
        Some((MemoryRow { start, process, address, bytes, kind, class }, operation))
    }

    fn update_pool(
        &mut self,
        event: &MemoryRow,
        pool: i64,
        operation: MemoryOperation,
        row: &RecordRow<'_, 15>,
    ) {
        let utilized = row.int(12).unwrap_or(0);
        // The row of a free has the usage before it.
        let used = match operation {
            MemoryOperation::Allocation => utilized,
            MemoryOperation::Free => utilized.saturating_sub(event.bytes),
        };
        let state =
            PoolState { start: event.start, device: device(row), reserved: row.int(11), used };
        self.state.pools.report(event.process, pool, state);
    }

    fn live(&mut self, event: &MemoryRow, row: &RecordRow<'_, 15>) -> LiveAllocation {
        let correlation = row.int(6).and_then(|id| u32::try_from(id).ok()).filter(|&id| id != 0);
        let process = self.processes.get(event.process);
        let (mut site, tid) = match (correlation, process) {
            (Some(correlation), Some(process)) => process.calls.get(correlation),
            _ => (None, Tid(0)),
        };
        if event.kind.is_static() && !row.text.is_empty() {
            site = Some(synthetic_site(&text(row.text), self.sink));
        }
        let pooled = event.kind.is_pooled();
        // The device of host memory has no meaning.
        let device =
            device(row).filter(|_| !matches!(event.class, KindClass::Pinned | KindClass::Pageable));
        LiveAllocation {
            start: event.start,
            bytes: event.bytes,
            pool: row.int(10).map(|pool| PoolId(pool as u64)),
            stream: row.int(9).filter(|_| pooled).map(|stream| StreamId(stream as u64)),
            site,
            tid,
            device,
            kind: event.kind,
            class: event.class,
            outside: row.int(8) == Some(NO_CONTEXT),
        }
    }

    fn allocated(&mut self, event: &MemoryRow, row: &RecordRow<'_, 15>) {
        let key = event.match_key();
        let mut live = self.live(event, row);
        if event.class == KindClass::Managed {
            if let Some(older) = self.state.live.get(&key)
                && is_same_memory(older, &live)
            {
                return;
            }
            self.name_variable(event, &mut live);
        }
        match self.state.live.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(live);
            }
            Entry::Occupied(mut entry) => {
                let older = entry.insert(live);
                self.state.row_warnings.replaced += 1;
                let ended = ChangeKind::Ended {
                    allocated_at: self.timestamp(older.start),
                    reason: EndReason::Replaced,
                };
                self.emit(event.process, event.key(), &older, event.start, ended);
            }
        }
        self.emit(event.process, event.key(), &live, event.start, ChangeKind::Allocated);
    }

    /// Names a `__managed__` variable: the row of its managed memory comes before the row with its
    /// name.
    fn name_variable(&mut self, event: &MemoryRow, live: &mut LiveAllocation) {
        let known = self.variables.get(&(event.process, event.address));
        let variable = known.and_then(|variables| {
            variables
                .iter()
                .find(|variable| variable.start >= event.start && variable.bytes == event.bytes)
        });
        if let Some(variable) = variable {
            live.kind = MemoryKind::ManagedStatic;
            if !variable.name.is_empty() {
                live.site = Some(synthetic_site(&variable.name, self.sink));
            }
        }
    }

    fn freed(&mut self, event: &MemoryRow) {
        let Entry::Occupied(entry) = self.state.live.entry(event.match_key()) else {
            self.state.row_warnings.unmatched += 1;
            return;
        };
        if entry.get().class != event.class {
            self.state.row_warnings.unmatched += 1;
            return;
        }
        let live = entry.remove();
        self.state.row_warnings.other_size += u64::from(live.bytes != event.bytes);
        let ended = ChangeKind::Ended {
            allocated_at: self.timestamp(live.start),
            reason: EndReason::Freed,
        };
        self.emit(event.process, event.key(), &live, event.start, ended);
    }

    /// Matches a trim, which frees memory of launches without saying which: the oldest allocation
    /// of the same size, or else as many of the oldest as fit into the size.
    fn graph_freed(&mut self, event: &MemoryRow) {
        let mut freed = Vec::new();
        if let Some(list) = self.state.graphs.get_mut(&event.process) {
            if let Some(at) = list.iter().position(|(_, live)| live.bytes == event.bytes) {
                freed.extend(list.remove(at));
            } else {
                let mut remaining = event.bytes;
                while let Some((_, live)) = list.front()
                    && live.bytes <= remaining
                {
                    remaining -= live.bytes;
                    freed.extend(list.pop_front());
                }
            }
        }
        self.state.row_warnings.unmatched += u64::from(freed.is_empty());
        for (serial, live) in freed {
            let ended = ChangeKind::Ended {
                allocated_at: self.timestamp(live.start),
                reason: EndReason::Freed,
            };
            self.emit(event.process, graph_key(serial), &live, event.start, ended);
        }
    }

    /// Ends what is still live, at this time: a profile ends with its programs.
    pub(super) fn end_processes(&mut self, at: i64) {
        let live = std::mem::take(&mut self.state.live).into_iter().map(|(key, live)| {
            let value = key.address as u64;
            (key.process, AllocationKey { space: key.space, value }, live)
        });
        let graphs = std::mem::take(&mut self.state.graphs).into_iter();
        let graphs = graphs.flat_map(|(process, list)| {
            list.into_iter().map(move |(serial, live)| (process, graph_key(serial), live))
        });
        let mut rest: Vec<_> = live.chain(graphs).collect();
        rest.sort_by_key(|(process, key, live)| (*process, live.start, *key));
        for (process, key, live) in rest {
            let ended = ChangeKind::Ended {
                allocated_at: self.timestamp(live.start),
                reason: EndReason::ProcessExited,
            };
            self.emit(process, key, &live, at, ended);
        }
    }

    #[inline]
    const fn timestamp(&self, start: i64) -> Timestamp {
        Timestamp(start.wrapping_sub(self.zero) as u64)
    }

    #[inline]
    fn emit(
        &mut self,
        process: u32,
        key: AllocationKey,
        live: &LiveAllocation,
        start: i64,
        action: ChangeKind,
    ) {
        let at = self.timestamp(start);
        let Some(process) = self.processes.get(process) else { return };
        self.sink.change(&AllocationChange {
            at,
            action,
            pid: process.pid,
            tid: live.tid,
            device: live.device,
            kind: live.kind,
            key,
            bytes: live.bytes as u64,
            pool: live.pool,
            stream: live.stream,
            site: live.site,
        });
    }
}

impl MemoryRow {
    #[inline]
    const fn match_key(&self) -> MatchKey {
        MatchKey { address: self.address, process: self.process, space: self.class.space() }
    }

    #[inline]
    const fn key(&self) -> AllocationKey {
        AllocationKey { space: self.class.space(), value: self.address as u64 }
    }
}

impl MatchProgress {
    /// Adds warnings about all rows.
    pub(super) fn add_warnings(&self, warnings: &mut Warnings) {
        let row_warnings = &self.row_warnings;
        warnings.inexact(
            "memory events have values that are not numbers and were left out",
            row_warnings.types,
        );
        warnings.inexact("memory events have negative sizes and were left out", row_warnings.sizes);
        warnings.inexact(
            "memory events are neither allocation nor free and were left out",
            row_warnings.operations,
        );
        warnings
            .inexact("memory events of too many processes were left out", row_warnings.processes);
        warnings.info(
            "memory events have a kind that is not known; it counts as unknown",
            row_warnings.unknown_kinds,
        );
        warnings
            .inexact("frees of memory whose allocation is not in the file", row_warnings.unmatched);
        warnings.info(
            "frees have another size than their allocation, whose size is used",
            row_warnings.other_size,
        );
        warnings
            .inexact("allocations ended without a free (address reused)", row_warnings.replaced);
    }
}

fn device(row: &RecordRow<'_, 15>) -> Option<DeviceId> {
    row.int(7).and_then(|id| u16::try_from(id).ok()).map(DeviceId)
}
