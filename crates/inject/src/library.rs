//! The driver as a loaded library.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::ptr;

use crate::entry::native::PROBE;

/// A loaded library.
pub(crate) struct Library {
    handle: *mut c_void,
    base: u64,
    dynamic: *const DynamicEntry,
    segments: Vec<Segment>,
    /// The file, if it can be read.
    file: Option<File>,
}

/// An executable segment.
struct Segment {
    start: u64,
    end: u64,
    /// Offset in the file.
    offset: u64,
}

/// A function of a library.
pub(crate) struct Function {
    pub(crate) address: u64,
    /// Its code, at most the analyzed part, without probes.
    pub(crate) code: Vec<u8>,
}

/// Bytes at the entry from which probes are removed.
const ENTRY_BYTES: usize = 64;

/// Maximum bytes of a function that are analyzed.
const MAX_ANALYZED: u64 = 4096;
/// Bytes of a function of unknown size that are analyzed.
const ANALYZED_UNSIZED: u64 = 64;

/// The used fields of `struct link_map`.
#[repr(C)]
struct LinkMap {
    base: u64,
    name: *const c_char,
    dynamic: *const DynamicEntry,
}

/// Tag and value of an entry of the dynamic section.
type DynamicEntry = [u64; 2];

/// Tags of that section.
const DT_NULL: u64 = 0;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

const RTLD_DI_LINKMAP: c_int = 2;
const RTLD_DL_SYMENT: c_int = 1;
/// Type of a symbol.
const STT_FUNC: u8 = 2;

unsafe extern "C" {
    fn dlinfo(handle: *mut c_void, request: c_int, info: *mut c_void) -> c_int;
    fn dladdr1(
        address: *const c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut c_void,
        flags: c_int,
    ) -> c_int;
}

/// Search for the segments of the library at a base address.
struct SegmentSearch {
    base: u64,
    segments: Vec<Segment>,
}

unsafe extern "C" fn each_library(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the dynamic linker passes a valid structure, and `loaded` its own search.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<SegmentSearch>()) };
    if info.dlpi_addr != search.base || info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the structure has the number of headers.
    let headers =
        unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let code = |header: &&libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0
    };
    search.segments = headers
        .iter()
        .filter(code)
        .map(|header| {
            let start = search.base.wrapping_add(header.p_vaddr);
            Segment { start, end: start.wrapping_add(header.p_filesz), offset: header.p_offset }
        })
        .collect();
    1
}

impl Library {
    /// Returns the driver that this process has loaded; never loads it.
    pub(crate) fn driver() -> Option<Self> {
        Self::loaded(c"libcuda.so.1")
    }

    /// Returns a loaded library by its name; never loads it.
    fn loaded(name: &CStr) -> Option<Self> {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: the name is zero-terminated.
        let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
        if handle.is_null() {
            return None;
        }
        let mut map: *const LinkMap = ptr::null();
        // SAFETY: the request writes one pointer.
        let outcome = unsafe { dlinfo(handle, RTLD_DI_LINKMAP, (&raw mut map).cast()) };
        if outcome != 0 || map.is_null() {
            return None;
        }
        // SAFETY: the dynamic linker's entry of a loaded library; its name is a string.
        let (base, dynamic, path) =
            unsafe { ((*map).base, (*map).dynamic, CStr::from_ptr((*map).name)) };
        let mut search = SegmentSearch { base, segments: Vec::new() };
        // SAFETY: the callback gets the search, which lives through the call.
        unsafe { libc::dl_iterate_phdr(Some(each_library), (&raw mut search).cast()) };
        let file = File::open(OsStr::from_bytes(path.to_bytes())).ok();
        let segments = search.segments;
        (!segments.is_empty()).then_some(Self { handle, base, dynamic, segments, file })
    }

    /// Returns an exported function. `Ok(None)`: the library has no such function. `Err`: its
    /// address is outside of the library.
    pub(crate) fn function(&self, symbol: &CStr) -> Result<Option<Function>, ()> {
        // SAFETY: the handle is open and the name zero-terminated.
        let address = unsafe { libc::dlsym(self.handle, symbol.as_ptr()) };
        if address.is_null() {
            return Ok(None);
        }
        let at = address as u64;
        let inside = |segment: &&Segment| (segment.start..segment.end).contains(&at);
        let segment = self.segments.iter().find(inside).ok_or(())?;
        let max = match size(address) {
            0 => ANALYZED_UNSIZED,
            size => size.min(MAX_ANALYZED),
        };
        let bytes = max.min(segment.end - at) as usize;
        // SAFETY: the bytes are inside of a segment, which is mapped and readable.
        let memory = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), bytes) };
        let mut code = memory.to_vec();
        self.remove_probes(&mut code, segment.offset + (at - segment.start));
        Ok(Some(Function { address: at, code }))
    }

    /// Returns the names and addresses of the exported functions.
    pub(crate) fn exports(&self) -> Vec<(&'static CStr, u64)> {
        let names = self.table(DT_STRTAB) as *const c_char;
        let symbols = self.table(DT_SYMTAB) as *const libc::Elf64_Sym;
        if self.dynamic.is_null() || names.is_null() || symbols.is_null() {
            return Vec::new();
        }
        // SAFETY: the dynamic linker resolves symbols with the same tables, which it has checked.
        let symbols = unsafe { std::slice::from_raw_parts(symbols, self.symbol_count()) };
        let is_function = |symbol: &&libc::Elf64_Sym| {
            symbol.st_shndx != 0 && symbol.st_value != 0 && symbol.st_info & 15 == STT_FUNC
        };
        let export = |symbol: &libc::Elf64_Sym| {
            // SAFETY: an offset of a string in the table.
            let name = unsafe { CStr::from_ptr(names.add(symbol.st_name as usize)) };
            (name, self.base.wrapping_add(symbol.st_value))
        };
        symbols.iter().filter(is_function).map(export).collect()
    }

    /// Returns the address of a table of the dynamic section; 0 if the library has none.
    fn table(&self, tag: u64) -> u64 {
        let mut entry = self.dynamic;
        while !entry.is_null() {
            // SAFETY: the section ends with an entry `DT_NULL`.
            let [found, value] = unsafe { entry.read() };
            match found {
                // Some C libraries do not add the base address to the values.
                _ if found == tag && value < self.base => return self.base + value,
                _ if found == tag => return value,
                DT_NULL => break,
                // SAFETY: not the last entry.
                _ => entry = unsafe { entry.add(1) },
            }
        }
        0
    }

    /// Returns the number of dynamic symbols, which only the hash tables have.
    fn symbol_count(&self) -> usize {
        let hash = self.table(DT_HASH) as *const u32;
        if !hash.is_null() {
            // SAFETY: the table begins with the numbers of buckets and of symbols.
            return unsafe { hash.add(1).read() } as usize;
        }
        let hash = self.table(DT_GNU_HASH) as *const u32;
        if hash.is_null() {
            return 0;
        }
        // SAFETY: the table begins with the number of buckets, the first symbol and the number of
        // 64-bit words that precede the buckets. The chain of each symbol ends with an odd word.
        unsafe {
            let [buckets, first, words] = hash.cast::<[u32; 3]>().read().map(|word| word as usize);
            let start = hash.add(4 + 2 * words);
            let heads = std::slice::from_raw_parts(start, buckets);
            let Some(mut last) = heads.iter().copied().max().map(|head| head as usize) else {
                return first;
            };
            if last < first {
                return first;
            }
            while start.add(buckets + last - first).read() & 1 == 0 {
                last += 1;
            }
            last + 1
        }
    }

    /// Restores instructions that probes have replaced, from the file.
    fn remove_probes(&self, code: &mut [u8], offset: u64) {
        let entry = code.len().min(ENTRY_BYTES);
        let is_probe = |bytes: &[u8]| bytes == PROBE;
        let Some(entry) = code.get_mut(..entry) else { return };
        if !entry.chunks(PROBE.len()).any(is_probe) {
            return;
        }
        let mut original = [0; ENTRY_BYTES];
        let Some(original) = original.get_mut(..entry.len()) else { return };
        if self.file.as_ref().is_some_and(|file| file.read_exact_at(original, offset).is_ok()) {
            let parts = entry.chunks_mut(PROBE.len()).zip(original.chunks(PROBE.len()));
            for (bytes, original) in parts.filter(|(bytes, _)| is_probe(bytes)) {
                bytes.copy_from_slice(original);
            }
        }
    }

    /// Returns the lowest address and the end of the code.
    pub(crate) fn code(&self) -> (u64, u64) {
        let low = self.segments.iter().map(|segment| segment.start).min().unwrap_or(0);
        let high = self.segments.iter().map(|segment| segment.end).max().unwrap_or(0);
        (low, high)
    }
}

/// Returns the size of the symbol at an address; 0 if it is unknown.
fn size(address: *const c_void) -> u64 {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let mut symbol: *mut c_void = ptr::null_mut();
    // SAFETY: both out values are writable.
    let found = unsafe { dladdr1(address, info.as_mut_ptr(), &raw mut symbol, RTLD_DL_SYMENT) };
    if found == 0 || symbol.is_null() {
        return 0;
    }
    // SAFETY: an entry of the library's symbol table.
    unsafe { (*symbol.cast::<libc::Elf64_Sym>()).st_size }
}

/// Returns a name of the hook table, zero-terminated.
pub(crate) fn symbol(name: &[u8]) -> Option<CString> {
    let length = name.iter().position(|byte| *byte == 0)?;
    CString::new(name.get(..length)?).ok().filter(|name| !name.is_empty())
}
