//! Frames of call stacks as JSON.

use engine::model::Frame;

use super::json_objects::{Word, json_objects};
use crate::sanitize::sanitize_up_to;

/// Maximum number of characters of a text.
const MAX_TEXT_CHARS: usize = 4096;

/// Sanitizes a name or path, which may be long.
pub(crate) fn long_text(text: &str) -> String {
    sanitize_up_to(text, MAX_TEXT_CHARS).into_owned()
}

json_objects! {
    /// One frame of a stack.
    #[derive(Clone, PartialEq, Debug)]
    pub(crate) struct FrameJson(frame: &Frame): Deserialize {
        function: String = long_text(&frame.function),
        file: Option<String> = frame.file.as_deref().map(long_text),
        line: Option<u32> = Some(frame.line).filter(|line| *line > 0),
        module: Option<String> = frame.module.as_deref().map(long_text),
        language: Word = frame.language.name().into(),
        unknown_reason?: Option<Word> = frame.unknown.map(|unknown| unknown.name().into()),
    }
}

/// Returns the objects of the frames of a stack, innermost first.
pub(crate) fn frames(frames: &[Frame]) -> Vec<FrameJson> {
    frames.iter().map(FrameJson::new).collect()
}
