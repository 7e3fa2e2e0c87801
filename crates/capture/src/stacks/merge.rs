//! Merges the native and Python frames of a stack: Python frames replace those of the interpreter.

use std::sync::Arc;

use engine::model::stack::{Frame, Language, UnknownReason};

/// The interpreter's function that executes Python code. One call of it executes a run of Python
/// frames that call each other.
const EVALUATOR: &str = "_PyEval_EvalFrameDefault";

/// The native frames of one address: inlined functions first.
pub(crate) type NativeFrames = Arc<[Frame]>;

/// Python frames that one call of the evaluator executes, innermost first.
pub(crate) type PythonRun = Vec<Frame>;

/// Class of a native frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FrameClass {
    Evaluator,
    /// Other code of the interpreter, which is left out.
    Interpreter,
    Other,
}

/// Merges a stack, innermost frame first. Without runs the native frames stay, with `missing` as
/// the reason for missing Python frames.
pub(crate) fn merge(
    native: &[NativeFrames],
    runs: Vec<PythonRun>,
    missing: Option<UnknownReason>,
) -> Vec<Frame> {
    let classes = classify(native);
    if runs.is_empty() {
        let mut frames: Vec<_> = native.iter().flat_map(|frames| frames.iter().cloned()).collect();
        let first = frames.iter().position(|frame| is_evaluator(&frame.function));
        if let (Some(index), Some(unknown)) = (first, missing) {
            let (language, unknown) = (Language::Python, Some(unknown));
            frames.insert(index, Frame { language, unknown, ..Frame::default() });
        }
        return frames;
    }
    // Runs without an evaluator belong to the last one: its frames could not be separated. Without
    // any evaluator, the unwinder did not get that far.
    let last = classes.iter().rposition(|class| *class == FrameClass::Evaluator);
    let last = last.or_else(|| classes.iter().position(|class| *class == FrameClass::Interpreter));
    let mut runs = runs.into_iter();
    let mut merged = Vec::new();
    for (index, (frames, class)) in native.iter().zip(&classes).enumerate() {
        match class {
            FrameClass::Other => merged.extend(frames.iter().cloned()),
            FrameClass::Evaluator => merged.extend(runs.next().into_iter().flatten()),
            FrameClass::Interpreter => {}
        }
        if Some(index) == last {
            merged.extend(runs.by_ref().flatten());
        }
    }
    merged.extend(runs.flatten());
    merged
}

fn classify(native: &[NativeFrames]) -> Vec<FrameClass> {
    let evaluates =
        |frames: &NativeFrames| frames.iter().any(|frame| is_evaluator(&frame.function));
    let module = |frames: &NativeFrames| frames.last().and_then(|frame| frame.module.clone());
    let interpreter = native.iter().find(|frames| evaluates(frames)).and_then(module);
    let class = |frames: &NativeFrames| match module(frames) {
        _ if evaluates(frames) => FrameClass::Evaluator,
        Some(path) if interpreter.as_ref() == Some(&path) => FrameClass::Interpreter,
        Some(path) if interpreter.is_none() && is_interpreter(&path) => FrameClass::Interpreter,
        _ => FrameClass::Other,
    };
    native.iter().map(class).collect()
}

/// Returns whether a function is the evaluator, or a part of it such as `f.cold`.
fn is_evaluator(function: &str) -> bool {
    function.strip_prefix(EVALUATOR).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns whether a path is that of an interpreter, for interpreters without symbols.
pub(crate) fn is_interpreter(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with("libpython")
        || name
            .strip_prefix("python")
            .is_some_and(|rest| rest.chars().all(|letter| letter.is_ascii_digit() || letter == '.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native(function: &str, module: &str) -> NativeFrames {
        let module = Some(module.into());
        [Frame { function: function.into(), module, ..Frame::default() }].into()
    }

    fn python(function: &str) -> Frame {
        Frame { function: function.into(), language: Language::Python, ..Frame::default() }
    }

    fn names(frames: &[Frame]) -> Vec<&str> {
        frames.iter().map(|frame| &*frame.function).collect()
    }

    #[test]
    fn each_evaluator_frame_is_replaced_by_its_run() {
        let stack = [
            native("cudaMalloc", "libcudart"),
            native("ffi_call", "libffi"),
            native("_PyObject_MakeTpCall", "libpython3.11.so"),
            native("_PyEval_EvalFrameDefault.cold", "libpython3.11.so"),
            native("PyObject_Call", "libpython3.11.so"),
            native("THPEngine_run", "libtorch_python"),
            native("_PyEval_EvalFrameDefault", "libpython3.11.so"),
            native("Py_BytesMain", "libpython3.11.so"),
            native("__libc_start_main", "libc"),
        ];
        let runs = vec![vec![python("leaf"), python("step")], vec![python("train")]];
        let expected = [
            "cudaMalloc",
            "ffi_call",
            "leaf",
            "step",
            "THPEngine_run",
            "train",
            "__libc_start_main",
        ];
        assert_eq!(names(&merge(&stack, runs, None)), expected);
    }

    #[test]
    fn runs_without_an_evaluator_are_kept() {
        let runs = || vec![vec![python("leaf")], vec![python("main")]];
        let truncated = [native("cudaMalloc", "libcudart")];
        assert_eq!(names(&merge(&truncated, runs(), None)), ["cudaMalloc", "leaf", "main"]);
        let one = [
            native("cudaMalloc", "libcudart"),
            native("_PyEval_EvalFrameDefault", "python3.11"),
            native("_start", "libc"),
        ];
        assert_eq!(names(&merge(&one, runs(), None)), ["cudaMalloc", "leaf", "main", "_start"]);
        let stripped = [
            native("cudaMalloc", "libcudart"),
            native("", "/usr/bin/python3.11"),
            native("", "/usr/bin/python3.11"),
            native("_start", "libc"),
        ];
        assert_eq!(
            names(&merge(&stripped, runs(), None)),
            ["cudaMalloc", "leaf", "main", "_start"]
        );
    }

    #[test]
    fn stack_without_python_is_unchanged() {
        let stack = [native("_PyEval_EvalFrameDefault", "libpython"), native("main", "a.out")];
        let expected = ["_PyEval_EvalFrameDefault", "main"];
        assert_eq!(names(&merge(&stack, Vec::new(), None)), expected);
    }

    #[test]
    fn unsupported_python_is_marked_at_the_evaluator() {
        let stack = [native("f", "a.so"), native("_PyEval_EvalFrameDefault", "libpython")];
        let merged = merge(&stack, Vec::new(), Some(UnknownReason::UnsupportedInterpreter));
        assert_eq!(names(&merged), ["f", "", "_PyEval_EvalFrameDefault"]);
        assert_eq!(merged[1].unknown, Some(UnknownReason::UnsupportedInterpreter));
        assert_eq!(
            merge(&stack[..1], Vec::new(), Some(UnknownReason::UnsupportedInterpreter)).len(),
            1
        );
    }
}
