//! The code that every patched function jumps to.
//!
//! It keeps the arguments in a [`Frame`] on the caller's stack and asks [`enter`] what to do. Most
//! hot calls pass: every register and the stack are as the caller left them when the driver's
//! function begins. For the others the wrapper calls the function, with a copy of the arguments on
//! the stack, and hands its result to [`leave`]. The unwind rules are written out, so debuggers and
//! profilers see through it.

use crate::call::{enter, leave};

/// A call under way; the assembly below knows the offsets.
#[repr(C)]
pub(crate) struct Frame {
    pub(crate) args: [u64; 6],
    pub(crate) hook: u64,
    /// Address of the saved frame pointer: the return address follows, then the caller's stack.
    pub(crate) base: u64,
    /// The moved entry of the function.
    pub(crate) target: u64,
    /// Stack arguments to copy, an even number.
    pub(crate) stack_words: u64,
    pub(crate) result: u64,
    pub(crate) entered: u64,
    /// Nesting level of the call, or what a launch keeps for its return.
    pub(crate) level: u64,
    pub(crate) reserved: u64,
}

const _: () = assert!(size_of::<Frame>() == 112);

const PAGE: u64 = 4096;
/// Words that are copied of the caller's stack where nothing speaks against it.
const SPARE_WORDS: u64 = 8;

/// The function is entered as if the wrapper did not exist.
pub(crate) const PASS: u32 = 0;
/// The wrapper calls the function and sees its result.
pub(crate) const RETURN: u32 = 1;

impl Frame {
    /// Stack pointer at the entry of the function.
    pub(crate) const fn sp(&self) -> u64 {
        self.base + 8
    }

    /// An argument in a register; 0 where the row names none.
    pub(crate) fn argument(&self, index: u8) -> u64 {
        self.args.get(usize::from(index)).copied().unwrap_or(0)
    }

    /// Copies arguments on the stack: at least as many words as the row names. Where it costs no
    /// other page, more are copied than any function has, in case a row is wrong.
    pub(crate) const fn set_stack_words(&mut self, wanted: u8) {
        let end = self.base + 16 + SPARE_WORDS * 8;
        let is_same_page = self.base / PAGE == (end - 1) / PAGE;
        let spare = if is_same_page { SPARE_WORDS } else { 0 };
        let wanted = wanted as u64;
        let words = if wanted > spare { wanted } else { spare };
        self.stack_words = words.next_multiple_of(2);
    }

    /// The `index`th argument on the stack.
    ///
    /// # Safety
    ///
    /// The wrapped function has that many arguments.
    pub(crate) unsafe fn stack_argument(&self, index: u64) -> u64 {
        let address = self.base + 16 + index * 8;
        // SAFETY: the caller pushed the argument above its return address.
        unsafe { (address as *const u64).read() }
    }
}

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

unsafe extern "C" {
    fn vramscope_wrapper();
}

/// Address of the wrapper.
pub(crate) fn address() -> u64 {
    vramscope_wrapper as *const () as u64
}
