//! Where words go: results to stdout or a file, messages to stderr.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use formats::export::text::Style;

/// A message for the person at the terminal. A closed stderr is nobody's problem.
pub(crate) fn complain(message: &str) {
    let _ = writeln!(io::stderr(), "vramscope: {message}");
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

/// Where results go.
pub(crate) struct Results {
    /// The place.
    pub(crate) writer: Box<dyn Write>,
    /// How they look there.
    pub(crate) style: Style,
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

/// The same for what is made from files, none of which may be written over.
pub(crate) fn results_from(inputs: &[&Path], file: Option<&Path>) -> Result<Results> {
    for input in inputs {
        if file.is_some_and(|file| is_same(input, file)) {
            bail!("{} would be written over; choose another file for -o", input.display());
        }
    }
    results(file)
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
