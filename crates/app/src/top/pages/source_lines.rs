//! Lines of source files of traced processes, where they can be read.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

use engine::model::Pid;
use formats::sanitize::sanitize;

use crate::io::output_file::NON_BLOCKING;

/// Largest file that is read, and limit of files that are kept.
const MAX_FILE_BYTES: u64 = 2 << 20;
const MAX_FILES: usize = 32;

/// Lines of a file; `None` if it cannot be read.
type Lines = Option<Vec<String>>;

/// Source files that were read.
#[derive(Default)]
pub(crate) struct SourceLines {
    files: RefCell<HashMap<(Pid, String), Lines>>,
}

impl SourceLines {
    /// Returns a line of a file as the process sees it, without blanks at its start, sanitized.
    pub(crate) fn line(&self, pid: Pid, file: &str, line: u32) -> Option<String> {
        let index = usize::try_from(line).ok()?.checked_sub(1)?;
        let mut files = self.files.borrow_mut();
        if files.len() >= MAX_FILES {
            files.clear();
        }
        let lines = files.entry((pid, file.to_owned())).or_insert_with(|| read(pid, file));
        let text = sanitize(lines.as_ref()?.get(index)?.trim()).into_owned();
        (!text.is_empty()).then_some(text)
    }
}

/// Reads a file in the mount namespace of the process, or else in this one.
fn read(pid: Pid, file: &str) -> Option<Vec<String>> {
    if !file.starts_with('/') {
        return None;
    }
    // A path named by a process may be a pipe.
    let open = |path: &str| {
        let file = OpenOptions::new().read(true).custom_flags(NON_BLOCKING).open(path).ok()?;
        file.metadata().ok()?.is_file().then_some(file)
    };
    let found = open(&format!("/proc/{pid}/root{file}")).or_else(|| open(file))?;
    let mut bytes = Vec::new();
    found.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).lines().map(ToOwned::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_regular_files_are_read() {
        let own = Pid(std::process::id());
        let sources = SourceLines::default();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("train.py");
        std::fs::write(&path, "import torch\n    step()\x1b[2J\n\n").unwrap();
        let path = path.to_str().unwrap();
        assert_eq!(sources.line(own, path, 2).as_deref(), Some("step()\\u{1b}[2J"));
        assert_eq!(sources.line(own, path, 3), None);
        assert_eq!(sources.line(own, path, 0), None);
        assert_eq!(sources.line(own, "train.py", 1), None);
        assert_eq!(sources.line(own, "/dev/zero", 1), None);
    }
}
