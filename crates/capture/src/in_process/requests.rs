//! The socket through which traced programs make requests, and what wakes the collector for them.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use engine::model::ids::Pid;

use crate::session::EventWaker;

/// File name of the socket in the collector's directory.
pub const SOCKET_FILE: &str = "socket";

/// Ends the wait of a session for records.
#[derive(Clone, Debug)]
pub enum Waker {
    /// Of in-process tracing.
    Futex(&'static AtomicU32),
    /// Of probes.
    Event(EventWaker),
}

impl Waker {
    /// Ends the wait, if there is one.
    pub fn wake(&self) {
        match self {
            Self::Event(waker) => waker.wake(),
            Self::Futex(word) => {
                word.fetch_add(1, Ordering::Release);
                // SAFETY: the word is in the mapped control file, which is never unmapped.
                unsafe {
                    libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1);
                }
            }
        }
    }
}

/// Creates the socket. Only this user can enter the directory.
pub(super) fn listen(dir: &Path) -> io::Result<UnixListener> {
    UnixListener::bind(dir.join(SOCKET_FILE))
}

/// Returns the process that connected to a socket.
pub fn peer(stream: &UnixStream) -> io::Result<Pid> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: writes at most `size` bytes into the structure.
    let status = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut size,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(peer.pid).map(Pid).map_err(|_| io::ErrorKind::InvalidData.into())
}
