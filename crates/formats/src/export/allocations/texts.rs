//! Call stacks in words, each made once while there is room.

use std::sync::Arc;

use engine::ids::SiteId;
use engine::stack::{SiteName, Stacks, site_name};
use hashbrown::HashMap;

use crate::export::analysis::frames::line;
use crate::plain::plain_up_to;

/// Frames of a stack that are written; the innermost ones.
const DEEPEST: usize = 128;

/// The longest text of a frame.
const LONGEST: usize = 1024;

/// Bytes of texts that are kept.
const KEPT: usize = 32 << 20;

/// What a site is called and looks like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::export) struct Told {
    /// The lasting name of the stack.
    pub(in crate::export) name: String,
    /// Its frames in words, innermost first; harmless text.
    pub(in crate::export) stack: String,
}

/// See the module.
pub(in crate::export) struct Texts {
    between: &'static str,
    known: HashMap<SiteId, Arc<Told>>,
    bytes: usize,
}

impl Texts {
    /// `between` stands between two frames.
    pub(in crate::export) fn new(between: &'static str) -> Self {
        Self { between, known: HashMap::new(), bytes: 0 }
    }

    /// The texts of a site.
    pub(in crate::export) fn of(&mut self, site: SiteId, stacks: &Stacks) -> Arc<Told> {
        if let Some(known) = self.known.get(&site) {
            return Arc::clone(known);
        }
        let told = Arc::new(self.tell(site, stacks));
        self.bytes = self.bytes.saturating_add(told.stack.len());
        if self.bytes > KEPT {
            self.known.clear();
            self.bytes = told.stack.len();
        }
        self.known.insert(site, Arc::clone(&told));
        told
    }

    fn tell(&self, site: SiteId, stacks: &Stacks) -> Told {
        let frames: Vec<_> = stacks.frames(site).cloned().collect();
        let name = SiteName::Told(site_name(&frames)).to_string();
        let mut stack = String::new();
        for frame in frames.iter().take(DEEPEST) {
            if !stack.is_empty() {
                stack.push_str(self.between);
            }
            stack.push_str(&plain_up_to(&line(frame), LONGEST));
        }
        let more = frames.len().saturating_sub(DEEPEST);
        if more > 0 {
            stack.push_str(&format!("{}… {more} more frames", self.between));
        }
        Told { name, stack }
    }
}
