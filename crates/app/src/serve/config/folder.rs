//! Whether files can be made in a folder.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Tries it, with a file that is removed at once. Folders are not made: where one is not there yet, the
/// first above it that is there counts. A disk that is full today is no fault of the configuration.
pub(super) fn writable(folder: &Path) -> Result<(), (ErrorKind, String)> {
    let there = folder.ancestors().find(|folder| fs::symlink_metadata(folder).is_ok());
    let Some(there) = there else { return Ok(()) };
    if !there.is_dir() {
        return Err((ErrorKind::NotADirectory, format!("{} is not a directory", there.display())));
    }
    let probe = there.join(format!(".vramscope-check-{}", std::process::id()));
    let cannot =
        |error: io::Error| (error.kind(), format!("cannot write to {}: {error}", there.display()));
    match OpenOptions::new().write(true).create_new(true).open(&probe) {
        Err(error) => match error.kind() {
            ErrorKind::AlreadyExists | ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Ok(()),
            _ => Err(cannot(error)),
        },
        Ok(_) => fs::remove_file(&probe).map_err(cannot),
    }
}
