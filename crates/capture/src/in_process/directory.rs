//! The collector's directory: the control file, and the environment that leads processes to it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::Ordering;

use super::area::{CHAIN_VARIABLE, CONTROL, Control, DIRECTORY_VARIABLE, LAYOUT, MAGIC, Sizes};
use super::lifetime::whole_file;
use super::rows;
use crate::decode::element_table;
use crate::session::Options;

/// Environment variable that makes the driver load a library in `cuInit`.
const INJECTION_VARIABLE: &str = "CUDA_INJECTION64_PATH";
/// Environment variable with the path of the library, where it is not next to the program.
const LIBRARY_VARIABLE: &str = "VRAMSCOPE_INJECT_LIBRARY";
/// File name of the library.
const LIBRARY: &str = "libvramscope_inject.so";

/// Entries of the tables of launches and copies, where launches and copies are counted.
const LAUNCHES: u32 = 16_384;
const COPIES: u32 = 2048;
/// Bytes of the store of known stacks: about 2000 stacks of 60 frames.
const KNOWN_STACKS: u32 = 2 << 20;
/// Frame lists that are remembered as sent.
const SENT_FRAMES: u32 = 16_384;

/// Reason why a command cannot be traced in-process.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The library was not found.
    #[error(
        "{LIBRARY} not found in {}; reinstall vramscope, or set {LIBRARY_VARIABLE} to its path",
        tried.display()
    )]
    NoLibrary {
        /// The directory next to the program.
        tried: PathBuf,
    },
    /// This command is traced in-process already.
    #[error("{INJECTION_VARIABLE} already loads {LIBRARY}; `vramscope run` cannot be nested")]
    Nested,
    /// Shared files could not be created.
    #[error("cannot create shared memory in {}: {source}", path.display())]
    NoFiles {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// A private directory with the control file; removed when it is dropped.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    library: PathBuf,
    /// Library that the user had configured.
    chained: Option<OsString>,
    /// Holds the lock that shows processes that there is a collector.
    file: File,
}

impl Directory {
    /// Creates a directory for one command.
    pub fn create() -> Result<Self, DirectoryError> {
        let library = library()?;
        let configured = std::env::var_os(INJECTION_VARIABLE).filter(|path| !path.is_empty());
        if configured.as_ref().is_some_and(|path| is_ours(path)) {
            return Err(DirectoryError::Nested);
        }
        let path = new_directory()?;
        let failed = |source| DirectoryError::NoFiles { path: path.clone(), source };
        let file = control_file(&path).map_err(failed)?;
        Ok(Self { path, library, chained: configured, file })
    }

    /// Environment variables that the command needs.
    #[must_use]
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let mut variables = vec![
            (INJECTION_VARIABLE.into(), self.library.clone().into_os_string()),
            (DIRECTORY_VARIABLE.into(), self.path.clone().into_os_string()),
        ];
        // An empty value is as good as none for the library.
        let chained = self.chained.clone().unwrap_or_default();
        variables.push((CHAIN_VARIABLE.into(), chained));
        variables
    }

    /// The injection library that was configured before, which is also started.
    #[must_use]
    pub fn chained(&self) -> Option<&OsStr> {
        self.chained.as_deref()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Fills in the settings of a trace and maps them.
    pub(super) fn open(&self, options: &Options) -> io::Result<&'static Control> {
        // SAFETY: maps a file of the structure's size, which is never truncated.
        let memory = unsafe {
            libc::mmap(
                ptr::null_mut(),
                size_of::<Control>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                self.file.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let control = memory.cast::<Control>();
        // SAFETY: the mapping is zeroed, which is valid for the structure; no process has the path
        // yet. It stays mapped until this program ends.
        unsafe {
            (*control).magic = MAGIC;
            (*control).layout = LAYOUT;
            (*control).sizes = sizes(options);
            (*control).count_work = options.work.is_some().into();
            let work = options.work.unwrap_or_default();
            (*control).check_every_launch = work.check_every_launch.into();
            (*control).tensors = options.tensors.wire();
            (*control).element_bytes.copy_from_slice(&element_table());
            let table = &mut (*control).rows;
            (*control).rows_used = rows::fill(table, options) as u32;
            (*control).stacks.store(options.stacks.wire(), Ordering::Release);
            Ok(&*control)
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Processes that still run keep what they have mapped.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn sizes(options: &Options) -> Sizes {
    let stacks = options.stacks.are_taken();
    let entries = options.work.and_then(|work| work.table_entries);
    let table = |default: u32| {
        let wanted = entries.unwrap_or(default).next_power_of_two();
        if options.work.is_some() { wanted } else { 0 }
    };
    Sizes {
        record_ring: options.ring_bytes,
        stack_ring: if stacks { options.stack_ring_bytes } else { 0 },
        launches: table(LAUNCHES),
        copies: table(COPIES),
        known_stacks: if stacks { KNOWN_STACKS } else { 0 },
        sent_frames: if stacks { SENT_FRAMES } else { 0 },
    }
}

/// The library: named by hand, or next to this program, or in `../lib/vramscope`.
fn library() -> Result<PathBuf, DirectoryError> {
    if let Some(path) = std::env::var_os(LIBRARY_VARIABLE) {
        return Ok(path.into());
    }
    let program = std::env::current_exe().unwrap_or_default();
    let directory = program.parent().unwrap_or_else(|| Path::new("/")).to_owned();
    let candidates = [directory.join(LIBRARY), directory.join("../lib/vramscope").join(LIBRARY)];
    let found = candidates.into_iter().find(|path| path.is_file());
    found.ok_or(DirectoryError::NoLibrary { tried: directory })
}

fn is_ours(path: &OsStr) -> bool {
    Path::new(path).file_name() == Some(OsStr::new(LIBRARY))
}

/// A new directory that only this user can enter, in memory where possible: on a disk the kernel
/// would write the rings back.
fn new_directory() -> Result<PathBuf, DirectoryError> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let parents = [Some(PathBuf::from("/dev/shm")), runtime, Some(std::env::temp_dir())];
    let mut failure = None;
    for parent in parents.into_iter().flatten() {
        for attempt in 0..100 {
            let path = parent.join(format!("vramscope-{}-{attempt}", std::process::id()));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => {
                    failure = Some(DirectoryError::NoFiles { path: parent, source });
                    break;
                }
            }
        }
    }
    let full = || DirectoryError::NoFiles {
        path: std::env::temp_dir(),
        source: io::ErrorKind::AlreadyExists.into(),
    };
    Err(failure.unwrap_or_else(full))
}

/// The control file, locked by this process and as long as it will be.
fn control_file(directory: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600);
    let file = file.open(directory.join(CONTROL))?;
    file.set_len(size_of::<Control>() as u64)?;
    let mut lock = whole_file(libc::F_WRLCK);
    // SAFETY: sets a lock that is described in this frame, on a file that is open.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw mut lock) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}
