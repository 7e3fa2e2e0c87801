//! Call stacks in words, for cells of a table.

use engine::snapshot::SiteView;

use crate::export::analysis::frames::line;
use crate::export::places::shown;
use crate::plain::plain_up_to;

/// Frames of a stack that are told; the innermost ones.
const DEEPEST: usize = 64;

/// The longest text of a frame.
const LONGEST: usize = 256;

/// The frames of a site, innermost first.
pub(super) fn stack(site: &SiteView, paths: bool) -> String {
    let mut text = String::new();
    for frame in site.frames.iter().take(DEEPEST) {
        if !text.is_empty() {
            text.push_str(" <- ");
        }
        text.push_str(&plain_up_to(&line(&shown(frame, paths)), LONGEST));
    }
    let more = site.frames.len().saturating_sub(DEEPEST);
    if more > 0 {
        text.push_str(&format!(" <- … {more} more frames"));
    }
    text
}
