//! Input files of any supported format: the start of every verb that reads files.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use engine::model::{AllocationChange, DeviceId, GpuId, Pid};
use formats::import::collecting_sink::{ChangeFilter, CollectingSink, FileInfo};
use formats::import::{self, ImportSummary, SourceFormat};
use formats::report::analysis::AnalyzedFile;
use formats::sanitize::sanitize;

use crate::cli;
use crate::commands::file::replay::known_function;
use crate::io::output;
use crate::io::output_file::shown;
use crate::threads::panic_message;

/// Time after which progress is shown.
const PROGRESS_DELAY: Duration = Duration::from_secs(1);

/// Changes that threads pass on at once; they fit into the cache of a CPU.
const BATCH_CHANGES: usize = 4096;

/// Maximum number of batches that wait to be analyzed.
const MAX_BATCHES: usize = 4;

/// Processes or devices that an error message lists.
const MAX_LISTED_IDS: usize = 10;

/// A file that was read completely.
pub(crate) struct InputFile {
    /// The file name, escaped for output.
    pub(crate) name: String,
    /// The tool that wrote it, and what was imported.
    pub(crate) imported: ImportSummary,
    /// Data of the file other than changes.
    pub(crate) info: FileInfo,
}

impl InputFile {
    /// Returns the file in the form that reports take.
    pub(crate) fn analyzed_file(&self, top: Option<usize>) -> AnalyzedFile<'_> {
        let (path, utc) = (self.name.as_str(), output::settings().utc);
        AnalyzedFile { path, imported: &self.imported, info: &self.info, top, utc }
    }
}

/// Detects the format of a file by its content.
pub(crate) fn detect(path: &Path) -> Result<SourceFormat> {
    Ok(import::detect(path)?)
}

/// Rejects a file that is not a recording.
pub(crate) fn require_recording(path: &Path) -> Result<()> {
    match detect(path)? {
        SourceFormat::Recording => Ok(()),
        other => bail!(
            "{}: only recordings contain events; this is a {} file",
            shown(path),
            other.name()
        ),
    }
}

/// Part of a file that is read, and how its call stacks are shown.
#[derive(Clone, Default)]
pub(crate) struct Selection<'a> {
    /// Processes and devices to include.
    pub(crate) filter: ChangeFilter,
    /// Functions that are never the headline of a call stack.
    pub(crate) wrappers: &'a [String],
}

/// Reads a file and passes each selected change to `each`, in the order of the file. Another thread
/// reads, so that reading and analyzing use two cores.
pub(crate) fn read(
    path: &Path,
    selection: Selection<'_>,
    each: &mut dyn FnMut(&AllocationChange),
) -> Result<InputFile> {
    let (batches, received) = mpsc::sync_channel(MAX_BATCHES);
    let reader = move || {
        let mut batch = Vec::with_capacity(BATCH_CHANGES);
        let input = read_with_info(path, selection, &mut |change, _| {
            batch.push(*change);
            if batch.len() == BATCH_CHANGES {
                // Fails only if the receiver panicked.
                let _ =
                    batches.send(std::mem::replace(&mut batch, Vec::with_capacity(BATCH_CHANGES)));
            }
        });
        let _ = batches.send(batch);
        input
    };
    thread::scope(|scope| {
        let reader = thread::Builder::new().name("reader".to_owned()).spawn_scoped(scope, reader);
        let reader = reader.context("cannot start a thread")?;
        for batch in received {
            batch.iter().for_each(&mut *each);
        }
        reader.join().unwrap_or_else(|panic| {
            Err(anyhow!("the thread that reads the file panicked: {}", panic_message(&*panic)))
        })
    })
}

/// The same on this thread, with the information so far.
pub(crate) fn read_with_info(
    path: &Path,
    Selection { filter, wrappers }: Selection<'_>,
    each: &mut dyn FnMut(&AllocationChange, &FileInfo),
) -> Result<InputFile> {
    let mut progress = Progress::new(path);
    let changes = Cell::new(0_u64);
    let mut count = |change: &AllocationChange, info: &FileInfo| {
        changes.set(changes.get() + 1);
        each(change, info);
    };
    let mut report_progress = |done, total| progress.print_progress(done, total, changes.get());
    let mut sink = CollectingSink::new(filter.clone(), &mut count, &mut report_progress);
    sink.info.stacks.add_wrappers(wrappers.iter().map(String::as_str));
    let imported = import::open(path, &mut sink, known_function)?;
    let info = sink.info;
    drop(progress);
    let name = shown(path);
    reject_unknown_ids(&name, &filter, &info)?;
    Ok(InputFile { name, imported, info })
}

/// Rejects a pid or device that the file does not contain: an empty report would look like good
/// news.
fn reject_unknown_ids(name: &str, filter: &ChangeFilter, info: &FileInfo) -> Result<()> {
    let seen = &info.seen;
    if let Some(pid) = filter.pid
        && !seen.processes.contains(&pid)
        && !info.processes.contains_key(&pid)
    {
        let known = list(seen.processes.iter().map(ToString::to_string));
        bail!("{name}: no process {pid} in this file; it contains {known}");
    }
    if let Some(device) = filter.device
        && !seen.devices.contains(&device)
        && !info.devices.contains_key(&device)
    {
        let known = list(seen.devices.iter().map(|device| device.0.to_string()));
        bail!("{name}: no device {} in this file; it contains {known}", device.0);
    }
    if let Some(gpu) = filter.gpu {
        let mut known: Vec<u16> =
            info.state.iter().flat_map(|state| &state.gpus).map(|gpu| gpu.id.0).collect();
        if known.is_empty() {
            known.extend(seen.devices.iter().chain(info.devices.keys()).map(|device| device.0));
        }
        if !known.contains(&gpu.0) {
            let known = list(known.iter().map(ToString::to_string));
            bail!("{name}: no GPU {} in this file; it contains {known}", gpu.0);
        }
    }
    if let Some(user) = &filter.user
        && !info.users.values().any(|own| own == user)
    {
        let known = names(info.users.values());
        bail!("{name}: no process of user {user} in this file; it contains {known}");
    }
    if let Some(program) = &filter.name
        && !info.processes.values().any(|own| own.contains(program))
    {
        let known = names(info.processes.values());
        bail!("{name}: no program `{program}` in this file; it contains {known}");
    }
    Ok(())
}

/// Returns the first of them for a message.
fn list(known: impl Iterator<Item = String>) -> String {
    let first: Vec<String> = known.take(MAX_LISTED_IDS).collect();
    if first.is_empty() { "none".to_owned() } else { first.join(", ") }
}

/// The same for names, each once.
fn names<'a>(known: impl Iterator<Item = &'a String>) -> String {
    let sorted: BTreeSet<String> = known.map(|name| sanitize(name).into_owned()).collect();
    list(sorted.into_iter())
}

/// Returns what the command line selects.
pub(crate) fn selection(args: &cli::FileFilterArgs) -> Selection<'_> {
    let filter = ChangeFilter {
        pid: args.pid.map(Pid),
        device: args.device.map(DeviceId),
        gpu: args.gpu.map(GpuId),
        user: args.user.clone(),
        name: args.name.clone(),
    };
    Selection { filter, wrappers: &args.wrappers.wrapper }
}

/// Progress of a reader that takes long.
pub(crate) struct Progress {
    name: String,
    started: Instant,
    shown: Option<u64>,
}

impl Progress {
    pub(crate) fn new(path: &Path) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Self { name: sanitize(&name).into_owned(), started: Instant::now(), shown: None }
    }

    pub(crate) fn print_progress(&mut self, done: u64, total: u64, changes: u64) {
        let percent = u128::from(done) * 100 / u128::from(total.max(1));
        let percent = u64::try_from(percent.min(100)).unwrap_or(100);
        let elapsed = self.started.elapsed();
        if self.shown != Some(percent) && elapsed >= PROGRESS_DELAY {
            self.shown = Some(percent);
            let rate = changes as f64 / elapsed.as_secs_f64();
            let name = &self.name;
            output::progress(&format!(
                "reading {name}: {percent} %, {changes} changes, {rate:.0}/s"
            ));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        output::end_progress();
    }
}
