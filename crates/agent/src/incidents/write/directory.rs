//! Incident directories: they appear complete, the oldest are removed first, and partial ones are
//! cleaned up.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use engine::model::Bytes;
use engine::oom::OomCause;
use formats::report::incident::{self, IncidentJson, IncidentRow, Trigger};

use super::super::IncidentView;
use crate::files::durable_file::DurableFile;
use crate::files::trusted_path;

/// File that is locked by the agent that uses the directory.
const LOCK_FILE: &str = "lock";

/// Maximum number of directories read at start.
const MAX_LISTED_INCIDENTS: usize = 10_000;

/// A directory under construction; removed unless it is finished.
pub(crate) struct NewIncidentDir {
    temporary: PathBuf,
    path: PathBuf,
    done: bool,
}

impl NewIncidentDir {
    /// Creates a directory of that name, and its parent if it is missing.
    pub(crate) fn create(root: &Path, name: &str) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(root)?;
        let temporary = root.join(format!(".{name}.part"));
        DirBuilder::new().mode(0o700).create(&temporary)?;
        Ok(Self { temporary, path: root.join(name), done: false })
    }

    /// Creates a file in it.
    pub(crate) fn file(&self, name: &str) -> io::Result<File> {
        create(&self.temporary.join(name))
    }

    /// Writes a complete file.
    pub(crate) fn write(&self, name: &str, text: &[u8]) -> io::Result<()> {
        self.file(name)?.write_all(text)
    }

    /// Gives the complete directory its final name.
    pub(crate) fn finish(mut self) -> io::Result<PathBuf> {
        fs::rename(&self.temporary, &self.path)?;
        self.done = true;
        Ok(self.path.clone())
    }
}

impl Drop for NewIncidentDir {
    fn drop(&mut self) {
        if !self.done {
            let _ = fs::remove_dir_all(&self.temporary);
        }
    }
}

/// Creates a file that only its owner can access.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Locks the state directory for this agent, while the file is open. `WouldBlock`: another agent
/// uses it.
pub(crate) fn lock(state: &Path) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(state)?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(trusted_path::NO_LINK).open(state.join(LOCK_FILE))?;
    file.try_lock()?;
    Ok(file)
}

/// Removes partial directories of an agent that was killed.
pub(crate) fn remove_unfinished(root: &Path) {
    for entry in entries(root) {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') && name.ends_with(".part") {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns the incidents, newest first. Other directories are ignored.
pub(crate) fn list(root: &Path) -> Vec<IncidentView> {
    let mut all: Vec<_> = entries(root).filter_map(|entry| read_entry(&entry.path())).collect();
    // Names begin with the time.
    all.sort_by(|a, b| b.id.cmp(&a.id));
    all
}

fn entries(root: &Path) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(root).into_iter().flatten().flatten().take(MAX_LISTED_INCIDENTS)
}

/// Returns an incident for the list; none if the directory is not an incident.
pub(crate) fn read_entry(dir: &Path) -> Option<IncidentView> {
    if !fs::symlink_metadata(dir).ok()?.is_dir() {
        return None;
    }
    let mut object = incident::read(&dir.join(incident::INCIDENT_FILE)).ok()?;
    if object.html_report == incident::HTML_PENDING {
        complete_page_status(&mut object, dir);
    }
    Some(view(&object, dir))
}

/// An agent that was killed had no time to update the state of the HTML report.
fn complete_page_status(object: &mut IncidentJson, dir: &Path) {
    let exists = dir.join(incident::HTML_FILE).is_file();
    let state = if exists { "written" } else { "not written: the agent was killed" };
    object.html_report = state.into();
    if object.version == incident::VERSION
        && let Ok(mut text) = serde_json::to_vec_pretty(object)
    {
        text.push(b'\n');
        let _ = DurableFile::write(dir.join(incident::INCIDENT_FILE), |out| out.write_all(&text));
    }
}

/// Returns the list entry of an incident.
pub(crate) fn view(object: &IncidentJson, dir: &Path) -> IncidentView {
    let clean = |text: &str| formats::sanitize::sanitize(text).into_owned();
    let trigger = Trigger::from_name(&object.trigger);
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    IncidentView {
        id: clean(&name),
        trigger: trigger.map_or("other", Trigger::name),
        cause: object.cause.as_ref().map_or_else(String::new, |cause| clean(&cause.name)),
        time: clean(&object.time),
        pid: object.requester.as_ref().map(|requester| requester.pid),
        process: object
            .requester
            .as_ref()
            .map_or_else(String::new, |requester| clean(&requester.name)),
        requested_bytes: object.requested_bytes,
        gpu: object.gpu.as_ref().map(|gpu| gpu.index),
        summary: clean(&object.title),
        size_bytes: size(dir),
        written_after_ms: object.written_after_ms,
        written: true,
        summary_text: None,
        row: IncidentRow { id: clean(&name), ..IncidentRow::new(object) },
        dir: dir.into(),
    }
}

/// Total size of its files.
pub(crate) fn size(dir: &Path) -> u64 {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = files.filter_map(|file| file.metadata().ok()).filter(fs::Metadata::is_file);
    sizes.fold(0, |sum, file| sum.saturating_add(file.len()))
}

/// Maximum number of incidents per hour, and of kept incidents, whose request was larger than the
/// GPU. They have their own quota because they do not depend on the memory in use: a program that
/// keeps making such requests must not displace other incidents.
pub(crate) const MAX_OVERSIZED: usize = 3;

/// Removes the oldest incidents until number and size are within limits. The newest always stays,
/// and so does the last one written: a wrong clock may have given others later names. Requests
/// larger than the GPU are removed first. Returns the remaining incidents and the errors.
pub(crate) fn retain(
    mut all: Vec<IncidentView>,
    keep: usize,
    keep_bytes: Bytes,
    last: Option<&str>,
) -> (Vec<IncidentView>, Vec<io::Error>) {
    all.sort_by(|a, b| b.id.cmp(&a.id));
    if let Some(at) = all.iter().position(|one| Some(one.id.as_str()) == last) {
        all[..=at].rotate_right(1);
    }
    let is_oversized = |one: &IncidentView| one.cause == OomCause::RequestExceedsDevice.name();
    let (oversized, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_oversized);
    let mut errors = Vec::new();
    let mut retained: Vec<IncidentView> = Vec::new();
    let mut bytes = 0_u64;
    for (list, keep) in [(others, keep), (oversized, MAX_OVERSIZED)] {
        let mut is_full = false;
        for (number, one) in list.into_iter().enumerate() {
            let more = bytes.saturating_add(one.size_bytes);
            // Everything older than a removed one is also removed, so there are no gaps.
            is_full |= number >= keep || more > keep_bytes.0;
            if retained.is_empty() || !is_full {
                bytes = more;
                retained.push(one);
            } else {
                errors.extend(fs::remove_dir_all(&one.dir).err());
            }
        }
    }
    retained.sort_by(|a, b| b.id.cmp(&a.id));
    (retained, errors)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn make(root: &Path, name: &str, bytes: usize) {
        let dir = NewIncidentDir::create(root, name).unwrap();
        let trigger = "threshold".to_owned();
        let object = IncidentJson { version: 1, trigger, ..IncidentJson::default() };
        dir.write(incident::INCIDENT_FILE, &serde_json::to_vec(&object).unwrap()).unwrap();
        dir.write("big", &vec![0; bytes]).unwrap();
        dir.finish().unwrap();
    }

    fn ids(all: &[IncidentView]) -> Vec<&str> {
        all.iter().map(|one| one.id.as_str()).collect()
    }

    #[test]
    fn directory_appears_complete_and_private() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().join("state/incidents");
        let dir = NewIncidentDir::create(&root, "2026-a").unwrap();
        dir.write("one", b"1").unwrap();
        assert!(!root.join("2026-a").exists());
        let path = dir.finish().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&root), mode(&path), mode(&path.join("one"))), (0o700, 0o700, 0o600));
        drop(NewIncidentDir::create(&root, "2026-b").unwrap());
        assert_eq!(entries(&root).count(), 1, "a partial directory leaves nothing");
    }

    #[test]
    fn oldest_are_removed_first_and_newest_kept() {
        let root = tempfile::tempdir().unwrap();
        for name in ["2026-1", "2026-3", "2026-2", "2026-4"] {
            make(root.path(), name, 1000);
        }
        fs::create_dir(root.path().join("foreign")).unwrap();
        assert_eq!(ids(&list(root.path())), ["2026-4", "2026-3", "2026-2", "2026-1"]);
        let (retained, _) = retain(list(root.path()), 3, Bytes(u64::MAX), None);
        assert_eq!(ids(&retained), ["2026-4", "2026-3", "2026-2"]);
        let each = retained[0].size_bytes;
        let (retained, _) = retain(list(root.path()), 3, Bytes(2 * each), None);
        assert_eq!(ids(&retained), ["2026-4", "2026-3"]);
        let (retained, _) = retain(list(root.path()), 3, Bytes(1), None);
        assert_eq!(ids(&retained), ["2026-4"]);
        assert_eq!(ids(&list(root.path())), ["2026-4"]);
        assert!(root.path().join("foreign").exists());
    }

    #[test]
    fn other_versions_are_listed_foreign_directories_are_not() {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("2025-old", r#"{ "version": 1, "trigger": "threshold", "title": "old" }"#),
            ("2027-new", r#"{ "version": 9, "trigger": "heat", "title": "new", "heat": 1 }"#),
            ("others", r#"{ "title": "not ours" }"#),
        ] {
            fs::create_dir(root.path().join(name)).unwrap();
            fs::write(root.path().join(name).join(incident::INCIDENT_FILE), text).unwrap();
        }
        let all = list(root.path());
        let found: Vec<_> = all.iter().map(|one| (one.trigger, one.summary.as_str())).collect();
        assert_eq!(found, [("other", "new"), ("threshold", "old")]);
        let (retained, _) = retain(all, 1, Bytes(u64::MAX), None);
        assert_eq!(ids(&retained), ["2027-new"]);
        assert!(root.path().join("others").exists());
    }

    #[test]
    fn last_written_stays_despite_wrong_clock() {
        let root = tempfile::tempdir().unwrap();
        for name in ["2098-1", "2099-1", "2026-1", "2026-2"] {
            make(root.path(), name, 1);
        }
        let (retained, _) = retain(list(root.path()), 2, Bytes(u64::MAX), Some("2026-1"));
        assert_eq!(ids(&retained), ["2099-1", "2026-1"]);
        assert_eq!(ids(&list(root.path())), ["2099-1", "2026-1"]);
    }

    #[test]
    fn oversized_requests_are_removed_first() {
        let root = tempfile::tempdir().unwrap();
        for number in 1..=9 {
            make(root.path(), &format!("2026-{number}"), 1);
        }
        let mut all = list(root.path());
        for one in all.iter_mut().filter(|one| one.id.as_str() > "2026-3") {
            one.cause = OomCause::RequestExceedsDevice.name().to_owned();
        }
        let (retained, _) = retain(all, 2, Bytes(u64::MAX), Some("2026-9"));
        assert_eq!(ids(&retained), ["2026-9", "2026-8", "2026-7", "2026-3", "2026-2"]);
    }

    #[test]
    fn state_directory_is_locked_by_one_agent() {
        let root = tempfile::tempdir().unwrap();
        let state = root.path().join("state");
        let first = lock(&state).unwrap();
        assert!(matches!(lock(&state), Err(error) if error.kind() == ErrorKind::WouldBlock));
        drop(first);
        assert!(lock(&state).is_ok());
        let error = lock(&state.join(LOCK_FILE)).unwrap_err();
        assert_ne!(error.kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn html_report_state_is_completed_after_a_kill() {
        let root = tempfile::tempdir().unwrap();
        let page = |name: &str| {
            incident::read(&root.path().join(name).join(incident::INCIDENT_FILE))
                .unwrap()
                .html_report
        };
        for name in ["2026-1", "2026-2"] {
            let dir = NewIncidentDir::create(root.path(), name).unwrap();
            let (version, html_report) = (incident::VERSION, incident::HTML_PENDING.to_owned());
            let object = IncidentJson { version, html_report, ..IncidentJson::default() };
            dir.write(incident::INCIDENT_FILE, &serde_json::to_vec(&object).unwrap()).unwrap();
            dir.finish().unwrap();
        }
        fs::write(root.path().join("2026-2").join(incident::HTML_FILE), "page").unwrap();
        assert_eq!(list(root.path()).len(), 2);
        assert_eq!(page("2026-1"), "not written: the agent was killed");
        assert_eq!(page("2026-2"), "written");
    }

    #[test]
    fn partial_directories_are_removed_at_start() {
        let root = tempfile::tempdir().unwrap();
        std::mem::forget(NewIncidentDir::create(root.path(), "2026-1").unwrap());
        make(root.path(), "2026-2", 1);
        remove_unfinished(root.path());
        assert_eq!(entries(root.path()).count(), 1);
    }

    #[test]
    fn failed_write_keeps_the_old_file() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("one");
        DurableFile::write(path.clone(), |out| out.write_all(b"old")).unwrap();
        let fails = DurableFile::write(path.clone(), |out| {
            out.write_all(b"new")?;
            anyhow::bail!("no")
        });
        assert!(fails.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(entries(root.path()).count(), 1);
    }
}
