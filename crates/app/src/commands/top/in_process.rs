//! `vramscope top -- CMD`: shows a command that is traced in-process, without root.
//!
//! The terminal belongs to the view, so the output of the command goes to a file and is printed
//! afterwards. It is not a pipe: the command must be able to write if vramscope is killed.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use capture::command::{self, StandardStreams};
use capture::in_process::CollectorDir;
use capture::session::{SessionOptions, Target};
use engine::model::Bytes;

use super::session_options;
use crate::Outcome;
use crate::cli::TopArgs;
use crate::commands::trace::{
    COMMAND_EXIT_TIMEOUT, IN_PROCESS_RING_BYTES, IN_PROCESS_STACK_RING_BYTES, POLL_INTERVAL,
    TracedCommand, in_process_environment, watch_signals,
};
use crate::io::output;
use crate::live::pipeline::LiveTrace;
use crate::top::source::live::LiveSource;
use crate::top::{TopOptions, run as show};

/// Limit of earlier output that is printed when the view is closed.
const MAX_EARLIER_OUTPUT: u64 = 64 << 10;

/// Runs the command and the view. When the view is closed, the command continues in the foreground.
pub(super) fn run(options: &TopArgs, view: &TopOptions) -> Result<Outcome> {
    let mut printer = OutputPrinter::create()?;
    let interrupted = watch_signals()?;
    let dir = CollectorDir::create()?;
    let environment = in_process_environment(&dir, options.why)?;
    let streams = StandardStreams::File(&printer.file);
    let suspended = command::spawn_suspended(&options.command, streams, &environment, None)?;
    let target = Target::Processes { pids: vec![suspended.pid()], follow: true };
    let session = SessionOptions {
        ring_bytes: IN_PROCESS_RING_BYTES,
        stack_ring_bytes: IN_PROCESS_STACK_RING_BYTES,
        ..session_options(options, target)?
    };
    let live = LiveTrace::start_in_process(session, dir)?;
    let command = Arc::new(Mutex::new(TracedCommand::release(suspended)?));
    let source = LiveSource::of_command(live, Arc::clone(&command), options.why);
    let shown = show(Box::new(source), view);
    printer.skip_to_last(MAX_EARLIER_OUTPUT)?;
    let mut command = command.lock().unwrap_or_else(PoisonError::into_inner);
    follow(&mut command, &mut printer, &interrupted)?;
    shown?;
    Ok(command.outcome())
}

/// Prints the output of the command until it exits.
fn follow(
    command: &mut TracedCommand,
    printer: &mut OutputPrinter,
    interrupted: &AtomicBool,
) -> Result<()> {
    let mut stop_at = None;
    if !command.has_exited()? {
        let pid = command.pid;
        output::log(&format!("the command (pid {pid}) continues; Ctrl-C interrupts it"));
    }
    loop {
        let has_exited = command.has_exited()?;
        printer.print_new()?;
        if interrupted.load(Ordering::Relaxed) && stop_at.is_none() {
            // The terminal also interrupts the command.
            stop_at = Some(Instant::now() + COMMAND_EXIT_TIMEOUT);
        }
        if has_exited || stop_at.is_some_and(|at| Instant::now() >= at) {
            return Ok(());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The output of the command, in a file without a name.
struct OutputPrinter {
    file: File,
    printed: u64,
}

impl OutputPrinter {
    fn create() -> Result<Self> {
        let file = tempfile::Builder::new().prefix("vramscope-").append(true).tempfile();
        let file =
            file.context("cannot create a file for the output of the command; set TMPDIR")?;
        Ok(Self { file: file.into_file(), printed: 0 })
    }

    /// Leaves out what is older than the last `max` bytes.
    fn skip_to_last(&mut self, max: u64) -> Result<()> {
        self.printed = self.file.metadata()?.len().saturating_sub(max);
        if self.printed > 0 {
            let skipped = Bytes(self.printed);
            output::log(&format!("the first {skipped} of the command's output are not shown"));
        }
        Ok(())
    }

    /// Prints what was written since the last call.
    fn print_new(&mut self) -> Result<()> {
        let mut buffer = [0; 8192];
        let mut out = io::stdout().lock();
        loop {
            let count = self.file.read_at(&mut buffer, self.printed)?;
            if count == 0 {
                return Ok(out.flush()?);
            }
            out.write_all(buffer.get(..count).unwrap_or_default())?;
            self.printed += count as u64;
        }
    }
}
