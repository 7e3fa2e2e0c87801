//! Parquet tables: allocations, and the events of a recording.

use std::fs::create_dir_all;
use std::io;
use std::path::Path;

use anyhow::Result;
use formats::export::allocations::AllocationWriter;
use formats::export::parquet::{AllocationRows, EventRows, RecordedHost, recorded_host};
use formats::import::SourceFormat;
use formats::recording::RecordingReader;

use crate::cli::ExportArgs;
use crate::commands::file::replay::known_function;
use crate::files::input;
use crate::io::atomic_file::AtomicFile;
use crate::io::output;

/// Writes the tables. Files get their final names after everything is written.
pub(super) fn run(options: &ExportArgs, source: SourceFormat) -> Result<()> {
    let dir = super::output_dir(options)?;
    let mut host = RecordedHost::default();
    let mut files = Vec::new();
    if source == SourceFormat::Recording {
        host = recorded_host(&options.file, known_function)?;
        if options.filter.pid.is_some() || options.filter.device.is_some() {
            output::log("--pid and --device do not apply to events: writing allocations only");
        } else {
            let events = EventRows::new(host.clone(), Box::new(|path| create(options, dir, path)));
            let mut progress = input::Progress::new(&options.file);
            let reader = RecordingReader::open(&options.file, known_function)?;
            let (parts, notes) =
                events.write(reader, &mut |done, all| progress.print_progress(done, all, 0))?;
            files.extend(parts);
            super::log_notes(&notes);
        }
    }
    let mut done = (Vec::new(), Vec::new());
    let create = Box::new(|path: &Path| create(options, dir, path));
    let rows = AllocationRows::new(host.hostname.as_deref(), create, &mut done);
    let info = super::write(options, Box::new(AllocationWriter::new(rows)))?;
    let (parts, notes) = done;
    super::log_notes(&notes);
    for file in files.into_iter().chain(parts) {
        file.commit()?;
    }
    super::warn(&info);
    Ok(())
}

fn create(options: &ExportArgs, dir: &Path, path: &Path) -> io::Result<AtomicFile> {
    let path = dir.join(path);
    if let Some(parent) = path.parent() {
        create_dir_all(parent)?;
    }
    AtomicFile::create(&path, options.force).map_err(io::Error::other)
}
