//! The end of a process that is traced in-process. It cannot report its own end: it may be killed,
//! or replace its program. The kernel releases its lock on the area in every case.

use std::ffi::c_int;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use engine::ids::Pid;

use crate::life::{is_same_start, start_of};

/// How often a process without a lock is checked.
const INTERVAL: Duration = Duration::from_secs(1);

/// How a process stopped using its area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// It ended.
    Exit,
    /// It runs another program.
    Exec,
}

/// A lock on a whole file, for `fcntl`.
pub(super) fn whole_file(kind: c_int) -> libc::flock {
    let (l_type, l_whence) = (kind as i16, libc::SEEK_SET as i16);
    libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 }
}

/// The process that holds a lock on a file.
pub(super) fn holder(file: &File) -> Option<Pid> {
    let mut lock = whole_file(libc::F_WRLCK);
    // SAFETY: a query into a structure of this frame.
    let answered = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) } == 0;
    let is_held = answered && lock.l_type != libc::F_UNLCK as i16;
    is_held.then_some(Pid(lock.l_pid.unsigned_abs()))
}

/// Watches one process.
#[derive(Debug)]
pub(super) struct Watch {
    pid: Pid,
    start: u64,
    /// Name of the area as `/proc/PID/maps` shows it.
    mapping: String,
    /// The process closed its descriptors and still runs: when to look again.
    next: Option<Instant>,
}

impl Watch {
    pub(super) const fn new(pid: Pid, start: u64, mapping: String) -> Self {
        Self { pid, start, mapping, next: None }
    }

    /// Whether the process still uses the area.
    pub(super) fn end(&mut self, file: &File) -> Option<End> {
        if self.next.is_none() && holder(file).is_some() {
            return None;
        }
        if self.next.is_some_and(|next| Instant::now() < next) {
            return None;
        }
        let end = self.examine();
        self.next = end.is_none().then(|| Instant::now() + INTERVAL);
        end
    }

    fn examine(&self) -> Option<End> {
        let runs = start_of(self.pid).is_some_and(|start| is_same_start(start, self.start));
        if !runs {
            return Some(End::Exit);
        }
        match std::fs::read_to_string(format!("/proc/{}/maps", self.pid)) {
            // A process that ends loses its memory before it becomes a zombie.
            Ok(maps) if maps.is_empty() => Some(End::Exit),
            Ok(maps) if maps.contains(&self.mapping) => None,
            Ok(_) => Some(End::Exec),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => None,
            Err(_) => Some(End::Exit),
        }
    }
}
