//! Moves the first instructions of a function to other memory, so that a jump can take their place.
//!
//! The in-process library writes a jump of [`JUMP`] bytes over the beginning of a driver function.
//! The whole instructions in those bytes run elsewhere, followed by a jump back. What cannot be moved
//! without doubt is refused: the function then stays as it is.
//!
//! Probes may come to the same function at any time. The kernel runs the instruction that it replaced
//! from the file, and continues behind it: in the middle of our jump, if the jump covered it. So the
//! instruction that a probe goes to stays where it is, and the jump follows it. Before the wrapper
//! begins, pushes of the instructions that stayed are undone.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};

use crate::prologue::{attach_point, branch_targets};

/// Bytes of the jump that is written over the entry.
pub const JUMP: usize = 5;

/// Bytes of code that moved instructions can become, at most: each of up to 10 instructions grows by
/// at most 4 bytes, and the last one can be 15 bytes long.
pub const MOVED_MAX: usize = 80;

/// Reason why a function cannot be patched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unmovable {
    /// The bytes are not known instructions, or the function is too short.
    Unknown,
    /// A branch of the function leads into the bytes that would be overwritten.
    BranchTarget,
    /// An instruction depends on its address in a way that is not supported.
    Relative,
    /// A target is more than 2 GiB away from the new place.
    TooFar,
    /// The jump would cover the instruction that probes go to.
    Probed,
}

/// Moved instructions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moved {
    /// The instructions from the first one on, as they run at the new place.
    pub code: Vec<u8>,
    /// Bytes of the original that they stand for; the function continues there.
    pub length: usize,
    /// The last instruction never continues behind itself: no jump back is needed.
    pub is_final: bool,
    /// Bytes before the jump, whose instructions stay.
    pub offset: usize,
    /// Code that undoes what the instructions that stay did to the stack.
    pub undo: Vec<u8>,
}

/// Rewrites the first instructions of `code`, which begins at address `from`, so that they do the same
/// at address `to`. `code` is the function up to its end, or as much of it as is known.
pub fn move_entry(code: &[u8], from: u64, to: u64) -> Result<Moved, Unmovable> {
    let (offset, undo) = staying(code)?;
    let code_moved = Vec::with_capacity(MOVED_MAX);
    let mut moved = Moved { code: code_moved, length: 0, is_final: false, offset, undo };
    let mut decoder = Decoder::with_ip(64, code, from, DecoderOptions::NONE);
    while moved.length < offset + JUMP {
        if moved.is_final || !decoder.can_decode() {
            return Err(Unmovable::Unknown);
        }
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return Err(Unmovable::Unknown);
        }
        let end = moved.length + instruction.len();
        let bytes = code.get(moved.length..end).ok_or(Unmovable::Unknown)?;
        let at = to.wrapping_add(moved.code.len() as u64);
        append(&mut moved, &decoder, &instruction, bytes, at)?;
        moved.length = end;
    }
    // Targets are counted from the start of the function. A call of itself is one, too.
    let inside = |target: &u64| (1..moved.length as u64).contains(target);
    if branch_targets(code).iter().any(inside) {
        return Err(Unmovable::BranchTarget);
    }
    Ok(moved)
}

/// Bytes up to behind the instruction that a probe goes to, where the jump would cover that one, and
/// code that undoes their pushes. The instructions before it change nothing that the call depends on,
/// so they can run twice.
fn staying(code: &[u8]) -> Result<(usize, Vec<u8>), Unmovable> {
    let point = attach_point(code);
    if point.offset >= JUMP as u64 {
        return Ok((0, Vec::new()));
    }
    let mut undo = Vec::new();
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.ip() > point.offset {
            return Ok((instruction.ip() as usize, undo));
        }
        if instruction.code() == Code::Push_r64 {
            // The last push is undone first.
            undo.splice(0..0, pop(instruction.op0_register())?);
        } else if instruction.ip() == point.offset
            && (point.emulated && instruction.mnemonic() != Mnemonic::Nop
                || !is_plain(&instruction))
        {
            return Err(Unmovable::Probed);
        }
    }
    Err(Unmovable::Unknown)
}

/// Whether a single-stepped instruction continues behind itself and leaves the stack as it is.
fn is_plain(instruction: &Instruction) -> bool {
    instruction.flow_control() == FlowControl::Next
        && instruction.stack_pointer_increment() == 0
        && matches!(instruction.mnemonic(), Mnemonic::Endbr64 | Mnemonic::Nop)
}

/// `pop` into a 64-bit register.
fn pop(register: Register) -> Result<Vec<u8>, Unmovable> {
    let number = register.number() as u8;
    match number {
        0..8 => Ok(vec![0x58 | number]),
        8..16 => Ok(vec![0x41, 0x58 | (number - 8)]),
        _ => Err(Unmovable::Unknown),
    }
}

/// Adds one instruction, which runs at address `at` from now on.
fn append(
    moved: &mut Moved,
    decoder: &Decoder<'_>,
    instruction: &Instruction,
    bytes: &[u8],
    at: u64,
) -> Result<(), Unmovable> {
    if instruction.op0_kind() == OpKind::NearBranch64 {
        return append_branch(moved, instruction, at);
    }
    match instruction.flow_control() {
        FlowControl::Next => {}
        FlowControl::IndirectBranch => moved.is_final = true,
        // A call pushes its address; a return leaves nothing to move.
        _ => return Err(Unmovable::Relative),
    }
    let start = moved.code.len();
    moved.code.extend_from_slice(bytes);
    if instruction.is_ip_rel_memory_operand() {
        let place = decoder.get_constant_offsets(instruction);
        if place.displacement_size() != 4 {
            return Err(Unmovable::Relative);
        }
        let next = at.wrapping_add(bytes.len() as u64);
        let distance = distance(next, instruction.ip_rel_memory_address())?;
        let offset = start + place.displacement_offset();
        let field = moved.code.get_mut(offset..offset + 4).ok_or(Unmovable::Relative)?;
        field.copy_from_slice(&distance.to_le_bytes());
    }
    Ok(())
}

/// Adds a jump, in its long form.
fn append_branch(moved: &mut Moved, instruction: &Instruction, at: u64) -> Result<(), Unmovable> {
    let target = instruction.near_branch_target();
    let opcode: &[u8] = match instruction.flow_control() {
        FlowControl::UnconditionalBranch => {
            moved.is_final = true;
            &[0xe9]
        }
        FlowControl::ConditionalBranch if instruction.is_jcc_short_or_near() => {
            &[0x0f, 0x80 | (instruction.condition_code() as u8).wrapping_sub(1)]
        }
        _ => return Err(Unmovable::Relative),
    };
    let next = at.wrapping_add(opcode.len() as u64 + 4);
    let distance = distance(next, target)?;
    moved.code.extend_from_slice(opcode);
    moved.code.extend_from_slice(&distance.to_le_bytes());
    Ok(())
}

/// Bytes from one address to another, where 32 bits are enough.
pub fn distance(from: u64, to: u64) -> Result<i32, Unmovable> {
    i32::try_from(to.wrapping_sub(from) as i64).map_err(|_| Unmovable::TooFar)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: u64 = 0x7f00_0000_1000;
    const TO: u64 = 0x7f00_1000_0000;

    fn moved(code: &[u8]) -> Result<Moved, Unmovable> {
        move_entry(code, FROM, TO)
    }

    /// Instructions that run unchanged at another address.
    fn plain(code: &[u8], offset: usize, undo: &[u8]) -> Result<Moved, Unmovable> {
        let (length, undo) = (code.len(), undo.to_vec());
        Ok(Moved { code: code.to_vec(), length, is_final: false, offset, undo })
    }

    /// Where the 32-bit field at `at` leads that ends an instruction at `end`.
    fn target(moved: &Moved, at: usize, end: u64) -> u64 {
        let field = i32::from_le_bytes(moved.code[at..at + 4].try_into().unwrap());
        TO.wrapping_add(end).wrapping_add_signed(field.into())
    }

    /// `cmpl $0x321cba00, x(%rip)`: 470, 535, 550 and 595 begin with it.
    const CMPL: [u8; 10] = [0x81, 0x3d, 0x10, 0x20, 0x30, 0x01, 0x00, 0xba, 0x1c, 0x32];

    #[test]
    fn driver_580_keeps_its_push_for_probes() {
        // push %rbp; mov %rsp,%rbp; push %r12; sub $8,%rsp: the push is undone by pop %rbp.
        let code = [0x55, 0x48, 0x89, 0xe5, 0x41, 0x54, 0x48, 0x83, 0xec, 0x08, 0xc3];
        assert_eq!(moved(&code), plain(&code[..6], 1, &[0x5d]));
    }

    #[test]
    fn older_driver_prologues_get_a_new_displacement() {
        for rest in [&[0x74, 0x06, 0xff, 0x25, 1, 2, 3, 4][..], &[0x74, 0x10, 0x55, 0x48][..]] {
            let code = [&CMPL[..], rest].concat();
            let moved = moved(&code).unwrap();
            assert_eq!((moved.offset, moved.length, moved.is_final), (0, 10, false));
            assert_eq!(target(&moved, 2, 10), FROM + 10 + 0x0130_2010);
            assert_eq!(moved.code[6..], CMPL[6..]);
        }
    }

    #[test]
    fn libc10_prologues_move() {
        // push %r14; mov %r8d,%r14d; push %r13; sub $8,%rsp
        let code = [0x41, 0x56, 0x45, 0x89, 0xc6, 0x41, 0x55, 0x48, 0x83, 0xec, 0x08, 0xc3];
        assert_eq!(moved(&code), plain(&code[..7], 2, &[0x41, 0x5e]));
        // mov x(%rip),%rax; push %r14: probes go to the push, behind the jump.
        let code = [0x48, 0x8b, 0x05, 0x29, 0xba, 0x0e, 0x00, 0x41, 0x56, 0xc3];
        let moved = moved(&code).unwrap();
        assert_eq!((moved.offset, moved.length, moved.code.len()), (0, 7, 7));
        assert_eq!(target(&moved, 3, 7), FROM + 7 + 0x000e_ba29);
    }

    #[test]
    fn jumps_become_long_and_keep_their_target() {
        // As the simulated driver: push %rbp; mov %rsp,%rbp; pop %rbp; jmp rel32
        let code = [0x55, 0x48, 0x89, 0xe5, 0x5d, 0xe9, 0x00, 0x01, 0x00, 0x00];
        let moved = moved(&code).unwrap();
        assert_eq!((moved.offset, moved.length, moved.is_final), (1, 10, true));
        assert_eq!(target(&moved, 6, 10), FROM + 10 + 0x100);
        // mov $1,%eax; je +0x40; push
        let code = [&[0x31, 0xc0, 0x85, 0xff, 0x90, 0x74, 0x40, 0x53][..], &[0x90; 80]].concat();
        let moved = self::moved(&code).unwrap();
        assert_eq!(moved.offset, 5);
        assert_eq!(moved.code[5..7], [0x0f, 0x84]);
        assert_eq!(target(&moved, 7, 11), FROM + 7 + 0x40);
    }

    #[test]
    fn endbr64_and_the_push_behind_it_stay() {
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0x53, 0x48, 0x83, 0xec, 0x10, 0x31, 0xc0, 0xc3];
        assert_eq!(moved(&code), plain(&code[..11], 5, &[0x5b]));
    }

    #[test]
    fn doubtful_functions_are_refused() {
        for (what, code, reason) in [
            ("no code", &[][..], Unmovable::Unknown),
            ("too short", &[0x31, 0xc0, 0xc3][..], Unmovable::Probed),
            ("cut in an instruction", &[0x81, 0x3d, 0x10][..], Unmovable::Probed),
            ("no instruction", &[0x06, 0x06, 0x06, 0x06, 0x06][..], Unmovable::Probed),
            ("a probe that is there already", &[0xcc, 0x48, 0x89, 0xe5][..], Unmovable::Probed),
            ("call", &[0xe8, 0, 0, 0, 0, 0xc3][..], Unmovable::Probed),
            ("jmp rel32, as another tool's hook", &[0xe9, 0, 1, 0, 0, 0x90][..], Unmovable::Probed),
            (
                "stack pointer changed before a push",
                &[0x48, 0x83, 0xec, 0x18, 0x53, 0x90, 0x90, 0x90, 0xc3][..],
                Unmovable::Probed,
            ),
            // push %rbx; L at 1: nop; ...; jne L
            (
                "a loop into the entry",
                &[0x53, 0x90, 0x90, 0x90, 0x90, 0x90, 0x75, 0xfb, 0xc3][..],
                Unmovable::BranchTarget,
            ),
        ] {
            assert_eq!(moved(code), Err(reason), "{what}");
        }
        let far = move_entry(&[&CMPL[..], &[0x74, 0x06]].concat(), FROM, FROM + (1 << 33));
        assert_eq!(far, Err(Unmovable::TooFar));
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut state = crate::random::seed();
        for _ in 0..20_000 {
            let code: Vec<u8> = (0..80)
                .map(|_| {
                    state =
                        state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (state >> 33) as u8
                })
                .collect();
            if let Ok(moved) = move_entry(&code, FROM, TO) {
                assert!(moved.length >= moved.offset + JUMP && moved.code.len() <= MOVED_MAX);
            }
        }
    }
}
