//! Waits until there is something to read. While nothing happens, nothing wakes the reader: it announces
//! to the probes that it sleeps, and the first record wakes it. While records arrive it polls.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two reads while records arrive. The probes wake the reader earlier if a ring fills.
const BUSY_INTERVAL: Duration = Duration::from_millis(50);

/// Minimum time between two reads because of new mappings: a host may start many programs.
const MMAP_INTERVAL: Duration = Duration::from_millis(10);

/// What ended a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wake {
    Ring = 1,
    Mmap = 2,
    Waker = 3,
}

/// Descriptors that end a wait.
pub(crate) struct Waiter {
    epoll: OwnedFd,
    waker: EventWaker,
    last_mmap: Option<Instant>,
}

/// Ends a wait from another thread.
#[derive(Clone, Debug)]
pub struct EventWaker(Arc<OwnedFd>);

impl EventWaker {
    /// Ends the current wait, or the next one.
    pub fn wake(&self) {
        let one = 1_u64.to_ne_bytes();
        // It can fail only if it was woken very often already.
        // SAFETY: writes 8 bytes of this frame to a descriptor that self owns.
        let _ = unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

impl Waiter {
    /// `mmaps`: descriptors that are ready after new mappings.
    pub(crate) fn new<'a>(
        rings: impl Iterator<Item = BorrowedFd<'a>>,
        mmaps: impl Iterator<Item = BorrowedFd<'a>>,
    ) -> io::Result<Self> {
        // SAFETY: returns a new descriptor or a negative number.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: as above.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        let waiter = Self { epoll, waker: EventWaker(Arc::new(owned(event)?)), last_mmap: None };
        waiter.add(waiter.waker.0.as_raw_fd(), Wake::Waker)?;
        for ring in rings {
            waiter.add(ring.as_raw_fd(), Wake::Ring)?;
        }
        for mmap in mmaps {
            waiter.add(mmap.as_raw_fd(), Wake::Mmap)?;
        }
        Ok(waiter)
    }

    fn add(&self, fd: i32, wake: Wake) -> io::Result<()> {
        // Edge-triggered: only a wake-up counts, not that there is something to read.
        let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
        let mut event = libc::epoll_event { events, u64: wake as u64 };
        let epoll = self.epoll.as_raw_fd();
        // SAFETY: the event outlives the call, which keeps no pointer to it.
        let status = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    pub(crate) fn waker(&self) -> EventWaker {
        self.waker.clone()
    }

    /// Waits at most this long, and shorter if records arrive (`is_busy`).
    pub(crate) fn wait(&mut self, timeout: Duration, is_busy: bool) {
        let timeout = if is_busy { timeout.min(BUSY_INTERVAL) } else { timeout };
        if self.wait_once(timeout) != Some(Wake::Mmap) {
            return;
        }
        let last = self.last_mmap.replace(Instant::now());
        let rest = last.map_or(Duration::ZERO, |at| MMAP_INTERVAL.saturating_sub(at.elapsed()));
        let until = Instant::now() + rest.min(timeout);
        while Instant::now() < until {
            let rest = until.saturating_duration_since(Instant::now());
            if self.wait_once(rest) != Some(Wake::Mmap) {
                return;
            }
        }
    }

    /// Returns what ended the wait; the most urgent if there is more than one.
    fn wait_once(&self, timeout: Duration) -> Option<Wake> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        // Rounded up, so that a short rest does not become a loop.
        let millis = timeout.as_micros().div_ceil(1000).try_into().unwrap_or(i32::MAX);
        // An interrupted wait just ends early.
        // SAFETY: the list has the stated number of entries and outlives the call.
        let count = unsafe {
            let list = events.as_mut_ptr();
            libc::epoll_wait(self.epoll.as_raw_fd(), list, events.len() as i32, millis)
        };
        let events = events.iter().take(usize::try_from(count).unwrap_or(0));
        let mut ends: Vec<u64> = events.map(|event| event.u64).collect();
        ends.sort_unstable();
        let is = |wake: Wake| ends.contains(&(wake as u64));
        [Wake::Ring, Wake::Waker, Wake::Mmap].into_iter().find(|wake| is(*wake))
    }
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller got a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn wait_ends_when_it_is_woken() {
        let mut waiter = Waiter::new(std::iter::empty(), std::iter::empty()).unwrap();
        let waker = waiter.waker();
        let start = Instant::now();
        // Before the wait, and during it.
        waker.wake();
        waiter.wait(LONG, false);
        let thread = std::thread::spawn(move || waker.wake());
        waiter.wait(LONG, false);
        thread.join().unwrap();
        assert!(start.elapsed() < LONG);
    }

    #[test]
    fn wait_is_short_while_records_arrive() {
        let mut waiter = Waiter::new(std::iter::empty(), std::iter::empty()).unwrap();
        let start = Instant::now();
        waiter.wait(LONG, true);
        assert!(start.elapsed() >= BUSY_INTERVAL && start.elapsed() < LONG);
    }
}
