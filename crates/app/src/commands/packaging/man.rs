//! `vramscope man`: the help texts as man pages.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::Outcome;
use crate::cli::ManArgs;
use crate::io::output;

/// Runs the verb.
pub(crate) fn run(mut command: Command, options: &ManArgs) -> Result<Outcome> {
    command.build();
    if let Some(dir) = &options.output {
        return write_all(&command, dir, options.force);
    }
    let page = match &options.verb {
        None => page(&command)?,
        Some(name) => match visible(&command).find(|verb| verb.get_name() == name) {
            Some(verb) => page(verb)?,
            None => bail!("{name}: no such verb; `vramscope --help` lists them"),
        },
    };
    let mut results = output::results();
    results.writer.write_all(&page)?;
    results.finish()?;
    Ok(Outcome::Success)
}

/// Returns the verbs that the help lists.
fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
}

/// Writes the page of the program and of every verb. Existing pages are overwritten with `force`
/// only, and pages are as readable as the umask allows: they are for all users.
fn write_all(command: &Command, dir: &Path, force: bool) -> Result<Outcome> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    for command in std::iter::once(command).chain(visible(command)) {
        let path = dir.join(format!("{}.1", title(command)));
        let mut options = OpenOptions::new();
        if force {
            options.write(true).create(true).truncate(true);
        } else {
            options.write(true).create_new(true);
        }
        let hint = if force { "" } else { "; --force overwrites existing pages" };
        let written = options.open(&path).and_then(|mut file| file.write_all(&page(command)?));
        written.with_context(|| format!("cannot write {}{hint}", path.display()))?;
    }
    Ok(Outcome::Success)
}

/// Returns the name of a page: `vramscope`, `vramscope-trace`.
fn title(command: &Command) -> String {
    command.get_bin_name().unwrap_or(command.get_name()).replace(' ', "-")
}

fn page(command: &Command) -> std::io::Result<Vec<u8>> {
    let title = title(command);
    let (header, examples) = (title.to_uppercase(), command.get_after_help().cloned());
    let has_verbs = visible(command).next().is_some();
    // The examples are their own section, with their line breaks.
    let command = command.clone().after_help(None::<&str>).display_name(title);
    let man = Man::new(command)
        .title(header)
        .section("1")
        .source(concat!("vramscope ", env!("CARGO_PKG_VERSION")))
        .manual("vramscope manual");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_verbs {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(examples) = examples {
        render_examples(&examples.to_string(), &mut page)?;
    }
    Ok(page)
}

/// Renders the text below the options: a block of examples and paragraphs.
fn render_examples(text: &str, page: &mut Vec<u8>) -> std::io::Result<()> {
    let mut roff = Roff::new();
    for (index, block) in text.split("\n\n").enumerate() {
        match block.strip_prefix("EXAMPLES\n") {
            Some(lines) => {
                roff.control("SH", ["EXAMPLES"]).control("nf", []);
                for line in lines.lines() {
                    roff.text([roman(line.trim_start())]);
                }
                roff.control("fi", []);
            }
            None if index == 0 => {
                roff.control("SH", ["NOTES"]).text([roman(block)]);
            }
            None => {
                roff.control("PP", []).text([roman(block)]);
            }
        }
    }
    roff.to_writer(page)
}
