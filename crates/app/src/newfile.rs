//! Files that come into being as a whole: written under another name beside, and given their own at
//! the end. What fails or is interrupted leaves nothing behind, and nothing is written over unless
//! that was asked for.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use anyhow::{Context, Result, bail};

/// Names that are tried for the file that is written.
const ATTEMPTS: u32 = 100;

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct NewFile {
    writer: BufWriter<File>,
    /// What it is called until it is finished; none for what is no file, such as a pipe.
    temporary: Option<Temporary>,
    path: PathBuf,
    force: bool,
}

impl NewFile {
    /// A file for its owner alone: what is written tells of processes and paths. One that is there
    /// is replaced only with `force`, and not before the new one is whole.
    pub(crate) fn create(path: &Path, force: bool) -> Result<Self> {
        let cannot = || format!("cannot write {}; choose another file", path.display());
        let there = match fs::metadata(path) {
            Ok(facts) => Some(facts),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(cannot),
        };
        if there.as_ref().is_some_and(fs::Metadata::is_dir) {
            bail!("{} is a folder; name a file for -o", path.display());
        }
        if there.as_ref().is_some_and(|facts| !facts.is_file()) {
            let file = OpenOptions::new().write(true).open(path).with_context(cannot)?;
            let writer = BufWriter::new(file);
            return Ok(Self { writer, temporary: None, path: path.into(), force });
        }
        if there.is_some() && !force {
            return Err(is_there(path));
        }
        // A link stays one: what it leads to is replaced.
        let path = if there.is_some() {
            fs::canonicalize(path).with_context(cannot)?
        } else {
            path.to_path_buf()
        };
        let (file, temporary) = Temporary::beside(&path).with_context(cannot)?;
        Ok(Self { writer: BufWriter::new(file), temporary: Some(temporary), path, force })
    }

    /// Everything is written: the file gets its name.
    pub(crate) fn finish(mut self) -> Result<()> {
        let cannot = || format!("cannot write {}", self.path.display());
        self.writer.flush().with_context(cannot)?;
        let Some(temporary) = self.temporary.take() else { return Ok(()) };
        let named = if self.force {
            fs::rename(&temporary.path, &self.path)
        } else {
            name_anew(&temporary.path, &self.path)
        };
        match named {
            // Somebody else was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(is_there(&self.path)),
            named => named.with_context(cannot),
        }
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

fn is_there(path: &Path) -> anyhow::Error {
    anyhow::anyhow!(
        "{} is there already; add --force to replace it, or choose another name for -o",
        path.display()
    )
}

/// A link fails where a name is taken, a rename does not. Not every file system has links.
fn name_anew(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists && !to.exists() => {
            fs::rename(from, to)
        }
        linked => linked,
    }
}

/// A name that goes with whoever owns it.
#[derive(Debug)]
struct Temporary {
    path: PathBuf,
}

impl Temporary {
    fn beside(path: &Path) -> io::Result<(File, Self)> {
        let name = path.file_name().ok_or(ErrorKind::InvalidInput)?.to_string_lossy();
        // Names have at most 255 bytes.
        let name: String = name.chars().take(32).collect();
        for attempt in 0..ATTEMPTS {
            let own = format!(".{name}.{}-{attempt}.part", std::process::id());
            let path = path.with_file_name(own);
            let mut options = OpenOptions::new();
            options.write(true).create_new(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            match options.open(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(file) => {
                    unfinished(|list| list.push(path.clone()));
                    return Ok((file, Self { path }));
                }
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename it is gone already.
        let _ = fs::remove_file(&self.path);
        unfinished(|list| list.retain(|path| *path != self.path));
    }
}

/// What has to go when a signal ends the program.
static UNFINISHED: LazyLock<Mutex<Vec<PathBuf>>> = LazyLock::new(|| {
    #[cfg(unix)]
    remove_at_signals();
    Mutex::default()
});

fn unfinished(change: impl FnOnce(&mut Vec<PathBuf>)) {
    change(&mut UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Where signals cannot be watched, a file under its first name is left when one comes.
#[cfg(unix)]
fn remove_at_signals() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM]) else {
        return;
    };
    let watch = move || {
        if let Some(signal) = signals.forever().next() {
            unfinished(|list| {
                for path in list.drain(..) {
                    let _ = fs::remove_file(path);
                }
                // The lock is still held: nothing new begins.
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            });
        }
    };
    let _ = std::thread::Builder::new().name("signals".to_owned()).spawn(watch);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_file_has_its_name_only_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.json");
        let mut file = NewFile::create(&path, false).unwrap();
        file.write_all(b"half").unwrap();
        assert!(!path.exists() && names(folder.path()).len() == 1);
        drop(file);
        assert!(names(folder.path()).is_empty(), "what failed leaves nothing");
        let mut file = NewFile::create(&path, false).unwrap();
        file.write_all(b"whole").unwrap();
        file.finish().unwrap();
        assert_eq!(names(folder.path()), ["out.json"]);
        assert_eq!(fs::read(&path).unwrap(), b"whole");
    }

    #[test]
    fn what_is_there_is_replaced_only_by_force_and_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        fs::write(&path, "old").unwrap();
        let refused = NewFile::create(&path, false).unwrap_err().to_string();
        assert!(refused.contains("is there already; add --force"), "{refused}");
        let mut file = NewFile::create(&path, true).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(folder.path()), ["out"]);
    }

    #[test]
    fn a_name_that_was_taken_meanwhile_is_not_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let file = NewFile::create(&path, false).unwrap();
        fs::write(&path, "other").unwrap();
        assert!(file.finish().unwrap_err().to_string().contains("is there already"));
        assert_eq!(fs::read(&path).unwrap(), b"other");
        assert_eq!(names(folder.path()), ["out"]);
    }

    #[test]
    fn a_link_stays_a_link_and_a_device_stays_a_device() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("out"), folder.path().join("link"));
        fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut file = NewFile::create(&link, true).unwrap();
        file.write_all(b"new").unwrap();
        file.finish().unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"new");
        NewFile::create(Path::new("/dev/null"), false).unwrap().finish().unwrap();
        let folder_error = NewFile::create(folder.path(), true).unwrap_err().to_string();
        assert!(folder_error.contains("is a folder"), "{folder_error}");
    }
}
