//! Where words go: results to stdout, messages to stderr.

use std::io::{self, IsTerminal, Write};

use formats::export::text::Style;

/// A message for the person at the terminal. A closed stderr is nobody's problem.
pub(crate) fn complain(message: &str) {
    let _ = writeln!(io::stderr(), "vramscope: {message}");
}

/// Colours on a terminal, unless `NO_COLOR` asks for none.
pub(crate) fn style() -> Style {
    let asked = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    Style { color: asked && io::stdout().is_terminal() }
}

/// Whoever read our output has seen enough; that is success.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}
