//! Finds the instruction of a function of x86-64 to probe. A probe on an instruction that the kernel cannot
//! emulate is single-stepped, which costs 13–20 times as much in a virtual machine. Therefore the
//! first instructions are decoded, and the probe goes to the first one that is emulated, provided
//! that no instruction before it changes the stack pointer or an argument.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfo,
    InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

use super::AttachPoint;

/// Maximum bytes of a prologue that are searched: in real drivers 16 are enough.
const MAX_PROLOGUE_BYTES: usize = 64;

/// The System V argument registers.
pub(super) const ARGUMENTS: [Register; 6] =
    [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];

/// Returns the attach point of a function from its machine code (the first few hundred bytes are
/// enough). Falls back to the entry, single-stepped.
#[must_use]
pub fn attach_point(code: &[u8]) -> AttachPoint {
    let entry = AttachPoint { offset: 0, emulated: false };
    let targets = branch_targets(code);
    let prologue = &code[..code.len().min(MAX_PROLOGUE_BYTES)];
    let mut decoder = Decoder::with_ip(64, prologue, 0, DecoderOptions::NONE);
    let mut factory = InstructionInfoFactory::new();
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let offset = instruction.ip();
        if instruction.is_invalid() || (offset != 0 && targets.contains(&offset)) {
            // A loop back to here would count one call several times.
            return entry;
        }
        if is_emulated(&instruction) {
            return AttachPoint { offset, emulated: true };
        }
        if !is_harmless(&instruction, &mut factory) {
            return entry;
        }
    }
    entry
}

/// Returns whether x86 uprobes of all kernels since 4.x emulate an instruction.
fn is_emulated(instruction: &Instruction) -> bool {
    match instruction.code() {
        Code::Push_r64 | Code::Nopd | Code::Call_rel32_64 => true,
        Code::Jmp_rel8_64 | Code::Jmp_rel32_64 => true,
        _ => instruction.is_jcc_short_or_near(),
    }
}

/// Returns whether an instruction leaves the stack, the stack pointer and the arguments unchanged.
fn is_harmless(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> bool {
    leaves_call_unchanged(instruction, factory.info(instruction), ARGUMENTS.len())
}

/// Returns the same for a function with this number of arguments in registers.
pub(super) fn leaves_call_unchanged(
    instruction: &Instruction,
    info: &InstructionInfo,
    arguments: usize,
) -> bool {
    if instruction.flow_control() != FlowControl::Next
        || matches!(instruction.mnemonic(), Mnemonic::INVALID | Mnemonic::Int3 | Mnemonic::Syscall)
    {
        return false;
    }
    let preserved = |register| {
        register == Register::RSP || ARGUMENTS.iter().take(arguments).any(|one| *one == register)
    };
    let writes_preserved = info.used_registers().iter().any(|register| {
        writes(register.access()) && preserved(register.register().full_register())
    });
    let writes_memory = info.used_memory().iter().any(|memory| writes(memory.access()));
    !writes_preserved && !writes_memory
}

/// Returns whether an access can write.
pub(super) const fn writes(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

/// Returns the targets of branches inside the code.
pub(crate) fn branch_targets(code: &[u8]) -> Vec<u64> {
    let decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    decoder
        .into_iter()
        .take_while(|instruction| !instruction.is_invalid())
        .filter(|instruction| instruction.op0_kind() == OpKind::NearBranch64)
        .map(|instruction| instruction.near_branch_target())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn emulated_at(offset: u64) -> AttachPoint {
        AttachPoint { offset, emulated: true }
    }

    const AT_ENTRY: AttachPoint = AttachPoint { offset: 0, emulated: false };

    /// `cmpl $0x321cba00, x(%rip)`: the first instruction in drivers 470, 535, 550 and 595.
    const CMPL: [u8; 10] = [0x81, 0x3d, 0x10, 0x20, 0x30, 0x01, 0x00, 0xba, 0x1c, 0x32];

    fn code(parts: &[&[u8]]) -> Vec<u8> {
        parts.concat()
    }

    #[test]
    fn prologues_of_real_drivers() {
        let jump_table = code(&[&CMPL, &[0x74, 0x06], &[0xff, 0x25, 1, 2, 3, 4], &[0x55, 0xc3]]);
        let driver_595 = code(&[&CMPL, &[0x74, 0x10], &[0x55, 0x48, 0x89, 0xe5], &[0x5d, 0xc3]]);
        let driver_580 = [0x55, 0x48, 0x89, 0xe5, 0x41, 0x57, 0xc3];
        for (driver, code, expected) in [
            ("470", &jump_table[..], emulated_at(10)),
            ("535", &jump_table[..], emulated_at(10)),
            ("550", &jump_table[..], emulated_at(10)),
            ("580", &driver_580[..], emulated_at(0)),
            ("595", &driver_595[..], emulated_at(10)),
        ] {
            assert_eq!(attach_point(code), expected, "driver {driver}");
        }
    }

    #[test]
    fn prologues_of_libc10() {
        // 1.13 to 2.11: push %r14. 2.13 and 2.15: mov x(%rip),%rax; push %r14.
        assert_eq!(attach_point(&[0x41, 0x56, 0x45, 0x89, 0xc6, 0x41, 0x55]), emulated_at(0));
        let newer = [0x48, 0x8b, 0x05, 0x29, 0xba, 0x0e, 0x00, 0x41, 0x56, 0x45, 0x89, 0xc6];
        assert_eq!(attach_point(&newer), emulated_at(7));
    }

    #[test]
    fn instructions_that_change_the_call_end_the_search() {
        for (assembly, code) in [
            ("sub $24,%rsp; push", &[0x48, 0x83, 0xec, 0x18, 0x53][..]),
            ("mov %rsi,%rdi; push", &[0x48, 0x89, 0xf7, 0x53][..]),
            ("mov $1,%edi; push", &[0xbf, 1, 0, 0, 0, 0x53][..]),
            ("mov %rax,(%rdi); push", &[0x48, 0x89, 0x07, 0x53][..]),
            ("ret", &[0xc3][..]),
            ("jmp *x(%rip)", &[0xff, 0x25, 0, 0, 0, 0][..]),
            ("syscall; push", &[0x0f, 0x05, 0x53][..]),
            ("no code", &[][..]),
            ("no instruction", &[0x06, 0x06][..]),
            ("cut in the middle", &[0x81, 0x3d, 0x10][..]),
        ] {
            assert_eq!(attach_point(code), AT_ENTRY, "{assembly}");
        }
    }

    #[test]
    fn harmless_instructions_are_skipped() {
        for (assembly, code, offset) in [
            ("endbr64; push %rbp", &[0xf3, 0x0f, 0x1e, 0xfa, 0x55][..], 4),
            ("mov %rsp,%r10; push %r15", &[0x49, 0x89, 0xe2, 0x41, 0x57][..], 3),
            ("xor %eax,%eax; jmp", &[0x31, 0xc0, 0xeb, 0x02][..], 2),
            ("nop", &[0x90][..], 0),
            ("call", &[0xe8, 0, 0, 0, 0][..], 0),
        ] {
            assert_eq!(attach_point(code), emulated_at(offset), "{assembly}");
        }
    }

    #[test]
    fn branch_target_is_not_used() {
        // xor %eax,%eax; L: push %rbx; …; jne L
        let code = [0x31, 0xc0, 0x53, 0x90, 0x75, 0xfc, 0xc3];
        assert_eq!(attach_point(&code), AT_ENTRY);
    }

    #[test]
    fn attach_point_never_panics_on_random_code() {
        let mut state = crate::random::seed();
        for _ in 0..2000 {
            let code: Vec<u8> = (0..80)
                .map(|_| {
                    state =
                        state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (state >> 33) as u8
                })
                .collect();
            assert!(attach_point(&code).offset < MAX_PROLOGUE_BYTES as u64);
        }
    }
}
