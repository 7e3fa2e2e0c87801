//! Deduplicated texts and call stacks of the report.

use std::collections::HashMap;

use engine::model::{CallStack, Frame, Language, SiteId, StackTable};
use serde_json::{Value, json};

use super::packed_data::NumberPacker;
use crate::report::analysis::frames;
use crate::report::view::stack_location;
use crate::sanitize::sanitize_up_to;

/// Maximum number of characters of a text.
const MAX_TEXT_CHARS: usize = 1000;

/// Maximum number of frames of a stack.
const MAX_FRAMES: usize = 250;

/// Maximum number of stacks.
const MAX_STACKS: usize = 12_000;

/// Maximum size of all texts, in bytes; further stacks are omitted.
const MAX_STRING_BYTES: usize = 16 << 20;

/// Texts, frames and stacks by number.
pub(super) struct StringTable<'a> {
    stacks: &'a StackTable,
    texts: HashMap<String, usize>,
    list: Vec<String>,
    text_bytes: usize,
    frames: HashMap<u32, usize>,
    frame_list: Vec<Value>,
    sites: HashMap<SiteId, Option<usize>>,
    numbers: NumberPacker,
    count: usize,
    /// Number of stacks that were omitted.
    pub(super) left_out: usize,
}

impl<'a> StringTable<'a> {
    pub(super) fn new(stacks: &'a StackTable) -> Self {
        Self {
            stacks,
            texts: HashMap::new(),
            list: Vec::new(),
            text_bytes: 0,
            frames: HashMap::new(),
            frame_list: Vec::new(),
            sites: HashMap::new(),
            numbers: NumberPacker::default(),
            count: 0,
            left_out: 0,
        }
    }

    /// Returns the number of a text. The text is sanitized here.
    pub(super) fn text(&mut self, text: &str) -> usize {
        let text = sanitize_up_to(text, MAX_TEXT_CHARS);
        if let Some(known) = self.texts.get(&*text) {
            return *known;
        }
        self.text_bytes += text.len();
        let number = self.list.len();
        self.list.push(text.to_string());
        self.texts.insert(text.into_owned(), number);
        number
    }

    /// Returns the number of a site's stack, from 1; 0 if it has none, or if it was omitted.
    pub(super) fn site(&mut self, site: Option<SiteId>) -> usize {
        let Some(site) = site else { return 0 };
        if let Some(known) = self.sites.get(&site) {
            return known.map_or(0, |number| number + 1);
        }
        let stack = self.stacks.call_stack(site);
        let known = if stack.is_empty() {
            None
        } else if self.count >= MAX_STACKS || self.text_bytes > MAX_STRING_BYTES {
            self.left_out += 1;
            None
        } else {
            Some(self.stack(site, &stack))
        };
        self.sites.insert(site, known);
        known.map_or(0, |number| number + 1)
    }

    /// The same for the site with these frames.
    pub(super) fn site_of(&mut self, frames: &CallStack) -> usize {
        self.site(self.stacks.find(frames))
    }

    fn stack(&mut self, site: SiteId, frames: &CallStack) -> usize {
        let label = self.text(&stack_location(frames));
        let library = frames.headline().folded.iter().copied();
        self.numbers.put(label as u64);
        self.numbers.put(frames.len() as u64);
        let shown = frames.len().min(MAX_FRAMES);
        self.numbers.put(shown as u64);
        let ids: Vec<u32> = self.stacks.ids(site).iter().map(|id| id.0).collect();
        for ((frame, id), library) in frames.iter().zip(ids).zip(library).take(shown) {
            let number = self.frame(id, frame);
            self.numbers.put((number as u64) << 1 | u64::from(library));
        }
        self.count += 1;
        self.count - 1
    }

    fn frame(&mut self, id: u32, frame: &Frame) -> usize {
        if let Some(known) = self.frames.get(&id) {
            return *known;
        }
        let function = self.text(&frames::function(frame));
        let mut or_none = |text: &Option<std::sync::Arc<str>>| match text {
            Some(text) => json!(self.text(text)),
            None => Value::Null,
        };
        let (file, module) = (or_none(&frame.file), or_none(&frame.module));
        let language = match frame.language {
            Language::Native => 0,
            Language::Python => 1,
            Language::Synthetic => 2,
        };
        let number = self.frame_list.len();
        self.frame_list.push(json!([function, file, frame.line, module, language]));
        self.frames.insert(id, number);
        number
    }

    /// Returns all texts, all frames, and all stacks with their count.
    pub(super) fn finish(self) -> (Vec<String>, Vec<Value>, NumberPacker, usize) {
        (self.list, self.frame_list, self.numbers, self.count)
    }
}
