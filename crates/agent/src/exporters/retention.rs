//! Retention of exported files by age and size.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use engine::model::Bytes;

use crate::files::durable_file::abandoned;

/// Maximum directory depth.
const MAX_DEPTH: usize = 4;

/// Retention of files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retention {
    /// Maximum age.
    pub(super) age: Duration,
    /// Maximum total size.
    pub(super) size: Bytes,
}

/// Removes own files that are too old or too large in total, oldest first. Other files are not
/// touched, links are not followed, and files that cannot be removed stay.
pub(super) fn prune(
    dirs: &[PathBuf],
    is_own: &dyn Fn(&str) -> bool,
    limits: Retention,
    now: SystemTime,
) {
    let mut files = Vec::new();
    for dir in dirs {
        walk(dir, MAX_DEPTH, &mut |name, path| {
            if is_own(name)
                && let Ok(metadata) = fs::symlink_metadata(path)
            {
                files.push((metadata.modified().unwrap_or(now), metadata.len(), path.to_owned()));
            }
        });
    }
    files.sort();
    let mut remaining = files.iter().fold(0_u64, |sum, (_, size, _)| sum.saturating_add(*size));
    for (modified, size, path) in files {
        let age = now.duration_since(modified).unwrap_or_default();
        if age <= limits.age && remaining <= limits.size.0 {
            break;
        }
        if fs::remove_file(&path).is_ok() {
            remaining = remaining.saturating_sub(size);
            // The directory of a day is removed with its last file; one that is not empty stays.
            let _ = path.parent().map(fs::remove_dir);
        }
    }
}

/// Removes own partial files of agents that no longer run.
pub(super) fn sweep(dir: &Path, is_own: &dyn Fn(&str) -> bool) {
    walk(dir, MAX_DEPTH, &mut |name, path| {
        if abandoned(name).is_some_and(is_own) {
            let _ = fs::remove_file(path);
        }
    });
}

/// Calls `visit` for every regular file below a directory whose name is UTF-8.
fn walk(dir: &Path, depth: usize, visit: &mut dyn FnMut(&str, &Path)) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let Ok(file_type) = entry.file_type() else { continue };
        let path = entry.path();
        if file_type.is_dir() && depth > 0 {
            walk(&path, depth - 1, visit);
        } else if file_type.is_file()
            && let Some(name) = entry.file_name().to_str()
        {
            visit(name, &path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names = Vec::new();
        walk(dir, MAX_DEPTH, &mut |name, _| names.push(name.to_owned()));
        names.sort();
        names
    }

    #[test]
    fn oldest_own_files_are_removed_first() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let make = |name: &str, age: u64| {
            let path = dir.path().join(name);
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
        std::os::unix::fs::symlink("/etc/hostname", dir.path().join("part-6.x")).unwrap();
        let limits = Retention { age: Duration::from_secs(100), size: Bytes(2500) };
        let is_own = |name: &str| name.starts_with("part-") && name.ends_with(".x");
        prune(&[dir.path().to_owned()], &is_own, limits, now);
        assert_eq!(names(dir.path()), ["mine.x", "part-3.x", "part-4.x", "part-5.y"]);
        assert!(!dir.path().join("day1").exists());
        assert!(fs::symlink_metadata(dir.path().join("part-6.x")).is_ok());
    }

    #[test]
    fn partial_files_of_dead_agents_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        // No process has such a high pid.
        let foreign = ".q.4999999-aBc.part";
        for name in [".p.4999999-aBc.part", ".p.1-aBc.part", "p.part", foreign] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        sweep(dir.path(), &|name| name == "p");
        assert_eq!(names(dir.path()), [".p.1-aBc.part", foreign, "p.part"]);
    }
}
