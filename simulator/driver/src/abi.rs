//! Types of the C interface: result codes, and pointers that callers pass in.

use std::ffi::{CStr, c_int};

/// A device, by ordinal.
pub(crate) type CuDevice = c_int;
/// An address in the address space of the devices.
pub(crate) type DevicePointer = u64;
/// An opaque handle; programs see it as a pointer.
pub(crate) type Handle = u64;

/// The result of an implementation; the entry point turns it into a `CUresult`.
pub(crate) type Outcome = Result<(), Code>;

macro_rules! codes {
    ($($(#[$meta:meta])* $name:ident = $value:literal $c:literal $text:literal;)*) => {
        /// The errors that this driver can return, with the driver's numbers.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(i32)]
        pub(crate) enum Code {
            $($(#[$meta])* $name = $value,)*
        }

        /// Returns name and description of a result, for `cuGetErrorName` and `cuGetErrorString`.
        pub(crate) fn describe(code: c_int) -> Option<(&'static CStr, &'static CStr)> {
            match code {
                0 => Some((c"CUDA_SUCCESS", c"no error")),
                $($value => Some(($c, $text)),)*
                _ => None,
            }
        }
    };
}

codes! {
    InvalidValue = 1 c"CUDA_ERROR_INVALID_VALUE" c"invalid argument";
    OutOfMemory = 2 c"CUDA_ERROR_OUT_OF_MEMORY" c"out of memory";
    NotInitialized = 3 c"CUDA_ERROR_NOT_INITIALIZED" c"initialization error";
    Deinitialized = 4 c"CUDA_ERROR_DEINITIALIZED" c"driver shutting down";
    NoDevice = 100 c"CUDA_ERROR_NO_DEVICE" c"no CUDA-capable device is detected";
    InvalidDevice = 101 c"CUDA_ERROR_INVALID_DEVICE" c"invalid device ordinal";
    InvalidContext = 201 c"CUDA_ERROR_INVALID_CONTEXT" c"invalid device context";
    FileNotFound = 301 c"CUDA_ERROR_FILE_NOT_FOUND" c"file not found";
    InvalidHandle = 400 c"CUDA_ERROR_INVALID_HANDLE" c"invalid resource handle";
    IllegalState = 401 c"CUDA_ERROR_ILLEGAL_STATE"
        c"the operation cannot be performed in the present state";
    NotFound = 500 c"CUDA_ERROR_NOT_FOUND" c"named symbol not found";
    ContextDestroyed = 709 c"CUDA_ERROR_CONTEXT_IS_DESTROYED" c"context is destroyed";
    AlreadyRegistered = 712 c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
        c"part or all of the requested memory range is already mapped";
    NotRegistered = 713 c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"
        c"pointer does not correspond to a registered memory region";
    NotSupported = 801 c"CUDA_ERROR_NOT_SUPPORTED" c"operation not supported";
    CaptureUnsupported = 900 c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
        c"operation not permitted when stream is capturing";
    CaptureInvalidated = 901 c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
        c"operation failed due to a previous error during capture";
    CaptureWrongThread = 908 c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"
        c"attempt to terminate a thread-local capture sequence from another thread";
    Unknown = 999 c"CUDA_ERROR_UNKNOWN" c"unknown error";
}

/// Plain data that may be copied from and to a caller's memory.
///
/// # Safety
/// Every bit pattern must be a valid value.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($ty:ty),* $(,)?) => {
        // SAFETY: integers, pointers, and `repr(C)` structures of them, accept every bit pattern.
        $(unsafe impl $crate::abi::Plain for $ty {})*
    };
}
pub(crate) use plain;

plain!(u8, u32, u64, usize, i32, [u8; 16], [u8; 64]);

// SAFETY: a raw pointer accepts every bit pattern; dereferencing it is a separate matter.
unsafe impl<T> Plain for *const T {}

/// A C out-parameter.
///
/// Values of this type come from C callers only. They promise what every C API requires: the
/// pointer is null or points to memory that may be written as a `T`.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct OutParam<T>(*mut T);

impl<T: Plain> OutParam<T> {
    /// Fails for a null pointer, before anything is done.
    pub(crate) fn check(self) -> Outcome {
        if self.0.is_null() { Err(Code::InvalidValue) } else { Ok(()) }
    }

    /// Returns whether the caller does not need the result.
    pub(crate) const fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Stores the result.
    pub(crate) fn set(self, value: T) -> Outcome {
        self.check()?;
        // SAFETY: the pointer is not null and the caller promised it can be written.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Stores the result unless the pointer is null.
    pub(crate) fn set_if_not_null(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: as in `set`.
            unsafe { self.0.write_unaligned(value) };
        }
    }

    /// Returns the same pointer for a value that is at most as wide.
    pub(crate) const fn narrow<U: Plain>(self) -> OutParam<U> {
        const { assert!(size_of::<U>() <= size_of::<T>()) };
        OutParam(self.0.cast())
    }

    /// Reads the current value: some parameters are both input and output.
    pub(crate) fn get(self) -> Result<T, Code> {
        InParam(self.0.cast_const()).get()
    }

    /// Returns a pointer to a field, `offset` bytes from the start.
    pub(crate) const fn field<U: Plain>(self, offset: usize) -> OutParam<U> {
        OutParam(self.0.wrapping_byte_add(offset).cast())
    }

    /// Stores several consecutive values; the caller promised room for them.
    pub(crate) fn fill(self, values: &[T]) -> Outcome {
        self.check()?;
        for (i, value) in values.iter().enumerate() {
            // SAFETY: the caller promised room for as many values as this function writes.
            unsafe { self.0.add(i).write_unaligned(*value) };
        }
        Ok(())
    }
}

/// A C parameter that is passed by pointer; the same promise as for [`OutParam`], for reading.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct InParam<T>(*const T);

impl<T: Plain> InParam<T> {
    /// Returns a copy of the value.
    pub(crate) fn get(self) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the pointer is not null, the caller promised a `T` behind it, and every bit
        // pattern is a valid `T`.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Returns one of several values; the caller promised that it exists.
    pub(crate) fn at(self, index: usize) -> Result<T, Code> {
        if self.0.is_null() { self.get() } else { Self(self.0.wrapping_add(index)).get() }
    }
}

/// A C string from a caller.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct InString(*const std::ffi::c_char);

impl InString {
    /// Returns the text, unless the pointer is null or the text is not UTF-8.
    pub(crate) fn get(&self) -> Result<&str, Code> {
        if self.0.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the pointer is not null and the caller promised a zero-terminated string that
        // lives until the call returns; `self` does not outlive the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| Code::InvalidValue)
    }
}
