//! The command line of `completions`, `man` and `demo`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap_complete::Shell;

use super::choice::{Choice, choice};
use crate::parse_units;

pub(crate) const COMPLETIONS_EXAMPLES: &str = "\
EXAMPLES
  vramscope completions bash > /etc/bash_completion.d/vramscope
  vramscope completions zsh > /usr/local/share/zsh/site-functions/_vramscope
  vramscope completions fish > ~/.config/fish/completions/vramscope.fish

The packages install all three. `source <(vramscope completions bash)` is for this shell only.";

pub(crate) const MAN_EXAMPLES: &str = "\
EXAMPLES
  vramscope man                                       the page vramscope(1)
  vramscope man trace | man -l -                      read vramscope-trace(1)
  vramscope man --output /usr/local/share/man/man1    write the page of every verb";

#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// Shell that reads the script
    #[arg(value_name = "SHELL", value_parser = choice(SHELLS))]
    pub(crate) shell: Shell,
}

/// Shells that have completions.
const SHELLS: &[Choice<Shell>] =
    &[("bash", "", Shell::Bash), ("zsh", "", Shell::Zsh), ("fish", "", Shell::Fish)];

#[derive(Args)]
pub(crate) struct ManArgs {
    /// Verb to print the page of [default: the page about all verbs]
    #[arg(value_name = "VERB", conflicts_with = "output")]
    pub(crate) verb: Option<String>,
    /// Write all pages to this directory
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite existing pages
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
}

#[derive(Args)]
pub(crate) struct DemoArgs {
    /// Trace real processes on the simulated driver in this directory instead; requires root
    #[arg(long, value_name = "DIR", env = "VRAMSCOPE_SIMULATOR")]
    pub(crate) simulator: Option<PathBuf>,
    /// Stop after this long [default: 20s with --simulator and without a terminal]
    #[arg(short, long, value_name = "DURATION", value_parser = parse_units::time)]
    pub(crate) duration: Option<Duration>,
}
