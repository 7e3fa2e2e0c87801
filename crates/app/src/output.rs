//! Where words go: results to stdout or a file, messages to stderr.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use formats::export::text::Style;

use crate::newfile::NewFile;

/// Where messages go instead of stderr, once somebody takes them.
static ELSEWHERE: OnceLock<Box<dyn Fn(String) + Send + Sync>> = OnceLock::new();

/// From now on messages are handed over, without the end of their line.
#[cfg(feature = "serve")]
pub(crate) fn divert(to: impl Fn(String) + Send + Sync + 'static) {
    let _ = ELSEWHERE.set(Box::new(to));
}

/// A message for the person at the terminal. A closed stderr is nobody's problem.
pub(crate) fn complain(message: &str) {
    tell(format!("vramscope: {message}"));
}

fn tell(line: String) {
    match ELSEWHERE.get() {
        Some(to) => to(line),
        None => drop(writeln!(io::stderr(), "{line}")),
    }
}

/// The same with a level of syslog, 0 to 7: the journal of systemd reads it where it is listening.
#[cfg(feature = "serve")]
pub(crate) fn complain_as(level: u8, message: &str) {
    let mark = match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => format!("<{level}>"),
        None => String::new(),
    };
    tell(format!("{mark}vramscope: {message}"));
}

/// An error with its causes. Some errors have the text of their cause in their own already.
pub(crate) fn reasons(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// A sign of life, on a terminal only: the next message takes its place.
pub(crate) fn progress(message: &str) {
    let mut stderr = io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "vramscope: {message}\x1b[K\r");
    }
}

/// A place for results that knows when they are whole.
pub(crate) trait Place: Write {
    /// Everything is written.
    fn finish(self: Box<Self>) -> Result<()>;
}

impl Place for BufWriter<io::Stdout> {
    fn finish(mut self: Box<Self>) -> Result<()> {
        Ok(self.flush()?)
    }
}

impl Place for BufWriter<File> {
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

/// Standard output, or a file that is created at once, so that a bad path fails before the work.
pub(crate) fn results(file: Option<&Path>) -> Result<Results> {
    match file {
        None => Ok(Results { writer: Box::new(BufWriter::new(io::stdout())), style: style() }),
        Some(path) => {
            let file = create(path)?;
            Ok(Results { writer: Box::new(BufWriter::new(file)), style: Style::default() })
        }
    }
}

/// The same for what is made from files, none of which may be written over. A new file appears when
/// it is whole; `-` is standard output.
pub(crate) fn results_from(inputs: &[&Path], file: Option<&Path>, force: bool) -> Result<Results> {
    let Some(file) = file.filter(|file| !is_stdout(file)) else { return results(None) };
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
            bail!("{} would be written over; choose another file for -o", input.display());
        }
        None => Ok(()),
    }
}

/// Whether two paths lead to one file that is there.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    let whole = |path: &Path| std::fs::canonicalize(path).ok();
    whole(one).is_some_and(|file| whole(other) == Some(file))
}

/// A new file for its owner alone: reports tell of processes and paths.
pub(crate) fn create(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path);
    file.with_context(|| format!("cannot write {}; choose another file", path.display()))
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
        let plain = anyhow::Error::new(missing()).context("no file");
        assert_eq!(reasons(&plain), format!("no file: {}", missing()));
    }
}
