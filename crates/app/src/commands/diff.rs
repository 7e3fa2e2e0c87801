//! `vramscope diff`: compares two files by call site.

use std::path::Path;

use anyhow::Result;
use engine::analysis::diff::{Diff, File};
use engine::analysis::groups::Groups;
use formats::export::analysis::{self, Comparison};
use formats::import::gather::Only;

use super::input::{self, Input};
use crate::cli::DiffFormat;
use crate::{Outcome, cli, output};

/// Sites listed in text output without `--top`.
const TOP: usize = 20;

/// Runs the verb.
pub(crate) fn run(options: &cli::Diff) -> Result<Outcome> {
    let inputs = [options.before.as_path(), &options.after];
    let mut out = output::results_from(&inputs, options.output.as_deref(), options.force)?;
    let (before, old) = read(&options.before)?;
    let (after, new) = read(&options.after)?;
    let diff = Diff::of(
        &File { groups: &old, stacks: &before.facts.stacks },
        &File { groups: &new, stacks: &after.facts.stacks },
    );
    let text = options.format == DiffFormat::Text;
    let top = options.top.or(text.then_some(TOP));
    let comparison =
        Comparison { before: before.subject(top), after: after.subject(top), diff: &diff };
    match options.format {
        DiffFormat::Text => {
            analysis::write_diff_text(&mut out.writer, &comparison, out.style)?;
        }
        DiffFormat::Json => analysis::json::write_diff(&mut out.writer, &comparison)?,
        DiffFormat::Tsv => analysis::write_diff_tsv(&mut out.writer, &comparison)?,
    }
    out.finish()?;
    Ok(Outcome::Fine)
}

fn read(path: &Path) -> Result<(Input, Groups)> {
    let mut groups = Groups::new(input::recognise(path)?.measure());
    let input = input::read(path, Only::default(), &mut |change, _| groups.change(change))?;
    Ok((input, groups))
}
