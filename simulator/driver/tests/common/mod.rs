//! Shared code of the tests: the library as a program loads it, and a separate process for each
//! test.

use std::ffi::{CString, c_int, c_void};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// One mebibyte.
pub(crate) const MIB: u64 = 1 << 20;
/// Marks the out-parameter in a list of arguments.
pub(crate) const OUT: u64 = u64::MAX - 76;

/// Result codes.
pub(crate) const OK: c_int = 0;
pub(crate) const INVALID_VALUE: c_int = 1;
pub(crate) const OUT_OF_MEMORY: c_int = 2;
pub(crate) const NOT_INITIALIZED: c_int = 3;
pub(crate) const INVALID_DEVICE: c_int = 101;
pub(crate) const INVALID_CONTEXT: c_int = 201;
pub(crate) const FILE_NOT_FOUND: c_int = 301;
pub(crate) const INVALID_HANDLE: c_int = 400;
pub(crate) const NOT_FOUND: c_int = 500;
pub(crate) const CONTEXT_DESTROYED: c_int = 709;
pub(crate) const ALREADY_REGISTERED: c_int = 712;
pub(crate) const NOT_REGISTERED: c_int = 713;
pub(crate) const NOT_SUPPORTED: c_int = 801;
pub(crate) const CAPTURE_UNSUPPORTED: c_int = 900;

type Function =
    unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> c_int;

/// Returns the library file that was built with these tests.
pub(crate) fn library_path() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("libcuda.so")
}

/// The loaded library.
#[derive(Clone, Copy)]
pub(crate) struct Library(*mut c_void);

// SAFETY: a handle of the dynamic linker, which any thread may use.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads the library like a program.
    pub(crate) fn load() -> Self {
        Self::load_from(&library_path())
    }

    /// Loads a copy with another name, in which no tracer on this host looks for functions.
    pub(crate) fn load_unprobed() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("copy.so");
        std::fs::copy(library_path(), &copy).unwrap();
        Self::load_from(&copy)
    }

    fn load_from(path: &Path) -> Self {
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the path is a string with its zero byte.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "cannot load {}", path.display());
        Self(handle)
    }

    /// Returns the address of an exported function.
    pub(crate) fn symbol(self, name: &str) -> Option<*const c_void> {
        let name = CString::new(name).unwrap();
        // SAFETY: the library stays loaded and the name ends with a zero byte.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!symbol.is_null()).then_some(symbol.cast_const())
    }

    /// Returns the address of a function that must exist.
    pub(crate) fn function(self, name: &str) -> *const c_void {
        self.symbol(name).unwrap_or_else(|| panic!("no function {name}"))
    }

    /// Calls a function whose arguments are all numbers or pointers, eleven at most.
    pub(crate) fn call(self, name: &str, arguments: &[u64]) -> c_int {
        let symbol = self.function(name);
        let mut all = [0_u64; 11];
        all[..arguments.len()].copy_from_slice(arguments);
        let [a, b, c, d, e, f, g, h, i, j, k] = all;
        // SAFETY: the symbol is a function of the driver; all of them return a number. On x86-64
        // six numbers are passed in registers and the others on the caller's stack; surplus ones do
        // no harm.
        unsafe {
            let function = std::mem::transmute::<*const c_void, Function>(symbol);
            function(a, b, c, d, e, f, g, h, i, j, k)
        }
    }

    /// Calls a function with an out-parameter (marked by `OUT`) that may be 64 bits wide.
    pub(crate) fn out(self, name: &str, arguments: &[u64]) -> (c_int, u64) {
        let mut result = 0_u64;
        let pointer = &raw mut result as u64;
        let arguments: Vec<u64> =
            arguments.iter().map(|a| if *a == OUT { pointer } else { *a }).collect();
        let code = self.call(name, &arguments);
        (code, result)
    }

    /// Calls a function with an out-parameter that must succeed.
    #[track_caller]
    pub(crate) fn get(self, name: &str, arguments: &[u64]) -> u64 {
        let (code, value) = self.out(name, arguments);
        assert_eq!(code, OK, "{name}");
        value
    }

    /// Initializes the driver and makes a device current on the calling thread; returns its
    /// context.
    #[track_caller]
    pub(crate) fn start(self, device: u64) -> u64 {
        assert_eq!(self.call("cuInit", &[0]), OK);
        let context = self.get("cuDevicePrimaryCtxRetain", &[OUT, device]);
        assert_eq!(self.call("cuCtxSetCurrent", &[context]), OK);
        context
    }

    /// Allocates device memory.
    #[track_caller]
    pub(crate) fn alloc(self, bytes: u64) -> u64 {
        self.get("cuMemAlloc_v2", &[OUT, bytes])
    }

    /// Frees device memory.
    pub(crate) fn free(self, pointer: u64) -> c_int {
        self.call("cuMemFree_v2", &[pointer])
    }
}

/// Returns whether this process was started by [`isolated`], and not by the test harness.
fn is_child() -> bool {
    std::env::var_os("SIM_TEST_CHILD").is_some()
}

/// The result of a test's own process, with the oracles that it wrote.
pub(crate) struct ChildResult {
    /// Its status and output.
    pub(crate) output: Output,
    dir: TempDir,
}

impl ChildResult {
    /// Returns all oracles, by process id.
    pub(crate) fn oracles(&self) -> Vec<Value> {
        let mut oracles: Vec<Value> = std::fs::read_dir(self.dir.path())
            .unwrap()
            .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
            .map(|text| serde_json::from_str(&text).unwrap())
            .collect();
        oracles.sort_by_key(|oracle| oracle["pid"].as_u64());
        oracles.iter().for_each(check);
        oracles
    }

    /// Returns the only oracle.
    pub(crate) fn oracle(&self) -> Value {
        let mut oracles = self.oracles();
        assert_eq!(oracles.len(), 1);
        oracles.remove(0)
    }
}

/// Checks the invariants of every oracle.
fn check(oracle: &Value) {
    let number = |name: &str| oracle[name].as_u64().unwrap();
    let live = oracle["live"].as_array().unwrap();
    let kind = |entry: &Value| entry["kind"].as_str().unwrap().to_owned();
    let ended_or_live = number("frees") + number("released") + live.len() as u64;
    // Memory of another process can be open more than once, but is live once.
    let imported = live.iter().any(|entry| kind(entry) == "imported");
    let allocations = number("allocations");
    assert!(
        allocations == ended_or_live || (imported && allocations > ended_or_live),
        "every allocation is live, freed or released"
    );
    let counted = ["device", "array", "physical", "graph", "async"];
    let on_device =
        |entry: &&Value| counted.contains(&kind(entry).as_str()) && !entry["device"].is_null();
    let bytes: u64 = live.iter().filter(on_device).map(|e| e["bytes"].as_u64().unwrap()).sum();
    assert_eq!(number("live_bytes"), bytes, "live_bytes is the sum of the live list");
    assert!(number("peak_bytes") >= bytes);
    assert!(number("device_bytes") >= bytes, "includes reserves of pools and graphs");
}

/// Returns the sizes of the live allocations of a kind, by address.
pub(crate) fn live(oracle: &Value, kind: &str) -> Vec<u64> {
    let entries = oracle["live"].as_array().unwrap().iter();
    let mut found: Vec<(String, u64)> = entries
        .filter(|entry| entry["kind"] == kind)
        .map(|e| (e["address"].as_str().unwrap().to_owned(), e["bytes"].as_u64().unwrap()))
        .collect();
    found.sort();
    found.into_iter().map(|(_, bytes)| bytes).collect()
}

/// Returns the entries of a list of the oracle whose fields have the given values.
pub(crate) fn entries<'a>(
    oracle: &'a Value,
    list: &str,
    fields: &[(&str, &str)],
) -> Vec<&'a Value> {
    let all = oracle[list].as_array().unwrap().iter();
    all.filter(|entry| fields.iter().all(|(name, value)| entry[*name] == *value)).collect()
}

/// Returns the full name of a test of the calling file, which is its module.
#[track_caller]
pub(crate) fn full_name(test: &str) -> String {
    let file = Path::new(Location::caller().file());
    format!("{}::{test}", file.file_stem().unwrap().to_str().unwrap())
}

/// Runs the body of a test in its own process and environment, and returns how that ended. In that
/// process it does not return.
#[track_caller]
pub(crate) fn isolated(
    test: &str,
    environment: &[(&str, &str)],
    body: impl FnOnce(Library),
) -> ChildResult {
    if is_child() {
        body(Library::load());
        std::process::exit(0);
    }
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([&full_name(test), "--exact", "--nocapture"])
        .env("SIM_TEST_CHILD", "1")
        .env("SIM_ORACLE_DIR", dir.path())
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    ChildResult { output, dir }
}

/// Like [`isolated`], for a body that must succeed; returns its oracle.
#[track_caller]
pub(crate) fn oracle_of(
    test: &str,
    environment: &[(&str, &str)],
    body: impl FnOnce(Library),
) -> Value {
    let child = isolated(test, environment, body);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        child.output.status.success(),
        "{}\n{}",
        text(&child.output.stdout),
        text(&child.output.stderr)
    );
    child.oracle()
}
