//! Symbolization of native code.

use super::*;
use crate::stacks::native::StackEnd;
use std::os::unix::fs::MetadataExt;

/// Compiles the library `names.cc` and a program that calls it.
fn library(test: &str, options: &[&str]) -> (PathBuf, PathBuf) {
    let dir = dir(test);
    let (library, program) = (dir.join("libnames.so"), dir.join("caller"));
    compile("names.cc", &library, &[&["-shared", "-fPIC"], options].concat());
    let search = format!("-Wl,-rpath,{}", dir.display());
    compile("caller.c", &program, &["-O1", "-g", library.to_str().unwrap(), &search]);
    (library, program)
}

fn strip(file: &Path, options: &[&str]) {
    assert!(Command::new("strip").args(options).arg(file).status().unwrap().success());
}

/// Returns the names of all frames, and the first frame.
fn names(paused: &PausedProgram) -> (Vec<String>, Frame) {
    let mut native = TestUnwinder::default();
    let unwound = paused.unwind(&mut native);
    assert_eq!(unwound.end, StackEnd::Start);
    let frames = frames(&native, &unwound.locations);
    (functions(&frames), frames[0].clone())
}

const NAMES: [&str; 5] =
    ["model::Layer<int>::forward(int)", "entry", "hidden(int)", "exported", "main"];

#[test]
fn mangled_names_and_lines_of_a_library_are_read() {
    let (library, program) = library("mangled", &["-O2", "-g"]);
    let (names, first) = names(&PausedProgram::run(&program, &[]));
    assert_eq!(names[..5], NAMES);
    assert_eq!(first.line, line("names.cc", "@forward"));
    assert_eq!(first.module.as_deref(), library.to_str());
}

#[test]
fn hidden_function_of_stripped_library_has_no_name() {
    let (library, program) = library("stripped", &["-O2"]);
    strip(&library, &[]);
    let (names, first) = names(&PausedProgram::run(&program, &[]));
    let mut expected = NAMES;
    expected[2] = "NoSymbol";
    assert_eq!(names[..5], expected);
    assert_eq!((first.line, first.file), (0, None));
}

#[test]
fn debug_information_is_found_in_a_separate_file() {
    let (library, program) = library("separate", &["-O2", "-g", "-Wl,--build-id"]);
    let debug = library.with_file_name("libnames.so.debug");
    let run = |options: &[&str]| {
        assert!(Command::new("objcopy").args(options).status().unwrap().success());
    };
    let (from, to) = (library.to_str().unwrap(), debug.to_str().unwrap());
    run(&["--only-keep-debug", from, to]);
    strip(&library, &[]);
    run(&[&format!("--add-gnu-debuglink={to}"), from]);
    let (names, first) = self::names(&PausedProgram::run(&program, &[]));
    assert_eq!(names[..5], NAMES);
    assert_eq!(first.line, line("names.cc", "@forward"));

    // A debug file of another build is not used.
    compile("names.cc", &debug, &["-shared", "-fPIC", "-O1", "-g", "-Wl,--build-id"]);
    let (names, first) = self::names(&PausedProgram::run(&program, &[]));
    assert_eq!((names[2].as_str(), first.line), ("NoSymbol", 0));
}

#[test]
fn debug_link_to_a_pipe_does_not_block() {
    let (library, program) = library("pipe", &["-O2", "-g", "-Wl,--build-id"]);
    let debug = library.with_file_name("libnames.so.debug");
    fs::write(&debug, "").unwrap();
    let link = format!("--add-gnu-debuglink={}", debug.display());
    assert!(Command::new("objcopy").arg(link).arg(&library).status().unwrap().success());
    fs::remove_file(&debug).unwrap();
    assert!(Command::new("mkfifo").arg(&debug).status().unwrap().success());
    let (names, _) = names(&PausedProgram::run(&program, &[]));
    assert_eq!(names[..5], NAMES);
}

#[test]
fn deleted_library_is_read() {
    let (library, program) = library("deleted", &["-O2", "-g"]);
    let paused = PausedProgram::run(&program, &[]);
    fs::remove_file(&library).unwrap();
    let (names, first) = names(&paused);
    assert_eq!(names[..5], NAMES);
    assert_eq!(first.module.as_deref(), library.to_str());
}

#[test]
fn symbols_survive_process_and_files() {
    let (library, program) = library("gone", &["-O2", "-g"]);
    let mut paused = PausedProgram::run(&program, &[]);
    let mut native = TestUnwinder::default();
    let alive = paused.unwind(&mut native);
    paused.end();
    for file in [&library, &program] {
        fs::remove_file(file).unwrap();
    }
    // The mappings are kept.
    native.mapping_changed(paused.pid());
    assert_eq!(paused.unwind(&mut native), alive);
    assert_eq!(functions(&frames(&native, &alive.locations))[..5], NAMES);
    // Until the process is dropped.
    native.process_exited(paused.pid());
    let gone = paused.unwind(&mut native);
    assert_eq!(
        (gone.locations, gone.end),
        (vec![FrameLocation::Unmapped(paused.registers.ip)], StackEnd::ProcessExited)
    );
}

#[test]
fn identical_files_are_one_module() {
    let (library, program) = library("alike", &["-O2", "-g", "-Wl,--build-id"]);
    let first = PausedProgram::run(&program, &[]);
    let mut native = TestUnwinder::default();
    let of_first = first.unwind(&mut native);
    // The same bytes in another file.
    let copy = library.with_file_name("copy");
    fs::copy(&library, &copy).unwrap();
    fs::rename(&copy, &library).unwrap();
    let second = PausedProgram::run(&program, &[]);
    let of_second = second.unwind(&mut native);
    assert_eq!(of_first.locations, of_second.locations);
    // Another build at the same path is another module.
    compile("names.cc", &copy, &["-shared", "-fPIC", "-O1", "-g", "-Wl,--build-id"]);
    fs::rename(&copy, &library).unwrap();
    let third = PausedProgram::run(&program, &[]);
    let of_third = third.unwind(&mut native);
    let module = |unwound: &UnwoundStack| match unwound.locations[0] {
        FrameLocation::File { module, .. } => module,
        other => panic!("{other:?}"),
    };
    assert_ne!(module(&of_first), module(&of_third));
    assert_eq!(&*native.path(module(&of_third)), library.to_str().unwrap());
    assert_eq!(functions(&frames(&native, &of_third.locations))[..5], NAMES);
    assert_ne!(fs::metadata(&library).unwrap().size(), 0);
}

#[test]
fn jit_code_is_named_by_perf_map() {
    let program = dir("jit").join("chain");
    compile("chain.c", &program, &["-g", "-O2"]);
    let paused = PausedProgram::run(&program, &["jit"]);
    let map = PathBuf::from(format!("/tmp/perf-{}.map", paused.pid()));
    let mut native = TestUnwinder::default();
    let unwound = paused.unwind(&mut native);
    assert_eq!(unwound.end, StackEnd::Start);
    assert!(matches!(unwound.locations[0], FrameLocation::Generated { .. }));
    let code = Arc::clone(&native.space(paused.pid()).generated);
    let named = functions(&frames_with(&native, &unwound.locations, &code));
    assert_eq!(named[..3], ["py::step:model.py", "made_at_run_time", "main"]);
    fs::remove_file(map).unwrap();
    // What was read stays, but only for this program.
    let named = functions(&frames_with(&native, &unwound.locations, &code));
    assert_eq!(named[0], "py::step:model.py");
    native.process_exited(paused.pid());
    let next = paused.unwind(&mut native);
    assert_ne!(next.locations[0], unwound.locations[0]);
    let code = Arc::clone(&native.space(paused.pid()).generated);
    assert_eq!(functions(&frames_with(&native, &next.locations, &code))[0], "Jit");
}
