//! `libc10`, the library to which PyTorch's caching allocator reports its blocks, and where to
//! probe it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::driver_library::{FileIdentity, function};
use crate::files::{Elf, map, symbols};
use crate::plan::entry::native::attach_point;
use crate::wire;

/// The probed functions, by mangled name; in PyTorch 1 the totals are signed.
pub(crate) const FUNCTIONS: [(&[u8], u32); 4] = [
    (b"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE", wire::VS_TENSOR_ALLOC_FREE),
    (b"_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE", wire::VS_TENSOR_ALLOC_FREE),
    (b"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE", wire::VS_TENSOR_OOM),
    (b"_ZN3c1027reportOutOfMemoryToProfilerElllNS_6DeviceE", wire::VS_TENSOR_OOM),
];

/// A PyTorch library that matters for tracing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TorchLibrary {
    /// `libc10.so`: common to all devices.
    C10,
    /// `libc10_cuda.so`: the caching allocator.
    Cuda,
}

impl TorchLibrary {
    /// Identifies a library by its file name. Some distributions add a version.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let name = path.file_name().unwrap_or(OsStr::new("")).as_bytes();
        let rest = name.strip_prefix(b"libc10")?;
        let (library, rest) = match rest.strip_prefix(b"_cuda") {
            Some(rest) => (Self::Cuda, rest),
            None => (Self::C10, rest),
        };
        let rest = rest.strip_prefix(b".so")?;
        (rest.is_empty() || rest.starts_with(b".")).then_some(library)
    }
}

/// A `libc10.so` that can be probed.
#[derive(Debug)]
pub struct C10Library {
    /// The path for messages.
    pub path: PathBuf,
    /// The identity of the file.
    pub identity: FileIdentity,
    /// Probe points: offset in the file and attach cookie.
    pub points: Vec<(u64, u32)>,
    file: File,
}

/// Reason why a file cannot be probed.
#[derive(Debug)]
pub enum C10Error {
    /// It cannot be read, or is not a library.
    Unreadable,
    /// It does not export the function.
    NoFunction,
}

impl From<io::Error> for C10Error {
    fn from(_: io::Error) -> Self {
        Self::Unreadable
    }
}

impl From<object::Error> for C10Error {
    fn from(_: object::Error) -> Self {
        Self::Unreadable
    }
}

impl C10Library {
    /// Reads a library; `path` is for messages.
    pub fn of(file: File, path: &Path) -> Result<Self, C10Error> {
        let map = map(&file)?;
        let elf = Elf::parse(&map[..])?;
        let identity = FileIdentity::new(&file.metadata()?, &elf);
        let mut points = Vec::new();
        for (name, symbol) in symbols(&elf, true) {
            let Some((_, call)) = FUNCTIONS.iter().find(|(known, _)| *known == name) else {
                continue;
            };
            let (entry, code) = function(&elf, symbol).ok_or(C10Error::NoFunction)?;
            // Up to that point nothing is pushed, so the return address is on top of the stack.
            points.push((entry + attach_point(code).offset, *call));
        }
        if points.iter().all(|(_, call)| *call != wire::VS_TENSOR_ALLOC_FREE) {
            return Err(C10Error::NoFunction);
        }
        // Probes are attached one after the other: if all blocks are seen, so are all OOMs.
        points.sort_by_key(|(_, call)| *call != wire::VS_TENSOR_OOM);
        Ok(Self { path: path.to_owned(), identity, points, file })
    }

    /// Returns a path to the open file that works even if the file was deleted.
    #[must_use]
    pub fn attach_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::open_regular;

    #[test]
    fn libraries_are_identified_by_file_name() {
        for (name, expected) in [
            ("/a/torch/lib/libc10.so", Some(TorchLibrary::C10)),
            ("/a/torch/lib/libc10_cuda.so", Some(TorchLibrary::Cuda)),
            ("/usr/lib/libc10.so.2.6", Some(TorchLibrary::C10)),
            ("/a/libc10_hip.so", None),
            ("/a/libc10.sorry", None),
            ("/a/libc101.so", None),
            ("/a/libtorch_cuda.so", None),
            ("[heap]", None),
        ] {
            assert_eq!(TorchLibrary::of(Path::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn non_c10_files_are_rejected() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        for name in ["Cargo.toml", "absent", "src"] {
            let path = dir.join(name);
            let library = open_regular(&path).map_err(C10Error::from);
            let library = library.and_then(|file| C10Library::of(file, &path));
            assert!(matches!(library, Err(C10Error::Unreadable)), "{name}");
        }
        let own = std::env::current_exe().unwrap();
        let file = open_regular(&own).unwrap();
        assert!(matches!(C10Library::of(file, &own), Err(C10Error::NoFunction)));
    }
}
