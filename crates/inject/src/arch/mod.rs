//! Code that depends on the processor: the wrapper, thread-local storage, caches.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{
    LATE_REGISTERS, MAX_ADDRESS, RESULT_ARGUMENTS, code_address, flush, prefetch_line, thread_word,
};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{
    LATE_REGISTERS, MAX_ADDRESS, RESULT_ARGUMENTS, code_address, flush, prefetch_line, thread_word,
};
