//! Call stacks as text, for table cells.

use engine::snapshot::SiteView;

use crate::export::analysis::frames::line;
use crate::export::places::shown;
use crate::plain::plain_up_to;

/// Maximum number of frames of a stack; the innermost ones are written.
const DEEPEST: usize = 64;

/// Maximum number of characters of a frame.
const LONGEST: usize = 256;

/// Returns the frames of a site, innermost first.
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
