//! Runs the real binary on real processes and compares the result with the oracle of the simulated
//! driver.
#![allow(unreachable_pub, reason = "shared by all tests of the binary")]

pub mod agent;
pub mod contract;
pub mod environment;
pub mod files;
pub mod http;
pub mod incidents;
mod process;
pub mod recorded_agent;

pub use process::{ScopedProcess, Tracer, Workload, send_signal};

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// The binary under test.
pub const VRAMSCOPE: &str = env!("CARGO_BIN_EXE_vramscope");

/// Returns the directory of the simulator that `./dev build` made.
pub fn simulator() -> PathBuf {
    let dir = Path::new(VRAMSCOPE).parent().unwrap().join("sim");
    assert!(
        dir.join("libcuda.so.1").is_file() && dir.join("workload").is_file(),
        "{} has no simulated driver: run the tests with `./dev test`, which builds it",
        dir.display()
    );
    dir
}

/// Time limit for anything on a busy machine.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(100);

/// Waits until `poll` returns a value. `hint` is printed on a timeout.
pub fn until<T>(what: &str, hint: impl Fn() -> String, mut poll: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + WAIT_TIMEOUT;
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < end, "{what} never came\n{}", hint());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns a command in its own pid namespace: it does not see processes of other tests, whose
/// driver it would find.
pub fn isolated(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(program);
    command
}

/// A directory for the oracle files, and a driver.
pub struct TestEnv {
    pub dir: TempDir,
    pub driver: PathBuf,
    pub environment: Vec<(String, String)>,
}

/// The libraries that probes are attached to.
const PROBED_LIBRARIES: [&str; 3] = ["libcuda.so.1", "libc10.so", "libc10_cuda.so"];

/// Limits a tracer to the libraries in a directory.
pub const ONLY_LIBRARIES_IN: &str = "VRAMSCOPE_TEST_LIBRARY_DIR";

impl TestEnv {
    /// Returns an environment with its own copy of the simulator: tracers do not see the processes of
    /// tests that run at the same time, and probes of other tests do not slow its programs.
    pub fn new() -> Self {
        Self::with_copy_of(&simulator())
    }

    /// Returns the same with the driver of a directory.
    pub fn with_copy_of(simulator: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // For programs of other users.
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let own = dir.path().join("sim");
        std::fs::create_dir(&own).unwrap();
        for entry in std::fs::read_dir(simulator).unwrap() {
            let file = entry.unwrap().path();
            let copy = own.join(file.file_name().unwrap());
            if PROBED_LIBRARIES.iter().any(|name| file.ends_with(name)) {
                std::fs::copy(&file, &copy).unwrap();
            } else if file.is_file() {
                std::os::unix::fs::symlink(&file, &copy).unwrap();
            }
        }
        let only = (ONLY_LIBRARIES_IN.to_owned(), dir.path().to_str().unwrap().to_owned());
        Self { driver: own.join("libcuda.so.1"), dir, environment: vec![only] }
    }

    /// Lets tracers see every driver of the host.
    pub fn on_whole_host(mut self) -> Self {
        self.environment.retain(|(name, _)| name != ONLY_LIBRARIES_IN);
        self
    }

    /// Returns an environment with a driver of its own making, which is the only one it sees.
    pub fn with_driver(driver: PathBuf) -> Self {
        let only = driver.parent().unwrap().to_str().unwrap().to_owned();
        let environment = vec![(ONLY_LIBRARIES_IN.to_owned(), only)];
        Self { dir: tempfile::tempdir().unwrap(), driver, environment }
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Lets its processes share the devices, so that the driver reports their usage.
    pub fn sharing(self) -> Self {
        let devices = self.dir.path().join("devices").to_str().unwrap().to_owned();
        self.env("SIM_STATE_FILE", &devices)
    }

    /// Returns a command that finds the simulated driver and writes oracle files.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", self.driver.parent().unwrap())
            .env("SIM_ORACLE_DIR", self.dir.path())
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }

    /// Runs `vramscope trace --json … -- workload ARGUMENTS`.
    pub fn trace(&self, options: &[&str], workload: &[&str]) -> TraceResult {
        self.run("trace", options, workload)
    }

    /// Runs `vramscope run --json … -- workload ARGUMENTS`: in-process, without probes.
    pub fn in_process(&self, options: &[&str], workload: &[&str]) -> TraceResult {
        self.run("run", options, workload)
    }

    /// Runs `vramscope kernels` on a workload.
    pub fn kernels(&self, options: &[&str], workload: &[&str]) -> TraceResult {
        self.run("kernels", options, workload)
    }

    /// Runs `vramscope VERB --json … -- workload ARGUMENTS`.
    pub fn run(&self, verb: &str, options: &[&str], workload: &[&str]) -> TraceResult {
        let output = self
            .command(VRAMSCOPE)
            .args([verb, "--json", "--interval", "300ms"])
            .args(options)
            .arg("--")
            .arg(simulator().join("workload"))
            .args(workload)
            .output()
            .unwrap();
        TraceResult::new(output)
    }

    /// Starts a workload without a tracer.
    pub fn workload(&self, arguments: &[&str]) -> Workload {
        let mut command = self.command(simulator().join("workload"));
        Workload::start(command.args(arguments))
    }

    /// Starts a workload that holds `count` allocations on a device until it is ended, and waits
    /// for them.
    pub fn hold(&self, device: u32, count: u64, bytes: u64) -> Workload {
        let [device, count, bytes] = [device.into(), count, bytes].map(|n: u64| n.to_string());
        let mut workload = self.workload(&[
            "--device",
            &device,
            "hold",
            "--count",
            &count,
            "--size",
            &bytes,
            "--wait-ms",
            "120000",
        ]);
        workload.wait_ready();
        workload
    }

    /// Starts a trace that runs until it is stopped.
    pub fn start_trace(&self, arguments: &[&str]) -> Tracer {
        self.start("trace", arguments)
    }

    /// Starts another live command.
    pub fn start(&self, verb: &str, arguments: &[&str]) -> Tracer {
        let mut command = Command::new(VRAMSCOPE);
        command.args([verb, "--json", "--interval", "100ms"]).args(arguments);
        Tracer::start(self.limit(&mut command))
    }

    /// Limits a tracer to the libraries of this environment.
    pub fn limit<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let only = self.environment.iter().filter(|(name, _)| name == ONLY_LIBRARIES_IN);
        command.envs(only.map(|(name, value)| (name, value)))
    }

    /// Returns the oracle of a process that exited.
    pub fn oracle(&self, pid: u32) -> Value {
        let path = self.dir.path().join(format!("{pid}.json"));
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("no oracle {}: {error}", path.display()));
        serde_json::from_str(&text).unwrap()
    }

    /// Returns the oracles of all processes that exited.
    pub fn oracles(&self) -> BTreeMap<u32, Value> {
        let files = std::fs::read_dir(self.dir.path()).unwrap();
        let pids = files.filter_map(|file| {
            let name = file.unwrap().file_name();
            name.to_str()?.strip_suffix(".json")?.parse().ok()
        });
        pids.map(|pid| (pid, self.oracle(pid))).collect()
    }
}

/// Traces a workload with probes and in-process, each in a new environment. Both results match the
/// oracle.
pub fn trace_both(
    env: impl Fn() -> TestEnv,
    options: &[&str],
    workload: &[&str],
) -> [(TestEnv, TraceResult); 2] {
    ["trace", "run"].map(|verb| {
        let env = env();
        let traced = env.run(verb, options, workload);
        traced.assert_matches_oracle(&env);
        (env, traced)
    })
}

/// The result of a trace that ended.
#[derive(Debug)]
pub struct TraceResult {
    pub status: ExitStatus,
    pub reports: Vec<Value>,
    pub messages: String,
}

impl TraceResult {
    fn new(output: Output) -> Self {
        let text = String::from_utf8(output.stdout).unwrap();
        Self {
            status: output.status,
            reports: text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
            messages: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    pub fn last(&self) -> &Value {
        self.reports.last().unwrap_or_else(|| panic!("no report: {}", self.messages))
    }

    /// Fails unless every process in the last report matches its oracle.
    pub fn assert_matches_oracle(&self, env: &TestEnv) {
        assert!(self.status.success(), "{:?}: {}", self.status, self.messages);
        let oracles = env.oracles();
        assert!(!oracles.is_empty(), "the driver wrote no oracle");
        assert_eq!(self.last()["exact"], true, "{}", self.last());
        assert_eq!(self.last()["lost_events"], 0);
        for (pid, oracle) in &oracles {
            assert_same(process(self.last(), *pid), oracle);
        }
    }
}

impl TraceResult {
    /// As [`TraceResult::assert_matches_oracle`], for the processes of this trace only.
    pub fn assert_processes_match_oracles(&self, env: &TestEnv) {
        assert!(self.status.success(), "{:?}: {}", self.status, self.messages);
        for process in self.last()["processes"].as_array().unwrap() {
            assert_same(process, &env.oracle(process["pid"].as_u64().unwrap() as u32));
        }
    }
}

/// Returns a process of a report; the newest program after an exec.
pub fn process(report: &Value, pid: u32) -> &Value {
    let processes = report["processes"].as_array().unwrap();
    processes
        .iter()
        .find(|process| process["pid"] == pid)
        .unwrap_or_else(|| panic!("process {pid} is not in {report}"))
}

/// Returns the live allocations of a process in a report: address, bytes, device, kind, thread.
pub fn live(process: &Value) -> Vec<(String, u64, Option<u64>, String, u64)> {
    let mut all = Vec::new();
    for thread in process["threads"].as_array().unwrap() {
        for allocation in thread["allocations"].as_array().unwrap() {
            all.push(entry(allocation, thread["tid"].as_u64().unwrap()));
        }
    }
    all.sort();
    all
}

fn entry(allocation: &Value, tid: u64) -> (String, u64, Option<u64>, String, u64) {
    let kind = allocation["kind"].as_str().unwrap().to_owned();
    // Only the exporting process knows the size and device of imported memory.
    let own = kind != "imported";
    (
        allocation["address"].as_str().unwrap().to_owned(),
        if own { allocation["bytes"].as_u64().unwrap() } else { 0 },
        allocation["device"].as_u64().filter(|_| own),
        kind,
        tid,
    )
}

/// Fails unless a process of a report matches its oracle.
pub fn assert_same(process: &Value, oracle: &Value) {
    let mut expected: Vec<_> = oracle["live"]
        .as_array()
        .unwrap()
        .iter()
        .map(|allocation| entry(allocation, allocation["thread"].as_u64().unwrap()))
        .collect();
    expected.sort();
    assert_eq!(live(process), expected, "live allocations");
    for (field, oracle_field) in [
        ("live_bytes", "live_bytes"),
        ("allocations_total", "allocations"),
        ("frees_total", "frees"),
        ("released_total", "released"),
        ("failed_allocations", "failed_allocations"),
    ] {
        assert_eq!(process[field], oracle[oracle_field], "{field} of {process}\noracle {oracle}");
    }
    assert_peak(process, oracle);
}

/// The driver's order of overlapping calls of several threads is unknown; then the report bounds
/// the peak, and the actual one is within. Otherwise it is exact.
fn assert_peak(process: &Value, oracle: &Value) {
    let number = |value: &Value| value.as_u64().unwrap();
    let actual = number(&oracle["peak_bytes"]);
    let bounds = process.get("peak_bounds");
    let (low, high) = bounds.map_or_else(
        || (number(&process["peak_bytes"]), number(&process["peak_bytes"])),
        |bounds| (number(&bounds["min_bytes"]), number(&bounds["max_bytes"])),
    );
    assert!((low..=high).contains(&actual), "peak {actual} is not in {low}..={high} of {process}");
}

/// Returns the first bytes of a function in the memory of a process.
pub fn code_of(pid: u32, library: &Path, function: &str) -> Vec<u8> {
    use std::os::unix::fs::FileExt;

    use object::{Object, ObjectSymbol};

    let data = std::fs::read(library).unwrap();
    let elf = object::File::parse(&*data).unwrap();
    let symbol = elf.dynamic_symbols().find(|symbol| symbol.name() == Ok(function)).unwrap();
    let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    // A process that has just been started may not have it yet.
    let base = until("the library in the process", maps, || {
        let maps = maps();
        let line = maps.lines().find(|line| line.ends_with(library.to_str().unwrap()))?;
        u64::from_str_radix(line.split('-').next()?, 16).ok()
    });
    let mut code = vec![0; 16];
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    memory.read_exact_at(&mut code, base + symbol.address()).unwrap();
    code
}

/// Compiles a small C program of `tests/fixtures`.
pub fn compile(source: &str, output: &Path, options: &[&str]) {
    let status = Command::new("gcc")
        .args(["-O1", "-Wall", "-o"])
        .arg(output)
        .arg(files::fixture(source))
        .args(options)
        .status()
        .unwrap();
    assert!(status.success());
}
