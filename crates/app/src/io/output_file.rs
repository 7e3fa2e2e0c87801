//! Output files of all verbs: what a path may refer to, and when it is opened.
//! | The same rule applies to all verbs. An existing file is replaced only with `--force`, and by a
//! new file of that name, so that nothing is written through a link or another name of the file. A
//! symbolic link counts as an existing file, regardless of its target. Pipes and character devices
//! are written directly.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Once};

use anyhow::{Context, Result, bail};
use formats::sanitize::sanitize;

use crate::io::{atomic_file, output};

/// `O_NONBLOCK` of Linux on x86-64 and arm64.
pub(crate) const NON_BLOCKING: i32 = 0o4000;

/// Directories with links to this process's open files.
const DESCRIPTORS: [&str; 3] = ["/dev", "/dev/fd", "/proc/self/fd"];

/// A checked output path. Nothing was written yet.
#[derive(Debug)]
pub(crate) struct Planned {
    path: PathBuf,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Standard output.
    Stdout,
    /// A pipe, a character device or an open file of this process; open after [`Planned::connect`].
    Stream(Option<File>),
    /// A regular file that does not exist, or is replaced.
    File { force: bool },
}

impl Planned {
    /// Finds out what a path refers to.
    pub(crate) fn find(path: &Path, force: bool) -> Result<Self> {
        Ok(Self { path: path.into(), kind: kind(path, force)? })
    }

    /// The same, and checks that a file can be created there; nothing stays.
    pub(crate) fn check(path: &Path, force: bool) -> Result<Self> {
        let found = Self::find(path, force)?;
        if let Kind::File { .. } = found.kind {
            atomic_file::check_sibling(path).with_context(|| cannot(path))?;
        }
        Ok(found)
    }

    /// Whether it refers to standard output.
    pub(crate) const fn is_stdout(&self) -> bool {
        matches!(self.kind, Kind::Stdout)
    }

    /// Whether both refer to the same file, which need not exist.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let absolute = |planned: &Self| match planned.kind {
            Kind::Stdout => Some(PathBuf::from("/dev/stdout")),
            Kind::Stream(_) => fs::canonicalize(&planned.path).ok(),
            Kind::File { .. } => {
                let directory = fs::canonicalize(directory(&planned.path)).ok()?;
                Some(directory.join(planned.path.file_name()?))
            }
        };
        absolute(self).is_some_and(|path| absolute(other) == Some(path))
    }

    /// Opens a pipe or a device; a pipe blocks until it has a reader. Must be called before signals
    /// are handled, so that a signal ends the wait.
    pub(crate) fn connect(&mut self) -> Result<()> {
        if let Kind::Stream(file @ None) = &mut self.kind {
            // Kept until the pipe is open, so that its reader does not see an end before that.
            let _probe = find_reader(&self.path);
            let opened = OpenOptions::new().append(true).open(&self.path);
            let opened = opened.with_context(|| cannot(&self.path))?;
            // Another user may have replaced it with a link since the check.
            if !is_descriptor(&self.path) && !is_stream(&opened.metadata()?) {
                return Err(exists(&self.path));
            }
            *file = Some(opened);
        }
        Ok(())
    }

    /// Returns the open stream, or None for a regular file.
    pub(crate) fn into_stream(mut self) -> Result<Option<File>> {
        self.connect()?;
        match self.kind {
            Kind::Stdout => stdout().map(Some),
            Kind::Stream(file) => Ok(file),
            Kind::File { .. } => Ok(None),
        }
    }

    /// Opens it. A new file is private to its owner, because output names processes and paths.
    pub(crate) fn open(self) -> Result<OutFile> {
        ignore_size_limit();
        let (path, is_stdout) = (self.path.clone(), self.is_stdout());
        let force = matches!(self.kind, Kind::File { force: true });
        let name = if is_stdout { output::STDOUT.to_owned() } else { shown(&path) };
        if let Some(file) = self.into_stream()? {
            return Ok(OutFile { file, name, new: false });
        }
        let file =
            if force { atomic_file::replace(&path) } else { atomic_file::options().open(&path) };
        let file = file.map_err(|error| not_created(error, &path))?;
        Ok(OutFile { file, name, new: true })
    }
}

fn kind(path: &Path, force: bool) -> Result<Kind> {
    if output::is_stdout(path) {
        return Ok(Kind::Stdout);
    }
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Kind::File { force }),
        Err(error) => return Err(error).with_context(|| cannot(path)),
    };
    let target = fs::metadata(path).ok();
    if target.as_ref().is_some_and(Metadata::is_dir) {
        bail!("{} is a directory; the output must be a file", shown(path));
    }
    let is_own = metadata.is_symlink() && is_descriptor(path);
    match target {
        Some(target) if is_own && (target.is_file() || is_stream(&target)) => {
            Ok(Kind::Stream(None))
        }
        _ if metadata.is_symlink() || metadata.is_file() => {
            if force {
                Ok(Kind::File { force })
            } else {
                Err(exists(path))
            }
        }
        _ if is_stream(&metadata) => Ok(Kind::Stream(None)),
        _ => bail!("{} is neither a regular file nor a pipe", shown(path)),
    }
}

/// The links in `/dev` to open files (`/dev/stderr`, `/dev/fd/3`) are not links of another user.
fn is_descriptor(path: &Path) -> bool {
    DESCRIPTORS.iter().any(|directory| path.parent() == Some(Path::new(directory)))
}

fn is_stream(metadata: &Metadata) -> bool {
    let kind = metadata.file_type();
    kind.is_fifo() || kind.is_char_device()
}

/// Opens a pipe that has a reader. Without one, logs that it waits.
fn find_reader(path: &Path) -> Option<File> {
    let metadata = fs::metadata(path).ok()?;
    if !metadata.file_type().is_fifo() {
        return None;
    }
    let probe = OpenOptions::new().write(true).custom_flags(NON_BLOCKING).open(path).ok();
    if probe.is_none() {
        output::log(&format!("{}: waiting for a reader of the pipe", shown(path)));
    }
    probe
}

/// Returns an unbuffered duplicate of standard output.
fn stdout() -> Result<File> {
    let owned = io::stdout().as_fd().try_clone_to_owned();
    Ok(File::from(owned.with_context(|| format!("cannot write {}", output::STDOUT))?))
}

/// Turns a file size limit into an error like a full disk, instead of a signal that ends the
/// process.
pub(crate) fn ignore_size_limit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let flag = Arc::new(AtomicBool::new(false));
        let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, flag);
    });
}

/// Returns the directory of a path.
pub(crate) fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// Returns a path for messages.
pub(crate) fn shown(path: &Path) -> String {
    sanitize(&path.to_string_lossy()).into_owned()
}

/// Returns the message for a failed write, with advice.
pub(crate) fn cannot(path: &Path) -> String {
    format!("cannot write {}; choose another file", shown(path))
}

/// Returns the error for an existing file.
pub(crate) fn exists(path: &Path) -> anyhow::Error {
    anyhow::anyhow!("{}: already exists; use --force to overwrite", shown(path))
}

/// Returns the error for a file that could not be created.
pub(crate) fn not_created(error: io::Error, path: &Path) -> anyhow::Error {
    if error.kind() == ErrorKind::AlreadyExists {
        exists(path)
    } else {
        anyhow::Error::new(error).context(cannot(path))
    }
}

/// An open output file. It grows under its own name, so it can be read meanwhile.
#[derive(Debug)]
pub(crate) struct OutFile {
    file: File,
    name: String,
    /// This process created it, so all of its contents are its own.
    new: bool,
}

impl OutFile {
    /// Returns its name for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.file.is_terminal()
    }

    /// Truncates the file to `length`; returns whether that worked. Pipes and preexisting files
    /// keep what was written.
    pub(crate) fn truncate(&self, length: u64) -> bool {
        self.new && self.file.set_len(length).is_ok()
    }
}

impl Write for OutFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
