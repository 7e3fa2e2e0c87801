//! Native and Python frames of one stack, as one: Python's take the place of the interpreter's.

use std::sync::Arc;

use engine::stack::{Frame, Language, Unknown};

/// The interpreter's function that runs Python code. One call of it runs a whole run of Python
/// frames that call each other.
const EVALUATOR: &str = "_PyEval_EvalFrameDefault";

/// The native frames of one address: inlined functions first.
pub(crate) type Native = Arc<[Frame]>;

/// Python frames that one call of the interpreter runs, innermost first.
pub(crate) type Run = Vec<Frame>;

/// What became of one native frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    Evaluator,
    /// Other code of the interpreter: how Python calls Python is of no interest.
    Interpreter,
    Other,
}

/// One stack, innermost first. Without runs the native frames stay, and `missing` says why where
/// there should be some.
pub(crate) fn mix(native: &[Native], runs: Vec<Run>, missing: Option<Unknown>) -> Vec<Frame> {
    let sorts = sorts(native);
    if runs.is_empty() {
        let mut frames: Vec<_> = native.iter().flat_map(|frames| frames.iter().cloned()).collect();
        let first = frames.iter().position(|frame| is_evaluator(&frame.function));
        if let (Some(place), Some(unknown)) = (first, missing) {
            let (language, unknown) = (Language::Python, Some(unknown));
            frames.insert(place, Frame { language, unknown, ..Frame::default() });
        }
        return frames;
    }
    // Runs that no evaluator is found for belong to the last one: its part of the stack could not
    // be told apart. Where there is none at all, the unwinder did not get there.
    let last = sorts.iter().rposition(|sort| *sort == Sort::Evaluator);
    let last = last.or_else(|| sorts.iter().position(|sort| *sort == Sort::Interpreter));
    let mut runs = runs.into_iter();
    let mut mixed = Vec::new();
    for (place, (frames, sort)) in native.iter().zip(&sorts).enumerate() {
        match sort {
            Sort::Other => mixed.extend(frames.iter().cloned()),
            Sort::Evaluator => mixed.extend(runs.next().into_iter().flatten()),
            Sort::Interpreter => {}
        }
        if Some(place) == last {
            mixed.extend(runs.by_ref().flatten());
        }
    }
    mixed.extend(runs.flatten());
    mixed
}

fn sorts(native: &[Native]) -> Vec<Sort> {
    let evaluates = |frames: &Native| frames.iter().any(|frame| is_evaluator(&frame.function));
    let module = |frames: &Native| frames.last().and_then(|frame| frame.module.clone());
    let interpreter = native.iter().find(|frames| evaluates(frames)).and_then(module);
    let sort = |frames: &Native| match module(frames) {
        _ if evaluates(frames) => Sort::Evaluator,
        Some(path) if interpreter.as_ref() == Some(&path) => Sort::Interpreter,
        Some(path) if interpreter.is_none() && is_interpreter(&path) => Sort::Interpreter,
        _ => Sort::Other,
    };
    native.iter().map(sort).collect()
}

/// Compilers give parts of a function names like `f.cold`.
fn is_evaluator(function: &str) -> bool {
    function.strip_prefix(EVALUATOR).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// For interpreters whose symbols were taken away.
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

    fn native(function: &str, module: &str) -> Native {
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
    fn each_call_of_the_evaluator_gives_way_to_its_run() {
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
        assert_eq!(names(&mix(&stack, runs, None)), expected);
    }

    #[test]
    fn runs_without_an_evaluator_are_not_lost() {
        let runs = || vec![vec![python("leaf")], vec![python("main")]];
        let cut = [native("cudaMalloc", "libcudart")];
        assert_eq!(names(&mix(&cut, runs(), None)), ["cudaMalloc", "leaf", "main"]);
        let one = [
            native("cudaMalloc", "libcudart"),
            native("_PyEval_EvalFrameDefault", "python3.11"),
            native("_start", "libc"),
        ];
        assert_eq!(names(&mix(&one, runs(), None)), ["cudaMalloc", "leaf", "main", "_start"]);
        let stripped = [
            native("cudaMalloc", "libcudart"),
            native("", "/usr/bin/python3.11"),
            native("", "/usr/bin/python3.11"),
            native("_start", "libc"),
        ];
        assert_eq!(names(&mix(&stripped, runs(), None)), ["cudaMalloc", "leaf", "main", "_start"]);
    }

    #[test]
    fn a_stack_without_python_stays_as_it_is() {
        let stack = [native("_PyEval_EvalFrameDefault", "libpython"), native("main", "a.out")];
        let expected = ["_PyEval_EvalFrameDefault", "main"];
        assert_eq!(names(&mix(&stack, Vec::new(), None)), expected);
    }

    #[test]
    fn python_that_is_not_understood_is_told_where_it_is() {
        let stack = [native("f", "a.so"), native("_PyEval_EvalFrameDefault", "libpython")];
        let mixed = mix(&stack, Vec::new(), Some(Unknown::Interpreter));
        assert_eq!(names(&mixed), ["f", "", "_PyEval_EvalFrameDefault"]);
        assert_eq!(mixed[1].unknown, Some(Unknown::Interpreter));
        assert_eq!(mix(&stack[..1], Vec::new(), Some(Unknown::Interpreter)).len(), 1);
    }
}
