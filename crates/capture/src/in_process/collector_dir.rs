//! The collector's directory with the control file, and the environment variables of the command.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::Ordering;

use super::area::{
    CHAIN_VARIABLE, CONTROL_FILE, Control, DIR_VARIABLE, LAYOUT_MARK, LAYOUT_VERSION, MAGIC, Sizes,
};
use super::hook_rows;
use super::process_end::{holder, whole_file};
use super::requests;
use crate::decode::element_table;
use crate::session::SessionOptions;
use crate::session::trace_mode::WireMode;

/// Environment variable that makes the driver load a library in `cuInit`.
const INJECTION_VARIABLE: &str = "CUDA_INJECTION64_PATH";
/// Environment variable with the path of the library, if it is not next to the program.
const LIBRARY_VARIABLE: &str = "VRAMSCOPE_INJECT_LIBRARY";
/// File name of the library.
const LIBRARY: &str = "libvramscope_inject.so";

/// Start of a directory's name; the collector's pid follows.
const DIR_PREFIX: &str = "vramscope-";

/// Entries of the tables of launches and copies, if these are counted.
const LAUNCH_ENTRIES: u32 = 16_384;
const COPY_ENTRIES: u32 = 2048;
/// Size of the store of known stacks: about 2000 stacks of 60 frames.
const KNOWN_STACK_BYTES: u32 = 2 << 20;
/// Entries of the table of sent lists of frames.
const SENT_FRAMES_ENTRIES: u32 = 16_384;

/// Reason why a command cannot be traced in-process.
#[derive(Debug, thiserror::Error)]
pub enum CollectorDirError {
    /// The library was not found.
    #[error(
        "{LIBRARY} not found in {}; reinstall vramscope, or set {LIBRARY_VARIABLE} to its path",
        tried.display()
    )]
    NoLibrary {
        /// The directory of the program.
        tried: PathBuf,
    },
    /// The library does not belong to this program.
    #[error(
        "{}: not of the same build as this vramscope; reinstall vramscope, or build all of it",
        path.display()
    )]
    OtherBuild {
        /// The library.
        path: PathBuf,
    },
    /// The command is already traced in-process.
    #[error("{INJECTION_VARIABLE} already loads {LIBRARY}; `vramscope run` cannot be nested")]
    Nested,
    /// The Python package is not installed.
    #[error(
        "{} not found; install vramscope with pip, or import vramscope in the program",
        path.display()
    )]
    NoPackage {
        /// The directory that is missing.
        path: PathBuf,
    },
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
pub struct CollectorDir {
    path: PathBuf,
    library: PathBuf,
    /// The injection library that the user configured.
    chained: Option<OsString>,
    /// The control file, with the lock by which processes see that the collector runs.
    file: File,
    /// The socket for requests of programs, until it is taken.
    listener: Option<UnixListener>,
}

impl CollectorDir {
    /// Creates a directory for one command.
    pub fn create() -> Result<Self, CollectorDirError> {
        let library = library()?;
        let configured = std::env::var_os(INJECTION_VARIABLE).filter(|path| !path.is_empty());
        if configured.as_ref().is_some_and(|path| is_ours(path)) {
            return Err(CollectorDirError::Nested);
        }
        let path = create_dir()?;
        let failed = |source| CollectorDirError::NoFiles { path: path.clone(), source };
        let file = control_file(&path).map_err(failed)?;
        let listener = Some(requests::listen(&path).map_err(failed)?);
        Ok(Self { path, library, chained: configured, file, listener })
    }

    /// Returns the environment variables for the command.
    #[must_use]
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let mut variables = vec![
            (INJECTION_VARIABLE.into(), self.library.clone().into_os_string()),
            (DIR_VARIABLE.into(), self.path.clone().into_os_string()),
        ];
        // The library ignores an empty value.
        let chained = self.chained.clone().unwrap_or_default();
        variables.push((CHAIN_VARIABLE.into(), chained));
        variables
    }

    /// Returns the injection library that the user configured, which is also started.
    #[must_use]
    pub fn chained(&self) -> Option<&OsStr> {
        self.chained.as_deref()
    }

    /// Returns the directory that makes Python import the package vramscope at its start, if it is
    /// on `PYTHONPATH`.
    pub fn python_path(&self) -> Result<PathBuf, CollectorDirError> {
        let path = self.library.with_file_name("python");
        if path.is_dir() { Ok(path) } else { Err(CollectorDirError::NoPackage { path }) }
    }

    /// Takes the socket for requests of programs.
    pub fn take_listener(&mut self) -> Option<UnixListener> {
        self.listener.take()
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the options of a trace into the control file and maps it.
    pub(super) fn open(&self, options: &SessionOptions) -> io::Result<&'static Control> {
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
        // yet. It stays mapped until this program exits.
        unsafe {
            (*control).magic = MAGIC;
            (*control).layout_version = LAYOUT_VERSION;
            (*control).sizes = sizes(options);
            (*control).count_activity = options.activity.is_some().into();
            let activity = options.activity.unwrap_or_default();
            (*control).check_every_launch = activity.check_every_launch.into();
            (*control).blocks = options.allocators.wire();
            (*control).element_bytes.copy_from_slice(&element_table());
            let table = &mut (*control).rows;
            (*control).rows_used = hook_rows::fill(table, options) as u32;
            (*control).stacks.store(options.stacks.wire(), Ordering::Release);
            Ok(&*control)
        }
    }
}

impl Drop for CollectorDir {
    fn drop(&mut self) {
        // Running processes keep their mappings.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn sizes(options: &SessionOptions) -> Sizes {
    let stacks = options.stacks.is_enabled();
    let entries = options.activity.and_then(|activity| activity.table_entries);
    let table = |default: u32| {
        let entries = entries.unwrap_or(default).next_power_of_two();
        if options.activity.is_some() { entries } else { 0 }
    };
    Sizes {
        record_ring: options.ring_bytes,
        stack_ring: if stacks { options.stack_ring_bytes } else { 0 },
        launches: table(LAUNCH_ENTRIES),
        copies: table(COPY_ENTRIES),
        known_stacks: if stacks { KNOWN_STACK_BYTES } else { 0 },
        sent_frames: if stacks { SENT_FRAMES_ENTRIES } else { 0 },
    }
}

/// Finds the library of this build.
fn library() -> Result<PathBuf, CollectorDirError> {
    let path = find_library()?;
    let is_ours = |file: &[u8]| file.windows(LAYOUT_MARK.len()).any(|part| part == LAYOUT_MARK);
    match fs::read(&path) {
        Ok(file) if !is_ours(&file) => Err(CollectorDirError::OtherBuild { path }),
        // A file that cannot be read is one that the driver cannot load either.
        _ => Ok(path),
    }
}

/// Finds the library: in the environment variable, next to this program, or in `../lib/vramscope`.
fn find_library() -> Result<PathBuf, CollectorDirError> {
    if let Some(path) = std::env::var_os(LIBRARY_VARIABLE) {
        return Ok(path.into());
    }
    let program = std::env::current_exe().unwrap_or_default();
    let dir = program.parent().unwrap_or_else(|| Path::new("/")).to_owned();
    let candidates = [dir.join(LIBRARY), dir.join("../lib/vramscope").join(LIBRARY)];
    let found = candidates.into_iter().find(|path| path.is_file());
    found.ok_or(CollectorDirError::NoLibrary { tried: dir })
}

fn is_ours(path: &OsStr) -> bool {
    Path::new(path).file_name() == Some(OsStr::new(LIBRARY))
}

/// Creates a directory that only this user can access, in memory if possible: on a disk the kernel
/// would write the rings back.
fn create_dir() -> Result<PathBuf, CollectorDirError> {
    let mut failure = None;
    for parent in parents() {
        remove_abandoned(&parent);
        for attempt in 0..100 {
            let path = parent.join(format!("{DIR_PREFIX}{}-{attempt}", std::process::id()));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => {
                    failure = Some(CollectorDirError::NoFiles { path: parent, source });
                    break;
                }
            }
        }
    }
    let full = || CollectorDirError::NoFiles {
        path: std::env::temp_dir(),
        source: io::ErrorKind::AlreadyExists.into(),
    };
    Err(failure.unwrap_or_else(full))
}

/// Returns where directories of collectors are created, best first.
fn parents() -> impl Iterator<Item = PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let parents = [Some(PathBuf::from("/dev/shm")), runtime, Some(std::env::temp_dir())];
    parents.into_iter().flatten()
}

/// Returns the directories of this user's running collectors.
#[must_use]
pub fn collector_dirs() -> Vec<PathBuf> {
    // SAFETY: takes nothing and cannot fail.
    let user = unsafe { libc::geteuid() };
    let entries = parents().flat_map(|parent| fs::read_dir(parent).into_iter().flatten().flatten());
    let is_own = |entry: &fs::DirEntry| {
        let is_named = entry.file_name().to_str().is_some_and(|name| name.starts_with(DIR_PREFIX));
        // Of the entry, not of what a link leads to.
        let found = entry.metadata();
        is_named && found.is_ok_and(|found| found.is_dir() && (user == 0 || found.uid() == user))
    };
    entries.filter(is_own).map(|entry| entry.path()).collect()
}

/// Removes the directories of this user's collectors that were killed.
fn remove_abandoned(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number =
            name.to_str().and_then(|name| name.strip_prefix(DIR_PREFIX)?.split('-').next());
        let Some(pid) = number.and_then(|number| number.parse::<u32>().ok()) else { continue };
        // SAFETY: takes nothing and cannot fail.
        let user = unsafe { libc::getuid() };
        // The metadata is that of the entry, not of what a link leads to.
        let is_own = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == user);
        // In another pid namespace the number says nothing, but the lock does.
        let is_running = Path::new("/proc").join(pid.to_string()).exists()
            || File::open(entry.path().join(CONTROL_FILE))
                .is_ok_and(|control| holder(&control).is_some());
        if is_own && !is_running {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Creates the control file with its final size and locks it.
fn control_file(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600);
    let file = file.open(dir.join(CONTROL_FILE))?;
    file.set_len(size_of::<Control>() as u64)?;
    let mut lock = whole_file(libc::F_WRLCK);
    // SAFETY: sets a lock that is described in this frame, on an open file.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw mut lock) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}
