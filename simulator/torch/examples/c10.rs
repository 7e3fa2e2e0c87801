//! Stands in for `libc10.so`: the two functions to which PyTorch's allocator reports its blocks.
//! They do nothing, like the real ones without a profiler, and start with the same instructions; on arm64, those of
//! PyTorch 2.7.

/// The value that the second function reads before it touches the stack, as in newer builds.
#[cfg(target_arch = "x86_64")]
static DEBUG_INFO: u64 = 2;

/// `c10::reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, c10::Device)`, as of 2.11.
#[allow(non_snake_case, reason = "the name is the compiler's")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE() {
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-64]!",
        "mov x29, sp",
        "stp x19, x20, [sp, #16]",
        "mov x19, x4",
        "ldp x19, x20, [sp, #16]",
        "ldp x29, x30, [sp], #64",
        "ret",
        ".balign 16",
    );
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "push r14",
        "mov r14d, r8d",
        "push r13",
        "mov r13, rcx",
        "pop r13",
        "pop r14",
        "ret",
        // As in real libraries, every function starts at a multiple of 16.
        ".balign 16",
    )
}

/// `c10::reportOutOfMemoryToProfiler(int64_t, size_t, size_t, c10::Device)`, with the start of
/// 2.13, whose first instruction the kernel cannot emulate.
#[allow(non_snake_case, reason = "the name is the compiler's")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn _ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE() {
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-48]!",
        "mov x29, sp",
        "stp x19, x20, [sp, #16]",
        "ldp x19, x20, [sp, #16]",
        "ldp x29, x30, [sp], #48",
        "ret",
        ".balign 16",
    );
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "mov rax, qword ptr [rip + {info}]",
        "push r13",
        "mov r13d, ecx",
        "pop r13",
        "ret",
        ".balign 16",
        info = sym DEBUG_INFO,
    )
}
