//! Output: results to stdout or a file, messages to stderr.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Result, bail};
use clap::Args;
use engine::model::Bytes;
use formats::report::live::text::TextStyle;
use formats::sanitize::error_chain;
use formats::{WallClock, sanitize};

use crate::io::atomic_file::AtomicFile;
use crate::io::output_file::{self, OutFile, Planned};
use crate::io::terminal::Guard;

/// Name of standard output in messages.
pub(crate) const STDOUT: &str = "standard output";

/// Receiver of messages instead of stderr; takes whether a message is a warning.
static LOG_REDIRECT: OnceLock<fn(bool, &str)> = OnceLock::new();

/// Redirects messages.
pub(crate) fn redirect_log(to: fn(bool, &str)) {
    let _ = LOG_REDIRECT.set(to);
}

/// Messages that wait until the terminal is free again; `None` if they need not wait.
static HELD: Mutex<Option<Vec<String>>> = Mutex::new(None);

/// Maximum number of messages that wait.
const MAX_HELD: usize = 100;

/// Holds all messages back, because a full-screen view uses the terminal.
pub(crate) fn hold_messages() {
    *HELD.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
}

/// Returns the messages since the last call, for the full-screen view to show.
pub(crate) fn take_messages() -> Vec<String> {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    held.as_mut().map(std::mem::take).unwrap_or_default()
}

/// Prints the messages that were not shown, and all later ones at once.
pub(crate) fn release_messages() {
    let held = HELD.lock().unwrap_or_else(PoisonError::into_inner).take();
    held.into_iter().flatten().for_each(|message| write_message(true, &message));
}

/// Whether the current line of the terminal shows progress.
static IN_PROGRESS: AtomicBool = AtomicBool::new(false);

/// Clears the current line.
const EMPTY_LINE: &str = "\r\x1b[K";

/// Lines of the block at the end of the terminal, which the next block replaces.
static BLOCK_LINES: AtomicUsize = AtomicUsize::new(0);

/// Options that all verbs have.
#[derive(Args, Clone, Copy, Default)]
pub(crate) struct Settings {
    /// Print only errors and failed checks
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Also print details, such as which libraries are probed
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
    /// Print times in UTC instead of local time
    #[arg(long, global = true)]
    pub(crate) utc: bool,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// Sets them, once.
pub(crate) fn set(settings: Settings) {
    let _ = SETTINGS.set(settings);
}

/// Returns the settings.
pub(crate) fn settings() -> Settings {
    SETTINGS.get().copied().unwrap_or_default()
}

/// Returns the clock for output: in local time, or in UTC if the user wants that.
pub(crate) fn clock(clock: WallClock) -> WallClock {
    if settings().utc { clock.in_utc() } else { clock }
}

/// Logs a message to stderr, unless the user wants none. A closed stderr is not an error.
pub(crate) fn log(message: &str) {
    if !settings().quiet {
        write_message(false, message);
    }
}

/// Logs why a check of the user failed.
pub(crate) fn report_failure(message: &str) {
    write_message(false, message);
}

/// Logs a warning.
pub(crate) fn warn(message: &str) {
    if !settings().quiet {
        write_message(true, message);
    }
}

/// Writes a message. All messages are escaped, because they may quote files, processes and
/// arguments.
fn write_message(is_warning: bool, message: &str) {
    if let Some(held) = &mut *HELD.lock().unwrap_or_else(PoisonError::into_inner) {
        if held.len() < MAX_HELD {
            held.push(message.to_owned());
        }
        return;
    }
    if let Some(to) = LOG_REDIRECT.get() {
        return to(is_warning, message);
    }
    let clear = if IN_PROGRESS.swap(false, Ordering::Relaxed) { EMPTY_LINE } else { "" };
    BLOCK_LINES.store(0, Ordering::Relaxed);
    let line = sanitize::message(&format!("vramscope: {message}"));
    write_stderr(&format!("{clear}{line}\n"));
}

/// Writes to standard error at once.
fn write_stderr(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Logs the error that ends a verb.
pub(crate) fn fail(error: &anyhow::Error) {
    report_failure(&format!("error: {}", error_chain(error.as_ref())));
}

/// Shows progress, on a terminal only, until the next message or [`end_progress`].
pub(crate) fn progress(message: &str) {
    if io::stderr().is_terminal() && !settings().quiet {
        IN_PROGRESS.store(true, Ordering::Relaxed);
        write_stderr(&format!("{EMPTY_LINE}vramscope: {}", sanitize::sanitize(message)));
    }
}

/// Removes the line of [`progress`].
pub(crate) fn end_progress() {
    if IN_PROGRESS.swap(false, Ordering::Relaxed) {
        write_stderr(EMPTY_LINE);
    }
}

/// A write error with the name of the output. It keeps its kind.
#[derive(Debug)]
struct Unwritten {
    name: String,
    cause: io::Error,
}

impl fmt::Display for Unwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write {}: {}", self.name, self.cause)
    }
}

impl std::error::Error for Unwritten {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

/// Adds the name of the output to an error.
pub(crate) fn named(name: &str, cause: io::Error) -> io::Error {
    io::Error::new(cause.kind(), Unwritten { name: name.to_owned(), cause })
}

/// A destination of results that can be completed.
pub(crate) trait ResultSink: Write {
    /// Completes the output.
    fn finish(self: Box<Self>) -> Result<()>;

    /// Moves to the start of a line above and clears everything from there; only on a terminal.
    fn clear_lines(&mut self, _lines: usize) -> io::Result<()> {
        Ok(())
    }
}

/// Standard output: guarded if it is a terminal, discarded with `--quiet`.
struct Stdout(Box<dyn Write>);

impl Stdout {
    fn new() -> Self {
        let out = BufWriter::new(io::stdout());
        Self(match io::stdout().is_terminal() {
            _ if settings().quiet => Box::new(io::sink()),
            true => Box::new(Guard::new(out)),
            false => Box::new(out),
        })
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(|error| named(STDOUT, error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(|error| named(STDOUT, error))
    }
}

impl ResultSink for Stdout {
    fn finish(mut self: Box<Self>) -> Result<()> {
        Ok(self.flush()?)
    }

    fn clear_lines(&mut self, lines: usize) -> io::Result<()> {
        self.flush()?;
        io::stdout().write_all(format!("\x1b[{lines}A\x1b[J").as_bytes())
    }
}

/// A file that grows by complete reports: each flush writes one, or nothing.
struct Reports {
    out: OutFile,
    /// Bytes written since the last flush.
    report: Vec<u8>,
    /// Bytes of complete reports in the file.
    complete: u64,
}

impl Write for Reports {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.report.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Err(error) = self.out.write_all(&self.report) {
            let name = self.out.name();
            let state = match self.out.truncate(self.complete) {
                true => format!("{name} (complete up to {})", Bytes(self.complete)),
                false => format!("{name} (the last report is incomplete)"),
            };
            return Err(named(&state, error));
        }
        self.complete += self.report.len() as u64;
        self.report.clear();
        Ok(())
    }
}

impl ResultSink for Reports {
    fn finish(mut self: Box<Self>) -> Result<()> {
        Ok(self.flush()?)
    }
}

impl ResultSink for AtomicFile {
    fn finish(self: Box<Self>) -> Result<()> {
        Self::commit(*self)
    }
}

/// Destination of results.
pub(crate) struct ResultOutput {
    /// The writer.
    pub(crate) writer: Box<dyn ResultSink>,
    /// Its text style.
    pub(crate) style: TextStyle,
}

impl ResultOutput {
    /// Writes a block in place of the one before; `news` stays above it. Not on a terminal, and
    /// after a message, it is appended.
    pub(crate) fn replace_block(&mut self, news: &[u8], block: &[u8]) -> io::Result<()> {
        self.clear_block()?;
        self.writer.write_all(news)?;
        self.writer.write_all(block)?;
        let lines = block.iter().filter(|byte| **byte == b'\n').count();
        BLOCK_LINES.store(lines, Ordering::Relaxed);
        self.writer.flush()
    }

    /// Removes the block that was written last.
    pub(crate) fn clear_block(&mut self) -> io::Result<()> {
        match BLOCK_LINES.swap(0, Ordering::Relaxed) {
            0 => Ok(()),
            lines => self.writer.clear_lines(lines),
        }
    }

    /// Completes the output: a new file gets its name.
    pub(crate) fn finish(self) -> Result<()> {
        self.writer.finish()
    }
}

/// Returns standard output as the destination.
pub(crate) fn results() -> ResultOutput {
    ResultOutput { writer: Box::new(Stdout::new()), style: style() }
}

/// Whether blocks on standard output can be replaced in place.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal() && !settings().quiet
}

/// Returns a file that grows by one report at a time, or standard output.
pub(crate) fn reports(file: Option<Planned>) -> Result<ResultOutput> {
    let Some(file) = file.filter(|file| !file.is_stdout()) else { return Ok(results()) };
    let writer = Reports { out: file.open()?, report: Vec::new(), complete: 0 };
    Ok(ResultOutput { writer: Box::new(writer), style: TextStyle::default() })
}

/// Returns the destination of results that are derived from files, which must not be overwritten. A
/// new file appears when it is complete; `-` is standard output.
pub(crate) fn results_from(
    inputs: &[&Path],
    file: Option<&Path>,
    force: bool,
) -> Result<ResultOutput> {
    let Some(file) = file.filter(|file| !is_stdout(file)) else { return Ok(results()) };
    check_not_input(inputs, file)?;
    Ok(ResultOutput {
        writer: Box::new(AtomicFile::create(file, force)?),
        style: TextStyle::default(),
    })
}

/// Whether a path means standard output.
pub(crate) fn is_stdout(file: &Path) -> bool {
    file == Path::new("-") || file == Path::new("/dev/stdout")
}

/// Rejects an output path that is an input.
pub(crate) fn check_not_input(inputs: &[&Path], file: &Path) -> Result<()> {
    match inputs.iter().find(|input| is_same(input, file)) {
        Some(input) => {
            bail!(
                "{} is an input file and would be overwritten; choose another -o",
                output_file::shown(input)
            );
        }
        None => Ok(()),
    }
}

/// Whether two paths refer to the same existing file.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let canonical = |path: &Path| std::fs::canonicalize(path).ok();
    canonical(one).is_some_and(|file| canonical(other) == Some(file))
}

/// Lines of a terminal that a block leaves free: its head, the GPUs and the prompt.
const RESERVED_LINES: usize = 7;

/// Smallest width that text is fitted to.
const MIN_WIDTH: usize = 40;

/// Uses colors on a terminal, unless `NO_COLOR` is set, and fits its size. Elsewhere, and if the
/// size is unknown, `COLUMNS` sets the width.
fn style() -> TextStyle {
    let use_color = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let style = TextStyle { color: use_color && is_terminal(), ..TextStyle::default() };
    match terminal_size::terminal_size().filter(|_| is_terminal()) {
        Some((width, height)) => TextStyle {
            width: usize::from(width.0).max(MIN_WIDTH),
            rows: Some(usize::from(height.0).saturating_sub(RESERVED_LINES).max(3)),
            ..style
        },
        None => {
            let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
            TextStyle { width: columns.unwrap_or(style.width).max(MIN_WIDTH), ..style }
        }
    }
}

/// Whether the reader of the output closed it, which counts as success.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_not_repeated() {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let repeated = anyhow::Error::new(missing()).context(format!("no file: {}", missing()));
        assert_eq!(error_chain(repeated.as_ref()), format!("no file: {}", missing()));
        let advised = format!("no file: {}; check the path", missing());
        let error = anyhow::Error::new(missing()).context(advised.clone());
        assert_eq!(error_chain(error.as_ref()), advised);
        let plain = anyhow::Error::new(missing()).context("no file");
        assert_eq!(error_chain(plain.as_ref()), format!("no file: {}", missing()));
    }
}
