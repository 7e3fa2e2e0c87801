//! `vramscope diff`: compares two files by call site.

use std::path::Path;

use anyhow::Result;
use engine::analysis::diff::{Diff, DiffInput};
use engine::analysis::groups::GroupTable;
use engine::model::Bytes;
use formats::report::analysis::{self, DiffView};

use crate::cli::DiffFormat;
use crate::files::input::{self, InputFile, Selection};
use crate::io::output;
use crate::{Outcome, cli};

/// Sites listed in text output without `--top`.
const DEFAULT_TOP: usize = 20;

/// Runs the verb.
pub(crate) fn run(options: &cli::DiffArgs) -> Result<Outcome> {
    let inputs = [options.before.as_path(), &options.after];
    let mut out = options.output.open(&inputs)?;
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
    let outcome = options.fail_on_growth.map(|limit| check_growth(&diff, limit));
    Ok(outcome.unwrap_or(Outcome::Success))
}

/// Exit code if the second file holds or needs more memory.
const GROWTH_FOUND: u8 = 3;

/// Logs growth beyond the limit.
fn check_growth(diff: &Diff, limit: Bytes) -> Outcome {
    let (before, after) = diff.never_freed;
    let amounts = [
        ("held at the end", before.bytes, after.bytes),
        ("the peak", diff.peak_bytes.0, diff.peak_bytes.1),
    ];
    let mut outcome = Outcome::Success;
    for (what, before, after) in amounts {
        let growth = Bytes(after.saturating_sub(before));
        if growth > limit {
            let (before, after) = (Bytes(before), Bytes(after));
            output::report_failure(&format!(
                "growth: {what} grew by {growth}, from {before} to {after} (limit {limit})"
            ));
            outcome = Outcome::Code(GROWTH_FOUND);
        }
    }
    outcome
}

fn read(path: &Path) -> Result<(InputFile, GroupTable)> {
    let mut groups = GroupTable::new(input::detect(path)?.scope());
    let input = input::read(path, Selection::default(), &mut |change| groups.observe(change))?;
    Ok((input, groups))
}
