//! Call stacks for readers: the program's own frames first, frames of frameworks folded.

use std::borrow::Cow;

use engine::model::{CallStack, Frame, SiteId, StackTable};

use super::Cell;

/// Maximum number of shown frames of the program.
const MAX_PROGRAM_FRAMES: usize = 4;

/// Maximum number of characters of a frame.
const MAX_FRAME_CHARS: usize = 120;

/// Returns the stack of a site as a cell, with a placeholder if the stack is unknown.
pub(super) fn cell(stacks: &StackTable, site: Option<SiteId>) -> Cell {
    cell_of(&site.map(|site| stacks.call_stack(site)).unwrap_or_default())
}

/// Returns a stack as a cell, with a placeholder if it is unknown.
pub(super) fn cell_of(stack: &CallStack) -> Cell {
    if stack.is_empty() {
        let unknown = "(no call stack)".to_owned();
        return Cell::Stack { short: vec![unknown], full: Vec::new() };
    }
    Cell::Stack { short: short(stack), full: stack.iter().map(line).collect() }
}

/// Returns the headline of a stack: `function (file:line)`.
pub(crate) fn label(stack: &CallStack) -> String {
    headline(stack).map(|frame| truncate_middle(line(&frame))).unwrap_or_default()
}

/// Returns the responsible frame, with the name of the operator that it executes.
pub(crate) fn headline(stack: &CallStack) -> Option<Frame> {
    let frame = stack.responsible()?.clone();
    Some(match &stack.headline().operator {
        Some(operator) => Frame { function: operator.clone(), ..frame },
        None => frame,
    })
}

/// Returns ` via PyTorch`: what lies between the headline and the driver.
pub(crate) fn via(stack: &CallStack) -> String {
    match &stack.headline().via[..] {
        [] => String::new(),
        names => format!(" via {}", names.join(", ")),
    }
}

/// Returns the function of a frame, or why it is unknown in parentheses.
pub(crate) fn function(frame: &Frame) -> Cow<'_, str> {
    match &*frame.function {
        "" => {
            let reason = frame.unknown.map_or("not known", |unknown| unknown.reason());
            format!("({reason})").into()
        }
        function => function.into(),
    }
}

/// Formats a frame as `function (file:line)`, or as much of that as is known.
pub(crate) fn line(frame: &Frame) -> String {
    let function = function(frame);
    match (&frame.file, frame.line, &frame.module) {
        (Some(file), 0, _) => format!("{function} ({file})"),
        (Some(file), line, _) => format!("{function} ({file}:{line})"),
        (None, _, Some(module)) => format!("{function} ({})", base(module)),
        (None, _, None) => function.into_owned(),
    }
}

/// Returns the headline as `function file:line`: short enough for a metric label, without
/// directories.
pub(crate) fn location(stack: &CallStack) -> String {
    let Some(frame) = headline(stack) else { return String::new() };
    let function = function(&frame);
    match (&frame.file, frame.line, &frame.module) {
        (Some(file), 0, _) => format!("{function} {}", base(file)),
        (Some(file), line, _) => format!("{function} {}:{line}", base(file)),
        (None, _, Some(module)) => format!("{function} {}", base(module)),
        (None, _, None) => function.into_owned(),
    }
}

/// Returns the last component of a path.
pub(crate) fn base(path: &str) -> &str {
    path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(path)
}

/// Returns the frames of the program that call the responsible one.
pub(crate) fn callers(stack: &CallStack, max: usize) -> Vec<String> {
    stack.program_frames().skip(1).take(max).map(|frame| truncate_middle(line(frame))).collect()
}

/// Returns the headline and its callers; the other frames are counted.
fn short(stack: &CallStack) -> Vec<String> {
    let mut lines = vec![label(stack)];
    let (mut hidden, mut shown) = (0, 1);
    let inside = stack.headline().frame.map_or(0, |index| index + 1);
    let frames = stack.iter().zip(&stack.headline().folded).enumerate().skip(inside);
    for (index, (frame, folded)) in frames {
        if shown == MAX_PROGRAM_FRAMES {
            lines.extend(fold(hidden, "library frames"));
            lines.extend(fold(stack.len() - index, "more frames"));
            return lines;
        }
        if *folded {
            hidden += 1;
            continue;
        }
        lines.extend(fold(std::mem::take(&mut hidden), "library frames"));
        lines.push(truncate_middle(line(frame)));
        shown += 1;
    }
    lines.extend(fold(hidden, "library frames"));
    lines
}

fn fold(count: usize, noun: &str) -> Option<String> {
    match count {
        0 => None,
        1 => Some(format!("… 1 {}", noun.trim_end_matches('s'))),
        _ => Some(format!("… {count} {noun}")),
    }
}

/// Shortens a line. The middle is removed because it is the least informative part of a long name.
pub(crate) fn truncate_middle(text: String) -> String {
    let count = text.chars().count();
    if count <= MAX_FRAME_CHARS {
        return text;
    }
    let half = MAX_FRAME_CHARS / 2;
    let head: String = text.chars().take(half).collect();
    let tail: String = text.chars().skip(count - half).collect();
    format!("{head}…{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::model::stack::Language;
    use std::sync::Arc;

    fn stack(frames: &[Frame]) -> CallStack {
        CallStack::from(Arc::<[Frame]>::from(frames))
    }

    fn python(function: &str, file: &str, line: u32) -> Frame {
        let file = Some(file.into());
        Frame {
            function: function.into(),
            file,
            line,
            language: Language::Python,
            ..Frame::default()
        }
    }

    fn native(function: &str, module: &str) -> Frame {
        Frame { function: function.into(), module: Some(module.into()), ..Frame::default() }
    }

    #[test]
    fn location_is_innermost_program_line_without_directories() {
        let location_of = |frames: &[Frame]| location(&stack(frames));
        let driver = native("cuMemAlloc_v2", "/usr/lib/libcuda.so.1");
        let step = python("step", "/srv/ann/train.py", 12);
        assert_eq!(location_of(&[driver.clone(), step]), "step train.py:12");
        assert_eq!(location_of(&[driver]), "cuMemAlloc_v2 libcuda.so.1");
        assert_eq!(location_of(&[]), "");
    }

    fn lines(frames: &[Frame]) -> Vec<String> {
        short(&stack(frames))
    }

    #[test]
    fn framework_frames_are_folded() {
        let torch = "/usr/lib/python3/site-packages/torch/nn/modules/module.py";
        let found = lines(&[
            native("cudaMalloc", "/usr/lib/libcudart.so.12"),
            native("c10::cuda::malloc", "libc10_cuda.so"),
            python("forward", "model.py", 12),
            python("_call_impl", torch, 1553),
            python("_wrapped_call_impl", torch, 1541),
            python("main", "train.py", 40),
            native("__libc_start_main", "libc.so.6"),
        ]);
        let want = [
            "forward (model.py:12)",
            "… 2 library frames",
            "main (train.py:40)",
            "… 1 library frame",
        ];
        assert_eq!(found, want);
    }

    #[test]
    fn native_frames_are_folded_if_there_is_python() {
        let found = lines(&[
            native("helper", "extension.so"),
            python("step", "train.py", 3),
            native("helper", "extension.so"),
            python("main", "train.py", 9),
        ]);
        assert_eq!(found, ["step (train.py:3)", "… 1 library frame", "main (train.py:9)"]);
        assert_eq!(lines(&[native("helper", "extension.so")]), ["helper (extension.so)"]);
    }

    #[test]
    fn stack_without_program_frames_shows_innermost_frames() {
        let frame = native("cuMemAlloc_v2", "libcuda.so.1");
        let found = lines(&[frame.clone(), frame.clone(), frame.clone(), frame.clone(), frame]);
        assert_eq!(found.len(), 5);
        assert_eq!((&*found[0], &*found[4]), ("cuMemAlloc_v2 (libcuda.so.1)", "… 1 more frame"));
    }

    #[test]
    fn deep_stack_is_truncated() {
        let frames: Vec<_> = (1..=10).map(|line| python("recurse", "deep.py", line)).collect();
        let found = lines(&frames);
        assert_eq!(found.len(), 5);
        assert_eq!((&*found[3], &*found[4]), ("recurse (deep.py:4)", "… 6 more frames"));
    }

    #[test]
    fn long_names_lose_their_middle() {
        assert!(truncate_middle("x".repeat(500)).chars().count() <= MAX_FRAME_CHARS + 1);
    }

    #[test]
    fn wrappers_and_operators_are_part_of_the_headline() {
        let apply =
            native("torch::autograd::generated::MmBackward0::apply(int)", "libtorch_cpu.so");
        let backward = stack(&[native("c10::cuda::malloc", "libc10_cuda.so"), apply]);
        assert_eq!(label(&backward), "MmBackward0 (libtorch_cpu.so)");
        assert_eq!(via(&backward), " via PyTorch");
        assert_eq!(via(&stack(&[native("main", "app")])), "");
    }
}
