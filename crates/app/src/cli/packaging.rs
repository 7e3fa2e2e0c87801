//! Command-line options of `vramscope completions` and `vramscope man`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

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
    #[arg(value_enum, value_name = "SHELL")]
    pub(crate) shell: ShellArg,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShellArg {
    Bash,
    Zsh,
    Fish,
}

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
