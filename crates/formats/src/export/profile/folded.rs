//! Folded stacks: one stack per line, outermost frame first, and its value.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::{Profile, ProfileSample, ProfileUnit, ProfileValue};
use crate::report::analysis::frames::line;
use crate::sanitize::sanitize;

/// Writes one line per stack, sorted by name.
pub fn folded(
    out: &mut dyn Write,
    profile: &Profile<'_>,
    value: ProfileValue,
    unit: ProfileUnit,
) -> io::Result<()> {
    for (stack, sum) in lines(profile, value, unit) {
        writeln!(out, "{stack} {sum}")?;
    }
    Ok(())
}

/// Returns each stack once, with its value; stacks with the value 0 are omitted.
pub(super) fn lines(
    profile: &Profile<'_>,
    value: ProfileValue,
    unit: ProfileUnit,
) -> BTreeMap<String, u64> {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for sample in profile.samples {
        let amount = sample.amount(value, unit);
        if amount > 0 {
            let sum = lines.entry(stack(profile, sample)).or_default();
            *sum = sum.saturating_add(amount);
        }
    }
    lines
}

fn stack(profile: &Profile<'_>, sample: &ProfileSample) -> String {
    let frames = sample.key.site.map(|site| profile.stacks.frames(site));
    let mut names: Vec<String> =
        frames.into_iter().flatten().map(|frame| word(&line(frame))).collect();
    if names.is_empty() {
        names.push("(no call stack)".to_owned());
    }
    names.push(word(&profile.process(sample.key.pid)));
    names.reverse();
    names.join(";")
}

/// Escapes a name, so that it stays one frame of one line and is not parsed as a value.
pub(super) fn word(name: &str) -> String {
    let name = sanitize(name).replace(';', ":");
    match name.rsplit_once(' ') {
        Some((head, tail)) if tail.parse::<f64>().is_ok() => format!("{head}_{tail}"),
        _ => name,
    }
}
