//! Parquet tables: allocations, and the events of a recording.

use std::fs::create_dir_all;
use std::io;
use std::path::Path;

use anyhow::Result;
use formats::export::allocations::Allocations;
use formats::export::exporter::Exporter;
use formats::export::parquet::{Events, Machine, Rows, machine};
use formats::import::Source;
use formats::recording::Reader;

use crate::cli::Export;
use crate::commands::input;
use crate::commands::replay::known_function;
use crate::newfile::NewFile;
use crate::output;

/// Writes the tables. Files get their final names after everything is written.
pub(super) fn run(options: &Export, source: Source) -> Result<()> {
    let dir = super::output_dir(options)?;
    let mut host = Machine::default();
    let mut files = Vec::new();
    if source == Source::Recording {
        host = machine(&options.file, known_function)?;
        if options.part.pid.is_some() || options.part.device.is_some() {
            output::complain("--pid and --device do not apply to events: writing allocations only");
        } else {
            let events = Events::new(host.clone(), Box::new(|path| create(options, dir, path)));
            let mut progress = input::Progress::new(&options.file);
            let reader = Reader::open(&options.file, known_function)?;
            let (parts, notes) =
                events.write(reader, &mut |done, all| progress.tell(done, all, 0))?;
            files.extend(parts);
            super::log_notes(&notes);
        }
    }
    let mut done = (Vec::new(), Vec::new());
    let create = Box::new(|path: &Path| create(options, dir, path));
    let rows = Rows::new(host.host.as_deref(), create, &mut done);
    let mut list = Box::new(Allocations::new(rows));
    let input = super::read(options, |change, facts| list.change(change, facts))?;
    super::log_notes(&list.finish(&input.facts)?);
    let (parts, notes) = done;
    super::log_notes(&notes);
    for file in files.into_iter().chain(parts) {
        file.finish()?;
    }
    super::warn(&input.facts);
    Ok(())
}

fn create(options: &Export, dir: &Path, path: &Path) -> io::Result<NewFile> {
    let path = dir.join(path);
    if let Some(parent) = path.parent() {
        create_dir_all(parent)?;
    }
    NewFile::create(&path, options.force).map_err(io::Error::other)
}
