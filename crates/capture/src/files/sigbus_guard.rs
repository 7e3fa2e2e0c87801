//! Files that are truncated while they are mapped here.
//!
//! Libraries of traced programs are mapped, not read: they are large, and little of them is used.
//! After a truncation, an access to a page that the file no longer has would kill this process with
//! SIGBUS. The handler replaces such a page by zeros; the readers handle files of any content.

use std::sync::{Once, OnceLock};

/// Returns the page size, which depends on the kernel on arm64.
pub(crate) fn page_size() -> usize {
    // SAFETY: takes a number and reads a constant of this process, also in a signal handler.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

static INSTALL_ONCE: Once = Once::new();
static PREVIOUS_HANDLER: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the SIGBUS handler of this process, once.
pub(super) fn install() {
    INSTALL_ONCE.call_once(|| {
        // SAFETY: an all-zero sigaction is valid (default action, empty mask), and `action` and
        // `before` outlive the calls. The previous handler is stored before the new one is
        // installed.
        unsafe {
            let mut before: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) != 0 {
                return;
            }
            let _ = PREVIOUS_HANDLER.set(before);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_bus as *const () as libc::sighandler_t;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
        }
    });
}

/// The signal handler. It must not allocate or lock, because it can interrupt any code.
extern "C" fn on_bus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel calls this with a valid `info`; a SIGBUS of a fault has an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code == libc::BUS_ADRERR && replace(address & !(page_size() - 1)) {
        return;
    }
    call_previous(signal, info, context);
}

/// Replaces a page by zeros.
fn replace(page: usize) -> bool {
    // SAFETY: at the fault the page was mapped (else this would be SIGSEGV) and no longer backed by
    // the file, so no data is lost. Code that writes to it or executes it fails as without this
    // handler. MAP_FIXED replaces whatever is mapped there now. For files of `ElfImage` that is the
    // same page: a reader borrows the mapping, so no other thread can unmap it between the fault
    // and this call. A fault in a mapping that another thread unmaps at the same time would already
    // be a use after unmap, and can hit memory that replaced it. The errno of the interrupted code
    // is restored.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let mapped =
            libc::mmap(page as *mut libc::c_void, page_size(), libc::PROT_READ, flags, -1, 0);
        *errno = before;
        mapped != libc::MAP_FAILED
    }
}

/// Passes any other SIGBUS to the previous handler.
fn call_previous(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = PREVIOUS_HANDLER.get();
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    // SAFETY: the handler is the one that was installed, called as its flags require. Without one,
    // the default action is restored, and the fault occurs again and kills the process.
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
