//! Folded lines: a stack in one line, outermost frame first, and its figure.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::{Profile, Sample, Unit, Value};
use crate::export::analysis::frames::line;
use crate::plain::plain;

/// Writes a line for each stack, in the order of their names.
pub fn folded(
    out: &mut dyn Write,
    profile: &Profile<'_>,
    value: Value,
    unit: Unit,
) -> io::Result<()> {
    for (stack, figure) in lines(profile, value, unit) {
        writeln!(out, "{stack} {figure}")?;
    }
    Ok(())
}

/// Each stack once, with its figure; those that have none are left out.
pub(super) fn lines(profile: &Profile<'_>, value: Value, unit: Unit) -> BTreeMap<String, u64> {
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for sample in profile.samples {
        let figure = sample.figure(value, unit);
        if figure > 0 {
            let sum = lines.entry(stack(profile, sample)).or_default();
            *sum = sum.saturating_add(figure);
        }
    }
    lines
}

fn stack(profile: &Profile<'_>, sample: &Sample) -> String {
    let frames = sample.place.site.map(|site| profile.stacks.frames(site));
    let mut names: Vec<String> =
        frames.into_iter().flatten().map(|frame| word(&line(frame))).collect();
    if names.is_empty() {
        names.push("(no call stack)".to_owned());
    }
    names.push(word(&profile.process(sample.place.pid)));
    names.reverse();
    names.join(";")
}

/// A name that stays one frame of one line, and is not taken for a figure.
pub(super) fn word(name: &str) -> String {
    let name = plain(name).replace(';', ":");
    match name.rsplit_once(' ') {
        Some((head, tail)) if tail.parse::<f64>().is_ok() => format!("{head}_{tail}"),
        _ => name,
    }
}
