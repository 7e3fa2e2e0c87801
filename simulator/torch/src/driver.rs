//! The functions of the CUDA driver that a caching allocator needs, real or simulated.

use std::ffi::{CStr, c_int, c_uint, c_void};

macro_rules! functions {
    ($($field:ident $name:literal ($($ty:ty),*);)*) => {
        /// The driver's functions.
        pub(crate) struct Driver {
            $(pub(crate) $field: unsafe extern "C" fn($($ty),*) -> c_int,)*
        }

        impl Driver {
            fn find(library: *mut c_void) -> Option<Self> {
                Some(Self {
                    $($field: {
                        // SAFETY: the library is never unloaded, and the name is zero-terminated.
                        let symbol = unsafe { libc::dlsym(library, $name.as_ptr()) };
                        // SAFETY: null becomes `None`; any other address is the driver's function
                        // with that name, whose prototype is declared here as in `cuda.h`.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                Option<unsafe extern "C" fn($($ty),*) -> c_int>,
                            >(symbol)
                        }?
                    },)*
                })
            }
        }
    };
}

functions! {
    init c"cuInit" (c_uint);
    retain c"cuDevicePrimaryCtxRetain" (*mut u64, c_int);
    set_current c"cuCtxSetCurrent" (u64);
    alloc c"cuMemAlloc_v2" (*mut u64, usize);
    free c"cuMemFree_v2" (u64);
    alloc_async c"cuMemAllocAsync" (*mut u64, usize, u64);
    free_async c"cuMemFreeAsync" (u64, u64);
}

impl Driver {
    /// Loads and initializes the driver; none if that fails.
    pub(crate) fn load() -> Option<Self> {
        const NAME: &CStr = c"libcuda.so.1";
        // SAFETY: loads a library by name; its constructors are the driver's.
        let library = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return None;
        }
        let driver = Self::find(library)?;
        // SAFETY: a plain call.
        (unsafe { (driver.init)(0) } == 0).then_some(driver)
    }

    /// Makes the primary context of a device current on the calling thread.
    pub(crate) fn select(&self, device: i32) -> bool {
        let mut context = 0;
        // SAFETY: the pointer is valid for writing.
        let retained = unsafe { (self.retain)(&raw mut context, device) } == 0;
        // SAFETY: the context was returned above.
        retained && unsafe { (self.set_current)(context) } == 0
    }

    /// Allocates memory of the current device; returns 0 if that fails.
    pub(crate) fn memory(&self, bytes: u64) -> u64 {
        let mut pointer = 0;
        // SAFETY: the pointer is valid for writing.
        let code = unsafe { (self.alloc)(&raw mut pointer, bytes as usize) };
        if code == 0 { pointer } else { 0 }
    }
}
