//! The exported functions as a tracer sees them: machine code, and lookup by programs.

use crate::common::{INVALID_VALUE, Library, NOT_FOUND, OK, OUT, isolated};

/// Returns the first bytes of an exported function.
fn code(cuda: Library, name: &str) -> [u8; 24] {
    let start = cuda.function(name);
    // SAFETY: an entry point and the code after it are at least this long.
    unsafe { start.cast::<[u8; 24]>().read_unaligned() }
}

fn names() -> Vec<&'static str> {
    vec![
        "cuInit",
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        "cuMemAllocAsync_ptsz",
        "cuCtxDestroy",
        "cuCtxDestroy_v2",
        "cuMemCreate",
        "cuGraphLaunch",
        "cuIpcOpenMemHandle_v2",
    ]
}

#[test]
fn entry_points_start_like_those_of_real_drivers() {
    let cuda = Library::load_unprobed();
    for name in names() {
        let code = code(cuda, name);
        if code[0] == 0x55 {
            // push %rbp; mov %rsp,%rbp; pop %rbp; jmp …
            assert_eq!(code[..6], [0x55, 0x48, 0x89, 0xe5, 0x5d, 0xe9], "{name}");
        } else {
            // cmpl $0x321cba00,…(%rip); je +6; jmp *…(%rip); push %rbp; …
            assert_eq!(code[..2], [0x81, 0x3d], "{name}");
            assert_eq!(code[6..14], [0x00, 0xba, 0x1c, 0x32, 0x74, 0x06, 0xff, 0x25], "{name}");
            assert_eq!(code[18..23], [0x55, 0x48, 0x89, 0xe5, 0x5d], "{name}");
        }
    }
}

#[test]
fn functions_have_distinct_addresses() {
    let cuda = Library::load();
    let mut addresses: Vec<_> = names().iter().map(|name| cuda.symbol(name)).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), names().len());
}

#[test]
fn get_proc_address_finds_functions_by_version() {
    let ended = isolated("get_proc_address_finds_functions_by_version", &[], |cuda| {
        let find = |name: &std::ffi::CStr, version: u64, flags: u64| {
            let mut status = 9_u32;
            let pointer = &raw mut status as u64;
            let arguments = [name.as_ptr() as u64, OUT, version, flags, pointer];
            let address = cuda.get("cuGetProcAddress_v2", &arguments);
            (address, status)
        };
        let symbol = |name: &str| cuda.symbol(name).map_or(0, |address| address as u64);
        for (name, version, flags, found) in [
            (c"cuMemAlloc", 3020, 0, "cuMemAlloc_v2"),
            (c"cuMemAlloc", 12_000, 2, "cuMemAlloc_v2"),
            (c"cuMemAllocAsync", 11_020, 0, "cuMemAllocAsync"),
            (c"cuMemAllocAsync", 11_020, 2, "cuMemAllocAsync_ptsz"),
            (c"cuCtxCreate", 3020, 0, "cuCtxCreate_v2"),
            (c"cuCtxCreate", 11_040, 0, "cuCtxCreate_v3"),
            (c"cuCtxCreate", 13_000, 0, "cuCtxCreate_v4"),
            (c"cuGetProcAddress", 11_030, 0, "cuGetProcAddress"),
            (c"cuGetProcAddress", 12_000, 0, "cuGetProcAddress_v2"),
            (c"cuStreamBeginCapture", 12_000, 2, "cuStreamBeginCapture_v2_ptsz"),
            (c"cuDevicePrimaryCtxRelease", 7000, 0, "cuDevicePrimaryCtxRelease"),
            (c"cuCtxSynchronize", 13_000, 0, "cuCtxSynchronize_v2"),
        ] {
            assert_eq!(find(name, version, flags), (symbol(found), 0), "{name:?} {version}");
        }
        assert_eq!(find(c"cuNothing", 12_000, 0), (0, 1));
        assert_eq!(find(c"cuMemAlloc_v2", 12_000, 0), (0, 1), "names have no version in them");
        assert_eq!(find(c"cuMemAllocAsync", 11_000, 0), (0, 2));
        let unknown = [c"cuNothing".as_ptr() as u64, OUT, 12_000, 0];
        assert_eq!(cuda.out("cuGetProcAddress", &unknown), (NOT_FOUND, 0));
        assert_eq!(cuda.out("cuGetExportTable", &[OUT, unknown[0]]).0, INVALID_VALUE);
    });
    assert!(ended.output.status.success(), "{}", String::from_utf8_lossy(&ended.output.stdout));
}

#[test]
fn errors_have_names() {
    let cuda = Library::load();
    let name = cuda.get("cuGetErrorName", &[2, OUT]) as *const std::ffi::c_char;
    // SAFETY: the driver returned a string that lives as long as it is loaded.
    let name = unsafe { std::ffi::CStr::from_ptr(name) };
    assert_eq!(name, c"CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(cuda.out("cuGetErrorString", &[12_345, OUT]), (INVALID_VALUE, 0));
    assert_eq!(cuda.out("cuGetErrorString", &[0, OUT]).0, OK);
}
