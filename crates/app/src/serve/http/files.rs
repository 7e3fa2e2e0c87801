//! The files of a folder that may be told: plain ones, by the names that are listed.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use hyper::body::Bytes;

/// Files of one folder that are listed.
const FILES: usize = 64;

/// Bytes that are read at once.
const PIECE: u64 = 64 << 10;

/// A file of a folder.
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) bytes: u64,
}

/// The plain files of a folder, by name. Links, folders and names with signs of their own are not told.
pub(super) fn list(folder: &Path) -> Vec<Listed> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let listed = |entry: io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let name = entry.file_name().into_string().ok().filter(|name| is_plain(name))?;
        let facts = entry.path().symlink_metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some(Listed { name, bytes: facts.len() })
    };
    let mut files: Vec<_> = entries.filter_map(listed).take(FILES).collect();
    files.sort_by(|a, b| a.name.cmp(&b.name));
    files
}

fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !name.starts_with('.') && name.bytes().all(plain)
}

/// Opens a file that is listed. What took its place since is not opened.
pub(super) fn open(folder: &Path, name: &str) -> Option<FileBody> {
    let listed = list(folder).into_iter().find(|file| file.name == name)?;
    let path = folder.join(&listed.name);
    let file = File::open(&path).ok()?;
    let (opened, there) = (file.metadata().ok()?, path.symlink_metadata().ok()?);
    let same = opened.is_file() && (opened.dev(), opened.ino()) == (there.dev(), there.ino());
    same.then(|| FileBody { left: opened.len(), file })
}

/// A file that is told piece by piece: memory does not grow with it.
pub(super) struct FileBody {
    file: File,
    left: u64,
}

impl FileBody {
    pub(super) const fn left(&self) -> u64 {
        self.left
    }

    /// The next piece. A file that became shorter is an error: the client was told its length.
    pub(super) fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.left == 0 {
            return None;
        }
        let mut piece = Vec::new();
        let read = (&self.file).take(self.left.min(PIECE)).read_to_end(&mut piece);
        Some(match read {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                self.left = self.left.saturating_sub(read as u64);
                Ok(piece.into())
            }
            Err(error) => Err(error),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        list(folder).into_iter().map(|file| file.name).collect()
    }

    #[test]
    fn only_plain_files_with_plain_names_are_listed_and_opened() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("incident");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(root.path().join("secret"), "secret").unwrap();
        std::fs::write(folder.join("summary.txt"), "what happened").unwrap();
        std::fs::write(folder.join(".hidden"), "x").unwrap();
        std::fs::write(folder.join("a b"), "x").unwrap();
        std::fs::create_dir(folder.join("inner")).unwrap();
        std::os::unix::fs::symlink("../secret", folder.join("link.txt")).unwrap();
        assert_eq!(names(&folder), ["summary.txt"]);
        for name in ["link.txt", ".hidden", "inner", "../secret", "..", "", "a b", "/etc/passwd"] {
            assert!(open(&folder, name).is_none(), "{name}");
        }
        let mut file = open(&folder, "summary.txt").unwrap();
        assert_eq!(file.left(), 13);
        assert_eq!(file.next().unwrap().unwrap(), "what happened");
        assert!(file.next().is_none());
    }

    #[test]
    fn a_file_is_read_piece_by_piece_and_its_loss_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("big.arrows");
        std::fs::write(&path, vec![7; 150_000]).unwrap();
        let mut file = open(folder.path(), "big.arrows").unwrap();
        let sizes: Vec<_> =
            std::iter::from_fn(|| file.next()).map(|piece| piece.unwrap().len()).collect();
        assert_eq!(sizes, [65_536, 65_536, 18_928]);
        let mut file = open(folder.path(), "big.arrows").unwrap();
        file.next().unwrap().unwrap();
        File::options().write(true).open(&path).unwrap().set_len(70_000).unwrap();
        assert_eq!(file.next().unwrap().unwrap().len(), 70_000 - 65_536);
        assert!(file.next().unwrap().is_err());
    }
}
