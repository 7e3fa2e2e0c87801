//! Unwinds from a frame to its caller with the unwind tables of files, read by framehop.
//!
//! Tables belong to files, not to processes, so there is one unwinder per file. It works with the
//! virtual addresses in the file, so its caches are valid for every process.

use framehop::{Error, ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};

use super::arch::{self, Cache, UnwindRegs, Unwinder};
use super::drap::{DrapFinder, DrapRule};
use super::unwind::Registers;
use crate::files::{Elf, ElfImage, FileRange};

/// Number of caches among which addresses are divided; each has 509 entries.
const CACHE_SHARDS: usize = 64;

/// Unwind rules of a file, or frame pointers without a file.
pub(super) struct UnwindRules {
    unwinder: Unwinder<FileRange>,
    drap: Option<DrapFinder>,
}

impl UnwindRules {
    /// Returns rules that follow frame pointers.
    pub(super) fn frame_pointers() -> Self {
        Self { unwinder: Unwinder::new(), drap: None }
    }

    /// Returns the rules of a file; without unwind tables it follows frame pointers.
    pub(super) fn of(image: &ElfImage) -> Self {
        let Some(elf) = image.elf() else { return Self::frame_pointers() };
        let addresses = image.addresses();
        let base = addresses.start;
        let mut unwinder = Unwinder::new();
        let sections = sections(image, &elf);
        unwinder.add_module(Module::new(String::new(), addresses, base, sections));
        let has_drap = cfg!(target_arch = "x86_64");
        let drap = has_drap.then(|| DrapFinder::new(image, &elf)).flatten();
        Self { unwinder, drap }
    }
}

fn sections(image: &ElfImage, elf: &Elf<'_>) -> ExplicitModuleSectionInfo<FileRange> {
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

/// Result of an unwind step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum UnwindStep {
    /// The return address, and its slot on the stack.
    Caller { address: u64, at: u64 },
    /// The outermost function.
    Start,
    /// The stack could not be read at this address.
    Unread(u64),
    /// No unwind rule for the frame.
    NoRule,
}

/// Caches of rules by address.
pub(super) struct RuleCaches([Option<Cache>; CACHE_SHARDS]);

impl Default for RuleCaches {
    fn default() -> Self {
        Self(std::array::from_fn(|_| None))
    }
}

impl RuleCaches {
    /// Unwinds from a frame to its caller. `address` is the return address into the frame, as a
    /// virtual address in the file.
    pub(super) fn step(
        &mut self,
        rules: &mut UnwindRules,
        address: u64,
        registers: &mut UnwindRegs,
        stack: &StackCopy<'_>,
    ) -> UnwindStep {
        let (sp, bp) = (registers.sp(), arch::frame_pointer(registers));
        let step = self.plain_step(&rules.unwinder, address, registers, stack);
        // Only a frame-pointer step ends there, and only a realigned stack has this alignment.
        let may_be_drap =
            registers.sp() == bp.wrapping_add(16) && registers.sp().is_multiple_of(32);
        if may_be_drap
            && matches!(step, UnwindStep::Caller { .. })
            && let Some(finder) = &mut rules.drap
            && let Some(rule) = address.checked_sub(1).and_then(|call| finder.at(call))
        {
            return drap_step(rule, sp, bp, registers, stack);
        }
        step
    }

    fn plain_step(
        &mut self,
        unwinder: &Unwinder<FileRange>,
        address: u64,
        registers: &mut UnwindRegs,
        stack: &StackCopy<'_>,
    ) -> UnwindStep {
        let Some(frame) = FrameAddress::from_return_address(address) else {
            return UnwindStep::NoRule;
        };
        let shard = address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        let Some(shard) = self.0.get_mut(shard as usize) else { return UnwindStep::NoRule };
        let cache = shard.get_or_insert_with(Cache::new);
        let before = registers.sp();
        // The slot of the return address is the first or the last one that is read.
        let (mut first, mut last, mut unread, mut failures) = (None, 0, None, 0);
        let result = unwinder.unwind_frame(frame, registers, cache, &mut |address| {
            let word = stack.word(address);
            (first, last) = (first.or(word.map(|word| (address, word))), address);
            word.ok_or_else(|| {
                unread = unread.or(Some(address));
                failures += 1;
            })
        });
        // framehop evaluates a rule that it cannot cache directly, and if the stack is too short
        // for it, it caches a frame-pointer rule instead. Drop that.
        if failures > 1 {
            *shard = None;
        }
        match (result, unread) {
            (_, Some(address)) | (Err(Error::CouldNotReadStack(address)), None) => {
                UnwindStep::Unread(address)
            }
            (Ok(None), None) => UnwindStep::Start,
            (Ok(Some(address)), None) if registers.sp() > before => {
                let address = arch::code_address(address);
                let is_first = |(_, word): &(u64, u64)| arch::code_address(*word) == address;
                let at = first.filter(is_first).map_or(last, |(at, _)| at);
                UnwindStep::Caller { address, at }
            }
            _ => UnwindStep::NoRule,
        }
    }
}

/// Unwinds a function that realigned the stack.
fn drap_step(
    rule: DrapRule,
    sp: u64,
    bp: u64,
    registers: &mut UnwindRegs,
    stack: &StackCopy<'_>,
) -> UnwindStep {
    let read = |address: u64| stack.word(address).ok_or(UnwindStep::Unread(address));
    let caller = || {
        let caller_sp = read(bp.wrapping_add_signed(rule.stack))?;
        let caller_bp = read(bp.wrapping_add_signed(rule.frame))?;
        let at = caller_sp.wrapping_sub(8);
        let address = read(at)?;
        if caller_sp <= sp {
            return Err(UnwindStep::NoRule);
        }
        Ok((caller_sp, caller_bp, address, at))
    };
    match caller() {
        Ok((_, _, 0, _)) => UnwindStep::Start,
        Ok((caller_sp, caller_bp, address, at)) => {
            arch::set(registers, Registers { ip: address, sp: caller_sp, bp: caller_bp });
            UnwindStep::Caller { address, at }
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

    /// Returns whether an address can be on the stack above the copy.
    pub(super) fn ends_below(&self, address: u64) -> bool {
        /// Maximum distance: stacks have a few megabytes.
        const MAX_STACK_DISTANCE: u64 = 64 << 20;
        let end = self.from.saturating_add(self.bytes.len() as u64);
        // A word that is only partly in the copy also counts as above it.
        address.checked_sub(end.saturating_sub(7)).is_some_and(|above| above < MAX_STACK_DISTANCE)
    }
}
