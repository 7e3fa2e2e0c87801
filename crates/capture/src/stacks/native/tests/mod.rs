#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test helpers panic on failure"
)]
//! Real programs, paused where a probe would capture their stack.

mod chains;
mod host;
mod hostile;
mod names;
mod speed;

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use engine::model::ids::Pid;
use engine::model::stack::Frame;

use super::modules::ModuleId;
use super::{
    AddressSpace, FrameLocation, GeneratedCode, HijackedReturn, ModuleRegistry, NativeSymbolizer,
    NativeUnwinder, Registers, UnwoundStack,
};

/// Returns an empty directory for a test.
fn dir(test: &str) -> PathBuf {
    let dir = Path::new(env!("OUT_DIR")).join("native-stacks").join(test);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/stacks/native/tests/fixtures").join(name)
}

/// Compiles a fixture.
fn compile(source: &str, output: &Path, options: &[&str]) {
    let compiler = if source.ends_with(".cc") { "g++" } else { "gcc" };
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-pthread", "-o"]).arg(output).arg(fixture(source)).args(options);
    assert!(command.status().unwrap().success());
}

/// Returns the line of a fixture with a mark.
fn line(source: &str, mark: &str) -> u32 {
    let text = fs::read_to_string(fixture(source)).unwrap();
    let marked =
        |line: &str| line.split(|c: char| !c.is_alphanumeric() && c != '@').any(|w| w == mark);
    u32::try_from(text.lines().position(marked).unwrap() + 1).unwrap()
}

/// A program that waits in `snapshot`, with its registers and stack.
struct PausedProgram {
    child: Child,
    registers: Registers,
    stack: Vec<u8>,
}

impl PausedProgram {
    fn run(program: &Path, arguments: &[&str]) -> Self {
        Self::start(Command::new(program).args(arguments))
    }

    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let mut word = || {
            let mut bytes = [0; 8];
            output.read_exact(&mut bytes).unwrap();
            u64::from_le_bytes(bytes)
        };
        let registers = Registers { ip: word(), sp: word(), bp: word() };
        let mut stack = vec![0; usize::try_from(word()).unwrap()];
        output.read_exact(&mut stack).unwrap();
        Self { child, registers, stack }
    }

    fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    fn unwind(&self, native: &mut TestUnwinder) -> UnwoundStack {
        native.unwind(self.pid(), self.registers, &self.stack, &[])
    }

    fn unwind_with(&self, native: &mut TestUnwinder, hijacked: &[HijackedReturn]) -> UnwoundStack {
        native.unwind(self.pid(), self.registers, &self.stack, hijacked)
    }

    /// Ends the program and waits for its exit.
    fn end(&mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for PausedProgram {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// An unwinder with the address spaces of all programs of a test.
#[derive(Default)]
struct TestUnwinder {
    native: NativeUnwinder,
    spaces: HashMap<Pid, AddressSpace>,
}

impl TestUnwinder {
    fn space(&mut self, pid: Pid) -> &mut AddressSpace {
        self.spaces.entry(pid).or_insert_with(|| AddressSpace::new(pid))
    }

    fn unwind(
        &mut self,
        pid: Pid,
        registers: Registers,
        copy: &[u8],
        hijacked: &[HijackedReturn],
    ) -> UnwoundStack {
        self.space(pid);
        self.native.unwind(self.spaces.get_mut(&pid).unwrap(), registers, copy, hijacked)
    }

    fn resolve_addresses(
        &mut self,
        pid: Pid,
        addresses: &[u64],
        hijacked: &[HijackedReturn],
    ) -> UnwoundStack {
        self.space(pid);
        self.native.resolve_addresses(self.spaces.get_mut(&pid).unwrap(), addresses, hijacked)
    }

    fn mapping_changed(&mut self, pid: Pid) {
        self.space(pid).changed();
    }

    fn process_exited(&mut self, pid: Pid) {
        self.spaces.remove(&pid);
    }

    fn registry(&self) -> ModuleRegistry {
        self.native.registry()
    }

    fn path(&self, module: ModuleId) -> Arc<str> {
        self.native.path(module)
    }
}

/// Symbolizes all frames of a stack of a program without generated code.
fn frames(native: &TestUnwinder, locations: &[FrameLocation]) -> Vec<Frame> {
    frames_with(native, locations, &GeneratedCode::new(Pid(0)))
}

/// Symbolizes all frames of a stack.
fn frames_with(
    native: &TestUnwinder,
    locations: &[FrameLocation],
    generated: &GeneratedCode,
) -> Vec<Frame> {
    let mut symbols = NativeSymbolizer::new(native.registry());
    let frames = locations.iter().map(|location| symbols.frames(location, true, generated));
    frames.flat_map(|frames| frames.to_vec()).collect()
}

/// Returns the names of the functions; unknown ones by their reason.
fn functions(frames: &[Frame]) -> Vec<String> {
    let name = |frame: &Frame| match frame.unknown {
        Some(reason) => format!("{reason:?}"),
        None => frame.function.to_string(),
    };
    frames.iter().map(name).collect()
}
