//! Runs the unit tests of the probes in user space (`tests/bpf/`), for each processor.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::hooks::HOOKS;
use crate::wire::ToWire;

/// Returns the rows of the hook table as C source, with their numbers by name.
fn hook_rows() -> String {
    let mut source = String::from("enum {");
    HOOKS.iter().for_each(|hook| write!(source, "{}, ", hook.symbol).unwrap());
    source.push_str("};\nstatic const unsigned char hook_rows[] = {");
    let bytes = HOOKS.iter().flat_map(|hook| hook.to_wire(true).bytes());
    bytes.for_each(|byte| write!(source, "{byte}, ").unwrap());
    source + "};\n"
}

/// Compiles the probes with their tests for a processor and runs them here.
fn run(define: &str) -> (bool, String) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("hook_rows.h"), hook_rows()).unwrap();
    let (sources, program) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bpf"), dir.path().join("tests"));
    let compiled = Command::new(env!("VRAMSCOPE_CLANG"))
        .args(["-O1", "-g", "-Wall", "-Wno-unknown-attributes", "-Wno-unused-function", "-Werror"])
        // A bad index or shift ends the program, as the verifier would reject it.
        .args(["-fsanitize=undefined", "-fsanitize-trap=undefined", define])
        .arg(format!("-I{}", sources.join("shim").display()))
        .arg(format!("-I{}", sources.join("../../src/bpf").display()))
        .arg(format!("-I{}", dir.path().display()))
        .arg(sources.join("tests.c"))
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(program).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn probes_pass_their_unit_tests() {
    for define in ["-D__TARGET_ARCH_x86", "-D__TARGET_ARCH_arm64"] {
        let (has_passed, output) = run(define);
        assert!(has_passed, "{define}:\n{output}");
    }
}
