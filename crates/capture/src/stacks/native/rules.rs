//! How to get from a frame to its caller: the unwind tables of files, read by framehop.
//!
//! Tables belong to files, not to processes, so there is one unwinder for each file. It works with
//! the addresses that the file gives itself, and what it has learned holds for every process.

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{Error, ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder};

use super::image::{Elf, Image, Piece};
use super::realigned::{Finder, Realigned};

/// Caches among which addresses are divided; each has 509 places.
const SHARDS: usize = 64;

/// The rules of one file; or of none, then along frame pointers.
pub(super) struct Rules {
    unwinder: UnwinderX86_64<Piece>,
    realigned: Option<Finder>,
}

impl Rules {
    /// Along frame pointers.
    pub(super) fn pointers() -> Self {
        Self { unwinder: UnwinderX86_64::new(), realigned: None }
    }

    /// The rules of a file. Where it has none, frame pointers are all there is.
    pub(super) fn of(image: &Image) -> Self {
        let Some(elf) = image.elf() else { return Self::pointers() };
        let addresses = image.addresses();
        let base = addresses.start;
        let mut unwinder = UnwinderX86_64::new();
        let sections = sections(image, &elf);
        unwinder.add_module(Module::new(String::new(), addresses, base, sections));
        Self { unwinder, realigned: Finder::new(image, &elf) }
    }
}

fn sections(image: &Image, elf: &Elf<'_>) -> ExplicitModuleSectionInfo<Piece> {
    let section = |name| image.section(elf, name).unzip();
    let (eh_frame_svma, eh_frame) = section(".eh_frame");
    let (eh_frame_hdr_svma, eh_frame_hdr) = section(".eh_frame_hdr");
    let ((text_svma, _), (got_svma, _)) = (section(".text"), section(".got"));
    ExplicitModuleSectionInfo {
        base_svma: image.addresses().start,
        text_svma,
        got_svma,
        eh_frame_svma,
        eh_frame,
        eh_frame_hdr_svma,
        eh_frame_hdr,
        text: None,
        stubs_svma: None,
        stub_helper_svma: None,
        unwind_info: None,
        debug_frame: None,
        text_segment_svma: None,
        text_segment: None,
    }
}

/// What came of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The address that the frame returns to, and where on the stack it is.
    Caller { address: u64, at: u64 },
    /// The first function.
    Start,
    /// The stack could not be read there.
    Unread(u64),
    /// Nothing says how to go on.
    NoRule,
}

/// Rules that were found already.
pub(super) struct Caches([Option<CacheX86_64>; SHARDS]);

impl Default for Caches {
    fn default() -> Self {
        Self(std::array::from_fn(|_| None))
    }
}

impl Caches {
    /// From a frame to its caller. `address` is where the frame goes on after its call, in the
    /// addresses of the rules.
    pub(super) fn step(
        &mut self,
        rules: &mut Rules,
        address: u64,
        registers: &mut UnwindRegsX86_64,
        stack: &StackCopy<'_>,
    ) -> Step {
        let (sp, bp) = (registers.sp(), registers.bp());
        let step = self.plain_step(&rules.unwinder, address, registers, stack);
        // Only a frame pointer leads there, and only what was aligned anew is aligned so well.
        let is_suspect = registers.sp() == bp.wrapping_add(16) && registers.sp().is_multiple_of(32);
        if is_suspect
            && matches!(step, Step::Caller { .. })
            && let Some(finder) = &mut rules.realigned
            && let Some(way) = address.checked_sub(1).and_then(|call| finder.at(call))
        {
            return leave(way, sp, bp, registers, stack);
        }
        step
    }

    fn plain_step(
        &mut self,
        unwinder: &UnwinderX86_64<Piece>,
        address: u64,
        registers: &mut UnwindRegsX86_64,
        stack: &StackCopy<'_>,
    ) -> Step {
        let Some(frame) = FrameAddress::from_return_address(address) else { return Step::NoRule };
        let shard = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        let Some(shard) = self.0.get_mut(shard as usize) else { return Step::NoRule };
        let cache = shard.get_or_insert_with(CacheX86_64::new);
        let before = registers.sp();
        let (mut at, mut unread, mut failures) = (0, None, 0);
        let result = unwinder.unwind_frame(frame, registers, cache, &mut |address| {
            at = address;
            stack.word(address).ok_or_else(|| {
                unread = unread.or(Some(address));
                failures += 1;
            })
        });
        // A rule that framehop cannot keep is tried in place, and when the stack is too short for
        // it, frame pointers are what it remembers instead. That must not stay.
        if failures > 1 {
            *shard = None;
        }
        match (result, unread) {
            (_, Some(address)) | (Err(Error::CouldNotReadStack(address)), None) => {
                Step::Unread(address)
            }
            (Ok(None), None) => Step::Start,
            // The return address is what is read last.
            (Ok(Some(address)), None) if registers.sp() > before => Step::Caller { address, at },
            _ => Step::NoRule,
        }
    }
}

/// Out of a function that aligned the stack anew.
fn leave(
    way: Realigned,
    sp: u64,
    bp: u64,
    registers: &mut UnwindRegsX86_64,
    stack: &StackCopy<'_>,
) -> Step {
    let read = |address: u64| stack.word(address).ok_or(Step::Unread(address));
    let leave = || {
        let caller_sp = read(bp.wrapping_add_signed(way.stack))?;
        let caller_bp = read(bp.wrapping_add_signed(way.frame))?;
        let at = caller_sp.wrapping_sub(8);
        let address = read(at)?;
        if caller_sp <= sp {
            return Err(Step::NoRule);
        }
        Ok((caller_sp, caller_bp, address, at))
    };
    match leave() {
        Ok((_, _, 0, _)) => Step::Start,
        Ok((caller_sp, caller_bp, address, at)) => {
            registers.set_sp(caller_sp);
            registers.set_bp(caller_bp);
            registers.set_ip(address);
            Step::Caller { address, at }
        }
        Err(step) => step,
    }
}

/// A copy of a part of a stack.
#[derive(Clone, Copy)]
pub(super) struct StackCopy<'a> {
    pub(super) from: u64,
    pub(super) bytes: &'a [u8],
}

impl StackCopy<'_> {
    pub(super) fn word(&self, address: u64) -> Option<u64> {
        let start = usize::try_from(address.checked_sub(self.from)?).ok()?;
        let bytes = self.bytes.get(start..start.checked_add(8)?)?;
        bytes.try_into().ok().map(u64::from_le_bytes)
    }

    /// Whether the stack could go on there, above what was copied.
    pub(super) fn ends_below(&self, address: u64) -> bool {
        /// Stacks are some megabytes; farther up is something else.
        const NEAR: u64 = 64 << 20;
        let end = self.from.saturating_add(self.bytes.len() as u64);
        // A word of which a part is in the copy is above it too.
        address.checked_sub(end.saturating_sub(7)).is_some_and(|above| above < NEAR)
    }
}
