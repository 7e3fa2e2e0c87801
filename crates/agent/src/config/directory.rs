//! Checks whether files can be created in a directory.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Creates a file and removes it at once. Directories are not created: if one is missing, its
/// nearest existing ancestor is checked. A full disk is not a configuration error.
pub(super) fn writable(dir: &Path) -> Result<(), (ErrorKind, String)> {
    let found = dir.ancestors().find(|dir| fs::symlink_metadata(dir).is_ok());
    let Some(found) = found else { return Ok(()) };
    if !found.is_dir() {
        return Err((ErrorKind::NotADirectory, format!("{} is not a directory", found.display())));
    }
    let probe = found.join(format!(".vramscope-check-{}", std::process::id()));
    let cannot =
        |error: io::Error| (error.kind(), format!("cannot write to {}: {error}", found.display()));
    match OpenOptions::new().write(true).create_new(true).open(&probe) {
        Err(error) => match error.kind() {
            ErrorKind::AlreadyExists | ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Ok(()),
            _ => Err(cannot(error)),
        },
        Ok(_) => fs::remove_file(&probe).map_err(cannot),
    }
}
