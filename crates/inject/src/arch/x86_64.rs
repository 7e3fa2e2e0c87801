//! x86-64: `r11d` has the number of the hook, the first six arguments are in registers.

use crate::calls::{enter, enter_block, leave};
use crate::wrapper::Frame;

core::arch::global_asm!(
    ".text",
    ".balign 64",
    ".globl vramscope_wrapper",
    ".hidden vramscope_wrapper",
    ".type vramscope_wrapper, @function",
    "vramscope_wrapper:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "sub rsp, 112",
    "mov [rsp], rdi",
    "mov [rsp + 8], rsi",
    "mov [rsp + 16], rdx",
    "mov [rsp + 24], rcx",
    "mov [rsp + 32], r8",
    "mov [rsp + 40], r9",
    "mov [rsp + 48], r11",
    "mov [rsp + 56], rbp",
    "mov rdi, rsp",
    "call {enter}",
    "mov r11, [rsp + 64]",
    "mov r10, [rsp + 72]",
    "mov rdi, [rsp]",
    "mov rsi, [rsp + 8]",
    "mov rdx, [rsp + 16]",
    "mov rcx, [rsp + 24]",
    "mov r8, [rsp + 32]",
    "mov r9, [rsp + 40]",
    "test eax, eax",
    "jnz 2f",
    "leave",
    ".cfi_remember_state",
    ".cfi_def_cfa rsp, 8",
    "jmp r11",
    ".cfi_restore_state",
    "2:",
    "test r10, r10",
    "jz 4f",
    "3:",
    "dec r10",
    "push qword ptr [rbp + r10 * 8 + 16]",
    "jnz 3b",
    "4:",
    "call r11",
    "lea rsp, [rbp - 112]",
    "mov [rsp + 80], rax",
    "mov rdi, rsp",
    "call {leave}",
    "mov rax, [rsp + 80]",
    "leave",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size vramscope_wrapper, . - vramscope_wrapper",
    enter = sym enter,
    leave = sym leave,
);

// The stub pushed the number of the function. All registers but the flags are restored: a compiler that
// knows a local function also knows which registers it leaves unchanged, and need not align the stack
// for it. The target is stored below the stack pointer, in bytes that signal handlers do not use.
core::arch::global_asm!(
    ".text",
    ".balign 64",
    ".globl vramscope_block_wrapper",
    ".hidden vramscope_block_wrapper",
    ".type vramscope_block_wrapper, @function",
    "vramscope_block_wrapper:",
    ".cfi_startproc",
    ".cfi_def_cfa_offset 16",
    "push rax",
    ".cfi_def_cfa_offset 24",
    "mov rax, [rsp + 8]",
    "mov [rsp + 8], rbp",
    ".cfi_offset rbp, -16",
    "lea rbp, [rsp + 8]",
    ".cfi_def_cfa rbp, 16",
    "sub rsp, 392",
    "and rsp, -16",
    "mov [rsp], rdi",
    "mov [rsp + 8], rsi",
    "mov [rsp + 16], rdx",
    "mov [rsp + 24], rcx",
    "mov [rsp + 32], r8",
    "mov [rsp + 40], r9",
    "mov [rsp + 48], rax",
    "mov [rsp + 56], rbp",
    "mov [rsp + 368], r10",
    "mov [rsp + 376], r11",
    ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movaps [rsp + 112 + 16 * \\i], xmm\\i",
    ".endr",
    "mov rdi, rsp",
    "call {enter_block}",
    ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "movaps xmm\\i, [rsp + 112 + 16 * \\i]",
    ".endr",
    "mov rax, [rsp + 64]",
    "mov [rbp - 16], rax",
    "mov rdi, [rsp]",
    "mov rsi, [rsp + 8]",
    "mov rdx, [rsp + 16]",
    "mov rcx, [rsp + 24]",
    "mov r8, [rsp + 32]",
    "mov r9, [rsp + 40]",
    "mov r10, [rsp + 368]",
    "mov r11, [rsp + 376]",
    "mov rax, [rbp - 8]",
    "leave",
    ".cfi_def_cfa rsp, 8",
    ".cfi_restore rbp",
    "jmp qword ptr [rsp - 24]",
    ".cfi_endproc",
    ".size vramscope_block_wrapper, . - vramscope_block_wrapper",
    enter_block = sym enter_block,
);

core::arch::global_asm!(
    ".section .tbss.vramscope_thread, \"awT\", @nobits",
    ".balign 8",
    ".globl vramscope_thread",
    ".hidden vramscope_thread",
    ".type vramscope_thread, @object",
    ".size vramscope_thread, 8",
    "vramscope_thread:",
    ".zero 8",
    ".text",
);

/// Returns the address of the calling thread's word in static thread-local storage.
#[inline(always)]
pub(crate) fn thread_word() -> *mut u64 {
    let address: *mut u64;
    // SAFETY: reads the offset of a variable in static thread-local storage and adds the thread
    // pointer, which is at its own address.
    unsafe {
        core::arch::asm!(
            "mov {0}, qword ptr [rip + vramscope_thread@GOTTPOFF]",
            "add {0}, qword ptr fs:[0]",
            out(reg) address,
            options(nostack, readonly, preserves_flags),
        );
    }
    address
}

/// End of the addresses of user space.
pub(crate) const MAX_ADDRESS: u64 = 1 << 47;

/// Arguments in front of those of a function that returns a structure in memory, as in `arch.h`.
pub(crate) const RESULT_ARGUMENTS: usize = 1;

/// Arguments after the sixth that are in registers.
pub(crate) const LATE_REGISTERS: u64 = 0;

impl Frame {
    /// Returns an argument after the sixth that is in a register.
    pub(crate) const fn late_register(&self, _index: u64) -> u64 {
        0
    }
}

/// Prefetches a cache line, to be written.
#[inline(always)]
pub(crate) fn prefetch_line(address: *const u8) {
    // SAFETY: the instruction has no effect but on caches, whatever the address is.
    unsafe {
        core::arch::asm!(
            "prefetchw [{0}]",
            in(reg) address,
            options(nostack, preserves_flags, readonly),
        );
    }
}

/// Returns the address in a return address.
pub(crate) const fn code_address(word: u64) -> u64 {
    word
}

/// Makes written code visible to all processors, which x86-64 does by itself.
pub(crate) const fn flush(_start: u64, _bytes: u64) {}
