//! Files that appear when they are whole, for their owner alone, and go when they are old or many.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use engine::units::Bytes;

/// How the name of a file ends while it is written, after the number of the process.
const UNFINISHED: &str = "unfinished";

/// How deep folders are looked into.
const DEEPEST: usize = 4;

/// A file while it is written. It goes with whoever owns it, unless it is finished.
pub(super) struct Unfinished {
    out: BufWriter<File>,
    temporary: PathBuf,
    path: PathBuf,
}

impl Unfinished {
    /// Begins a file, and makes its folders.
    pub(super) fn begin(path: PathBuf) -> io::Result<Self> {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let name = name.to_string_lossy();
        let temporary = folder.join(format!(".{name}.{}.{UNFINISHED}", std::process::id()));
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&temporary)?;
        Ok(Self { out: BufWriter::new(file), temporary, path })
    }

    /// Everything is written: it gets its name.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.out.flush()?;
        // Else a power failure could leave a name without contents.
        self.out.get_ref().sync_data()?;
        fs::rename(&self.temporary, &self.path)
    }
}

impl Write for Unfinished {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After a rename it is gone already.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Which files are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// How old they become.
    pub(super) age: Duration,
    /// How big they become together.
    pub(super) size: Bytes,
}

/// Removes what is too old or too much, the oldest first, of files whose names are ours. Nothing else is
/// touched, links are not followed, and what cannot be removed stays.
pub(super) fn prune(
    folders: &[PathBuf],
    is_ours: &dyn Fn(&str) -> bool,
    limits: Limits,
    now: SystemTime,
) {
    let mut files = Vec::new();
    for folder in folders {
        walk(folder, DEEPEST, &mut |name, path| {
            if is_ours(name)
                && let Ok(facts) = fs::symlink_metadata(path)
            {
                files.push((facts.modified().unwrap_or(now), facts.len(), path.to_owned()));
            }
        });
    }
    files.sort();
    let mut left = files.iter().fold(0_u64, |sum, (_, size, _)| sum.saturating_add(*size));
    for (modified, size, path) in files {
        let age = now.duration_since(modified).unwrap_or_default();
        if age <= limits.age && left <= limits.size.0 {
            break;
        }
        if fs::remove_file(&path).is_ok() {
            left = left.saturating_sub(size);
            // The folder of a day goes with its last file; one that is not empty stays.
            let _ = path.parent().map(fs::remove_dir);
        }
    }
}

/// Removes what agents left unfinished that do not run any more, of files whose names are ours. Processes
/// of other hosts, who may share the folder, are not known here.
pub(super) fn sweep(folder: &Path, is_ours: &dyn Fn(&str) -> bool) {
    walk(folder, DEEPEST, &mut |name, path| {
        let mut words = name.rsplitn(3, '.');
        if words.next() == Some(UNFINISHED)
            && let Some(pid) = words.next().and_then(|word| word.parse::<u32>().ok())
            && words.next().and_then(|rest| rest.strip_prefix('.')).is_some_and(is_ours)
            && (pid == std::process::id() || !Path::new(&format!("/proc/{pid}")).exists())
        {
            let _ = fs::remove_file(path);
        }
    });
}

/// Tells every file below a folder, of those that have names.
fn walk(folder: &Path, deepest: usize, tell: &mut dyn FnMut(&str, &Path)) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(sort) = entry.file_type() else { continue };
        let path = entry.path();
        if sort.is_dir() && deepest > 0 {
            walk(&path, deepest - 1, tell);
        } else if sort.is_file()
            && let Some(name) = entry.file_name().to_str()
        {
            tell(name, &path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names = Vec::new();
        walk(folder, DEEPEST, &mut |name, _| names.push(name.to_owned()));
        names.sort();
        names
    }

    #[test]
    fn a_file_has_its_name_only_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/part-1.x");
        let mut file = Unfinished::begin(path.clone()).unwrap();
        file.write_all(b"half").unwrap();
        assert!(!path.exists());
        drop(file);
        assert!(names(folder.path()).is_empty());
        let mut file = Unfinished::begin(path.clone()).unwrap();
        file.write_all(b"whole").unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    }

    #[test]
    fn the_oldest_go_first_and_nothing_else_goes() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let make = |name: &str, age: u64| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, [0; 1000]).unwrap();
            let time = now - Duration::from_secs(age);
            File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        };
        for (name, age) in [("day1/part-1.x", 500), ("part-2.x", 40), ("part-3.x", 30)] {
            make(name, age);
        }
        make("part-4.x", 20);
        make("mine.x", 1000);
        make("part-5.y", 1000);
        std::os::unix::fs::symlink("/etc/hostname", folder.path().join("part-6.x")).unwrap();
        let limits = Limits { age: Duration::from_secs(100), size: Bytes(2500) };
        let is_ours = |name: &str| name.starts_with("part-") && name.ends_with(".x");
        prune(&[folder.path().to_owned()], &is_ours, limits, now);
        assert_eq!(names(folder.path()), ["mine.x", "part-3.x", "part-4.x", "part-5.y"]);
        assert!(!folder.path().join("day1").exists());
        assert!(fs::symlink_metadata(folder.path().join("part-6.x")).is_ok());
    }

    #[test]
    fn what_a_dead_agent_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        // No process has so high a number.
        let theirs = ".q.4999999.unfinished";
        for name in [".p.4999999.unfinished", ".p.1.unfinished", "p.unfinished.x", theirs] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        sweep(folder.path(), &|name| name == "p");
        assert_eq!(names(folder.path()), [".p.1.unfinished", theirs, "p.unfinished.x"]);
    }
}
