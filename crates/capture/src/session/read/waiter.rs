//! Waits until there is something to read. While nothing happens, nothing wakes the reader: it announces
//! to the probes that it sleeps, and the first record wakes it. While records arrive it polls.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two reads while records arrive. The probes wake the reader earlier if a ring fills.
const BUSY_INTERVAL: Duration = Duration::from_millis(50);

/// Minimum time between two checks of new mappings: a host may start hundreds of programs per second.
const MMAP_INTERVAL: Duration = Duration::from_millis(10);

/// Descriptors that end a wait.
pub(crate) struct Waiter {
    /// Rings and the waker.
    urgent: OwnedFd,
    /// `urgent` and new mappings.
    all: OwnedFd,
    waker: EventWaker,
    /// New mappings do not end a wait before.
    next_mmap: Instant,
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
        let epoll = || owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
        let event = new_eventfd()?;
        let (urgent, all) = (epoll()?, epoll()?);
        add(&urgent, event.as_raw_fd(), ON_WAKE_UP)?;
        for ring in rings {
            add(&urgent, ring.as_raw_fd(), ON_WAKE_UP)?;
        }
        add(&all, urgent.as_raw_fd(), libc::EPOLLIN)?;
        for mmap in mmaps {
            add(&all, mmap.as_raw_fd(), ON_WAKE_UP)?;
        }
        Ok(Self { urgent, all, waker: EventWaker(Arc::new(event)), next_mmap: Instant::now() })
    }

    pub(crate) fn waker(&self) -> EventWaker {
        self.waker.clone()
    }

    /// Waits at most this long, and shorter if records arrive (`is_busy`). `check_mmaps` reads new
    /// mappings and returns whether they end the wait.
    pub(crate) fn wait(
        &mut self,
        timeout: Duration,
        is_busy: bool,
        mut check_mmaps: impl FnMut() -> bool,
    ) {
        let mut now = Instant::now();
        let end = now + if is_busy { timeout.min(BUSY_INTERVAL) } else { timeout };
        loop {
            if now < self.next_mmap {
                let until = end.min(self.next_mmap);
                if ready(&self.urgent, until.saturating_duration_since(now)) {
                    return;
                }
            } else {
                let is_ready = ready(&self.all, end.saturating_duration_since(now));
                if !is_ready || ready(&self.urgent, Duration::ZERO) {
                    return;
                }
                self.next_mmap = Instant::now() + MMAP_INTERVAL;
                if check_mmaps() {
                    return;
                }
            }
            now = Instant::now();
            if now >= end {
                return;
            }
        }
    }
}

/// Edge-triggered: only a wake-up counts, not that there is something to read.
const ON_WAKE_UP: i32 = libc::EPOLLIN | libc::EPOLLET;

fn add(epoll: &OwnedFd, fd: i32, events: i32) -> io::Result<()> {
    let mut event = libc::epoll_event { events: events as u32, u64: 0 };
    let epoll = epoll.as_raw_fd();
    // SAFETY: the event outlives the call, which keeps no pointer to it.
    let status = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Waits at most this long. Returns whether a descriptor is ready.
fn ready(epoll: &OwnedFd, timeout: Duration) -> bool {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
    // Rounded up, so that a short rest does not become a loop.
    let millis = timeout.as_micros().div_ceil(1000).try_into().unwrap_or(i32::MAX);
    // An interrupted wait just ends early.
    // SAFETY: the list has the stated number of entries and outlives the call.
    let count = unsafe {
        libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, millis)
    };
    count > 0
}

fn new_eventfd() -> io::Result<OwnedFd> {
    // SAFETY: returns a new descriptor or a negative number.
    owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
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
    use std::os::fd::AsFd;

    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    #[test]
    fn wait_ends_when_it_is_woken() {
        let mut waiter = Waiter::new(std::iter::empty(), std::iter::empty()).unwrap();
        let waker = waiter.waker();
        let start = Instant::now();
        // Before the wait, and during it.
        waker.wake();
        waiter.wait(LONG, false, || false);
        let thread = std::thread::spawn(move || waker.wake());
        waiter.wait(LONG, false, || false);
        thread.join().unwrap();
        assert!(start.elapsed() < LONG);
    }

    #[test]
    fn wait_is_short_while_records_arrive() {
        let mut waiter = Waiter::new(std::iter::empty(), std::iter::empty()).unwrap();
        let start = Instant::now();
        waiter.wait(LONG, true, || false);
        assert!(start.elapsed() >= BUSY_INTERVAL && start.elapsed() < LONG);
    }

    #[test]
    fn only_relevant_mappings_end_a_wait() {
        let mmap = EventWaker(Arc::new(new_eventfd().unwrap()));
        let fds = std::iter::once(mmap.0.as_fd());
        let mut waiter = Waiter::new(std::iter::empty(), fds).unwrap();
        let start = Instant::now();
        let mut checks = 0;
        mmap.wake();
        waiter.wait(5 * MMAP_INTERVAL, false, || {
            mmap.wake();
            checks += 1;
            false
        });
        // They are checked at most once per interval, and the wait is as long as requested.
        assert!(start.elapsed() >= 5 * MMAP_INTERVAL && (2..=6).contains(&checks), "{checks}");
        mmap.wake();
        waiter.wait(LONG, false, || true);
        // A wake-up ends the pause between two checks.
        let waker = waiter.waker();
        mmap.wake();
        waiter.wait(LONG, false, || {
            waker.wake();
            false
        });
        assert!(start.elapsed() < LONG);
    }
}
