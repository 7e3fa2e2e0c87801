//! Retention of exported files.

use std::path::Path;
use std::time::Duration;

use engine::model::units::Bytes;

use crate::serve::config::directory;

/// Directory of exported files, and their retention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retention<'a> {
    /// The directory.
    pub(crate) dir: &'a Path,
    /// Maximum age of files.
    pub(crate) age: Duration,
    /// Maximum total size.
    pub(crate) size: Bytes,
}

impl Retention<'_> {
    /// Returns its problems. Nothing is created, except for a file that is removed at once.
    pub(super) fn check(&self) -> Vec<String> {
        let mut errors = Vec::new();
        if self.age < Duration::from_secs(60) {
            errors.push("`retention` must be 1m or more".into());
        }
        if self.size < Bytes(1 << 20) {
            errors.push("`retention_size` must be 1M or more".into());
        }
        errors.extend(self.check_dir().err());
        errors
    }

    fn check_dir(&self) -> Result<(), String> {
        if !self.dir.is_absolute() {
            return Err("`dir` must be an absolute path, such as /var/lib/vramscope".into());
        }
        directory::writable(self.dir)
            .map_err(|(_, reason)| format!("{reason}; choose another `dir`"))
    }
}
