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
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
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

/// Opens a regular file and nothing else: a process can replace a file that it has mapped by a pipe,
/// which would block forever, or by a device, whose opening can have side effects.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let found = File::options().read(true).custom_flags(libc::O_PATH).open(path)?;
    if !found.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))
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
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, link) = (dir.path().join("libcuda.so.1"), dir.path().join("link"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        for path in [&pipe, &link, dir.path()] {
            let error = open_regular(path).unwrap_err();
            assert_eq!(error.to_string(), "not a regular file", "{}", path.display());
            let error = DriverLibrary::open(path, path).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{error}");
            assert!(matches!(C10Library::open(path, path), Err(C10Error::Unreadable)));
        }
    }

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
