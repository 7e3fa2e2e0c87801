//! Tables for databases: allocations, and the events of a recording.

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

/// Writes them. Nothing has its name before everything is written.
pub(super) fn run(options: &Export, source: Source) -> Result<()> {
    let folder = super::folder(options)?;
    let mut of = Machine::default();
    let mut files = Vec::new();
    if source == Source::Recording {
        of = machine(&options.file, known_function)?;
        if options.part.pid.is_some() || options.part.device.is_some() {
            output::complain("--pid and --device do not apply to events: writing allocations only");
        } else {
            let events = Events::new(of.clone(), Box::new(|path| make(options, folder, path)));
            let mut progress = input::Progress::new(&options.file);
            let reader = Reader::open(&options.file, known_function)?;
            let (parts, notes) =
                events.write(reader, &mut |done, all| progress.tell(done, all, 0))?;
            files.extend(parts);
            super::tell(&notes);
        }
    }
    let mut done = (Vec::new(), Vec::new());
    let make = Box::new(|path: &Path| make(options, folder, path));
    let rows = Rows::new(of.host.as_deref(), make, &mut done);
    let mut list = Box::new(Allocations::new(rows));
    let input = super::read(options, |change, facts| list.change(change, facts))?;
    super::tell(&list.finish(&input.facts)?);
    let (parts, notes) = done;
    super::tell(&notes);
    for file in files.into_iter().chain(parts) {
        file.finish()?;
    }
    super::warn(&input.facts);
    Ok(())
}

fn make(options: &Export, folder: &Path, path: &Path) -> io::Result<NewFile> {
    let path = folder.join(path);
    if let Some(parent) = path.parent() {
        create_dir_all(parent)?;
    }
    NewFile::create(&path, options.force).map_err(io::Error::other)
}
