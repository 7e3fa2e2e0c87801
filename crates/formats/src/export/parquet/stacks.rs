//! Call stacks as text, for table cells.

use engine::snapshot::SiteView;

use crate::report::analysis::frames::line;
use crate::report::redact::redact_paths;
use crate::sanitize::sanitize_up_to;

/// Maximum number of frames of a stack; the innermost ones are written.
const MAX_FRAMES: usize = 64;

/// Maximum number of characters of a frame.
const MAX_FRAME_CHARS: usize = 256;

/// Returns the frames of a site, innermost first.
pub(super) fn stack(site: &SiteView, paths: bool) -> String {
    let mut text = String::new();
    for frame in site.frames.iter().take(MAX_FRAMES) {
        if !text.is_empty() {
            text.push_str(" <- ");
        }
        text.push_str(&sanitize_up_to(&line(&redact_paths(frame, paths)), MAX_FRAME_CHARS));
    }
    let more = site.frames.len().saturating_sub(MAX_FRAMES);
    if more > 0 {
        text.push_str(&format!(" <- … {more} more frames"));
    }
    text
}
