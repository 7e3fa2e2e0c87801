//! Registers and unwinder of the processor that this program runs on, and so the traced programs.

#[cfg(target_arch = "x86_64")]
pub(super) use framehop::x86_64::{
    CacheX86_64 as Cache, UnwindRegsX86_64 as UnwindRegs, UnwinderX86_64 as Unwinder,
};

#[cfg(target_arch = "aarch64")]
pub(super) use framehop::aarch64::{
    CacheAarch64 as Cache, UnwindRegsAarch64 as UnwindRegs, UnwinderAarch64 as Unwinder,
};

use super::unwind::Registers;

/// Bits of a code address. On arm64, those above can be a signature of a return address.
const CODE_ADDRESS: u64 = if cfg!(target_arch = "aarch64") { (1 << 48) - 1 } else { u64::MAX };

/// Returns the address in a return address.
pub(super) const fn code_address(word: u64) -> u64 {
    word & CODE_ADDRESS
}

/// Returns the registers of a caller.
#[cfg(target_arch = "x86_64")]
pub(super) fn unwind_regs(registers: Registers) -> UnwindRegs {
    UnwindRegs::new(registers.ip, registers.sp, registers.bp)
}

/// Returns the registers of a caller.
#[cfg(target_arch = "aarch64")]
pub(super) fn unwind_regs(registers: Registers) -> UnwindRegs {
    let mask = framehop::aarch64::PtrAuthMask(CODE_ADDRESS);
    UnwindRegs::new_with_ptr_auth_mask(mask, registers.ip, registers.sp, registers.bp)
}

/// Returns the frame pointer.
pub(super) fn frame_pointer(registers: &UnwindRegs) -> u64 {
    #[cfg(target_arch = "x86_64")]
    return registers.bp();
    #[cfg(target_arch = "aarch64")]
    return registers.fp();
}

/// Sets the registers of a caller.
pub(super) fn set(registers: &mut UnwindRegs, caller: Registers) {
    *registers = unwind_regs(caller);
}
