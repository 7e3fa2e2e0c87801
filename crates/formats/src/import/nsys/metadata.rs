//! Metadata of the file: its producer, the meaning of its numbers, processes, GPUs and the clock.

use engine::model::{DeviceId, MemoryKind, Pid, Timestamp};
use hashbrown::HashMap;
use rusqlite::Row;

use super::sqlite::database::Database;
use super::sqlite::string_table::{StringTable, text};
use super::warnings::Warnings;
use crate::import::{ImportError, ImportSink};
use crate::sanitize::sanitize;

/// Maximum number of rows of a small table that are read: a hostile one could have any number.
const MAX_TABLE_ROWS: usize = 65_536;

/// Calls `each` with the rows of a small table; a missing table or column has no rows.
fn small(
    database: &Database,
    query: &str,
    mut each: impl FnMut(&Row<'_>),
) -> Result<(), ImportError> {
    let Ok(mut statement) = database.connection.prepare(query) else { return Ok(()) };
    let failed = |error| database.sqlite_error("a table of names", &error);
    let mut rows = statement.query([]).map_err(failed)?;
    let mut remaining = MAX_TABLE_ROWS;
    while let Some(row) = rows.next().map_err(failed)? {
        each(row);
        remaining -= 1;
        if remaining == 0 {
            break;
        }
    }
    Ok(())
}

fn string(row: &Row<'_>, column: usize) -> Option<String> {
    row.get_ref(column).ok()?.as_bytes().ok().map(text)
}

fn number(row: &Row<'_>, column: usize) -> Option<i64> {
    row.get_ref(column).ok()?.as_i64().ok()
}

/// Metadata of the exporter.
#[derive(Debug, Default)]
pub(super) struct ExportInfo {
    /// Product and version.
    pub(super) producer: Option<String>,
    /// Nanoseconds that were added to all times.
    shift: i64,
}

impl ExportInfo {
    /// Reads the metadata under the names of newer and older exports. No other rows are read: they
    /// may contain the environment of the profiled program.
    pub(super) fn read(database: &Database) -> Result<Self, ImportError> {
        let mut export = Self::default();
        for table in ["META_DATA_EXPORT", "EXPORT_META_DATA"] {
            let query = format!(
                "SELECT name, value FROM {table} WHERE name IN \
                 ('EXPORT_PRODUCT_NAME', 'EXPORT_PRODUCT_VERSION', 'EXPORT_CONFIG_TIME_SHIFT')"
            );
            let (mut name, mut version) = (None, None);
            small(database, &query, |row| match string(row, 0).as_deref() {
                Some("EXPORT_PRODUCT_NAME") => name = string(row, 1),
                Some("EXPORT_PRODUCT_VERSION") => version = string(row, 1),
                _ => {
                    let shift = string(row, 1).and_then(|text| text.trim().parse().ok());
                    export.shift = shift.or_else(|| number(row, 1)).unwrap_or(export.shift);
                }
            })?;
            if let Some(version) = version {
                let name = name.unwrap_or_else(|| "NVIDIA Nsight Systems".into());
                export.producer = Some(format!("{name} {version}"));
            }
        }
        Ok(export)
    }

    /// Reports the wall clock; `zero` is the time of the file that becomes timestamp 0.
    pub(super) fn report_clock(
        &self,
        database: &Database,
        zero: i64,
        sink: &mut dyn ImportSink,
    ) -> Result<(), ImportError> {
        let mut epoch = None;
        small(database, "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME", |row| {
            epoch = epoch.or(number(row, 0));
        })?;
        // Times are relative to the start of the session; an export may have shifted them.
        let wall = epoch
            .and_then(|epoch| epoch.checked_sub(self.shift))
            .and_then(|wall| wall.checked_add(zero));
        if let Some(wall) = wall {
            sink.clock(Timestamp(0), wall);
        }
        Ok(())
    }
}

/// Meaning of the numbers of memory kinds and operations.
#[derive(Debug)]
pub(super) struct EnumTables {
    kinds: [Option<MemoryKind>; MAX_ENUM_VALUES],
    operations: [Option<MemoryOperation>; MAX_ENUM_VALUES],
}

/// Upper limit of the numbers of kinds and operations.
const MAX_ENUM_VALUES: usize = 64;

/// Operation of a row of the memory table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MemoryOperation {
    /// An allocation.
    Allocation,
    /// A free.
    Free,
}

impl EnumTables {
    /// Reads the numbers from the file, with those that all versions use so far as defaults:
    /// exports of some versions have no such tables, or empty ones.
    pub(super) fn read(database: &Database, warnings: &mut Warnings) -> Result<Self, ImportError> {
        let known = [
            MemoryKind::Pageable,
            MemoryKind::Pinned,
            MemoryKind::Device,
            MemoryKind::Array,
            MemoryKind::Managed,
            MemoryKind::Static,
            MemoryKind::ManagedStatic,
            MemoryKind::Unknown,
        ];
        let mut tables =
            Self { kinds: [None; MAX_ENUM_VALUES], operations: [None; MAX_ENUM_VALUES] };
        tables.kinds.iter_mut().zip(known).for_each(|(slot, kind)| *slot = Some(kind));
        let known = [MemoryOperation::Allocation, MemoryOperation::Free];
        tables.operations.iter_mut().zip(known).for_each(|(slot, known)| *slot = Some(known));
        small(database, "SELECT id, name FROM ENUM_CUDA_MEM_KIND", |row| {
            let (Some(id), Some(name)) = (number(row, 0), string(row, 1)) else { return };
            let kind = kind_of(&name);
            if kind == MemoryKind::Unknown && !name.ends_with("_UNKNOWN") {
                let text =
                    format!("memory kind {} is not known; it counts as unknown", sanitize(&name));
                warnings.info(text, 1);
            }
            put(&mut tables.kinds, id, kind);
        })?;
        small(database, "SELECT id, name FROM ENUM_CUDA_DEV_MEM_EVENT_OPER", |row| {
            let (Some(id), Some(name)) = (number(row, 0), string(row, 1)) else { return };
            if name.ends_with("_DEALLOCATION") {
                put(&mut tables.operations, id, MemoryOperation::Free);
            } else if name.ends_with("_ALLOCATION") {
                put(&mut tables.operations, id, MemoryOperation::Allocation);
            }
        })?;
        Ok(tables)
    }

    /// Returns the kind of a number; `None` if neither the file nor this reader defines it.
    #[inline]
    pub(super) fn kind(&self, id: i64) -> Option<MemoryKind> {
        self.kinds.get(usize::try_from(id).ok()?).copied().flatten()
    }

    /// Returns the operation of a number.
    #[inline]
    pub(super) fn operation(&self, id: i64) -> Option<MemoryOperation> {
        self.operations.get(usize::try_from(id).ok()?).copied().flatten()
    }
}

fn put<T>(table: &mut [Option<T>], id: i64, value: T) {
    if let Some(slot) = usize::try_from(id).ok().and_then(|id| table.get_mut(id)) {
        *slot = Some(value);
    }
}

fn kind_of(name: &str) -> MemoryKind {
    match name.strip_prefix("CUDA_MEMOPR_MEMORY_KIND_").unwrap_or(name) {
        "PAGEABLE" => MemoryKind::Pageable,
        "PINNED" => MemoryKind::Pinned,
        "DEVICE" => MemoryKind::Device,
        "ARRAY" => MemoryKind::Array,
        "MANAGED" => MemoryKind::Managed,
        "DEVICE_STATIC" => MemoryKind::Static,
        "MANAGED_STATIC" => MemoryKind::ManagedStatic,
        _ => MemoryKind::Unknown,
    }
}

/// Returns the pid in a packed id of a process or thread.
pub(super) const fn pid(global: i64) -> Pid {
    Pid(((global >> 24) & 0xff_ffff) as u32)
}

/// Reports the names of processes; `known` returns the pids of those with events.
pub(super) fn report_processes(
    database: &Database,
    strings: &mut StringTable<'_>,
    known: impl Fn(i64) -> Option<Pid>,
    sink: &mut dyn ImportSink,
) -> Result<(), ImportError> {
    let mut names = HashMap::new();
    small(database, "SELECT globalPid, CAST(name AS BLOB) FROM PROCESSES", |row| {
        let pid = number(row, 0).and_then(&known);
        let name = string(row, 1).filter(|name| !name.is_empty());
        names.extend(pid.zip(name));
    })?;
    // Some exports have no such table: the main thread has the name of its program.
    let mut threads = Vec::new();
    small(database, "SELECT globalTid, nameId FROM ThreadNames", |row| {
        let Some(thread) = number(row, 0) else { return };
        let main = (thread & 0xff_ffff) as u32 == pid(thread).0;
        let process = known(thread & !0xff_ffff).filter(|_| main);
        threads.extend(process.zip(number(row, 1)));
    })?;
    for (pid, name) in threads {
        if !names.contains_key(&pid) {
            names.extend(strings.get(name).map(|name| (pid, name)));
        }
    }
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_unstable();
    names.iter().for_each(|(pid, name)| sink.process(*pid, name));
    Ok(())
}

/// Reports the GPUs by the number that events use.
pub(super) fn report_devices(
    database: &Database,
    sink: &mut dyn ImportSink,
) -> Result<(), ImportError> {
    let mut devices = Vec::new();
    for query in [
        "SELECT cuDevice, CAST(name AS BLOB), totalMemory FROM TARGET_INFO_GPU",
        "SELECT id, CAST(name AS BLOB), totalMemory FROM TARGET_INFO_GPU",
    ] {
        small(database, query, |row| {
            let device = number(row, 0).and_then(|id| u16::try_from(id).ok()).map(DeviceId);
            if let (Some(device), Some(name)) = (device, string(row, 1)) {
                let total = number(row, 2).and_then(|total| u64::try_from(total).ok());
                devices.push((device, name, total));
            }
        })?;
        if !devices.is_empty() {
            break;
        }
    }
    devices.sort_by_key(|(device, ..)| *device);
    devices.dedup_by_key(|(device, ..)| *device);
    devices.iter().for_each(|(device, name, total)| sink.device(*device, name, *total));
    Ok(())
}
