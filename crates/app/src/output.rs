//! Where words go: results to stdout or a file, messages to stderr.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use engine::units::Bytes;
use formats::export::text::Style;
use formats::plain;

use crate::newfile::NewFile;
use crate::outfile::{self, OutFile, Planned};
use crate::terminal::Guard;

/// What standard output is called in messages.
pub(crate) const STDOUT: &str = "standard output";

/// Where messages go instead of stderr, once somebody takes them.
static ELSEWHERE: OnceLock<Box<dyn Fn(String) + Send + Sync>> = OnceLock::new();

/// From now on messages are handed over, without the end of their line.
#[cfg(feature = "serve")]
pub(crate) fn divert(to: impl Fn(String) + Send + Sync + 'static) {
    let _ = ELSEWHERE.set(Box::new(to));
}

/// Whether the line of the terminal that the cursor is in shows progress.
static IN_PROGRESS: AtomicBool = AtomicBool::new(false);

/// Empties the line that the cursor is in.
const EMPTY_LINE: &str = "\r\x1b[K";

/// A message for the person at the terminal. A closed stderr is not an error.
pub(crate) fn complain(message: &str) {
    tell(&format!("vramscope: {message}"));
}

/// Every message goes through here, and is escaped: it may quote files, processes and arguments.
fn tell(text: &str) {
    let line = plain::message(text);
    match ELSEWHERE.get() {
        Some(to) => to(line),
        None => {
            let clear = if IN_PROGRESS.swap(false, Ordering::Relaxed) { EMPTY_LINE } else { "" };
            put(&format!("{clear}{line}\n"));
        }
    }
}

/// Writes to standard error in one piece.
fn put(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// The same with a level of syslog, 0 to 7: the journal of systemd reads it where it is listening.
#[cfg(feature = "serve")]
pub(crate) fn complain_as(level: u8, message: &str) {
    let mark = match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => format!("<{level}>"),
        None => String::new(),
    };
    tell(&format!("{mark}vramscope: {message}"));
}

/// The message for an error that ends a verb.
pub(crate) fn fail(error: &anyhow::Error) {
    complain(&format!("error: {}", reasons(error)));
}

/// An error with its causes. Some errors have the text of their cause in their own already.
pub(crate) fn reasons(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Shows how far the work is, on a terminal only, until the next message or [`end_progress`].
pub(crate) fn progress(message: &str) {
    if io::stderr().is_terminal() {
        IN_PROGRESS.store(true, Ordering::Relaxed);
        put(&format!("{EMPTY_LINE}vramscope: {}", plain::plain(message)));
    }
}

/// Removes what [`progress`] shows.
pub(crate) fn end_progress() {
    if IN_PROGRESS.swap(false, Ordering::Relaxed) {
        put(EMPTY_LINE);
    }
}

/// An error of a write, with the name of what was written. It keeps its kind.
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

/// The error with the name of what was written.
pub(crate) fn named(name: &str, cause: io::Error) -> io::Error {
    io::Error::new(cause.kind(), Unwritten { name: name.to_owned(), cause })
}

/// A place for results that knows when they are whole.
pub(crate) trait Place: Write {
    /// Everything is written.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Standard output; guarded where it is a terminal.
struct Stdout(Box<dyn Write>);

impl Stdout {
    fn new() -> Self {
        let out = BufWriter::new(io::stdout());
        Self(if io::stdout().is_terminal() { Box::new(Guard::new(out)) } else { Box::new(out) })
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

impl Place for Stdout {
    fn finish(mut self: Box<Self>) -> Result<()> {
        Ok(self.flush()?)
    }
}

/// A file that grows by whole reports: each flush writes one, or nothing.
struct Reports {
    out: OutFile,
    /// What was written since the last flush.
    report: Vec<u8>,
    /// Bytes of whole reports in the file.
    whole: u64,
}

impl Write for Reports {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.report.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Err(error) = self.out.write_all(&self.report) {
            let name = self.out.name();
            let state = match self.out.cut(self.whole) {
                true => format!("{name} (complete up to {})", Bytes(self.whole)),
                false => format!("{name} (the last report is incomplete)"),
            };
            return Err(named(&state, error));
        }
        self.whole += self.report.len() as u64;
        self.report.clear();
        Ok(())
    }
}

impl Place for Reports {
    fn finish(mut self: Box<Self>) -> Result<()> {
        Ok(self.flush()?)
    }
}

impl Place for NewFile {
    fn finish(self: Box<Self>) -> Result<()> {
        Self::finish(*self)
    }
}

/// Where results go.
pub(crate) struct Results {
    /// The place.
    pub(crate) writer: Box<dyn Place>,
    /// How they look there.
    pub(crate) style: Style,
}

impl Results {
    /// Everything is written: a new file gets its name.
    pub(crate) fn finish(self) -> Result<()> {
        self.writer.finish()
    }
}

/// Standard output.
pub(crate) fn results() -> Results {
    Results { writer: Box::new(Stdout::new()), style: style() }
}

/// A file that grows by a report at a time, or standard output.
pub(crate) fn reports(file: Option<Planned>) -> Result<Results> {
    let Some(file) = file.filter(|file| !file.is_stdout()) else { return Ok(results()) };
    let writer = Reports { out: file.open()?, report: Vec::new(), whole: 0 };
    Ok(Results { writer: Box::new(writer), style: Style::default() })
}

/// The same for what is made from files, none of which may be written over. A new file appears when
/// it is whole; `-` is standard output.
pub(crate) fn results_from(inputs: &[&Path], file: Option<&Path>, force: bool) -> Result<Results> {
    let Some(file) = file.filter(|file| !is_stdout(file)) else { return Ok(results()) };
    refuse_inputs(inputs, file)?;
    Ok(Results { writer: Box::new(NewFile::create(file, force)?), style: Style::default() })
}

/// Whether a name stands for standard output.
pub(crate) fn is_stdout(file: &Path) -> bool {
    file == Path::new("-") || file == Path::new("/dev/stdout")
}

/// What is read is never written.
pub(crate) fn refuse_inputs(inputs: &[&Path], file: &Path) -> Result<()> {
    match inputs.iter().find(|input| is_same(input, file)) {
        Some(input) => {
            bail!(
                "{} is an input file and would be overwritten; choose another -o",
                outfile::shown(input)
            );
        }
        None => Ok(()),
    }
}

/// Whether two paths lead to one file that is there.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let whole = |path: &Path| std::fs::canonicalize(path).ok();
    whole(one).is_some_and(|file| whole(other) == Some(file))
}

/// Colours on a terminal, unless `NO_COLOR` asks for none.
fn style() -> Style {
    let asked = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    Style { color: asked && io::stdout().is_terminal(), ..Style::default() }
}

/// Whoever read our output has seen enough; that is success.
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
    fn a_cause_is_told_once() {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let told = anyhow::Error::new(missing()).context(format!("no file: {}", missing()));
        assert_eq!(reasons(&told), format!("no file: {}", missing()));
        let advised = format!("no file: {}; check the path", missing());
        assert_eq!(reasons(&anyhow::Error::new(missing()).context(advised.clone())), advised);
        let plain = anyhow::Error::new(missing()).context("no file");
        assert_eq!(reasons(&plain), format!("no file: {}", missing()));
    }
}
