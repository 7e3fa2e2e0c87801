//! Detects the end of a process that is traced in-process. A process cannot report its own end: it
//! may be killed or call exec. In all cases the kernel releases its lock on the area.

use std::ffi::c_int;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use engine::model::ids::Pid;

use crate::session::liveness::is_alive;

/// How often a process without a lock is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How a process stopped using its area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ProcessEnd {
    /// It exited.
    Exit,
    /// It called exec.
    Exec,
}

/// Returns a lock on a whole file, for `fcntl`.
pub(super) fn whole_file(kind: c_int) -> libc::flock {
    let (l_type, l_whence) = (kind as i16, libc::SEEK_SET as i16);
    libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 }
}

/// Returns the process that holds a lock on a file.
pub(super) fn holder(file: &File) -> Option<Pid> {
    let mut lock = whole_file(libc::F_WRLCK);
    // SAFETY: a query into a structure of this frame.
    let answered = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) } == 0;
    let is_held = answered && lock.l_type != libc::F_UNLCK as i16;
    is_held.then_some(Pid(lock.l_pid.unsigned_abs()))
}

/// Watches one process.
#[derive(Debug)]
pub(super) struct ProcessWatch {
    pid: Pid,
    start: u64,
    /// Name of the area in `/proc/PID/maps`.
    mapping: String,
    /// Time of the next check of a process that closed its descriptors and still runs.
    next: Option<Instant>,
}

impl ProcessWatch {
    pub(super) const fn new(pid: Pid, start: u64, mapping: String) -> Self {
        Self { pid, start, mapping, next: None }
    }

    /// Returns how the process ended; `None` if it still uses the area.
    pub(super) fn poll(&mut self, file: &File) -> Option<ProcessEnd> {
        if self.next.is_none() && holder(file).is_some() {
            return None;
        }
        if self.next.is_some_and(|next| Instant::now() < next) {
            return None;
        }
        let end = self.check();
        self.next = end.is_none().then(|| Instant::now() + CHECK_INTERVAL);
        end
    }

    fn check(&self) -> Option<ProcessEnd> {
        if !is_alive(self.pid, self.start) {
            return Some(ProcessEnd::Exit);
        }
        match std::fs::read_to_string(format!("/proc/{}/maps", self.pid)) {
            // A process that exits loses its memory before it becomes a zombie.
            Ok(maps) if maps.is_empty() => Some(ProcessEnd::Exit),
            Ok(maps) if maps.contains(&self.mapping) => None,
            Ok(_) => Some(ProcessEnd::Exec),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => None,
            Err(_) => Some(ProcessEnd::Exit),
        }
    }
}
