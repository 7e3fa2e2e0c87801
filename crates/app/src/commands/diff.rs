//! `vramscope diff`: compares two files by call site.

use std::path::Path;

use anyhow::Result;
use engine::analysis::diff::{Diff, DiffInput};
use engine::analysis::groups::GroupTable;
use formats::import::collecting_sink::ChangeFilter;
use formats::report::analysis;
use formats::report::analysis::DiffView;

use crate::cli::DiffFormat;
use crate::files::input;
use crate::files::input::InputFile;
use crate::io::output;
use crate::{Outcome, cli};

/// Sites listed in text output without `--top`.
const DEFAULT_TOP: usize = 20;

/// Runs the verb.
pub(crate) fn run(options: &cli::DiffArgs) -> Result<Outcome> {
    let inputs = [options.before.as_path(), &options.after];
    let mut out = output::results_from(&inputs, options.output.as_deref(), options.force)?;
    let (before, old) = read(&options.before)?;
    let (after, new) = read(&options.after)?;
    let diff = Diff::of(
        &DiffInput { groups: &old, stacks: &before.info.stacks },
        &DiffInput { groups: &new, stacks: &after.info.stacks },
    );
    let text = options.format == DiffFormat::Text;
    let top = options.top.or(text.then_some(DEFAULT_TOP));
    let comparison = DiffView {
        before: before.analyzed_file(top),
        after: after.analyzed_file(top),
        diff: &diff,
    };
    match options.format {
        DiffFormat::Text => {
            analysis::write_diff_text(&mut out.writer, &comparison, out.style)?;
        }
        DiffFormat::Json => analysis::json::write_diff(&mut out.writer, &comparison)?,
        DiffFormat::Tsv => analysis::write_diff_tsv(&mut out.writer, &comparison)?,
    }
    out.finish()?;
    Ok(Outcome::Success)
}

fn read(path: &Path) -> Result<(InputFile, GroupTable)> {
    let mut groups = GroupTable::new(input::detect(path)?.scope());
    let input =
        input::read(path, ChangeFilter::default(), &mut |change, _| groups.observe(change))?;
    Ok((input, groups))
}
