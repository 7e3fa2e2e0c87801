//! The code that every patched function jumps to.
//!
//! It stores the arguments in a [`Frame`] on the caller's stack and calls [`enter`]. Most frequent
//! calls pass: the driver's function starts with all argument registers and the stack as the caller
//! left them. For the others the wrapper calls the function, with a copy of the arguments on the
//! stack, and passes its result to [`leave`]. Unwind rules let debuggers and profilers unwind
//! through it. [`crate::arch`] has the code for each processor.
//!
//! [`enter`]: crate::calls::enter
//! [`leave`]: crate::calls::leave

use crate::arch::LATE_REGISTERS;

/// A call in progress; the assembly uses the offsets.
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
    /// Nesting level of the call; for a launch, 1 if it is captured.
    pub(crate) level: u64,
    pub(crate) reserved: u64,
    /// Further argument registers.
    #[cfg(target_arch = "aarch64")]
    pub(crate) late: [u64; 4],
}

#[cfg(target_arch = "x86_64")]
const _: () = assert!(size_of::<Frame>() == 112);
#[cfg(target_arch = "aarch64")]
const _: () = assert!(size_of::<Frame>() == 144);

const PAGE: u64 = 4096;
/// Words of the caller's stack that are copied if they are on the same page.
const SPARE_WORDS: u64 = 8;

/// Enter the function as if the wrapper did not exist.
pub(crate) const PASS: u32 = 0;
/// Call the function and record its result.
pub(crate) const RETURN: u32 = 1;

impl Frame {
    /// Returns the stack pointer at the entry of the function, or a word below it.
    pub(crate) const fn sp(&self) -> u64 {
        self.base + 8
    }

    /// Returns an argument in a register; 0 if the row has none.
    pub(crate) fn argument(&self, index: u8) -> u64 {
        self.args.get(usize::from(index)).copied().unwrap_or(0)
    }

    /// Returns the address of an argument that is passed in memory: the first one on the stack, or, on
    /// arm64, what a register points to.
    pub(crate) fn memory_argument(&self, index: u8) -> u64 {
        if cfg!(target_arch = "aarch64") { self.argument(index) } else { self.base + 16 }
    }

    /// Sets the number of words to copy: at least those of the row. On the same page, more words
    /// are copied than any function has, in case a row is wrong.
    pub(crate) const fn set_stack_words(&mut self, words: u8) {
        let end = self.base + 16 + SPARE_WORDS * 8;
        let is_same_page = self.base / PAGE == (end - 1) / PAGE;
        let spare = if is_same_page { SPARE_WORDS } else { 0 };
        let words = (words as u64).saturating_sub(LATE_REGISTERS);
        let words = if words > spare { words } else { spare };
        self.stack_words = words.next_multiple_of(2);
    }

    /// Reads the `index`th argument after the sixth.
    ///
    /// # Safety
    ///
    /// The wrapped function has this argument.
    pub(crate) unsafe fn late_argument(&self, index: u64) -> u64 {
        let Some(index) = index.checked_sub(LATE_REGISTERS) else {
            return self.late_register(index);
        };
        let address = self.base + 16 + index * 8;
        // SAFETY: the caller stored the argument on its stack.
        unsafe { (address as *const u64).read() }
    }
}

unsafe extern "C" {
    fn vramscope_wrapper();
    fn vramscope_block_wrapper();
}

/// Returns the address of the wrapper.
pub(crate) fn address() -> u64 {
    vramscope_wrapper as *const () as u64
}

/// Returns the address of the wrapper for functions of allocators. It always passes, and restores all
/// registers.
pub(crate) fn block_address() -> u64 {
    vramscope_block_wrapper as *const () as u64
}
