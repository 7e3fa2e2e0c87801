//! Instructions of arm64. Each has four bytes, so a jump replaces one.
//!
//! Drivers 535 and 550 start their functions with `adrp`, which the kernel emulates.

use super::{AttachPoint, JumpSite, Moved, Unmovable};

/// Size of an instruction.
const WORD: usize = 4;
/// Size of the jump that is written over an instruction.
pub const JUMP: usize = WORD;
/// `brk #5`, which a uprobe writes over an instruction.
pub const PROBE: [u8; WORD] = 0xd420_00a0_u32.to_le_bytes();
/// Maximum distance from the patched code: a branch reaches 128 MiB.
pub const MAX_DISTANCE: u64 = 120 << 20;
/// Maximum size of the code for one function: three moved instructions of up to five words, two
/// words that undo others, the jump back and the stub.
pub const MAX_FUNCTION_BYTES: usize = 3 * 5 * WORD + 2 * WORD + WORD + STUB;
/// `movz`, `ldr`, `br` and the address of the wrapper.
const STUB: usize = 3 * WORD + 8;

const STACK_POINTER: u32 = 31;
const NOP: u32 = 0xd503_201f;
const BRANCH: u32 = 0x1400_0000;

/// An instruction whose effect depends on its address, with its target relative to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Relative {
    /// `adr`, `adrp`: sets a register to an address; the second value is for `adrp`.
    Address(i64),
    /// `ldr` with a literal.
    Load(i64),
    /// `b`.
    Jump(i64),
    /// `bl`.
    Call(i64),
    /// `b.cond`, `cbz`, `tbz` and their opposites; the word is the instruction without its target.
    Condition(i64, u32),
}

/// Returns a signed field of an instruction.
const fn field(word: u32, low: u32, bits: u32) -> i64 {
    ((word << (32 - low - bits)).cast_signed() >> (32 - bits)) as i64
}

/// Decodes an instruction at an address, of which `adrp` uses the page.
const fn relative(word: u32, address: u64) -> Option<Relative> {
    let found = if word & 0x1f00_0000 == 0x1000_0000 {
        let bytes = field(word, 5, 19) << 2 | (word >> 29 & 3) as i64;
        let page = (address & 0xfff).cast_signed();
        Relative::Address(if word >> 31 == 0 { bytes } else { (bytes << 12) - page })
    } else if word & 0x3b00_0000 == 0x1800_0000 {
        Relative::Load(field(word, 5, 19) << 2)
    } else if word & 0xfc00_0000 == BRANCH {
        Relative::Jump(field(word, 0, 26) << 2)
    } else if word & 0xfc00_0000 == 0x9400_0000 {
        Relative::Call(field(word, 0, 26) << 2)
    } else if word & 0xff00_0000 == 0x5400_0000 || word & 0x7e00_0000 == 0x3400_0000 {
        Relative::Condition(field(word, 5, 19) << 2, word & !(0x7_ffff << 5))
    } else if word & 0x7e00_0000 == 0x3600_0000 {
        Relative::Condition(field(word, 5, 14) << 2, word & !(0x3fff << 5))
    } else {
        return None;
    };
    Some(found)
}

/// Returns whether an instruction only marks a target of indirect branches (`bti`).
const fn is_bti(word: u32) -> bool {
    word & 0xffff_ff3f == 0xd503_241f
}

/// Returns whether an instruction is `br`, `blr` or `ret`.
const fn is_indirect_branch(word: u32) -> bool {
    matches!(word & 0xffff_fc1f, 0xd61f_0000 | 0xd63f_0000 | 0xd65f_0000)
}

/// Returns whether arm64 uprobes of all kernels emulate an instruction.
const fn is_emulated(word: u32) -> bool {
    match relative(word, 0) {
        // Neither vectors nor prefetches.
        Some(Relative::Load(_)) => word & 1 << 26 == 0 && word >> 30 != 3,
        Some(_) => true,
        None => is_indirect_branch(word),
    }
}

fn word_at(code: &[u8], offset: usize) -> Option<u32> {
    let bytes = code.get(offset..offset.checked_add(WORD)?)?;
    bytes.try_into().ok().map(u32::from_le_bytes)
}

/// Returns the attach point of a function from its code: the entry, or the instruction after `bti`
/// if the kernel emulates it. Later ones do not qualify, because registers of unused arguments may
/// have changed.
#[must_use]
pub fn attach_point(code: &[u8]) -> AttachPoint {
    let offset = if word_at(code, 0).is_some_and(is_bti) { WORD } else { 0 };
    let emulated = word_at(code, offset).is_some_and(is_emulated)
        && (offset == 0 || !is_branch_target(code, offset..offset + 1));
    AttachPoint { offset: if emulated { offset as u64 } else { 0 }, emulated }
}

/// Returns whether a branch of the function leads to one of these offsets.
fn is_branch_target(code: &[u8], offsets: std::ops::Range<usize>) -> bool {
    let words = code.chunks_exact(WORD).enumerate();
    words.filter_map(|(index, _)| Some((index * WORD, word_at(code, index * WORD)?))).any(
        |(at, word)| match relative(word, 0) {
            Some(
                Relative::Jump(distance)
                | Relative::Call(distance)
                | Relative::Condition(distance, _),
            ) => at
                .checked_add_signed(distance as isize)
                .is_some_and(|target| offsets.contains(&target)),
            _ => false,
        },
    )
}

/// Rewrites the first instructions of `code`, which starts at address `from`, so that they do the
/// same at address `to`. `code` is the function, or its known part.
pub fn move_entry(code: &[u8], from: u64, to: u64) -> Result<Moved, Unmovable> {
    let offset = attach_point(code).offset as usize + WORD;
    let length = offset + WORD;
    let mut moved = Moved { code: Vec::new(), length, is_final: false, offset, undo: Vec::new() };
    for at in (0..length).step_by(WORD) {
        let word = word_at(code, at).ok_or(Unmovable::Unknown)?;
        if moved.is_final {
            return Err(Unmovable::Unknown);
        }
        if at < offset
            && let Some(undo) = undo(word)?
        {
            // The last effect is undone first.
            moved.undo.splice(0..0, undo.to_le_bytes());
        }
        append(&mut moved, word, from.wrapping_add(at as u64), to)?;
    }
    if is_branch_target(code, 1..length) {
        return Err(Unmovable::BranchTarget);
    }
    Ok(moved)
}

/// Returns the places for a jump that can be written while threads run the function. `_address` is that
/// of the function, and `_arguments` their number in registers.
pub fn jump_sites(code: &[u8], address: u64, _arguments: usize) -> Vec<JumpSite> {
    let site = |moved: Moved| JumpSite { offset: moved.offset, changed: JUMP, undo: moved.undo };
    move_entry(code, address, address).map(site).into_iter().collect()
}

/// Rewrites the instructions up to a jump, and the one that it replaces, as [`move_entry`].
pub fn move_to_site(code: &[u8], from: u64, to: u64, _site: &JumpSite) -> Result<Moved, Unmovable> {
    move_entry(code, from, to)
}

/// Returns the instruction that undoes another one, if running it twice would matter.
const fn undo(word: u32) -> Result<Option<u32>, Unmovable> {
    let base = word >> 5 & 31;
    Ok(Some(match word {
        // `paciasp` and `pacibsp`: `autiasp` and `autibsp`.
        0xd503_233f | 0xd503_237f => word | 0x80,
        // `sub sp, sp, #n`: `add sp, sp, #n`.
        _ if word & 0xff80_03ff == 0xd100_03ff => word & !(1 << 30),
        // `stp a, b, [sp, #-n]!`: `ldp a, b, [sp], #n`.
        _ if word & 0xffc0_0000 == 0xa980_0000 && base == STACK_POINTER => {
            let back = -field(word, 15, 7);
            if back > 63 {
                return Err(Unmovable::Probed);
            }
            0xa8c0_0000 | (back as u32 & 0x7f) << 15 | word & 0x7fff
        }
        // `str a, [sp, #-n]!`: `ldr a, [sp], #n`.
        _ if word & 0xffe0_0c00 == 0xf800_0c00 && base == STACK_POINTER => {
            let back = -field(word, 12, 9);
            if back > 255 {
                return Err(Unmovable::Probed);
            }
            0xf840_0400 | (back as u32 & 0x1ff) << 12 | word & 0x3ff
        }
        // `adr`, `adrp`, `movz` and `movn` set a register to the same value again. It does not hold
        // an argument: the function would not overwrite it first.
        _ if word == NOP
            || is_bti(word)
            || matches!(relative(word, 0), Some(Relative::Address(_)))
            || matches!(word & 0x7f80_0000, 0x5280_0000 | 0x1280_0000) =>
        {
            return Ok(None);
        }
        _ => return Err(Unmovable::Probed),
    }))
}

/// Adds the instruction at address `from`, rewritten for its place after the others, which start at
/// address `to`.
fn append(moved: &mut Moved, word: u32, from: u64, to: u64) -> Result<(), Unmovable> {
    let target = |distance: i64| from.wrapping_add_signed(distance);
    let register = word & 31;
    match relative(word, from) {
        Some(Relative::Address(distance)) => set_register(moved, register, target(distance)),
        Some(Relative::Load(distance)) => {
            let load = match word >> 24 {
                0x18 => 0xb940_0000,
                0x58 => 0xf940_0000,
                0x98 => 0xb980_0000,
                _ => return Err(Unmovable::Relative),
            };
            if register == 31 {
                return Err(Unmovable::Relative);
            }
            set_register(moved, register, target(distance));
            push(moved, load | register << 5 | register);
        }
        Some(Relative::Jump(distance)) => {
            let at = to.wrapping_add(moved.code.len() as u64);
            moved.code.extend_from_slice(&jump(at, target(distance))?);
            moved.is_final = true;
        }
        // The condition skips the branch around the jump, which reaches further.
        Some(Relative::Condition(distance, condition)) => {
            push(moved, condition | 2 << 5);
            push(moved, BRANCH | 2);
            let at = to.wrapping_add(moved.code.len() as u64);
            moved.code.extend_from_slice(&jump(at, target(distance))?);
        }
        // A call stores its address; a return ends the function.
        Some(Relative::Call(_)) => return Err(Unmovable::Relative),
        None if word & 0xffff_fc1f == 0xd61f_0000 => {
            push(moved, word);
            moved.is_final = true;
        }
        // Other branches to registers, and exceptions: `svc`, `brk`.
        None if word & 0xfe00_0000 == 0xd600_0000 || word >> 24 == 0xd4 => {
            return Err(Unmovable::Relative);
        }
        // `udf`.
        None if word >> 16 == 0 => return Err(Unmovable::Unknown),
        None => push(moved, word),
    }
    Ok(())
}

fn push(moved: &mut Moved, word: u32) {
    moved.code.extend_from_slice(&word.to_le_bytes());
}

/// Adds `movz` and three `movk`.
fn set_register(moved: &mut Moved, register: u32, value: u64) {
    for part in 0..4_u32 {
        let opcode = if part == 0 { 0xd280_0000 } else { 0xf280_0000 };
        let bits = (value >> (part * 16)) as u32 & 0xffff;
        push(moved, opcode | part << 21 | bits << 5 | register);
    }
}

/// Returns a jump at address `from`.
pub fn jump(from: u64, to: u64) -> Result<[u8; JUMP], Unmovable> {
    let words = to.wrapping_sub(from).cast_signed() >> 2;
    if !(-(1 << 25)..1 << 25).contains(&words) {
        return Err(Unmovable::TooFar);
    }
    Ok((BRANCH | words as u32 & 0x3ff_ffff).to_le_bytes())
}

/// Returns the jump at address `from` back into a function, which changes no register.
pub fn return_jump(from: u64, to: u64) -> Result<Vec<u8>, Unmovable> {
    jump(from, to).map(Vec::from)
}

/// Returns code that jumps to the wrapper with the number of the hook in `x17`.
#[must_use]
pub fn stub(hook: u32, wrapper: u64) -> Vec<u8> {
    // movz w17, #hook; ldr x16, wrapper; br x16
    let words = [0x5280_0011 | (hook & 0xffff) << 5, 0x5800_0050, 0xd61f_0200];
    words.into_iter().flat_map(u32::to_le_bytes).chain(wrapper.to_le_bytes()).collect()
}

/// Returns the same for functions of allocators: every call may change `x16` and `x17`.
#[must_use]
pub fn block_stub(hook: u32, wrapper: u64) -> Vec<u8> {
    stub(hook, wrapper)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: u64 = 0x7f00_0000_1230;
    const TO: u64 = 0x7f00_0400_0000;

    /// `cuMemAlloc_v2` of driver 550.163.01: adrp x3, +0x18f0000; mov w2, #0xba00; movk w2, #0x321c,
    /// lsl #16; ldr w3, [x3, #2216]; cmp w3, w2; b.eq +20; adrp x2; ldr x2, [x2, #4056];
    /// mov x16, x2; br x16; mov w0, #4; ret.
    const DRIVER_550: [u32; 12] = [
        0x9000_c783,
        0x5297_4002,
        0x72a6_4382,
        0xb948_a863,
        0x6b02_007f,
        0x5400_00a0,
        0xb000_c002,
        0xf947_ec42,
        0xaa02_03f0,
        0xd61f_0200,
        0x5280_0080,
        0xd65f_03c0,
    ];
    const BTI_C: u32 = 0xd503_245f;
    const PACIASP: u32 = 0xd503_233f;
    const AUTIASP: u32 = 0xd503_23bf;
    const RET: u32 = 0xd65f_03c0;
    /// `stp x29, x30, [sp, #-32]!` and `ldp x29, x30, [sp], #32`.
    const STP: u32 = 0xa9be_7bfd;
    const LDP: u32 = 0xa8c2_7bfd;
    /// `mov x29, sp`.
    const MOV_FP: u32 = 0x9100_03fd;

    fn code(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn words(code: &[u8]) -> Vec<u32> {
        code.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    fn moved(words: &[u32]) -> Result<Moved, Unmovable> {
        move_entry(&code(words), FROM, TO)
    }

    /// Returns the value that `movz` and three `movk` of a register set.
    fn constant(words: &[u32], register: u32) -> u64 {
        words.iter().enumerate().fold(0, |value, (part, word)| {
            let opcode = if part == 0 { 0xd280_0000 } else { 0xf280_0000 };
            assert_eq!(word & 0xff80_001f, opcode | register, "{word:x}");
            assert_eq!((word >> 21 & 3) as usize, part);
            value | u64::from(word >> 5 & 0xffff) << (part * 16)
        })
    }

    /// Returns the target of a `b`.
    fn target(word: u32, at: u64) -> u64 {
        assert_eq!(word & 0xfc00_0000, BRANCH);
        at.wrapping_add_signed(field(word, 0, 26) << 2)
    }

    #[test]
    fn attach_points_of_entries() {
        let at = |offset, emulated| AttachPoint { offset, emulated };
        for (case, words, expected) in [
            ("driver 550", &DRIVER_550[..], at(0, true)),
            ("stp; mov", &[STP, MOV_FP, RET], at(0, false)),
            ("bti; adrp", &[BTI_C, DRIVER_550[0], RET], at(4, true)),
            ("bti; stp", &[BTI_C, STP, RET], at(0, false)),
            ("paciasp; adrp", &[PACIASP, DRIVER_550[0], RET], at(0, false)),
            ("ret", &[RET], at(0, true)),
            ("cbz x0, +8", &[0xb400_0040, RET], at(0, true)),
            ("tbz w0, #3, +8", &[0x3618_0040, RET], at(0, true)),
            ("ldr x1, +8", &[0x5800_0041, RET], at(0, true)),
            ("ldr q1, +16", &[0x9c00_0081, RET], at(0, false)),
            ("prfm pldl1keep, +8", &[0xd800_0040, RET], at(0, false)),
            ("bti; L: adrp; b L", &[BTI_C, DRIVER_550[0], 0x17ff_ffff], at(0, false)),
            ("no code", &[], at(0, false)),
        ] {
            assert_eq!(attach_point(&code(words)), expected, "{case}");
        }
    }

    #[test]
    fn entries_of_real_drivers_are_moved() {
        let moved = moved(&DRIVER_550).unwrap();
        assert_eq!((moved.offset, moved.length, moved.is_final), (4, 8, false));
        assert!(moved.undo.is_empty());
        let words = words(&moved.code);
        assert_eq!(constant(&words[..4], 3), (FROM & !0xfff) + 0x018f_0000);
        assert_eq!(words[4..], DRIVER_550[1..2]);
    }

    #[test]
    fn effects_before_the_jump_are_undone() {
        for (case, first, undo) in [
            ("stp x29, x30, [sp, #-32]!", STP, LDP),
            ("paciasp", PACIASP, AUTIASP),
            ("str x30, [sp, #-16]!", 0xf81f_0ffe, 0xf841_07fe),
            ("sub sp, sp, #48", 0xd100_c3ff, 0x9100_c3ff),
        ] {
            let moved = moved(&[first, MOV_FP, RET, RET]).unwrap();
            assert_eq!(words(&moved.undo), [undo], "{case}");
            assert_eq!((moved.offset, words(&moved.code)), (4, vec![first, MOV_FP]), "{case}");
        }
        let after_bti = moved(&[BTI_C, DRIVER_550[0], MOV_FP, RET]).unwrap();
        assert_eq!((after_bti.offset, after_bti.length), (8, 12));
        assert!(after_bti.undo.is_empty());
    }

    #[test]
    fn relative_instructions_keep_their_targets() {
        // The simulated driver: stp; mov; ldp; b. Here the jump comes second.
        let tail = moved(&[STP, 0x1400_0040, RET]).unwrap();
        assert!(tail.is_final);
        assert_eq!(target(words(&tail.code)[1], TO + 4), FROM + 4 + 0x100);
        for (case, word, kept) in [
            ("b.ne +64", 0x5400_0201, 0x5400_0041),
            ("cbnz w2, +64", 0x3500_0202, 0x3500_0042),
            ("tbnz x3, #40, +64", 0xb740_0203, 0xb740_0043),
        ] {
            let moved = moved(&[STP, word, RET]).unwrap();
            let words = words(&moved.code);
            assert_eq!(words[1..3], [kept, BRANCH | 2], "{case}");
            assert_eq!(target(words[3], TO + 12), FROM + 4 + 64, "{case}");
            assert!(!moved.is_final);
        }
        for (case, word, load) in [
            ("ldr x9, -8", 0x58ff_ffc9, 0xf940_0129),
            ("ldr w9, -8", 0x18ff_ffc9, 0xb940_0129),
            ("ldrsw x9, -8", 0x98ff_ffc9, 0xb980_0129),
        ] {
            let words = words(&moved(&[STP, word, RET]).unwrap().code);
            assert_eq!(constant(&words[1..5], 9), FROM + 4 - 8, "{case}");
            assert_eq!(words[5], load, "{case}");
        }
        // adr x5, -1
        let words = words(&moved(&[STP, 0x70ff_ffe5, RET]).unwrap().code);
        assert_eq!(constant(&words[1..5], 5), FROM + 3);
    }

    #[test]
    fn functions_that_cannot_be_moved_are_rejected() {
        for (case, words, reason) in [
            ("no code", &[][..], Unmovable::Unknown),
            ("too short", &[STP], Unmovable::Unknown),
            ("ret first", &[RET, RET], Unmovable::Probed),
            ("mov x0, x1 first", &[0xaa01_03e0, RET, RET], Unmovable::Probed),
            ("bl second", &[STP, 0x9400_0010, RET], Unmovable::Relative),
            ("ret second", &[STP, RET], Unmovable::Relative),
            ("svc second", &[STP, 0xd400_0001, RET], Unmovable::Relative),
            ("udf second", &[STP, 0, RET], Unmovable::Unknown),
            ("ldr q second", &[STP, 0x9c00_0081, RET], Unmovable::Relative),
            ("a loop into the entry", &[STP, MOV_FP, 0x17ff_ffff], Unmovable::BranchTarget),
            ("stp with the largest offset", &[0xa9a0_7bfd, MOV_FP, RET], Unmovable::Probed),
        ] {
            assert_eq!(moved(words), Err(reason), "{case}");
        }
        let far = move_entry(&code(&[STP, 0x1400_0040]), FROM, FROM + (1 << 28));
        assert_eq!(far, Err(Unmovable::TooFar));
    }

    #[test]
    fn jumps_and_stubs_are_encoded() {
        assert_eq!(target(words(&jump(FROM, TO).unwrap())[0], FROM), TO);
        assert_eq!(target(words(&jump(TO, FROM).unwrap())[0], TO), FROM);
        assert_eq!(jump(0, 1 << 27), Err(Unmovable::TooFar));
        assert!(jump(1 << 27, 0).is_ok());
        let stub = stub(255, FROM);
        // mov w17, #255; ldr x16, +8; br x16
        assert_eq!(words(&stub[..12]), [0x5280_1ff1, 0x5800_0050, 0xd61f_0200]);
        assert_eq!(stub[12..], FROM.to_le_bytes());
    }

    #[test]
    fn random_words_never_panic() {
        let mut state = crate::random::seed();
        for _ in 0..20_000 {
            let words: Vec<u32> = (0..16)
                .map(|_| {
                    state =
                        state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (state >> 32) as u32
                })
                .collect();
            if let Ok(moved) = moved(&words) {
                let bytes = moved.code.len() + moved.undo.len() + JUMP + STUB;
                assert!(moved.length > moved.offset && bytes <= MAX_FUNCTION_BYTES);
            }
        }
    }
}
