//! Files of an incident directory that may be served: regular files with plain names.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use axum::body::Bytes;
use serde::Serialize;

/// Maximum number of listed files per directory.
const MAX_FILES: usize = 64;

/// Bytes per read.
const READ_CHUNK_BYTES: u64 = 64 << 10;

/// A listed file.
#[derive(Serialize)]
pub(super) struct FileEntry {
    name: String,
    bytes: u64,
}

/// Returns the regular files of a directory, sorted by name. Links, directories and names with
/// special characters are excluded.
pub(super) fn list(dir: &Path) -> Vec<FileEntry> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let to_entry = |entry: io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let name = entry.file_name().into_string().ok().filter(|name| is_plain(name))?;
        let metadata = entry.path().symlink_metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some(FileEntry { name, bytes: metadata.len() })
    };
    let mut files: Vec<_> = entries.filter_map(to_entry).take(MAX_FILES).collect();
    files.sort_by(|a, b| a.name.cmp(&b.name));
    files
}

fn is_plain(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !name.starts_with('.') && name.bytes().all(is_allowed)
}

/// Opens a listed file. A file that was replaced in the meantime is not opened.
pub(super) fn open(dir: &Path, name: &str) -> Option<FileBody> {
    let listed = list(dir).into_iter().find(|file| file.name == name)?;
    let path = dir.join(&listed.name);
    let file = File::open(&path).ok()?;
    let (opened, current) = (file.metadata().ok()?, path.symlink_metadata().ok()?);
    let same = opened.is_file() && (opened.dev(), opened.ino()) == (current.dev(), current.ino());
    same.then(|| FileBody { remaining: opened.len(), file })
}

/// A file that is sent in chunks, so memory does not grow with its size.
pub(super) struct FileBody {
    file: File,
    remaining: u64,
}

impl FileBody {
    pub(super) const fn remaining(&self) -> u64 {
        self.remaining
    }
}

impl Iterator for FileBody {
    type Item = io::Result<Bytes>;

    /// Returns the next chunk. A file that became shorter is an error, because its length was
    /// already sent.
    fn next(&mut self) -> Option<Self::Item> {
        if self.remaining == 0 {
            return None;
        }
        let mut chunk = Vec::new();
        let read = (&self.file).take(self.remaining.min(READ_CHUNK_BYTES)).read_to_end(&mut chunk);
        Some(match read {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                self.remaining = self.remaining.saturating_sub(read as u64);
                Ok(chunk.into())
            }
            Err(error) => Err(error),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        list(dir).into_iter().map(|file| file.name).collect()
    }

    #[test]
    fn only_plain_files_with_plain_names_are_listed_and_opened() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("incident");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(root.path().join("secret"), "secret").unwrap();
        std::fs::write(dir.join("summary.txt"), "out of memory").unwrap();
        std::fs::write(dir.join(".hidden"), "x").unwrap();
        std::fs::write(dir.join("a b"), "x").unwrap();
        std::fs::create_dir(dir.join("inner")).unwrap();
        std::os::unix::fs::symlink("../secret", dir.join("link.txt")).unwrap();
        assert_eq!(names(&dir), ["summary.txt"]);
        for name in ["link.txt", ".hidden", "inner", "../secret", "..", "", "a b", "/etc/passwd"] {
            assert!(open(&dir, name).is_none(), "{name}");
        }
        let mut file = open(&dir, "summary.txt").unwrap();
        assert_eq!(file.remaining(), 13);
        assert_eq!(file.next().unwrap().unwrap(), "out of memory");
        assert!(file.next().is_none());
    }

    #[test]
    fn file_is_read_in_chunks_and_truncation_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("big.arrows");
        std::fs::write(&path, vec![7; 150_000]).unwrap();
        let mut file = open(dir.path(), "big.arrows").unwrap();
        let sizes: Vec<_> =
            std::iter::from_fn(|| file.next()).map(|chunk| chunk.unwrap().len()).collect();
        assert_eq!(sizes, [65_536, 65_536, 18_928]);
        let mut file = open(dir.path(), "big.arrows").unwrap();
        file.next().unwrap().unwrap();
        File::options().write(true).open(&path).unwrap().set_len(70_000).unwrap();
        assert_eq!(file.next().unwrap().unwrap().len(), 70_000 - 65_536);
        assert!(file.next().unwrap().is_err());
    }
}
