//! Files and directories that only root and the agent's own user can change.
//!
//! Each component of a path is opened without following links and is checked before the next one:
//! anything that another user owns or can write to is refused. Links owned by root and by the
//! agent's user are followed, because systemd and Kubernetes create them. No other user can then
//! replace what was checked, so later uses of the path are as safe as the descriptor.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use formats::sanitize::sanitize;
use rustix::fs::{self, Dir, FileType, Mode, OFlags, Stat, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

/// Maximum number of links in a path, as in the kernel.
const MAX_LINKS: usize = 40;

/// Open flag: a link is an error.
pub(crate) const NO_LINK: i32 = OFlags::NOFOLLOW.bits().cast_signed();

/// Reason why a path is not used.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Another user owns it. Message with advice.
    Foreign(String),
    /// Others can write to it, or it is a link that the agent did not create. Message with advice.
    Exposed(String),
    /// It cannot be opened or created.
    Failed(io::Error),
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Self::Failed(error.into())
    }
}

/// Checks a directory. With `create`, a missing directory is created for its owner alone, and an
/// empty one of the agent's own user that others can write to, such as a fresh Kubernetes volume,
/// is made private. Returns whether it is private now.
pub(crate) fn directory(path: &Path, create: bool) -> Result<bool, Refusal> {
    let mut walk = Walk::begin(path)?;
    while let Some(name) = walk.rest.pop_front() {
        if walk.enter(&name, create)?.is_some() {
            return Err(Errno::NOTDIR.into());
        }
    }
    let stat = fs::fstat(&walk.dir)?;
    if !is_exposed(&stat) {
        return Ok(true);
    }
    let can_make_private = make_private(&walk.dir, &stat, create)?;
    if can_make_private { Ok(create) } else { Err(exposed(&walk.path)) }
}

/// Checks a directory inside a checked one. It is never a link, because the agent creates it
/// itself.
pub(crate) fn subdirectory(parent: &Path, name: &str, create: bool) -> Result<bool, Refusal> {
    let path = parent.join(name);
    if path.is_symlink() {
        return Err(Refusal::Exposed(format!(
            "{}: it is a symbolic link, not a directory of the agent; remove it",
            shown(&path)
        )));
    }
    directory(&path, create)
}

/// Opens a file for reading. Other users can neither write to it nor replace it.
pub(crate) fn file(path: &Path) -> Result<File, Refusal> {
    let mut walk = Walk::begin(&std::path::absolute(path).map_err(Refusal::Failed)?)?;
    while let Some(name) = walk.rest.pop_front() {
        if let Some(file) = walk.enter(&name, false)? {
            let (stat, path) = (fs::fstat(&file)?, walk.path.join(&name));
            require_owner(&stat, &path)?;
            if is_exposed(&stat) {
                return Err(exposed(&path));
            }
            return Ok(file.into());
        }
    }
    Err(Errno::ISDIR.into())
}

/// A path that is followed component by component.
struct Walk {
    dir: OwnedFd,
    /// Path of the directory, without links.
    path: PathBuf,
    rest: VecDeque<OsString>,
    links: usize,
}

impl Walk {
    fn begin(path: &Path) -> Result<Self, Refusal> {
        let dir = open_root()?;
        let mut walk = Self { dir, path: "/".into(), rest: VecDeque::new(), links: 0 };
        walk.prepend(path);
        Ok(walk)
    }

    fn prepend(&mut self, path: &Path) {
        for component in path.components().rev() {
            match component {
                Component::Normal(name) => self.rest.push_front(name.into()),
                Component::ParentDir => self.rest.push_front("..".into()),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
    }

    /// Enters a directory or follows a link; opens a file that is the last component.
    fn enter(&mut self, name: &OsStr, create: bool) -> Result<Option<OwnedFd>, Refusal> {
        let found = self.open(name, create)?;
        let stat = fs::fstat(&found)?;
        let path = if name == ".." { self.parent() } else { self.path.join(name) };
        require_owner(&stat, &path)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let is_last = self.rest.is_empty();
                let is_sticky = stat.st_mode & Mode::SVTX.as_raw_mode() != 0;
                // Kubernetes volumes are world-writable by their mode, and mounted read-only.
                if !is_last && !is_sticky && is_exposed(&stat) && !is_read_only(&found) {
                    return Err(exposed(&path));
                }
                (self.dir, self.path) = (found, path);
                Ok(None)
            }
            FileType::Symlink => {
                self.links += 1;
                if self.links > MAX_LINKS {
                    return Err(Errno::LOOP.into());
                }
                let target = fs::readlinkat(&found, "", Vec::new())?.into_bytes();
                let target = PathBuf::from(OsString::from_vec(target));
                if target.is_absolute() {
                    (self.dir, self.path) = (open_root()?, "/".into());
                }
                self.prepend(&target);
                Ok(None)
            }
            FileType::RegularFile if self.rest.is_empty() => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                Ok(Some(fs::openat(&self.dir, name, flags, Mode::empty())?))
            }
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    fn open(&self, name: &OsStr, create: bool) -> Result<OwnedFd, Refusal> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match fs::openat(&self.dir, name, flags, Mode::empty()) {
            Err(Errno::NOENT) if create => {
                match fs::mkdirat(&self.dir, name, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                Ok(fs::openat(&self.dir, name, flags, Mode::empty())?)
            }
            other => Ok(other?),
        }
    }

    fn parent(&self) -> PathBuf {
        self.path.parent().unwrap_or(&self.path).into()
    }
}

fn open_root() -> Result<OwnedFd, Refusal> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(fs::open("/", flags, Mode::empty())?)
}

fn shown(path: &Path) -> String {
    sanitize(&path.to_string_lossy()).into_owned()
}

fn exposed(path: &Path) -> Refusal {
    let path = shown(path);
    Refusal::Exposed(format!("{path}: other users can write to it; run `chmod go-w {path}`"))
}

fn require_owner(stat: &Stat, path: &Path) -> Result<(), Refusal> {
    let own = geteuid().as_raw();
    if stat.st_uid == 0 || stat.st_uid == own {
        return Ok(());
    }
    let path = shown(path);
    Err(Refusal::Foreign(format!(
        "{path}: it is owned by user {}, who can change it; it must be owned by root or by user {own}",
        stat.st_uid
    )))
}

/// Whether users other than root and the owner can write to it.
fn is_exposed(stat: &Stat) -> bool {
    let own_group = stat.st_gid == 0 || stat.st_gid == getegid().as_raw();
    let by_group = stat.st_mode & Mode::WGRP.as_raw_mode() != 0 && !own_group;
    let by_others = stat.st_mode & Mode::WOTH.as_raw_mode() != 0;
    by_group || by_others
}

/// Whether a file is on a read-only mount.
pub(crate) fn is_read_only(file: impl AsFd) -> bool {
    fs::fstatvfs(file).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Makes an empty directory of the agent's own user private. Returns whether that can be, or was,
/// done. A directory to which others have already added files is not used.
fn make_private(dir: &OwnedFd, stat: &Stat, change: bool) -> Result<bool, Refusal> {
    if stat.st_uid != geteuid().as_raw() {
        return Ok(false);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = fs::openat(dir, ".", flags, Mode::empty())?;
    if change {
        fs::fchmod(&dir, Mode::RWXU)?;
    }
    let is_entry = |name: &[u8]| name != b"." && name != b"..";
    let mut entries = Dir::read_from(&dir)?.filter_map(Result::ok);
    let is_empty = !entries.any(|entry| is_entry(entry.file_name().to_bytes()));
    if change && !is_empty {
        fs::fchmod(&dir, Mode::from_raw_mode(stat.st_mode))?;
    }
    Ok(is_empty)
}
