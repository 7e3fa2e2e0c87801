//! arm64: `x17` has the number of the hook, the first eight arguments are in registers.

use crate::calls::{enter, enter_block, leave};
use crate::wrapper::Frame;

// `x8`, the address of a large result, is kept as the arguments are. The last four words of the
// frame are those of `Frame::late`.
core::arch::global_asm!(
    ".text",
    ".balign 64",
    ".globl vramscope_wrapper",
    ".hidden vramscope_wrapper",
    ".type vramscope_wrapper, @function",
    "vramscope_wrapper:",
    ".cfi_startproc",
    "stp x29, x30, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x29, -16",
    ".cfi_offset x30, -8",
    "mov x29, sp",
    ".cfi_def_cfa x29, 16",
    "sub sp, sp, #144",
    "stp x0, x1, [sp]",
    "stp x2, x3, [sp, #16]",
    "stp x4, x5, [sp, #32]",
    "stp x17, x29, [sp, #48]",
    "stp x6, x7, [sp, #112]",
    "str x8, [sp, #128]",
    "mov x0, sp",
    "bl {enter}",
    "mov w9, w0",
    "ldp x16, x10, [sp, #64]",
    "ldp x0, x1, [sp]",
    "ldp x2, x3, [sp, #16]",
    "ldp x4, x5, [sp, #32]",
    "ldp x6, x7, [sp, #112]",
    "ldr x8, [sp, #128]",
    "cbnz w9, 2f",
    ".cfi_remember_state",
    "mov sp, x29",
    "ldp x29, x30, [sp], #16",
    ".cfi_def_cfa sp, 0",
    ".cfi_restore x29",
    ".cfi_restore x30",
    "br x16",
    ".cfi_restore_state",
    "2:",
    "cbz x10, 4f",
    "sub sp, sp, x10, lsl #3",
    "3:",
    "sub x10, x10, #1",
    "add x11, x29, x10, lsl #3",
    "ldr x11, [x11, #16]",
    "str x11, [sp, x10, lsl #3]",
    "cbnz x10, 3b",
    "4:",
    "blr x16",
    "sub sp, x29, #144",
    "str x0, [sp, #80]",
    "mov x0, sp",
    "bl {leave}",
    "ldr x0, [sp, #80]",
    "mov sp, x29",
    "ldp x29, x30, [sp], #16",
    ".cfi_def_cfa sp, 0",
    ".cfi_restore x29",
    ".cfi_restore x30",
    "ret",
    ".cfi_endproc",
    ".size vramscope_wrapper, . - vramscope_wrapper",
    enter = sym enter,
    leave = sym leave,
);

// All registers but the flags and those that every call may change are restored: a compiler that knows
// a local function also knows which registers it leaves unchanged.
core::arch::global_asm!(
    ".text",
    ".balign 64",
    ".globl vramscope_block_wrapper",
    ".hidden vramscope_block_wrapper",
    ".type vramscope_block_wrapper, @function",
    "vramscope_block_wrapper:",
    ".cfi_startproc",
    "stp x29, x30, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x29, -16",
    ".cfi_offset x30, -8",
    "mov x29, sp",
    ".cfi_def_cfa x29, 16",
    "sub sp, sp, #720",
    "stp x0, x1, [sp]",
    "stp x2, x3, [sp, #16]",
    "stp x4, x5, [sp, #32]",
    "stp x17, x29, [sp, #48]",
    "stp x6, x7, [sp, #112]",
    "str x8, [sp, #128]",
    "stp x9, x10, [sp, #144]",
    "stp x11, x12, [sp, #160]",
    "stp x13, x14, [sp, #176]",
    "stp x15, x18, [sp, #192]",
    ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "str q\\i, [sp, #(208 + 16 * \\i)]",
    ".endr",
    ".irp i, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31",
    "str q\\i, [sp, #(208 + 16 * \\i)]",
    ".endr",
    "mov x0, sp",
    "bl {enter_block}",
    ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
    "ldr q\\i, [sp, #(208 + 16 * \\i)]",
    ".endr",
    ".irp i, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31",
    "ldr q\\i, [sp, #(208 + 16 * \\i)]",
    ".endr",
    "ldr x16, [sp, #64]",
    "ldp x0, x1, [sp]",
    "ldp x2, x3, [sp, #16]",
    "ldp x4, x5, [sp, #32]",
    "ldp x6, x7, [sp, #112]",
    "ldr x8, [sp, #128]",
    "ldp x9, x10, [sp, #144]",
    "ldp x11, x12, [sp, #160]",
    "ldp x13, x14, [sp, #176]",
    "ldp x15, x18, [sp, #192]",
    "mov sp, x29",
    "ldp x29, x30, [sp], #16",
    ".cfi_def_cfa sp, 0",
    ".cfi_restore x29",
    ".cfi_restore x30",
    "br x16",
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
    // pointer.
    unsafe {
        core::arch::asm!(
            "adrp {0}, :gottprel:vramscope_thread",
            "ldr {0}, [{0}, :gottprel_lo12:vramscope_thread]",
            "mrs {1}, tpidr_el0",
            "add {0}, {0}, {1}",
            out(reg) address,
            out(reg) _,
            options(nostack, readonly, preserves_flags),
        );
    }
    address
}

/// End of the addresses of user space.
pub(crate) const MAX_ADDRESS: u64 = 1 << 48;

/// Arguments in front of those of a function that returns a structure in memory, as in `arch.h`.
pub(crate) const RESULT_ARGUMENTS: usize = 0;

/// Arguments after the sixth that are in registers.
pub(crate) const LATE_REGISTERS: u64 = 2;

impl Frame {
    /// Returns an argument after the sixth that is in a register.
    pub(crate) fn late_register(&self, index: u64) -> u64 {
        self.late.get(index as usize).copied().unwrap_or(0)
    }
}

/// Prefetches a cache line, to be written.
#[inline(always)]
pub(crate) fn prefetch_line(address: *const u8) {
    // SAFETY: the instruction has no effect but on caches, whatever the address is.
    unsafe {
        core::arch::asm!(
            "prfm pstl1keep, [{0}]",
            in(reg) address,
            options(nostack, preserves_flags, readonly),
        );
    }
}

/// Returns the address in a return address, whose upper bits can be a signature.
pub(crate) const fn code_address(word: u64) -> u64 {
    word & (MAX_ADDRESS - 1)
}

/// Makes written code visible to all processors: data caches are cleaned to the point where
/// instructions are read, and instruction caches drop their copies.
pub(crate) fn flush(start: u64, bytes: u64) {
    /// The smallest cache line of the architecture.
    const LINE: u64 = 16;
    let lines = || (start & !(LINE - 1)..start + bytes).step_by(LINE as usize);
    // SAFETY: the instructions only maintain caches, at addresses that are mapped.
    unsafe {
        for line in lines() {
            core::arch::asm!("dc cvau, {0}", in(reg) line, options(nostack, preserves_flags));
        }
        core::arch::asm!("dsb ish", options(nostack, preserves_flags));
        for line in lines() {
            core::arch::asm!("ic ivau, {0}", in(reg) line, options(nostack, preserves_flags));
        }
        core::arch::asm!("dsb ish", "isb", options(nostack, preserves_flags));
    }
}
