//! Files that appear when they are complete, private to their owner.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// Suffix of a file that is being written.
const PARTIAL_SUFFIX: &str = ".part";

/// A file that is being written; removed on drop unless it is finished.
pub(crate) struct DurableFile {
    out: BufWriter<NamedTempFile>,
    path: PathBuf,
}

impl DurableFile {
    /// Creates a file in an existing directory.
    pub(crate) fn create(path: PathBuf) -> io::Result<Self> {
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let prefix = format!(".{}.{}-", name.to_string_lossy(), std::process::id());
        let temporary =
            tempfile::Builder::new().prefix(&prefix).suffix(PARTIAL_SUFFIX).tempfile_in(dir)?;
        Ok(Self { out: BufWriter::new(temporary), path })
    }

    /// Writes a complete file.
    pub(crate) fn write<E: From<io::Error>>(
        path: PathBuf,
        write: impl FnOnce(&mut dyn Write) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut file = Self::create(path)?;
        write(&mut file)?;
        Ok(file.finish()?)
    }

    /// Gives the complete file its final name, in place of an older one.
    pub(crate) fn finish(self) -> io::Result<()> {
        let temporary = self.out.into_inner()?;
        // Otherwise a power failure could leave a name without contents.
        temporary.as_file().sync_data()?;
        temporary.persist(self.path)?;
        Ok(())
    }
}

impl Write for DurableFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Returns the final name of a partial file whose process no longer runs. Processes of other hosts
/// that share the directory are unknown here.
pub(crate) fn abandoned(name: &str) -> Option<&str> {
    let (rest, unique) = name.strip_prefix('.')?.strip_suffix(PARTIAL_SUFFIX)?.rsplit_once('.')?;
    let pid: u32 = unique.split_once('-')?.0.parse().ok()?;
    let runs = Path::new("/proc").join(pid.to_string()).exists() && pid != std::process::id();
    (!runs).then_some(rest)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn file_gets_its_name_only_when_complete() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("part-1.x");
        let mut file = DurableFile::create(path.clone()).unwrap();
        file.write_all(b"half").unwrap();
        assert!(!path.exists());
        let dir = path.parent().unwrap();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        let names =
            || -> Vec<_> { fs::read_dir(dir).unwrap().map(|it| name(it.unwrap())).collect() };
        assert_eq!(abandoned(&names()[0]), Some("part-1.x"), "{:?}", names());
        drop(file);
        assert!(names().is_empty());
        for text in ["whole", "newer"] {
            DurableFile::write(path.clone(), |out| out.write_all(text.as_bytes())).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(names(), ["part-1.x"]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert!(DurableFile::create(dir.join("none/part-1.x")).is_err());
    }

    #[test]
    fn partial_files_of_running_processes_are_not_abandoned() {
        // No process has such a high pid.
        assert_eq!(abandoned(".p.q.4999999-aBc.part"), Some("p.q"));
        for name in [".p.1-aBc.part", "p.4999999-aBc.part", ".p.4999999.part", ".p.x-y.part", "p"] {
            assert_eq!(abandoned(name), None, "{name}");
        }
    }
}
