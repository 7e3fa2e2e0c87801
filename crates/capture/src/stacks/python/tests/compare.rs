//! Compares a walk with the frames that Python itself reports.

use engine::model::stack::{Frame, Language};

use super::image::{ExpectedFrame, ExpectedThread};
use super::walker::walk;
use crate::stacks::python::detect::Interpreter;
use crate::stacks::python::memory::MemoryReader;
use crate::stacks::python::symbolizer::PythonCode;
use crate::stacks::python::version::PythonVersion;

/// A resolved frame, and whether it entered the interpreter from C.
pub(super) struct ResolvedFrame {
    pub(super) frame: Frame,
    pub(super) entry: bool,
}

/// Resolves all frames of a thread; returns them and the number of internal frames left out.
pub(super) fn resolve<M: MemoryReader + Copy>(
    memory: M,
    interpreter: &Interpreter,
    id: u64,
) -> (Vec<ResolvedFrame>, usize) {
    let mut code = PythonCode::new(interpreter.layout, memory);
    let mut resolved: Vec<ResolvedFrame> = Vec::new();
    let mut internal = 0;
    for found in walk(&memory, &interpreter.wire, id) {
        let entry = found.entry == 1;
        match code.frame(&found) {
            Some(frame) => {
                assert_eq!(code.frame(&found).as_ref(), Some(&frame), "from the cache");
                resolved.push(ResolvedFrame { frame, entry });
            }
            None if found.code == 0 => {
                if let Some(last) = resolved.last_mut() {
                    last.entry = true;
                }
            }
            None => internal += 1,
        }
    }
    (resolved, internal)
}

/// Checks that every thread has the frames that Python reported; returns the number of frames.
pub(super) fn compare<M: MemoryReader + Copy>(
    memory: M,
    interpreter: &Interpreter,
    expected: &[ExpectedThread],
) -> usize {
    for thread in expected {
        let (resolved, _) = resolve(memory, interpreter, thread.id);
        let found: Vec<_> = resolved.iter().map(|resolved| comparable(&resolved.frame)).collect();
        assert_eq!(
            found, thread.frames,
            "thread {} of {}",
            thread.name, interpreter.layout.version
        );
        for ResolvedFrame { frame, entry } in &resolved {
            check_entry(interpreter.layout.version, &frame.function, *entry);
        }
    }
    expected.iter().map(|thread| thread.frames.len()).sum()
}

fn comparable(frame: &Frame) -> ExpectedFrame {
    assert_eq!((frame.language, frame.unknown), (Language::Python, None), "{frame:?}");
    ExpectedFrame {
        line: frame.line,
        file: frame.file.as_deref().unwrap_or_default().to_owned(),
        function: frame.function.to_string(),
    }
}

/// The functions of `chains.py` are named after their caller: C or Python.
fn check_entry(version: PythonVersion, function: &str, entry: bool) {
    let name = function.rsplit('.').next().unwrap_or_default();
    if name.starts_with("entered_") || name == "<module>" {
        assert!(entry, "{version}: {function} was called from C");
    }
    if name.starts_with("plain_") {
        assert_eq!(entry, version < PythonVersion::three(11), "{version}: {function} is Python's");
    }
}
