//! Call stacks as text, cached within a size limit.

use std::sync::Arc;

use engine::model::{Frame, SiteId, SiteName, StackTable, site_name};
use hashbrown::HashMap;

use crate::report::analysis::frames::line;
use crate::sanitize::sanitize_up_to;

/// Maximum number of frames of a stack; the innermost ones are written.
const MAX_FRAMES: usize = 128;

/// Maximum number of characters of a frame.
const MAX_FRAME_CHARS: usize = 1024;

/// Size limit of the cache, in bytes of text.
const MAX_CACHED_BYTES: usize = 32 << 20;

/// Name and call stack of a site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SiteText {
    /// Name of the site: a hash of its stack, the same in every file.
    pub(crate) name: String,
    /// Frames as sanitized text, innermost first.
    pub(crate) stack: String,
}

/// Cache of call stacks as text.
pub(crate) struct StackTextCache {
    between: &'static str,
    known: HashMap<SiteId, Arc<SiteText>>,
    bytes: usize,
}

impl StackTextCache {
    /// `between` is the separator between two frames.
    pub(crate) fn new(between: &'static str) -> Self {
        Self { between, known: HashMap::new(), bytes: 0 }
    }

    /// Returns the name and stack of a site.
    pub(crate) fn of(&mut self, site: SiteId, stacks: &StackTable) -> Arc<SiteText> {
        if let Some(known) = self.known.get(&site) {
            return Arc::clone(known);
        }
        let text = Arc::new(self.format(site, stacks));
        self.bytes = self.bytes.saturating_add(text.stack.len());
        if self.bytes > MAX_CACHED_BYTES {
            self.known.clear();
            self.bytes = text.stack.len();
        }
        self.known.insert(site, Arc::clone(&text));
        text
    }

    fn format(&self, site: SiteId, stacks: &StackTable) -> SiteText {
        let frames: Vec<_> = stacks.frames(site).cloned().collect();
        let name = SiteName::Resolved(site_name(&frames)).to_string();
        SiteText { name, stack: joined(&frames, self.between, MAX_FRAMES, MAX_FRAME_CHARS) }
    }
}

/// Returns the innermost frames as sanitized text, each with at most `max_chars`.
pub(crate) fn joined(
    frames: &[Frame],
    between: &str,
    max_frames: usize,
    max_chars: usize,
) -> String {
    let shown = frames.iter().take(max_frames);
    let text = shown.map(|frame| sanitize_up_to(&line(frame), max_chars).into_owned());
    let more = frames.len().checked_sub(max_frames).filter(|more| *more > 0);
    let more = more.map(|more| format!("… {more} more frames"));
    text.chain(more).collect::<Vec<_>>().join(between)
}
