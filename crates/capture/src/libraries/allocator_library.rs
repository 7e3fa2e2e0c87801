//! Where to probe the library of an allocator.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use engine::model::blocks::Allocator;

use super::allocator_functions::{allocates, call_of, is_exported, required};
use super::driver_library::{FileIdentity, function};
use crate::files::{Elf, map, symbols};
use crate::plan::entry::native::attach_point;

/// A library with an allocator that can be probed.
#[derive(Debug)]
pub struct AllocatorLibrary {
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
pub enum AllocatorLibraryError {
    /// It cannot be read, or is not a library.
    Unreadable,
    /// It has no symbols of the functions.
    NoFunction,
}

impl From<io::Error> for AllocatorLibraryError {
    fn from(_: io::Error) -> Self {
        Self::Unreadable
    }
}

impl From<object::Error> for AllocatorLibraryError {
    fn from(_: object::Error) -> Self {
        Self::Unreadable
    }
}

impl AllocatorLibrary {
    /// Reads the library of an allocator; `path` is for messages.
    pub fn of(
        allocator: Allocator,
        file: File,
        path: &Path,
    ) -> Result<Self, AllocatorLibraryError> {
        let map = map(&file)?;
        let elf = Elf::parse(&map[..])?;
        let identity = FileIdentity::new(&file.metadata()?, &elf);
        let mut points = Vec::new();
        for (name, symbol) in symbols(&elf, is_exported(allocator)) {
            let Some(call) = call_of(allocator, name) else { continue };
            let (entry, code) = function(&elf, symbol).ok_or(AllocatorLibraryError::NoFunction)?;
            // Up to that point nothing is pushed, so the return address is on top of the stack.
            points.push((entry + attach_point(code).offset, call));
        }
        let required = required(allocator);
        let is_found = |call: &u32| points.iter().any(|(_, found)| found == call);
        if required.is_empty() || !required.iter().all(is_found) {
            return Err(AllocatorLibraryError::NoFunction);
        }
        points.sort_by_key(|(_, call)| allocates(*call));
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
    fn non_c10_files_are_rejected() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
        for name in ["Cargo.toml", "absent", "src"] {
            let path = dir.join(name);
            let library = open_regular(&path).map_err(AllocatorLibraryError::from);
            let library =
                library.and_then(|file| AllocatorLibrary::of(Allocator::PyTorch, file, &path));
            assert!(matches!(library, Err(AllocatorLibraryError::Unreadable)), "{name}");
        }
        let own = std::env::current_exe().unwrap();
        let file = open_regular(&own).unwrap();
        assert!(matches!(
            AllocatorLibrary::of(Allocator::PyTorch, file, &own),
            Err(AllocatorLibraryError::NoFunction)
        ));
    }
}
