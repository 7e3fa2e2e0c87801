//! Flame graphs: a single SVG with its own search and zoom.

use std::io::{self, Write};

use engine::model::Language;
use inferno::flamegraph::color::{BasicPalette, Color, PaletteMap};
use inferno::flamegraph::{Options, Palette, TextTruncateDirection, from_lines};

use super::folded::{lines, word};
use super::{Profile, ProfileUnit, ProfileValue};
use crate::report::analysis::frames::line;

const PYTHON: Color = Color { r: 90, g: 140, b: 210 };

/// Writes a flame graph; the outermost frame is at the bottom.
pub fn flame_graph(
    out: &mut dyn Write,
    profile: &Profile<'_>,
    value: ProfileValue,
    unit: ProfileUnit,
) -> io::Result<()> {
    let mut options = Options::default();
    options.title = title(profile, value, unit);
    options.count_name = match unit {
        ProfileUnit::Bytes => "bytes".to_owned(),
        ProfileUnit::Objects => "allocations".to_owned(),
    };
    options.colors = Palette::Basic(BasicPalette::Mem);
    options.deterministic = true;
    // Names start with the function.
    options.text_truncate_direction = TextTruncateDirection::Right;
    let mut palette = palette(profile);
    options.palette_map = Some(&mut palette);
    let lines: Vec<String> =
        lines(profile, value, unit).iter().map(|(stack, sum)| format!("{stack} {sum}")).collect();
    if lines.is_empty() {
        return Err(io::Error::other("there is nothing to draw"));
    }
    from_lines(&mut options, lines.iter().map(String::as_str), out)
}

/// Returns a separate color for Python frames; other frames get shades of another color.
fn palette(profile: &Profile<'_>) -> PaletteMap {
    let mut map = PaletteMap::default();
    let sites = profile.samples.iter().filter_map(|sample| sample.key.site);
    for frame in sites.flat_map(|site| profile.stacks.frames(site)) {
        if frame.language == Language::Python {
            map.insert(word(&line(frame)), PYTHON);
        }
    }
    map
}

fn title(profile: &Profile<'_>, value: ProfileValue, unit: ProfileUnit) -> String {
    let content = match (value, unit) {
        (ProfileValue::InUse, ProfileUnit::Bytes) => "GPU memory in use",
        (ProfileValue::InUse, ProfileUnit::Objects) => "GPU allocations in use",
        (ProfileValue::Allocated, ProfileUnit::Bytes) => "GPU memory ever allocated",
        (ProfileValue::Allocated, ProfileUnit::Objects) => "GPU allocations ever made",
    };
    format!("{content}: {}", profile.title)
}
