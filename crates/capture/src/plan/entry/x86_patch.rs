//! Moves the first instructions of a function of x86-64.

use std::cmp::Reverse;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpKind, Register,
};

use super::x86_prologue::{ARGUMENTS, attach_point, branch_targets, leaves_call_unchanged, writes};
use super::{JumpSite, Moved, Unmovable};

/// Size of the jump that is written over the entry.
pub const JUMP: usize = 5;

/// `int3`, which a uprobe writes over the first byte of an instruction.
pub const PROBE: [u8; 1] = [0xcc];

/// Maximum distance from the patched code: a 32-bit jump reaches 2 GiB, and moved instructions
/// access data next to the code.
pub const MAX_DISTANCE: u64 = 1 << 30;

/// Maximum size of moved instructions: each of up to 10 instructions grows by at most 4 bytes, and
/// the last one can be 15 bytes long.
const MAX_MOVED: usize = 80;
/// Maximum size of the code that undoes pushes: of six registers, and of space for variables.
const MAX_UNDO: usize = 32;
/// Bytes of code that can be written at once, if they are aligned.
const WORD: usize = 8;
/// `jmp *0(%rip)` and the address.
const LONG_JUMP: usize = 14;
/// `mov $hook, %r11d` and a long jump.
const STUB: usize = 6 + LONG_JUMP;
/// Maximum size of the code for one function.
pub const MAX_FUNCTION_BYTES: usize = MAX_MOVED + LONG_JUMP + MAX_UNDO + STUB;

/// Rewrites the first instructions of `code`, which starts at address `from`, so that they do the
/// same at address `to`. `code` is the function, or its known part.
pub fn move_entry(code: &[u8], from: u64, to: u64) -> Result<Moved, Unmovable> {
    let (offset, undo) = unchanged(code)?;
    move_until(code, from, to, (offset, undo), offset + JUMP)
}

/// Rewrites the instructions up to a jump, and the one that it replaces, as [`move_entry`].
pub fn move_to_site(code: &[u8], from: u64, to: u64, site: &JumpSite) -> Result<Moved, Unmovable> {
    let moved = move_until(code, from, to, (site.offset, site.undo.clone()), site.offset + 1)?;
    let fits = moved.code.len() <= MAX_MOVED && moved.undo.len() <= MAX_UNDO;
    if fits { Ok(moved) } else { Err(Unmovable::Unknown) }
}

/// Rewrites the first `end` bytes, up to the end of an instruction.
fn move_until(
    code: &[u8],
    from: u64,
    to: u64,
    (offset, undo): (usize, Vec<u8>),
    end: usize,
) -> Result<Moved, Unmovable> {
    let code_moved = Vec::with_capacity(MAX_MOVED);
    let mut moved = Moved { code: code_moved, length: 0, is_final: false, offset, undo };
    let mut decoder = Decoder::with_ip(64, code, from, DecoderOptions::NONE);
    while moved.length < end {
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
    // Targets are relative to the start of the function, and include recursive calls.
    let inside = |target: &u64| (1..moved.length as u64).contains(target);
    if branch_targets(code).iter().any(inside) {
        return Err(Unmovable::BranchTarget);
    }
    Ok(moved)
}

/// Returns the number of bytes up to the end of the instruction at the attach point, if the jump
/// would cover it, and code that undoes their pushes. The instructions before the attach point
/// change neither the stack pointer nor an argument, so they can run twice.
fn unchanged(code: &[u8]) -> Result<(usize, Vec<u8>), Unmovable> {
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

/// Returns the places for a jump that can be written while threads run the function, best first.
/// `address` is that of the function, and `arguments` their number in registers.
///
/// At the entry and at the attach point of probes only one byte changes, the opcode: a probe there may
/// restore it at any time.
pub fn jump_sites(code: &[u8], address: u64, arguments: usize) -> Vec<JumpSite> {
    let point = attach_point(code).offset;
    let targets = branch_targets(code);
    let mut before = Before::new(arguments);
    let mut sites = Vec::new();
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let offset = instruction.ip();
        let ends = instruction.is_invalid() || instruction.flow_control() != FlowControl::Next;
        if ends || offset as usize + JUMP > code.len() || offset > 0 && targets.contains(&offset) {
            break;
        }
        let is_probed = offset == 0 || offset == point;
        let space = WORD - (address.wrapping_add(offset) as usize) % WORD;
        let changed = if is_probed { 1 } else { instruction.len().min(JUMP).min(space) };
        // A target of indirect branches stays one.
        if instruction.mnemonic() != Mnemonic::Endbr64 {
            let undo = before.undo.clone();
            sites.push((is_probed, JumpSite { offset: offset as usize, changed, undo }));
        }
        if !before.add(&instruction) {
            break;
        }
    }
    sites.sort_by_key(|(is_probed, site)| (*is_probed, Reverse(site.changed)));
    sites.into_iter().map(|(_, site)| site).collect()
}

/// The instructions before a jump.
struct Before {
    arguments: usize,
    factory: InstructionInfoFactory,
    /// Registers that the function saved, and can change.
    saved: Vec<Register>,
    undo: Vec<u8>,
}

impl Before {
    fn new(arguments: usize) -> Self {
        let factory = InstructionInfoFactory::new();
        Self { arguments, factory, saved: Vec::new(), undo: Vec::new() }
    }

    /// Adds an instruction. Returns false if its effects cannot be undone.
    fn add(&mut self, instruction: &Instruction) -> bool {
        let undone = match instruction.code() {
            Code::Push_r64 => {
                self.saved.push(instruction.op0_register());
                pop(instruction.op0_register()).ok()
            }
            // `lea n(%rsp), %rsp`
            Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32
                if instruction.op0_register() == Register::RSP =>
            {
                let bytes = i32::try_from(instruction.immediate(1).cast_signed()).ok();
                bytes.map(|bytes| [&[0x48, 0x8d, 0xa4, 0x24][..], &bytes.to_le_bytes()].concat())
            }
            _ => return self.only_writes_own_registers(instruction),
        };
        // The last effect is undone first.
        undone.map(|code| self.undo.splice(0..0, code)).is_some()
    }

    /// Returns whether an instruction only writes registers that the function saved, or that the
    /// caller does not use after the call.
    fn only_writes_own_registers(&mut self, instruction: &Instruction) -> bool {
        let info = self.factory.info(instruction);
        leaves_call_unchanged(instruction, info, self.arguments)
            && info.used_registers().iter().filter(|used| writes(used.access())).all(|used| {
                let register = used.register().full_register();
                let is_free = matches!(register, Register::RAX | Register::R10 | Register::R11)
                    || ARGUMENTS.contains(&register);
                !register.is_gpr() || is_free || self.saved.contains(&register)
            })
    }
}

/// Returns whether a single-stepped instruction only continues with the next one.
fn is_plain(instruction: &Instruction) -> bool {
    instruction.flow_control() == FlowControl::Next
        && instruction.stack_pointer_increment() == 0
        && matches!(instruction.mnemonic(), Mnemonic::Endbr64 | Mnemonic::Nop)
}

/// Encodes `pop` of a 64-bit register.
fn pop(register: Register) -> Result<Vec<u8>, Unmovable> {
    let number = register.number() as u8;
    match number {
        0..8 => Ok(vec![0x58 | number]),
        8..16 => Ok(vec![0x41, 0x58 | (number - 8)]),
        _ => Err(Unmovable::Unknown),
    }
}

/// Adds one instruction, rewritten for address `at`.
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
        // A call pushes its address; a return ends the function.
        _ => return Err(Unmovable::Relative),
    }
    let start = moved.code.len();
    moved.code.extend_from_slice(bytes);
    if instruction.is_ip_rel_memory_operand() {
        let offsets = decoder.get_constant_offsets(instruction);
        if offsets.displacement_size() != 4 {
            return Err(Unmovable::Relative);
        }
        let next = at.wrapping_add(bytes.len() as u64);
        let distance = distance(next, instruction.ip_rel_memory_address())?;
        let offset = start + offsets.displacement_offset();
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

/// Returns a jump at address `from`.
pub fn jump(from: u64, to: u64) -> Result<[u8; JUMP], Unmovable> {
    let mut code = [0xe9, 0, 0, 0, 0];
    code[1..].copy_from_slice(&distance(from.wrapping_add(JUMP as u64), to)?.to_le_bytes());
    Ok(code)
}

/// Returns the jump back into a function, which changes no register.
pub fn return_jump(_from: u64, to: u64) -> Result<Vec<u8>, Unmovable> {
    Ok(long_jump(to).to_vec())
}

/// Returns code that jumps to the wrapper with the number of the hook in `r11d`.
#[must_use]
pub fn stub(hook: u32, wrapper: u64) -> Vec<u8> {
    [&[0x41, 0xbb][..], &hook.to_le_bytes(), &long_jump(wrapper)].concat()
}

/// Returns code that jumps to the wrapper with the number of the hook on the stack.
#[must_use]
pub fn block_stub(hook: u32, wrapper: u64) -> Vec<u8> {
    [&[0x68][..], &hook.to_le_bytes(), &long_jump(wrapper)].concat()
}

fn long_jump(target: u64) -> [u8; LONG_JUMP] {
    let mut code = [0xff, 0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    code[6..].copy_from_slice(&target.to_le_bytes());
    code
}

/// Returns the distance between two addresses, if 32 bits are enough.
fn distance(from: u64, to: u64) -> Result<i32, Unmovable> {
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

    /// Returns the target of the 32-bit displacement at `at`, of an instruction that ends at `end`.
    fn target(moved: &Moved, at: usize, end: u64) -> u64 {
        let field = i32::from_le_bytes(moved.code[at..at + 4].try_into().unwrap());
        TO.wrapping_add(end).wrapping_add_signed(field.into())
    }

    /// `cmpl $0x321cba00, x(%rip)`: first instruction of drivers 470, 535, 550 and 595.
    const CMPL: [u8; 10] = [0x81, 0x3d, 0x10, 0x20, 0x30, 0x01, 0x00, 0xba, 0x1c, 0x32];

    #[test]
    fn push_of_driver_580_keeps_its_place() {
        // push %rbp; mov %rsp,%rbp; push %r12; sub $8,%rsp: the push is undone by pop %rbp.
        let code = [0x55, 0x48, 0x89, 0xe5, 0x41, 0x54, 0x48, 0x83, 0xec, 0x08, 0xc3];
        assert_eq!(moved(&code), plain(&code[..6], 1, &[0x5d]));
    }

    #[test]
    fn ip_relative_operands_of_older_drivers_are_adjusted() {
        for rest in [&[0x74, 0x06, 0xff, 0x25, 1, 2, 3, 4][..], &[0x74, 0x10, 0x55, 0x48][..]] {
            let code = [&CMPL[..], rest].concat();
            let moved = moved(&code).unwrap();
            assert_eq!((moved.offset, moved.length, moved.is_final), (0, 10, false));
            assert_eq!(target(&moved, 2, 10), FROM + 10 + 0x0130_2010);
            assert_eq!(moved.code[6..], CMPL[6..]);
        }
    }

    #[test]
    fn libc10_prologues_are_moved() {
        // push %r14; mov %r8d,%r14d; push %r13; sub $8,%rsp
        let code = [0x41, 0x56, 0x45, 0x89, 0xc6, 0x41, 0x55, 0x48, 0x83, 0xec, 0x08, 0xc3];
        assert_eq!(moved(&code), plain(&code[..7], 2, &[0x41, 0x5e]));
        // mov x(%rip),%rax; push %r14: the attach point is the push, after the jump.
        let code = [0x48, 0x8b, 0x05, 0x29, 0xba, 0x0e, 0x00, 0x41, 0x56, 0xc3];
        let moved = moved(&code).unwrap();
        assert_eq!((moved.offset, moved.length, moved.code.len()), (0, 7, 7));
        assert_eq!(target(&moved, 3, 7), FROM + 7 + 0x000e_ba29);
    }

    #[test]
    fn short_jumps_become_long_with_the_same_target() {
        // The simulated driver: push %rbp; mov %rsp,%rbp; pop %rbp; jmp rel32
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
    fn endbr64_and_the_push_after_it_keep_their_place() {
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0x53, 0x48, 0x83, 0xec, 0x10, 0x31, 0xc0, 0xc3];
        assert_eq!(moved(&code), plain(&code[..11], 5, &[0x5b]));
    }

    #[test]
    fn functions_that_cannot_be_moved_are_rejected() {
        for (case, code, reason) in [
            ("no code", &[][..], Unmovable::Unknown),
            ("too short", &[0x31, 0xc0, 0xc3][..], Unmovable::Probed),
            ("truncated instruction", &[0x81, 0x3d, 0x10][..], Unmovable::Probed),
            ("invalid instruction", &[0x06, 0x06, 0x06, 0x06, 0x06][..], Unmovable::Probed),
            ("existing probe", &[0xcc, 0x48, 0x89, 0xe5][..], Unmovable::Probed),
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
            assert_eq!(moved(code), Err(reason), "{case}");
        }
        let far = move_entry(&[&CMPL[..], &[0x74, 0x06]].concat(), FROM, FROM + (1 << 33));
        assert_eq!(far, Err(Unmovable::TooFar));
    }

    /// Prologues of published builds, with the number of arguments, and the offset and the changed bytes
    /// of the best place for a jump.
    const POOL_PROLOGUES: [(&str, &[u8], usize, usize, usize); 6] = [
        // push %rbx; mov %rdi,%rbx; sub $16,%rsp; mov 24(%rsi),%rcx
        (
            "CuPy 12.3, _init",
            &[0x53, 0x48, 0x89, 0xfb, 0x48, 0x83, 0xec, 0x10, 0x48, 0x8b, 0x4e, 0x18, 0x48],
            3,
            4,
            4,
        ),
        // push %r12; mov %rdx,%r12; push %rbp; mov %rsi,%rbp; push %rbx; mov %rdi,%rbx; mov 64(%rdi),%rdi
        (
            "CuPy 14.2, _init",
            &[
                0x41, 0x54, 0x49, 0x89, 0xd4, 0x55, 0x48, 0x89, 0xf5, 0x53, 0x48, 0x89, 0xfb, 0x48,
                0x8b, 0x7f, 0x40, 0x48, 0x83, 0x06, 0x01,
            ],
            3,
            2,
            3,
        ),
        // push of six registers; sub $0x98,%rsp
        (
            "CuPy 12.3, free",
            &[
                0x41, 0x57, 0x41, 0x56, 0x41, 0x55, 0x41, 0x54, 0x55, 0x53, 0x48, 0x81, 0xec, 0x98,
                0, 0, 0, 0x4c, 0x8b, 0x77, 0x10,
            ],
            2,
            10,
            5,
        ),
        // push %rbp; mov %rsp,%rbp; push %r14; push %rbx; sub $112,%rsp; mov %fs:40,%rax
        (
            "XLA 0.5.3 and 0.11",
            &[
                0x55, 0x48, 0x89, 0xe5, 0x41, 0x56, 0x53, 0x48, 0x83, 0xec, 0x70, 0x64, 0x48, 0x8b,
                0x04, 0x25, 0x28, 0, 0, 0, 0x48, 0x89,
            ],
            6,
            11,
            5,
        ),
        // mov (%rdx),%rsi: overwrites an argument
        (
            "RMM 26.6 to 26.10, allocate_from_block",
            &[0x48, 0x8b, 0x32, 0x48, 0x89, 0xf8, 0x0f, 0xb6, 0x7a, 0x10],
            4,
            0,
            1,
        ),
        // mov 0xf8(%rsi),%r8; mov %rdi,%rax; add $0xf0,%rsi
        (
            "RMM 26.6 to 26.10, free_block",
            &[
                0x4c, 0x8b, 0x86, 0xf8, 0, 0, 0, 0x48, 0x89, 0xf8, 0x48, 0x81, 0xc6, 0xf0, 0, 0, 0,
                0x4d, 0x85, 0xc0,
            ],
            4,
            10,
            5,
        ),
    ];

    #[test]
    fn jumps_of_published_pools_change_one_instruction() {
        for (build, code, arguments, offset, changed) in POOL_PROLOGUES {
            let sites = jump_sites(code, FROM, arguments);
            assert_eq!((sites[0].offset, sites[0].changed), (offset, changed), "{build}");
            for site in &sites {
                let moved = move_to_site(code, FROM, TO, site).unwrap();
                let instruction = moved.length - site.offset;
                assert!(site.changed <= instruction.min(JUMP), "{build}: {site:?}");
                let word = FROM as usize + site.offset;
                assert_eq!(word / WORD, (word + site.changed - 1) / WORD, "{build}: {site:?}");
            }
            // The last one is at an instruction that probes replace: only its opcode changes.
            assert_eq!((sites.last().unwrap().offset, sites.last().unwrap().changed), (0, 1));
        }
    }

    #[test]
    fn effects_before_a_jump_are_undone_in_reverse() {
        let (_, code, arguments, ..) = POOL_PROLOGUES[3];
        let [site, ..] = &jump_sites(code, FROM, arguments)[..] else { panic!("no site") };
        // lea 112(%rsp),%rsp; pop %rbx; pop %r14; pop %rbp
        let undo = [0x48, 0x8d, 0xa4, 0x24, 112, 0, 0, 0, 0x5b, 0x41, 0x5e, 0x5d];
        assert_eq!(site.undo, undo);
    }

    #[test]
    fn code_without_a_place_for_a_jump_is_rejected() {
        for (case, code) in [
            ("ret", &[0xc3, 0x90, 0x90, 0x90, 0x90, 0x90][..]),
            ("too short", &[0x55, 0x48, 0x89, 0xe5][..]),
            ("jmp", &[0xe9, 0, 0, 0, 0, 0x90][..]),
        ] {
            assert_eq!(jump_sites(code, FROM, 6), [], "{case}");
        }
        // A loop to the second instruction.
        let code = [0x53, 0x90, 0x90, 0x90, 0x90, 0x90, 0x75, 0xf9, 0xc3];
        let sites = jump_sites(&code, FROM, 6);
        assert!(sites.iter().all(|site| site.offset == 0), "{sites:?}");
        assert_eq!(
            jump_sites(&[0xf3, 0x0f, 0x1e, 0xfa, 0xc3, 0x90, 0x90, 0x90, 0x90], FROM, 6),
            []
        );
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
                assert!(moved.length >= moved.offset + JUMP && moved.code.len() <= MAX_MOVED);
            }
            for site in jump_sites(&code, FROM, 6) {
                assert!((1..=JUMP).contains(&site.changed), "{site:?}");
                if let Ok(moved) = move_to_site(&code, FROM, TO, &site) {
                    assert!(moved.code.len() + moved.undo.len() <= MAX_MOVED + MAX_UNDO);
                }
            }
        }
    }
}
