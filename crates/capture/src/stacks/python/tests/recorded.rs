//! Every layout, tested with recorded memory of real interpreters. See
//! `tests/python_images/README.md`.

use engine::model::stack::UnknownReason;

use super::compare::{compare, resolve};
use super::image::{Image, images};
use super::walker::walk;
use crate::stacks::python::detect::{Interpreter, PythonUnsupported, examine};
use crate::stacks::python::layout;
use crate::stacks::python::memory::MemoryReader;
use crate::stacks::python::symbolizer::PythonCode;
use crate::stacks::python::version::PythonVersion;

fn image(minor: u8) -> Image {
    images().remove(usize::from(minor) - 9)
}

pub(super) fn interpreter(image: &Image) -> Result<Interpreter, PythonUnsupported> {
    examine(image.anchor.clone(), &image.memory)
}

#[test]
fn stacks_of_every_version_match_their_own_report() {
    for (image, minor) in images().iter().zip(9..) {
        let interpreter = interpreter(image).unwrap();
        assert_eq!(interpreter.layout.version, PythonVersion::three(minor));
        let frames = compare(&image.memory, &interpreter, &image.threads);
        assert!(frames > 60, "{frames}");
    }
}

/// Checks the recorded output itself: the threads were waiting at the marked lines.
#[test]
fn recorded_frames_are_on_marked_lines() {
    let script = include_str!("../../../../tests/python_images/chains.py");
    let lines: Vec<_> = script.lines().collect();
    for image in images() {
        for frame in image.threads.iter().flat_map(|thread| &thread.frames) {
            if frame.file.ends_with("/chains.py") {
                let line = lines[frame.line as usize - 1];
                assert!(line.ends_with(" here"), "{}: {line}", frame.line);
            }
        }
    }
}

#[test]
fn shim_frame_below_init_is_left_out() {
    for image in images() {
        let interpreter = interpreter(&image).unwrap();
        let thread = image.threads.iter().find(|thread| thread.name == "made_often").unwrap();
        let (_, internal) = resolve(&image.memory, &interpreter, thread.id);
        // Since 3.13 a class that is instantiated often has it.
        assert_eq!(internal, usize::from(interpreter.layout.version >= PythonVersion::three(13)));
    }
}

#[test]
fn unused_second_interpreter_is_skipped() {
    for image in images() {
        let wire = interpreter(&image).unwrap().wire;
        let first = image.memory.word(wire.interpreters).unwrap();
        let second = image.memory.word_at(first, wire.interpreter_next).unwrap();
        assert_ne!(second, 0);
        assert_eq!(image.memory.word_at(second, wire.interpreter_next), Some(0));
    }
}

#[test]
fn reused_code_address_has_no_name() {
    for mut image in images() {
        let interpreter = interpreter(&image).unwrap();
        let found = walk(&image.memory, &interpreter.wire, image.threads[0].id)[0];
        let layout = interpreter.layout;
        let first_line = found.code + u64::from(layout.code_first_line);
        image.memory.set(first_line, &(found.first_line + 1).to_le_bytes());
        let mut code = PythonCode::new(interpreter.layout, &image.memory);
        let frame = code.frame(&found).unwrap();
        assert_eq!(
            (frame.unknown, &*frame.function, frame.line),
            (Some(UnknownReason::ProcessExited), "", 0)
        );
    }
}

#[test]
fn symbols_of_exited_process_stay_cached_until_dropped() {
    struct Once<'a>(&'a dyn Fn(u64, &mut [u8]) -> bool);
    impl MemoryReader for Once<'_> {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            (self.0)(address, into)
        }
    }
    let image = image(11);
    let interpreter = interpreter(&image).unwrap();
    let frames = walk(&image.memory, &interpreter.wire, image.threads[0].id);
    let alive = std::cell::Cell::new(true);
    let read = |address, into: &mut [u8]| alive.get() && image.memory.read(address, into);
    let mut code = PythonCode::new(interpreter.layout, Once(&read));
    let first = code.frame(&frames[0]).unwrap();
    alive.set(false);
    assert_eq!(code.frame(&frames[0]).unwrap(), first);
    assert_eq!(code.frame(&frames[1]).unwrap().unknown, Some(UnknownReason::ProcessExited));
}

#[test]
fn interpreter_that_has_not_started_is_not_ready() {
    for mut image in images() {
        let interpreters = interpreter(&image).unwrap().wire.interpreters;
        image.memory.set(interpreters, &[0; 8]);
        assert_eq!(interpreter(&image).unwrap_err(), PythonUnsupported::NotReadyYet);
    }
}

#[test]
fn unsupported_versions_are_rejected() {
    let unknown = |text: &str| PythonUnsupported::UnknownVersion(text.into());
    let mut newer = image(14);
    newer.memory.set(newer.anchor.runtime + 8, &0x0310_00f0_u64.to_le_bytes());
    assert_eq!(interpreter(&newer).unwrap_err(), unknown("3.16"));
    let mut older = image(9);
    older.anchor.file_version = Some(PythonVersion::three(8));
    assert_eq!(interpreter(&older).unwrap_err(), unknown("3.8"));
    older.anchor.file_version = None;
    assert_eq!(interpreter(&older).unwrap_err(), unknown("of unknown version"));
}

#[test]
fn free_threaded_builds_are_rejected() {
    let mut image = image(14);
    image.memory.set(image.anchor.runtime + 16, &1_u64.to_le_bytes());
    assert_eq!(interpreter(&image).unwrap_err(), PythonUnsupported::FreeThreaded);
}

#[test]
fn debug_offsets_without_cookie_are_rejected() {
    let mut image = image(13);
    image.anchor.version = None;
    image.anchor.file_version = Some(PythonVersion::three(13));
    image.memory.set(image.anchor.runtime, b"xdebugpx");
    assert_eq!(interpreter(&image).unwrap_err(), PythonUnsupported::Implausible);
    image.memory.set(image.anchor.runtime, &[0; 8]);
    assert_eq!(interpreter(&image).unwrap_err(), PythonUnsupported::NotReadyYet);
}

/// 3.9 and 3.10 differ only in the instruction, which the check does not cover.
#[test]
fn wrong_version_is_detected() {
    for right in 9..=12 {
        for wrong in 9..=12 {
            let mut image = image(right);
            image.anchor.version = None;
            image.anchor.file_version = Some(PythonVersion::three(wrong));
            let compatible = right == wrong || (right < 11 && wrong < 11);
            assert_eq!(interpreter(&image).is_ok(), compatible, "{right} as {wrong}");
        }
    }
}

#[test]
fn debug_offsets_outside_of_structures_are_rejected() {
    let original = image(14);
    let runtime = original.anchor.runtime;
    for address in (3..81).map(|index| runtime + index * 8) {
        let mut image = original.clone();
        image.memory.set(address, &u64::MAX.to_le_bytes());
        if let Ok(interpreter) = interpreter(&image) {
            // The offset is not used.
            assert_eq!(interpreter.layout, self::interpreter(&original).unwrap().layout);
        }
    }
    assert!(layout::of_version(PythonVersion::three(14)).is_none());
}
