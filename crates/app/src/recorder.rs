//! The recording that a trace writes. When it cannot be written on, the trace goes on without it.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use capture::hooks::function_name;
use engine::event::Event;
use engine::units::{Bytes, Moment};
use formats::export::Names;
use formats::plain::plain;
use formats::recording::{Header, Writer};

use crate::{Outcome, cli, host, output};

/// A file or pipe that can be written to.
pub(crate) struct Created {
    path: PathBuf,
    file: File,
}

/// Opens the file at once, so that a bad path fails before the work. Only its owner may read it:
/// it tells of every process.
pub(crate) fn create(path: &Path) -> Result<Created> {
    let shown = path.display();
    let advice = || format!("cannot write {shown}; choose another file");
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = file.with_context(advice)?;
    let kind = file.metadata().with_context(advice)?.file_type();
    if kind.is_file() {
        file.set_len(0).with_context(advice)?;
        // One that was there may have been for everybody. Some file systems have no such rights.
        let _ = file.set_permissions(Permissions::from_mode(0o600));
    } else if !kind.is_fifo() {
        bail!("{shown} is neither a file nor a pipe; choose another place for the recording");
    }
    Ok(Created { path: path.into(), file })
}

/// A recording that is written, until it ends or fails.
pub(crate) struct Recorder {
    path: PathBuf,
    writer: Option<Writer<File>>,
}

impl Recorder {
    /// Writes the header.
    pub(crate) fn start(created: Created, names: &Names, target: &cli::Target, work: bool) -> Self {
        let Created { path, file } = created;
        // A limit on the size of files should be an error like a full disk, not the end.
        let ignored = Arc::new(AtomicBool::new(false));
        let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, ignored);
        let header = Header {
            version: env!("CARGO_PKG_VERSION").into(),
            hostname: host::name(),
            kernel: host::kernel(),
            target: describe(target),
            work,
            clock: names.clock.clone(),
            gpus: names.gpus.clone(),
        };
        match Writer::new(file, &header, function_name) {
            Ok(writer) => Self { path, writer: Some(writer) },
            Err(error) => {
                complain(&path, &error, 0);
                Self { path, writer: None }
            }
        }
    }

    /// Whether it did not fail.
    pub(crate) const fn is_running(&self) -> bool {
        self.writer.is_some()
    }

    /// Writes an event down.
    pub(crate) fn event(&mut self, event: &Event) {
        self.attempt(|writer| writer.event(event));
    }

    /// A report is made; or, where nothing else is shown, a sign of life.
    pub(crate) fn tick(&mut self, now: Moment, show: bool) {
        self.attempt(|writer| writer.tick(now));
        if let Some(writer) = self.writer.as_ref().filter(|_| show) {
            output::progress(&summary(&self.path, writer));
        }
    }

    /// Writes what has waited long enough.
    pub(crate) fn keep_up(&mut self, now: Moment) {
        self.attempt(|writer| writer.flush_due(now));
    }

    /// The last report is made: ends the file and says what is in it.
    pub(crate) fn finish(mut self, now: Moment) -> Outcome {
        self.attempt(|writer| writer.finish(now));
        let Some(writer) = self.writer.take() else { return Outcome::Incomplete };
        output::complain(&summary(&self.path, &writer));
        Outcome::Fine
    }

    /// Nothing follows, because capture ended early: writes what there is, without an end.
    pub(crate) fn interrupt(mut self) -> Outcome {
        self.attempt(Writer::flush);
        if let Some(writer) = self.writer.take() {
            output::complain(&summary(&self.path, &writer));
        }
        Outcome::Incomplete
    }

    fn attempt(&mut self, write: impl FnOnce(&mut Writer<File>) -> io::Result<()>) {
        let Some(writer) = &mut self.writer else { return };
        if let Err(error) = write(writer) {
            let whole = writer.bytes();
            // What was written of the last batch helps nobody; a pipe has no length.
            let _ = writer.out().set_len(whole);
            complain(&self.path, &error, whole);
            self.writer = None;
        }
    }
}

impl Drop for Recorder {
    /// A trace that fails leaves what it has seen.
    fn drop(&mut self) {
        self.attempt(Writer::flush);
    }
}

fn complain(path: &Path, error: &io::Error, whole: u64) {
    output::complain(&format!(
        "cannot write {} any more: {error}; it is readable up to there ({}), and the recording ends",
        plain(&path.to_string_lossy()),
        Bytes(whole),
    ));
}

fn summary(path: &Path, writer: &Writer<File>) -> String {
    let lost = match writer.lost() {
        0 => "nothing".to_owned(),
        lost => lost.to_string(),
    };
    format!(
        "recorded {} events in {} ({}), {lost} lost",
        writer.events(),
        plain(&path.to_string_lossy()),
        Bytes(writer.bytes()),
    )
}

/// What is traced, in words.
fn describe(target: &cli::Target) -> String {
    if !target.command.is_empty() {
        let words: Vec<_> = target.command.iter().map(|word| word.to_string_lossy()).collect();
        return format!("the command {}", words.join(" "));
    }
    if target.pid.is_empty() {
        return "every process".into();
    }
    let pids: Vec<String> = target.pid.iter().map(u32::to_string).collect();
    let children = if target.follow { " and their children" } else { "" };
    format!("processes {}{children}", pids.join(", "))
}
