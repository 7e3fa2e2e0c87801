//! The libraries of this process. Nothing here loads or holds one, which would need the lock that the
//! dynamic linker holds while it runs constructors.

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use super::functions::AllocatorFile;

/// A loaded library with an allocator.
pub(super) struct LoadedLibrary {
    pub(super) file: AllocatorFile,
    pub(super) path: CString,
    pub(super) base: u64,
    /// Addresses of its code.
    pub(super) start: u64,
    pub(super) end: u64,
}

/// A library during [`each`], in which it cannot be unloaded.
pub(super) struct Mapped<'a> {
    info: &'a libc::dl_phdr_info,
    headers: &'a [libc::Elf64_Phdr],
}

/// Maximum number of libraries with an allocator, and length of a path.
const MAX_LIBRARIES: usize = 16;
const MAX_PATH: usize = 4096;

type Each<'a> = dyn FnMut(&Mapped<'_>) -> bool + 'a;

/// Calls a function with each library, until it returns true. It must not allocate: the dynamic
/// linker's lock is held, and other threads may wait for it inside of an allocator.
fn each(visit: &mut Each<'_>) {
    let mut visit = visit;
    // SAFETY: the callback gets the function, which lives through the call.
    unsafe { libc::dl_iterate_phdr(Some(callback), (&raw mut visit).cast()) };
}

unsafe extern "C" fn callback(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    visit: *mut c_void,
) -> c_int {
    // SAFETY: the dynamic linker passes a valid structure, and `each` its own function.
    let (info, visit) = unsafe { (&*info, &mut *visit.cast::<&mut Each<'_>>()) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the structure has the number of headers.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    c_int::from(visit(&Mapped { info, headers }))
}

/// Returns the number of libraries that were ever loaded.
pub(super) fn count() -> u64 {
    let mut count = 0;
    each(&mut |library| {
        count = library.info.dlpi_adds;
        true
    });
    count
}

/// Returns the libraries with allocators.
pub(super) fn allocator_libraries() -> Vec<LoadedLibrary> {
    let mut found: Vec<(AllocatorFile, u64, (u64, u64), usize)> = Vec::with_capacity(MAX_LIBRARIES);
    let mut paths = vec![[0_u8; MAX_PATH]; MAX_LIBRARIES];
    each(&mut |library| {
        let path = library.path();
        let Some(file) = AllocatorFile::of(Path::new(OsStr::from_bytes(path))) else {
            return false;
        };
        if let Some(own) = paths.get_mut(found.len())
            && let Some(to) = own.get_mut(..path.len())
        {
            to.copy_from_slice(path);
            found.push((file, library.info.dlpi_addr, library.addresses(), path.len()));
        }
        false
    });
    let library = |((file, base, (start, end), length), path): (_, [u8; MAX_PATH])| {
        let path = CString::new(path.get(..length)?).ok()?;
        Some(LoadedLibrary { file, path, base, start, end })
    };
    found.into_iter().zip(paths).filter_map(library).collect()
}

/// Calls a function with the library at a base address; see [`each`]. Returns false if it was
/// unloaded.
pub(super) fn with_library(base: u64, run: impl FnOnce(&Mapped<'_>) -> bool) -> bool {
    let (mut run, mut outcome) = (Some(run), false);
    each(&mut |library| {
        if library.info.dlpi_addr != base {
            return false;
        }
        outcome = run.take().is_some_and(|run| run(library));
        true
    });
    outcome
}

/// Returns whether an address is code of a library.
pub(super) fn is_code(address: u64) -> bool {
    let mut found = false;
    each(&mut |library| {
        found = library.code(address, 1).is_some();
        found
    });
    found
}

impl Mapped<'_> {
    fn path(&self) -> &[u8] {
        if self.info.dlpi_name.is_null() {
            return &[];
        }
        // SAFETY: the name is a string.
        unsafe { CStr::from_ptr(self.info.dlpi_name) }.to_bytes()
    }

    /// Returns the addresses of the executable segments.
    fn segments(&self) -> impl Iterator<Item = (u64, u64)> {
        let code = |header: &&libc::Elf64_Phdr| {
            header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0
        };
        self.headers.iter().filter(code).map(|header| {
            let start = self.info.dlpi_addr.wrapping_add(header.p_vaddr);
            (start, start.wrapping_add(header.p_filesz))
        })
    }

    fn addresses(&self) -> (u64, u64) {
        self.segments()
            .fold((u64::MAX, 0), |(low, high), (start, end)| (low.min(start), high.max(end)))
    }

    /// Returns the program headers as bytes.
    pub(super) fn headers(&self) -> &[u8] {
        let start = ptr::from_ref(self.headers).cast::<u8>();
        // SAFETY: the same memory.
        unsafe { std::slice::from_raw_parts(start, size_of_val(self.headers)) }
    }

    /// Returns code of the library.
    pub(super) fn code(&self, address: u64, bytes: usize) -> Option<&[u8]> {
        let end = address.checked_add(bytes as u64)?;
        self.segments().find(|(start, last)| *start <= address && end <= *last)?;
        // SAFETY: inside of a segment, which is mapped and readable as long as the library is loaded.
        // If another thread changes a byte meanwhile, the comparison only fails.
        Some(unsafe { std::slice::from_raw_parts(address as *const u8, bytes) })
    }
}
