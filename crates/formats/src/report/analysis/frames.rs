//! Call stacks for readers: the program's own frames first, frames of frameworks folded.

use engine::model::ids::SiteId;
use engine::model::stack::{Frame, Language, StackTable};

use super::Cell;

/// Maximum number of shown frames of the program.
const MAX_PROGRAM_FRAMES: usize = 4;

/// Maximum number of shown frames of a stack without frames of the program.
const MAX_LIBRARY_FRAMES: usize = 3;

/// Maximum number of characters of a frame.
const MAX_FRAME_CHARS: usize = 120;

/// Parts of module and file paths that belong to libraries.
const LIBRARY_PATHS: [&str; 26] = [
    "libcuda.so",
    "libcudart",
    "libcupti",
    "libnvidia",
    "libcublas",
    "libcudnn",
    "libnccl",
    "libc10",
    "libtorch",
    "libpython",
    "libc.so",
    "libc-2",
    "libpthread",
    "libstdc++",
    "libgcc_s",
    "ld-linux",
    "/site-packages/torch/",
    "/dist-packages/torch/",
    "/site-packages/jax",
    "/site-packages/cupy",
    "/site-packages/tensorflow/",
    "/site-packages/triton/",
    "/site-packages/lightning/",
    "/site-packages/pytorch_lightning/",
    "/site-packages/accelerate/",
    "<frozen ",
];

/// Prefixes of library functions.
const LIBRARY_FUNCTION_PREFIXES: [&str; 18] = [
    "_Py",
    "Py",
    "Py_",
    "pybind11::",
    "c10::",
    "at::",
    "torch::",
    "cuda",
    "cu",
    "__libc_",
    "_start",
    "_dl_",
    "std::",
    "__pthread",
    "pthread_",
    "start_thread",
    "clone",
    "__clone",
];

/// Returns the stack of a site as a cell, with a placeholder if the stack is unknown.
pub(super) fn cell(stacks: &StackTable, site: Option<SiteId>) -> Cell {
    let frames: Vec<&Frame> = site.map(|site| stacks.frames(site).collect()).unwrap_or_default();
    if frames.is_empty() {
        let unknown = "(no call stack)".to_owned();
        return Cell::Stack { short: vec![unknown], full: Vec::new() };
    }
    let full = frames.iter().map(|frame| line(frame)).collect();
    Cell::Stack { short: short(&frames), full }
}

/// Returns the most informative line of a stack.
pub(crate) fn label(frames: &[&Frame]) -> String {
    short(frames).into_iter().next().unwrap_or_default()
}

/// Formats a frame as `function (file:line)`, or as much of that as is known.
pub(crate) fn line(frame: &Frame) -> String {
    let function = if frame.function.is_empty() {
        format!("({})", frame.unknown.map_or("not known", |unknown| unknown.reason()))
    } else {
        frame.function.to_string()
    };
    match (&frame.file, frame.line, &frame.module) {
        (Some(file), 0, _) => format!("{function} ({file})"),
        (Some(file), line, _) => format!("{function} ({file}:{line})"),
        (None, _, Some(module)) => format!("{function} ({})", base(module)),
        (None, _, None) => function,
    }
}

/// Returns `function file:line` of the most informative frame of a stack: short enough for a label,
/// without directories.
pub(crate) fn location(frames: &[&Frame]) -> String {
    let Some(frame) = innermost_program_frame(frames).or(frames.first().copied()) else {
        return String::new();
    };
    let function = if frame.function.is_empty() {
        format!("({})", frame.unknown.map_or("not known", |unknown| unknown.reason()))
    } else {
        frame.function.to_string()
    };
    match (&frame.file, frame.line, &frame.module) {
        (Some(file), 0, _) => format!("{function} {}", base(file)),
        (Some(file), line, _) => format!("{function} {}:{line}", base(file)),
        (None, _, Some(module)) => format!("{function} {}", base(module)),
        (None, _, None) => function,
    }
}

/// Returns the last component of a path.
fn base(path: &str) -> &str {
    path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(path)
}

fn is_foreign(frame: &Frame) -> bool {
    if frame.language == Language::Synthetic {
        return false;
    }
    let inside = |path: &str| LIBRARY_PATHS.iter().any(|part| path.contains(part));
    let file = frame.file.as_deref().is_some_and(inside);
    if file || frame.module.as_deref().is_some_and(inside) {
        return true;
    }
    if frame.language == Language::Python {
        return false;
    }
    let function = &*frame.function;
    let known = |word: &str, prefix: &str| match prefix {
        // Matches `cuMemAlloc_v2`, but not `curve`.
        "cu" | "cuda" | "Py" => {
            let rest = word.strip_prefix(prefix);
            rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
        }
        "clone" | "start_thread" => word == prefix,
        prefix => word.starts_with(prefix),
    };
    // Demangled templates have the return type before the name.
    let name = function.split('(').next().unwrap_or("");
    let known = |word: &str| LIBRARY_FUNCTION_PREFIXES.iter().any(|prefix| known(word, prefix));
    function.is_empty() || name.split(' ').any(known)
}

/// Marks frames that are not part of the program. If the stack has Python frames of the program,
/// native frames do not count as such.
pub(crate) fn library_frames(frames: &[&Frame]) -> Vec<bool> {
    let own_python = |frame: &&&Frame| frame.language == Language::Python && !is_foreign(frame);
    let python = frames.iter().any(|frame| own_python(&frame));
    let of = |frame: &&Frame| is_foreign(frame) || (python && frame.language == Language::Native);
    frames.iter().map(of).collect()
}

/// Returns the innermost frame of the program.
pub(crate) fn innermost_program_frame<'a>(frames: &[&'a Frame]) -> Option<&'a Frame> {
    frames.iter().zip(library_frames(frames)).find(|(_, foreign)| !foreign).map(|(frame, _)| *frame)
}

/// Returns the frames of the program that call [`innermost_program_frame`]'s: that one is often a
/// wrapper, and these show its user.
pub(crate) fn callers(frames: &[&Frame], max: usize) -> Vec<String> {
    let own = frames.iter().zip(library_frames(frames)).filter(|(_, foreign)| !foreign);
    own.skip(1).take(max).map(|(frame, _)| truncate_middle(line(frame))).collect()
}

fn short(frames: &[&Frame]) -> Vec<String> {
    let foreign = library_frames(frames);
    if foreign.iter().all(|foreign| *foreign) {
        let mut lines: Vec<_> =
            frames.iter().take(MAX_LIBRARY_FRAMES).map(|f| truncate_middle(line(f))).collect();
        lines.extend(folded(frames.len().saturating_sub(MAX_LIBRARY_FRAMES), "more frames"));
        return lines;
    }
    // Frames inside of the program's innermost frame are the same for most allocations.
    let inside = foreign.iter().take_while(|foreign| **foreign).count();
    let mut lines = Vec::new();
    let (mut hidden, mut shown) = (0, 0);
    for (index, (frame, foreign)) in frames.iter().zip(foreign).enumerate().skip(inside) {
        if shown == MAX_PROGRAM_FRAMES {
            lines.extend(folded(hidden, "library frames"));
            lines.extend(folded(frames.len() - index, "more frames"));
            return lines;
        }
        if foreign {
            hidden += 1;
            continue;
        }
        lines.extend(folded(std::mem::take(&mut hidden), "library frames"));
        lines.push(truncate_middle(line(frame)));
        shown += 1;
    }
    lines.extend(folded(hidden, "library frames"));
    lines
}

fn folded(count: usize, noun: &str) -> Option<String> {
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
        let location_of = |frames: &[Frame]| location(&frames.iter().collect::<Vec<_>>());
        let driver = native("cuMemAlloc_v2", "/usr/lib/libcuda.so.1");
        let step = python("step", "/srv/ann/train.py", 12);
        assert_eq!(location_of(&[driver.clone(), step]), "step train.py:12");
        assert_eq!(location_of(&[driver]), "cuMemAlloc_v2 libcuda.so.1");
        assert_eq!(location_of(&[]), "");
    }

    fn lines(frames: &[Frame]) -> Vec<String> {
        short(&frames.iter().collect::<Vec<_>>())
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
        assert_eq!(found.len(), 4);
        assert_eq!((&*found[0], &*found[3]), ("cuMemAlloc_v2 (libcuda.so.1)", "… 2 more frames"));
    }

    #[test]
    fn deep_stack_is_truncated() {
        let frames: Vec<_> = (1..=10).map(|line| python("recurse", "deep.py", line)).collect();
        let found = lines(&frames);
        assert_eq!(found.len(), 5);
        assert_eq!((&*found[3], &*found[4]), ("recurse (deep.py:4)", "… 6 more frames"));
    }

    #[test]
    fn user_code_is_not_taken_for_a_library() {
        for (function, module) in [
            ("curve", "program"),
            ("customAlloc", "program"),
            ("cuda_wrapper", "app"),
            ("main", "app"),
        ] {
            assert!(!is_foreign(&native(function, module)), "{function}");
        }
        for function in [
            "cuMemAlloc_v2",
            "cudaError cudaMalloc<float>(float**, unsigned long)",
            "bool at::cuda::blas::gemm_and_bias<float>(bool, long)",
            "PyCMethod_New",
            "__clone",
        ] {
            assert!(is_foreign(&native(function, "program")), "{function}");
        }
        assert!(truncate_middle("x".repeat(500)).chars().count() <= MAX_FRAME_CHARS + 1);
    }
}
