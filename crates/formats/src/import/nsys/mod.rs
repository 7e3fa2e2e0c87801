//! Nsight Systems: the SQLite export of a capture with `--cuda-memory-usage=true`.
//!
//! The memory events are read twice: `prescan` checks their order and collects the API calls they
//! refer to, then `matching` emits the changes. In between, `calls` and `chains` find the stacks.
//! Large tables are read directly from the pages of the file if that is safe (`page_reader`), or
//! else by SQLite; `table` hides the difference.

mod about;
mod allocation;
mod calls;
mod chains;
pub(super) mod database;
mod lookup;
mod matching;
mod notes;
mod pages;
mod pools;
mod processes;
mod record;
mod strings;
mod survey;
mod table;

use std::path::Path;

use self::about::{Export, Words};
use self::database::Database;
use self::matching::{Matching, Progress};
use self::notes::Notes;
use self::strings::Strings;
use self::survey::Survey;
use self::table::{Order, Table};
use super::{Error, Imported, Sink, Source};

/// The table of memory events.
pub(super) const EVENTS: &str = "CUDA_GPU_MEMORY_USAGE_EVENTS";

/// Reads an export. Memory use grows with live allocations, and by about 20 bytes for each
/// allocation that refers to an API call; not with the other tables.
///
/// # Errors
///
/// The file cannot be read, is damaged or locked, or lacks required columns.
pub fn read(path: &Path, sink: &mut dyn Sink) -> Result<Imported, Error> {
    let database = Database::open(path)?;
    let mut notes = Notes::default();
    let export = Export::read(&database)?;
    let enums = Words::read(&database, &mut notes)?;
    let events = match Table::find(&database, EVENTS, survey::COLUMNS)? {
        Some(table) => read_events(&database, &table, &enums, &export, &mut notes, sink)?,
        None => {
            export.tell_clock(&database, 0, sink)?;
            notes.inexact(
                "the file has no memory events: profile with nsys profile --cuda-memory-usage=true",
                1,
            );
            0
        }
    };
    about::tell_devices(&database, sink)?;
    notes.tell(sink);
    Ok(Imported { source: Source::Nsys, events, producer: export.producer })
}

fn read_events(
    database: &Database,
    table: &Table<8>,
    enums: &Words,
    export: &Export,
    notes: &mut Notes,
    sink: &mut dyn Sink,
) -> Result<u64, Error> {
    table.require(database, &matching::REQUIRED)?;
    let mut survey = Survey::new(enums);
    table.rows(database, Order::Stored, &mut survey)?;
    let Survey { mut processes, variables, rows, late, span, .. } = survey;
    // Timestamps are unsigned, but times of a file may be negative: then the earliest is timestamp
    // 0.
    let zero = span.map_or(0, |(first, _)| first.min(0));
    export.tell_clock(database, zero, sink)?;
    notes.mention("memory events were out of order and have been sorted", late);

    let mut strings = Strings::new(database)?;
    let stats = calls::read(database, &mut processes)?;
    stats.add_warnings(&mut strings, notes);
    let mut chains = chains::read(database, &mut processes, &stats, &mut strings, notes, sink)?;
    calls::resolve(&mut processes, |chain| chains.site(chain), &mut strings, sink);
    drop(chains);

    let state = {
        let order = if late > 0 { Order::By("start") } else { Order::Stored };
        let state = Progress::default();
        let (processes, path) = (&mut processes, database.path());
        let mut matching = Matching { path, enums, processes, variables, zero, rows, sink, state };
        if let Some(table) = Table::find(database, EVENTS, matching::COLUMNS)? {
            table.rows(database, order, &mut matching)?;
        }
        matching.state
    };
    state.add_warnings(notes);
    let Progress { mut pools, used, .. } = state;
    pools.read(database, &mut processes)?;
    pools.finish(&processes, zero, sink);
    about::tell_processes(database, &mut strings, |global| processes.pid(global), sink)?;
    let text = "processes of different machines have the same pid; the later ones are shown with a \
                larger one";
    notes.mention(text, processes.same_pids() as u64);
    Ok(used)
}
