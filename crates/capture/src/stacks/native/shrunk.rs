//! Files that shrink while they are mapped here.
//!
//! Libraries of traced programs are mapped, not read: they are large, and little of them is looked
//! at. Who truncates such a file would end this process by SIGBUS as soon as a page is touched that
//! the file no longer has. So a page of zeros takes the place of such a page; the readers are
//! written for files of any content.

use std::sync::{Once, OnceLock};

/// Of a page; there is no other size on x86-64.
const PAGE: usize = 4096;

static BEGUN: Once = Once::new();
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// From now on pages that a file has lost read as zeros. Of the whole process, and once.
pub(super) fn read_as_zeros() {
    BEGUN.call_once(|| {
        // SAFETY: an all-zero sigaction is a valid one (default action, empty mask), and `action`
        // and `before` live through the calls. The handler is installed only after what it hands
        // other signals on to is known.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) != 0 {
                return;
            }
            let _ = BEFORE.set(before);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_bus as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
        }
    });
}

/// Nothing here may allocate or lock: it can run in the middle of anything.
extern "C" fn on_bus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel calls this with a valid `info`; a SIGBUS of a fault has an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code == libc::BUS_ADRERR && replace(address & !(PAGE - 1)) {
        return;
    }
    hand_on(signal, info, context);
}

/// Puts a page of zeros at the address of a page.
fn replace(page: usize) -> bool {
    // SAFETY: at the fault the page was mapped, else this would be SIGSEGV, and had nothing behind
    // it any more, so no data is lost. Code that wrote to it or ran there fails as without this
    // handler. MAP_FIXED replaces whatever is mapped there now. For files of `Image` that is the
    // same page: a reader borrows the mapping, so no other thread can unmap it between the fault
    // and this call. A fault in a mapping that another thread unmaps at that time would have been a
    // use after unmap already, and can hit memory that took its place. The error number of the
    // interrupted code is put back.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let got = libc::mmap(page as *mut libc::c_void, PAGE, libc::PROT_READ, flags, -1, 0);
        *errno = before;
        got != libc::MAP_FAILED
    }
}

/// Does with a signal that is none of ours what would have been done.
fn hand_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get();
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    // SAFETY: the handler is the one that was installed, called the way its flags say. Where there
    // was none, the default action is put back, and the fault comes again and ends the process.
    unsafe {
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
        } else if before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0) {
            type Full = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
            std::mem::transmute::<libc::sighandler_t, Full>(handler)(signal, info, context);
        } else {
            std::mem::transmute::<libc::sighandler_t, extern "C" fn(i32)>(handler)(signal);
        }
    }
}
