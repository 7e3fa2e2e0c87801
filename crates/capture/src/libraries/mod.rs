//! Finding the copies of the CUDA driver: which files they are, and what can be hooked in them. The
//! same for the library of PyTorch that its cache tells of its blocks.

mod c10;
mod image;
mod maps;
mod watch;

pub use c10::{C10, C10Error, TorchPart};
pub use image::{Function, Identity, Image, ImageError};
pub use maps::{Mapping, TorchMaps, all_processes, scan_all, scan_process, scan_torch};
pub use watch::{MappedCode, Watch};

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Folders where drivers are installed. `ldconfig`'s list is not read: a static binary on a foreign
/// distribution would have to understand every version of its cache.
const FOLDERS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/compat",
    "/usr/lib/wsl/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/run/opengl-driver/lib",
];

/// Whether a file name is one of the driver's: `libcuda.so`, `libcuda.so.1`, `libcuda.so.580.159`.
#[must_use]
pub fn is_driver_name(path: &Path) -> bool {
    let name = path.file_name().unwrap_or(OsStr::new("")).as_bytes();
    let Some(rest) = name.strip_prefix(b"libcuda.so") else { return false };
    let rest = rest.strip_suffix(b" (deleted)").unwrap_or(rest);
    rest.is_empty() || rest.starts_with(b".")
}

/// Drivers that are installed, whether somebody uses them or not.
#[must_use]
pub fn installed() -> Vec<PathBuf> {
    let from_environment = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = std::env::split_paths(&from_environment)
        .filter(|folder| folder.is_absolute())
        .chain(FOLDERS.iter().map(PathBuf::from));
    folders.map(|folder| folder.join("libcuda.so.1")).filter(|path| path.is_file()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_drivers_own_names_match() {
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
