//! The first instructions of a function: where to attach a probe, and how to move them so that a
//! jump can replace them. Also compiled into `crates/inject`.
//!
//! The in-process library writes a jump over the start of a driver function. The instructions that
//! it covers run elsewhere, followed by a jump back. A function whose instructions cannot be moved
//! safely is not patched.
//!
//! A uprobe may be attached to the same function at any time. The kernel executes the original of
//! the instruction that it replaced and continues after it: inside our jump, if the jump covered
//! it. The instruction at the attach point therefore keeps its place, and the jump follows it. The
//! wrapper undoes the effects of such instructions first.

pub mod arm64;
mod x86_patch;
mod x86_prologue;

/// Code of x86-64.
pub mod x86 {
    pub use super::x86_patch::{
        JUMP, MAX_DISTANCE, MAX_FUNCTION_BYTES, PROBE, block_stub, jump, jump_sites, move_entry,
        move_to_site, return_jump, stub,
    };
    pub use super::x86_prologue::attach_point;
}

#[cfg(target_arch = "aarch64")]
pub use arm64 as native;
#[cfg(target_arch = "x86_64")]
pub use x86 as native;

/// An instruction to probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttachPoint {
    /// Offset from the entry of the function.
    pub offset: u64,
    /// The kernel emulates the instruction.
    pub emulated: bool,
}

/// Reason why a function cannot be patched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unmovable {
    /// The bytes are not valid instructions, or the function is too short.
    Unknown,
    /// A branch of the function leads into the bytes that would be overwritten.
    BranchTarget,
    /// An instruction depends on its address in a way that is not supported.
    Relative,
    /// A target is out of reach of a jump from the new address.
    TooFar,
    /// The jump would cover the attach point of probes.
    Probed,
}

/// Moved instructions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moved {
    /// The instructions from the first one on, for the new address.
    pub code: Vec<u8>,
    /// Number of original bytes that they replace; the function continues after them.
    pub length: usize,
    /// The last instruction is a jump: no jump back is needed.
    pub is_final: bool,
    /// Number of unchanged bytes before the jump.
    pub offset: usize,
    /// Code that undoes the effects of the unchanged instructions.
    pub undo: Vec<u8>,
}

/// A place for a jump that can be written while threads run the function: it changes bytes of one
/// instruction only. The other bytes of the jump keep their values, so they limit its targets, and a
/// thread that is at the next instruction continues with the original code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JumpSite {
    /// Offset of the jump in the function.
    pub offset: usize,
    /// Number of bytes of the jump that change.
    pub changed: usize,
    /// Code that undoes the effects of the instructions before it.
    pub undo: Vec<u8>,
}
