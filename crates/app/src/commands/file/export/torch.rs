//! A memory snapshot for PyTorch's viewers.

use anyhow::{Result, bail};
use formats::export::torch::{Prescan, SnapshotWriter};
use formats::import::SourceFormat;
use formats::sanitize::sanitize;

use crate::cli::{ExportArgs, ExportFormat};
use crate::files::input;

/// Processes that an error message lists.
const MAX_LISTED_PROCESSES: usize = 10;

/// Writes the snapshot. The file is read once to find live memory at its end, and once more for
/// each device.
pub(super) fn run(options: &ExportArgs, source: SourceFormat) -> Result<()> {
    let mut out = super::single(options, ExportFormat::Torch)?;
    let selection = input::selection(&options.filter);
    let mut prescan = Prescan::new(source.scope());
    let input = input::read(&options.file, selection, &mut |change| prescan.change(change))?;
    let snapshot = SnapshotWriter::new(&mut out.writer, prescan, &input.info)?;
    let mut snapshot = match snapshot {
        Ok(snapshot) => snapshot,
        Err(processes) => {
            let known = processes.iter().take(MAX_LISTED_PROCESSES).map(|pid| {
                let name = input.info.processes.get(pid).map(|name| sanitize(name));
                format!("{pid} ({})", name.unwrap_or_default())
            });
            let known: Vec<String> = known.collect();
            bail!(
                "{}: a PyTorch snapshot describes one process; choose one of {} with --pid: {}",
                input.name,
                processes.len(),
                known.join(", ")
            );
        }
    };
    for target in snapshot.targets() {
        snapshot.open(target, &input.info)?;
        if snapshot.has_changes(target) {
            super::read(options, |change, info| snapshot.change(change, info))?;
        }
        snapshot.close(&input.info)?;
    }
    super::log_notes(&snapshot.finish(&input.info)?);
    out.finish()?;
    super::warn(&input.info);
    Ok(())
}
