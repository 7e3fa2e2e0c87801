//! A call stack: the program's frames first, frames of libraries folded.

use engine::model::{CallStack, Frame};

use crate::report::analysis::frames;
use crate::report::view::fold_phrase;
use crate::sanitize::sanitize;

/// A line of a call stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StackLine {
    /// A frame, by its index. `responsible`: the one that a reader has to look at.
    Frame {
        /// Index in the stack.
        index: usize,
        /// `function (file:line)`.
        text: String,
        /// Whether this is the responsible frame.
        is_responsible: bool,
        /// Whether it is of a library.
        is_library: bool,
    },
    /// Frames of libraries that are not shown.
    Folded(String),
}

/// Returns the lines of a stack, innermost frame first. `unfolded`: also show frames of libraries.
pub fn lines(stack: &CallStack, unfolded: bool) -> Vec<StackLine> {
    let mut lines = Vec::new();
    let mut hidden: Vec<&Frame> = Vec::new();
    let headline = stack.headline();
    for (index, (frame, is_library)) in stack.iter().zip(&headline.folded).enumerate() {
        if *is_library && !unfolded {
            hidden.push(frame);
            continue;
        }
        lines.extend(folded(&mut hidden));
        lines.push(StackLine::Frame {
            index,
            text: sanitize(&frames::line(frame)).into_owned(),
            is_responsible: headline.frame == Some(index),
            is_library: *is_library,
        });
    }
    lines.extend(folded(&mut hidden));
    lines
}

fn folded(hidden: &mut Vec<&Frame>) -> Option<StackLine> {
    let text = fold_phrase(hidden)?;
    hidden.clear();
    Some(StackLine::Folded(text))
}
