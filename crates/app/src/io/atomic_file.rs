//! Output files that appear complete: written under a temporary name in the same directory and
//! renamed at the end. A failure or a signal leaves nothing behind, and existing files are only
//! overwritten on request.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tempfile::NamedTempFile;

use crate::io::output::named;
use crate::io::output_file::{self, Planned};

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct AtomicFile {
    writer: BufWriter<File>,
    /// Its temporary name; None for pipes and the like.
    temporary: Option<Temporary>,
    path: PathBuf,
    force: bool,
}

impl AtomicFile {
    /// Creates a file that only its owner can access, because output names processes and paths. An
    /// existing file is replaced only with `force`, and only when the new one is complete.
    pub(crate) fn create(path: &Path, force: bool) -> Result<Self> {
        output_file::ignore_size_limit();
        let (writer, temporary) = match Planned::find(path, force)?.into_stream()? {
            Some(stream) => (stream, None),
            None => {
                let (file, temporary) =
                    Temporary::create(path).with_context(|| output_file::cannot(path))?;
                (file, Some(temporary))
            }
        };
        Ok(Self { writer: BufWriter::new(writer), temporary, path: path.into(), force })
    }

    /// Gives the complete file its final name.
    pub(crate) fn commit(mut self) -> Result<()> {
        self.flush()?;
        let Some(temporary) = self.temporary.take() else { return Ok(()) };
        let renamed = temporary.persist(&self.path, self.force);
        renamed.map_err(|error| output_file::not_created(error, &self.path))
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes).map_err(|error| named(&output_file::shown(&self.path), error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush().map_err(|error| named(&output_file::shown(&self.path), error))
    }
}

/// Returns options to create a file: private to its owner, never through a link or over another
/// file.
pub(crate) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options
}

/// Creates a private file in the same directory, which is removed on drop.
fn sibling(path: &Path) -> io::Result<NamedTempFile> {
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?.to_string_lossy();
    // Names have at most 255 bytes.
    let name: String = name.chars().take(32).collect();
    let prefix = format!(".{name}.{}-", std::process::id());
    tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(".part")
        .tempfile_in(output_file::directory(path))
}

/// Checks that a file can be created in the same directory; nothing stays.
pub(crate) fn check_sibling(path: &Path) -> io::Result<()> {
    sibling(path)?.close()
}

/// Creates a new, empty file in place of a file or a link.
pub(crate) fn replace(path: &Path) -> io::Result<File> {
    Ok(sibling(path)?.persist(path)?)
}

/// A temporary file that is also removed by a signal.
#[derive(Debug)]
struct Temporary {
    file: Option<NamedTempFile>,
    path: PathBuf,
}

impl Temporary {
    /// Creates a file in the directory of another one. No signal ends the program in between.
    fn create(path: &Path) -> io::Result<(File, Self)> {
        with_temp_paths(|list| {
            let file = sibling(path)?;
            let path = file.path().to_owned();
            list.push(path.clone());
            Ok((file.reopen()?, Self { file: Some(file), path }))
        })
    }

    /// Gives it another name; without `force` only if that is free.
    fn persist(mut self, path: &Path, force: bool) -> io::Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let renamed = if force { file.persist(path) } else { file.persist_noclobber(path) };
        renamed.map(drop).map_err(io::Error::from)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        drop(self.file.take());
        with_temp_paths(|list| list.retain(|path| *path != self.path));
    }
}

/// Paths to remove when a signal ends the program.
static TEMP_PATHS: LazyLock<Mutex<Vec<PathBuf>>> = LazyLock::new(|| {
    remove_at_signals();
    Mutex::default()
});

fn with_temp_paths<T>(change: impl FnOnce(&mut Vec<PathBuf>) -> T) -> T {
    change(&mut TEMP_PATHS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// If signals cannot be handled, a temporary file stays when one arrives.
fn remove_at_signals() {
    let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM]) else {
        return;
    };
    let watch = move || {
        if let Some(signal) = signals.forever().next() {
            with_temp_paths(|list| {
                for path in list.drain(..) {
                    let _ = fs::remove_file(path);
                }
                // The lock is still held, so no new file is created.
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            });
        }
    };
    let _ = std::thread::Builder::new().name("signals".to_owned()).spawn(watch);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn file_gets_its_name_only_when_complete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.json");
        let mut file = AtomicFile::create(&path, false).unwrap();
        file.write_all(b"half").unwrap();
        assert!(!path.exists() && names(dir.path()).len() == 1);
        drop(file);
        assert!(names(dir.path()).is_empty(), "a failed file leaves nothing");
        let mut file = AtomicFile::create(&path, false).unwrap();
        file.write_all(b"whole").unwrap();
        file.commit().unwrap();
        assert_eq!(names(dir.path()), ["out.json"]);
        assert_eq!(fs::read(&path).unwrap(), b"whole");
    }

    #[test]
    fn existing_file_is_replaced_only_by_force_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        fs::write(&path, "old").unwrap();
        let error = AtomicFile::create(&path, false).unwrap_err().to_string();
        assert!(error.contains("already exists; use --force"), "{error}");
        let mut file = AtomicFile::create(&path, true).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        file.commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(dir.path()), ["out"]);
    }

    #[test]
    fn file_created_meanwhile_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let file = AtomicFile::create(&path, false).unwrap();
        fs::write(&path, "other").unwrap();
        assert!(file.commit().unwrap_err().to_string().contains("already exists"));
        assert_eq!(fs::read(&path).unwrap(), b"other");
        assert_eq!(names(dir.path()), ["out"]);
    }

    #[test]
    fn forced_file_replaces_a_link_and_devices_are_written() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("out"), directory.path().join("link"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut file = AtomicFile::create(&link, true).unwrap();
        file.write_all(b"new").unwrap();
        file.commit().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_file());
        assert_eq!(
            (fs::read(&path).unwrap(), fs::read(&link).unwrap()),
            (b"old".into(), b"new".into())
        );
        AtomicFile::create(Path::new("/dev/null"), false).unwrap().commit().unwrap();
        let error = AtomicFile::create(directory.path(), true).unwrap_err().to_string();
        assert!(error.contains("is a directory"), "{error}");
    }

    #[test]
    fn failed_write_names_the_file_and_keeps_its_kind() {
        let mut file = AtomicFile::create(Path::new("/dev/full"), false).unwrap();
        file.write_all(b"text").unwrap();
        let error = file.flush().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(error.to_string().starts_with("cannot write /dev/full: No space"), "{error}");
    }
}
