//! Running interpreters: `python3`, and those listed in `VRAMSCOPE_PYTHONS`, separated by colons.
//! With `VRAMSCOPE_UPDATE=1` the memory that is read becomes an image for the tests in
//! `recorded.rs`.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs};

use engine::model::ids::Pid;

use super::compare::compare;
use super::image::{self, ExpectedThread, Recorder};
use super::walker::walk;
use crate::stacks::python::detect::{PythonUnsupported, anchors, examine, find};
use crate::stacks::python::memory::ProcessMemory;
use crate::stacks::python::symbolizer::PythonCode;

const IMAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python_images");

/// `chains.py`, waiting at known lines.
struct Running {
    child: Child,
    pid: Pid,
    text: String,
    dir: PathBuf,
}

impl Running {
    fn start(python: &Path) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = env::temp_dir().join(format!("chains-{}-{count}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let script = dir.join("chains.py");
        fs::copy(Path::new(IMAGES).join("chains.py"), &script).unwrap();
        let mut child = Command::new(python)
            .arg(&script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", python.display()));
        let mut text = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        while !text.ends_with("ready\n") {
            assert_ne!(out.read_line(&mut text).unwrap(), 0, "{}: {text}", python.display());
        }
        let pid = text.lines().find_map(|line| line.strip_prefix("pid\t")).unwrap();
        let pid = Pid(pid.parse().unwrap());
        Self { child, pid, text, dir }
    }

    fn threads(&self) -> Vec<ExpectedThread> {
        image::threads(&self.text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn pythons() -> Vec<PathBuf> {
    let more = env::var_os("VRAMSCOPE_PYTHONS").unwrap_or_default();
    let more = env::split_paths(&more).filter(|path| !path.as_os_str().is_empty());
    std::iter::once(PathBuf::from("python3")).chain(more).collect()
}

#[test]
fn stacks_of_running_pythons_match_their_own_report() {
    let mut written = BTreeSet::new();
    for python in pythons() {
        let running = Running::start(&python);
        let memory = Recorder { inner: ProcessMemory(running.pid), seen: RefCell::default() };
        let anchor = anchors(running.pid).unwrap().remove(0);
        let interpreter = examine(anchor.clone(), &memory).unwrap();
        let frames = compare(&memory, &interpreter, &running.threads());
        assert!(frames > 60, "{frames}");
        eprintln!("{}: Python {}, {frames} frames", python.display(), interpreter.layout.version);
        if env::var_os("VRAMSCOPE_UPDATE").is_some() && written.insert(interpreter.layout.version) {
            let text = image::write(&anchor, &running.text, &memory.seen.borrow());
            let path = Path::new(IMAGES).join(format!("{}.image", interpreter.layout.version));
            fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
        }
    }
}

#[test]
fn other_processes_have_no_interpreter() {
    assert!(find(Pid(std::process::id())).unwrap().is_none());
    assert_eq!(find(Pid(u32::MAX)).unwrap_err(), PythonUnsupported::Unreadable);
}

#[test]
fn interpreter_is_found_while_threads_start_and_end() {
    const SCRIPT: &str = "
import threading

def run(n):
    return n if n < 2 else run(n - 1) + run(n - 2)

threading.Thread(target=lambda: [run(9) for _ in iter(int, 1)], daemon=True).start()
print('ready', flush=True)
while True:
    threading.Thread(target=run, args=(9,)).start()
";
    for python in pythons() {
        let mut child = Command::new(&python)
            .args(["-c", SCRIPT])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", python.display()));
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let results: Vec<_> = (0..100).map(|_| find(Pid(child.id())).map(|_| ())).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        // Threads start and end, so sometimes the structures are inconsistent when they are read.
        let found = results.iter().filter(|result| result.is_ok()).count();
        eprintln!("{}: {found} of 100", python.display());
        assert!(found > 50, "{found} of 100: {results:?}");
    }
}

/// The limits are far above the time on a slow machine; `--nocapture` shows the numbers.
#[test]
fn frame_symbolization_is_fast() {
    for python in pythons() {
        let running = Running::start(&python);
        let begin = Instant::now();
        let interpreter = find(running.pid).unwrap().unwrap();
        let found = begin.elapsed();
        let memory = ProcessMemory(running.pid);
        let threads = running.threads();
        let walk = |thread: &ExpectedThread| walk(&memory, &interpreter.wire, thread.id);
        let frames: Vec<_> = threads.iter().flat_map(walk).collect();
        let mut code = PythonCode::new(interpreter.layout, memory);
        let mut pass = || {
            let begin = Instant::now();
            for frame in &frames {
                code.frame(frame);
            }
            begin.elapsed() / u32::try_from(frames.len()).unwrap()
        };
        let (cold, cached) = (pass(), pass());
        eprintln!(
            "Python {}: found in {found:?}; {cold:?} cold, {cached:?} cached",
            interpreter.layout.version
        );
        assert!(cold < Duration::from_millis(5) && cached < Duration::from_millis(1));
    }
}
