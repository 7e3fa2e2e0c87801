//! Finds the copies of the CUDA driver and of PyTorch's `libc10`, and the functions to hook in
//! them.

mod c10_library;
mod driver_library;
mod maps;
mod mmap_watch;

pub(crate) use c10_library::FUNCTIONS;
pub use c10_library::{C10Error, C10Library, TorchLibrary};
pub use driver_library::{DriverLibrary, DriverLibraryError, FileIdentity, ProbedFunction};
pub use maps::{DriverMapping, TorchMappings, all_processes, scan_all, scan_process, scan_torch};
pub use mmap_watch::{MmapEvent, MmapWatcher};

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// Directories where drivers are installed. The cache of `ldconfig` is not read: a static binary
/// would have to support every version of its format.
const DRIVER_DIRS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/compat",
    "/usr/lib/wsl/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/run/opengl-driver/lib",
];

/// Returns whether a file name is that of the driver: `libcuda.so`, `libcuda.so.1` or
/// `libcuda.so.580.159`.
#[must_use]
pub fn is_driver_name(path: &Path) -> bool {
    let name = path.file_name().unwrap_or(OsStr::new("")).as_bytes();
    let Some(rest) = name.strip_prefix(b"libcuda.so") else { return false };
    let rest = rest.strip_suffix(b" (deleted)").unwrap_or(rest);
    rest.is_empty() || rest.starts_with(b".")
}

/// Returns whether a library is not to be traced. Tests that run at the same time each have their own
/// copy of the simulated driver, and set `VRAMSCOPE_TEST_LIBRARY_DIR` to ignore the copies of others.
fn is_ignored(path: &Path) -> bool {
    static ONLY_IN: LazyLock<Option<OsString>> =
        LazyLock::new(|| std::env::var_os("VRAMSCOPE_TEST_LIBRARY_DIR"));
    ONLY_IN.as_ref().is_some_and(|dir| !path.starts_with(dir))
}

/// Returns the installed drivers, whether in use or not.
#[must_use]
pub fn installed() -> Vec<PathBuf> {
    let from_environment = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&from_environment)
        .filter(|dir| dir.is_absolute())
        .chain(DRIVER_DIRS.iter().map(PathBuf::from));
    dirs.map(|dir| dir.join("libcuda.so.1")).filter(|path| path.is_file()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_driver_file_names_match() {
        for (name, expected) in [
            ("/usr/lib/libcuda.so", true),
            ("/usr/lib/libcuda.so.1", true),
            ("/usr/lib/libcuda.so.580.159.04", true),
            ("/x/libcuda.so.1 (deleted)", true),
            ("/usr/lib/libcudart.so.12", false),
            ("/usr/lib/libcuda.sofa", false),
            ("/usr/lib/libcudadebugger.so.1", false),
            ("[heap]", false),
            ("", false),
        ] {
            assert_eq!(is_driver_name(Path::new(name)), expected, "{name}");
        }
    }
}
