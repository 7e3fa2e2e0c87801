//! Nsight Systems: the SQLite export of a capture with `--cuda-memory-usage=true`.
//!
//! The memory events are read twice: `prescan` checks their order and collects the API calls they
//! refer to, then `matching` emits the changes. In between, `calls` and `chains` find the stacks.
//! Large tables are read directly from the pages of the file if that is safe (`page_reader`), or
//! else by SQLite; `table` hides the difference.

mod allocation;
mod matching;
mod metadata;
mod pools;
mod prescan;
mod processes;
pub(super) mod sqlite;
mod stacks;
mod warnings;

use std::path::Path;

use self::matching::{MatchProgress, Matcher};
use self::metadata::{EnumTables, ExportInfo};
use self::prescan::Prescan;
use self::sqlite::database::Database;
use self::sqlite::string_table::StringTable;
use self::sqlite::table::{RowOrder, Table};
use self::warnings::Warnings;
use super::{ImportError, ImportSink, ImportSummary, SourceFormat};

/// The table of memory events.
pub(super) const EVENTS: &str = "CUDA_GPU_MEMORY_USAGE_EVENTS";

/// Reads an export. Memory use grows with live allocations, and by about 20 bytes for each
/// allocation that refers to an API call; not with the other tables.
///
/// # Errors
///
/// The file cannot be read, is damaged or locked, or lacks required columns.
pub fn read(path: &Path, sink: &mut dyn ImportSink) -> Result<ImportSummary, ImportError> {
    let database = Database::open(path)?;
    let mut warnings = Warnings::default();
    let export = ExportInfo::read(&database)?;
    let enums = EnumTables::read(&database, &mut warnings)?;
    let events = match Table::find(&database, EVENTS, prescan::COLUMNS)? {
        Some(table) => read_events(&database, &table, &enums, &export, &mut warnings, sink)?,
        None => {
            export.report_clock(&database, 0, sink)?;
            warnings.inexact(
                "the file has no memory events: profile with nsys profile --cuda-memory-usage=true",
                1,
            );
            0
        }
    };
    metadata::report_devices(&database, sink)?;
    warnings.flush(sink);
    Ok(ImportSummary { source: SourceFormat::Nsys, events, producer: export.producer })
}

fn read_events(
    database: &Database,
    table: &Table<8>,
    enums: &EnumTables,
    export: &ExportInfo,
    warnings: &mut Warnings,
    sink: &mut dyn ImportSink,
) -> Result<u64, ImportError> {
    table.require(database, &matching::REQUIRED)?;
    let mut prescan = Prescan::new(enums);
    table.rows(database, RowOrder::Stored, &mut prescan)?;
    let Prescan { mut processes, variables, rows, late, span, .. } = prescan;
    // Timestamps are unsigned, but times of a file may be negative: then the earliest is timestamp
    // 0.
    let zero = span.map_or(0, |(first, _)| first.min(0));
    export.report_clock(database, zero, sink)?;
    warnings.info("memory events were out of order and have been sorted", late);

    let mut strings = StringTable::new(database)?;
    let stats = stacks::calls::read(database, &mut processes)?;
    stats.add_warnings(&mut strings, warnings);
    let mut chains =
        stacks::chains::read(database, &mut processes, &stats, &mut strings, warnings, sink)?;
    stacks::calls::resolve(&mut processes, |chain| chains.site(chain), &mut strings, sink);
    drop(chains);

    let state = {
        let order = if late > 0 { RowOrder::By("start") } else { RowOrder::Stored };
        let state = MatchProgress::default();
        let (processes, path) = (&mut processes, database.path());
        let mut matcher = Matcher { path, enums, processes, variables, zero, rows, sink, state };
        if let Some(table) = Table::find(database, EVENTS, matching::COLUMNS)? {
            table.rows(database, order, &mut matcher)?;
        }
        matcher.end_processes(span.map_or(zero, |(_, last)| last));
        matcher.state
    };
    state.add_warnings(warnings);
    let MatchProgress { mut pools, used, .. } = state;
    pools.read(database, &mut processes)?;
    pools.finish(&processes, zero, sink);
    metadata::report_processes(database, &mut strings, |global| processes.pid(global), sink)?;
    let text = "processes of different machines have the same pid; the later ones are shown with a \
                larger one";
    warnings.info(text, processes.same_pids() as u64);
    Ok(used)
}
