//! A folder of files that are kept for a while.

use std::path::Path;
use std::time::Duration;

use engine::units::Bytes;

use crate::serve::config::folder;

/// What is kept, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep<'a> {
    /// The folder.
    pub(crate) folder: &'a Path,
    /// How old files become.
    pub(crate) age: Duration,
    /// How big they become together.
    pub(crate) size: Bytes,
}

impl Keep<'_> {
    /// What is wrong with it. Nothing is made, but for a file that is removed at once.
    pub(super) fn check(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.age < Duration::from_secs(60) {
            wrong.push("`retention` must be 1m or more".into());
        }
        if self.size < Bytes(1 << 20) {
            wrong.push("`retention_size` must be 1M or more".into());
        }
        wrong.extend(self.check_folder().err());
        wrong
    }

    fn check_folder(&self) -> Result<(), String> {
        if !self.folder.is_absolute() {
            return Err("`dir` must be an absolute path, such as /var/lib/vramscope".into());
        }
        folder::writable(self.folder).map_err(|(_, why)| format!("{why}; choose another `dir`"))
    }
}
