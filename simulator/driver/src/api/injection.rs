//! `CUDA_INJECTION64_PATH`: a library that the driver loads and starts inside `cuInit`, before any
//! device is used. As in the real driver, a library that cannot be loaded is ignored.

use std::ffi::{CString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::sync::Mutex;

/// Blocks threads that call `cuInit` at the same time until the library was started.
static LOADING: Mutex<()> = Mutex::new(());

/// Loads and starts the library in the first `cuInit` of a process.
pub(super) fn load(is_first: bool) {
    let guard = LOADING.lock();
    if is_first && let Some(path) = std::env::var_os("CUDA_INJECTION64_PATH") {
        start(path.as_bytes());
    }
    drop(guard);
}

fn start(path: &[u8]) {
    let Ok(path) = CString::new(path) else { return };
    // SAFETY: the path is zero-terminated.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return;
    }
    // SAFETY: the handle is open.
    let function = unsafe { libc::dlsym(library, c"InitializeInjection".as_ptr()) };
    if !function.is_null() {
        // SAFETY: libraries for this variable export the function with this type.
        let function: extern "C" fn() -> c_int = unsafe { std::mem::transmute(function) };
        function();
    }
}
