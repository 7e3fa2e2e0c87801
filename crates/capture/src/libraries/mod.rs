//! Finds the copies of the CUDA driver and of libraries with allocators, and the functions to hook
//! in them.

mod allocator_functions;
mod allocator_library;
mod driver_library;
mod mmap_watch;
mod scan;

pub use allocator_functions::AllocatorFile;
pub use allocator_library::{AllocatorLibrary, AllocatorLibraryError};
pub use driver_library::{
    DriverLibrary, DriverLibraryError, FileIdentity, ProbedFunction, UnknownFunction,
};
pub use mmap_watch::{MmapBatch, MmapWatcher};
pub use scan::{AllocatorMappings, all_processes, scan_all, scan_allocators, scan_process};

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use engine::model::blocks::Allocator;

/// The processor of this program, and so of the libraries that can be probed.
pub(crate) const ARCHITECTURE: object::Architecture = if cfg!(target_arch = "aarch64") {
    object::Architecture::Aarch64
} else {
    object::Architecture::X86_64
};

/// Directories where drivers are installed. The cache of `ldconfig` is not read: a static binary
/// would have to support every version of its format.
const DRIVER_DIRS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/compat",
    "/usr/lib/wsl/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    // Jetson.
    "/usr/lib/aarch64-linux-gnu/nvidia",
    "/usr/lib/aarch64-linux-gnu/tegra",
    "/run/opengl-driver/lib",
];

/// Returns whether a file name is that of the driver: `libcuda.so`, `libcuda.so.1` or
/// `libcuda.so.580.159`.
#[must_use]
pub fn is_driver_name(path: &Path) -> bool {
    let name = path.file_name().unwrap_or(OsStr::new("")).as_bytes();
    let Some(rest) = name.strip_prefix(b"libcuda.so") else { return false };
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
    fn huge_symbol_table_is_read_in_part() {
        let mut head = vec![0; 64 + 3 * 64];
        head[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        // A library for x86-64; section headers of 64 bytes at 64, the last one has their names.
        for (at, value) in [(16, 3), (18, 62), (40, 64), (54, 56), (58, 64), (60, 3), (62, 2)] {
            head[at] = value;
        }
        let (first, size) = (4096_u64, 1_u64 << 40);
        let symbols = [11 << 32, 0, 0, first, size / 24 * 24, 2, 0, 24];
        let names = [3 << 32, 0, 0, 0, 64, 0, 0, 0];
        for (section, words) in [symbols, names].iter().enumerate() {
            for (index, word) in words.iter().enumerate() {
                let at = 128 + section * 64 + index * 8;
                head[at..at + 8].copy_from_slice(&u64::to_le_bytes(*word));
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libcuda.so.1");
        std::fs::write(&path, head).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(first + size).unwrap();
        let error = DriverLibrary::open(&path).unwrap_err();
        assert!(matches!(error, DriverLibraryError::NoFunctions { .. }), "{error}");
    }

    #[test]
    fn libraries_replaced_by_a_pipe_are_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("libcuda.so.1");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let error = DriverLibrary::open(&pipe).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[test]
    fn only_driver_file_names_match() {
        for (name, expected) in [
            ("/usr/lib/libcuda.so", true),
            ("/usr/lib/libcuda.so.1", true),
            ("/usr/lib/libcuda.so.580.159.04", true),
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
