//! Unwinds a copy of a stack to the locations of its frames in files.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use engine::model::stack::UnknownReason;

use super::address_space::{AddressSpace, CodeLocation};
use super::arch::{self, UnwindRegs};
use super::modules::{Module, ModuleFinder, ModuleId, ModuleRegistry};
use super::perf_map::GeneratedCodeId;
use super::unwind_rules::{RuleCaches, StackCopy, UnwindRules, UnwindStep};
use crate::files::Mapping;

/// Maximum number of frames of a stack.
const MAX_FRAMES: usize = 128;
/// Maximum number of recent mappings kept, of all processes.
const MAX_RECENT_MMAPS: usize = 1 << 14;

/// Registers of a caller after a function has returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Registers {
    /// The return address.
    pub(crate) ip: u64,
    /// The stack pointer.
    pub(crate) sp: u64,
    /// The frame pointer, or a general-purpose register.
    pub(crate) bp: u64,
}

/// A return address on the stack that a return probe has replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HijackedReturn {
    /// Address of the slot on the stack.
    pub(crate) at: u64,
    /// The original return address.
    pub(crate) address: u64,
}

/// Location of a frame. All addresses are return addresses: those after the call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum FrameLocation {
    /// Code of a file.
    File {
        /// The file.
        module: ModuleId,
        /// Offset of the return address in the file.
        offset: u64,
    },
    /// Code that was generated at run time.
    Generated {
        /// The code of the program.
        code: GeneratedCodeId,
        /// The return address.
        address: u64,
    },
    /// No code is mapped at this address.
    Unmapped(u64),
    /// A return probe has replaced the address, and the original is unknown.
    Probe(u64),
}

/// A return address in its slot on the stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ReturnSlot {
    /// Offset from the stack pointer of the innermost frame.
    pub(crate) offset: u64,
    /// The content of the slot, even if a probe has replaced it.
    pub(crate) value: u64,
}

/// Reason why a stack ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum StackEnd {
    /// The last frame is the outermost function.
    Start,
    /// The stack continues above the copy.
    CopyTooShort,
    /// The stack has more frames than the maximum.
    TooDeep,
    /// No unwind rule, or one with an implausible result.
    NoRule,
    /// The process exited before its mappings were read.
    ProcessExited,
}

impl StackEnd {
    /// Returns the reason for missing frames, if any are missing.
    pub(crate) const fn unknown_reason(self) -> Option<UnknownReason> {
        match self {
            Self::Start => None,
            Self::CopyTooShort | Self::TooDeep => Some(UnknownReason::Truncated),
            Self::NoRule => Some(UnknownReason::NoUnwindInfo),
            Self::ProcessExited => Some(UnknownReason::ProcessExited),
        }
    }
}

/// A stack, innermost frame first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UnwoundStack {
    /// The frames.
    pub(crate) locations: Vec<FrameLocation>,
    /// Slots of the return addresses of all frames but the first. A call with the same registers
    /// and the same values in these slots has the same stack.
    pub(crate) slots: Vec<ReturnSlot>,
    /// Why the stack ends after the last frame.
    pub(crate) end: StackEnd,
}

/// A module and its unwind rules.
struct ModuleRules {
    module: Arc<Module>,
    rules: UnwindRules,
}

/// Unwind rules of all modules.
struct UnwindTables {
    /// By id; filled on first use.
    by_module: Vec<Option<ModuleRules>>,
    frame_pointers: UnwindRules,
    /// The module whose rules were used last: the one to blame if the unwinder panics.
    last: Option<ModuleId>,
}

impl UnwindTables {
    /// Returns the rules for a frame, and its virtual address in the file.
    fn rules(
        &mut self,
        code: FrameLocation,
        address: u64,
        registry: &ModuleRegistry,
    ) -> (&mut UnwindRules, u64) {
        let FrameLocation::File { module, offset } = code else {
            return (&mut self.frame_pointers, address);
        };
        self.last = Some(module);
        let index = module.0 as usize;
        if self.by_module.len() <= index {
            self.by_module.resize_with(index.saturating_add(1), || None);
        }
        let Some(entry) = self.by_module.get_mut(index) else {
            return (&mut self.frame_pointers, address);
        };
        if entry.is_none() {
            *entry = registry.get(module).map(|module| {
                let rules = module
                    .image
                    .as_ref()
                    .map_or_else(|_| UnwindRules::frame_pointers(), UnwindRules::of);
                ModuleRules { module, rules }
            });
        }
        let rules = entry.as_mut().and_then(|known| {
            let image = known.module.image.as_ref().ok()?;
            let call = image.address(offset.checked_sub(1)?)?;
            Some((&mut known.rules, call.checked_add(1)?))
        });
        rules.unwrap_or((&mut self.frame_pointers, address))
    }

    /// Replaces the tables that were used last by frame pointers.
    fn disable_last(&mut self, registry: &ModuleRegistry) {
        let Some((id, module)) = self.last.and_then(|id| Some((id, registry.get(id)?))) else {
            return;
        };
        if let Some(entry) = self.by_module.get_mut(id.0 as usize) {
            *entry = Some(ModuleRules { module, rules: UnwindRules::frame_pointers() });
        }
    }
}

/// Unwinds stacks of any process. What is known per file is shared by all of them.
pub(crate) struct NativeUnwinder {
    modules: ModuleFinder,
    tables: UnwindTables,
    caches: RuleCaches,
    /// Recent mappings of all processes: some exit before their mappings can be read.
    recent: VecDeque<Mapping>,
}

impl Default for NativeUnwinder {
    fn default() -> Self {
        Self::new()
    }
}

impl NativeUnwinder {
    pub(crate) fn new() -> Self {
        Self {
            modules: ModuleFinder::default(),
            tables: UnwindTables {
                by_module: Vec::new(),
                frame_pointers: UnwindRules::frame_pointers(),
                last: None,
            },
            caches: RuleCaches::default(),
            recent: VecDeque::new(),
        }
    }

    /// Returns the modules, for the symbolizer thread.
    pub(crate) fn registry(&self) -> ModuleRegistry {
        self.modules.registry().clone()
    }

    /// Returns the path of a module as a process sees it. Untrusted text.
    pub(crate) fn path(&self, module: ModuleId) -> Arc<str> {
        self.modules.registry().path(module)
    }

    /// Adds an mmap event.
    pub(crate) fn mapped(&mut self, mmap: Mapping) {
        if self.recent.len() >= MAX_RECENT_MMAPS {
            self.recent.pop_front();
        }
        self.recent.push_back(mmap);
    }

    /// Unwinds a stack. `copy` is its part from the stack pointer upwards.
    pub(crate) fn unwind(
        &mut self,
        space: &mut AddressSpace,
        registers: Registers,
        copy: &[u8],
        hijacked: &[HijackedReturn],
    ) -> UnwoundStack {
        let mut walk = StackWalk::new(registers, copy, hijacked);
        let end = self.guarded(|native| native.walk(space, &mut walk));
        walk.finish(end)
    }

    /// Resolves the addresses of a frame-pointer walk, innermost first.
    pub(crate) fn resolve_addresses(
        &mut self,
        space: &mut AddressSpace,
        addresses: &[u64],
        hijacked: &[HijackedReturn],
    ) -> UnwoundStack {
        let ip = addresses.first().copied().unwrap_or(0);
        let mut walk = StackWalk::new(Registers { ip, sp: 0, bp: 0 }, &[], hijacked);
        let end = self.guarded(|native| native.resolve_all(space, &mut walk, addresses));
        walk.finish(end)
    }

    /// Catches panics: a file of a traced program can be crafted to make its reader panic. That
    /// costs the rest of this stack and the tables of that file, not the trace.
    fn guarded(&mut self, run: impl FnOnce(&mut Self) -> StackEnd) -> StackEnd {
        self.tables.last = None;
        if let Ok(end) = catch_unwind(AssertUnwindSafe(|| run(self))) {
            return end;
        }
        self.caches = RuleCaches::default();
        self.tables.disable_last(self.modules.registry());
        StackEnd::NoRule
    }

    fn walk(&mut self, space: &mut AddressSpace, walk: &mut StackWalk<'_>) -> StackEnd {
        if !self.enter(space) {
            walk.locations.push(FrameLocation::Unmapped(walk.address));
            return StackEnd::ProcessExited;
        }
        loop {
            let Some((code, lookup)) = self.code(space, walk) else { return StackEnd::NoRule };
            walk.locations.push(code);
            let (rules, address) = self.tables.rules(code, lookup, self.modules.registry());
            match self.caches.step(rules, address, &mut walk.registers, &walk.stack) {
                UnwindStep::Start if !matches!(code, FrameLocation::Probe(_)) => {
                    return StackEnd::Start;
                }
                UnwindStep::Start | UnwindStep::NoRule => return StackEnd::NoRule,
                UnwindStep::Unread(at) if walk.stack.ends_below(at) => {
                    return StackEnd::CopyTooShort;
                }
                UnwindStep::Unread(_) => return StackEnd::NoRule,
                UnwindStep::Caller { .. } if walk.locations.len() >= MAX_FRAMES => {
                    return StackEnd::TooDeep;
                }
                UnwindStep::Caller { address, at } => walk.found(address, at),
            }
        }
    }

    fn resolve_all(
        &mut self,
        space: &mut AddressSpace,
        walk: &mut StackWalk<'_>,
        addresses: &[u64],
    ) -> StackEnd {
        if !self.enter(space) {
            walk.locations.push(FrameLocation::Unmapped(walk.address));
            return StackEnd::ProcessExited;
        }
        for &address in addresses.iter().take(MAX_FRAMES) {
            walk.address = address;
            let Some((code, _)) = self.code(space, walk) else { return StackEnd::NoRule };
            walk.locations.push(code);
        }
        if addresses.len() >= MAX_FRAMES { StackEnd::TooDeep } else { StackEnd::Start }
    }

    /// Reads the mappings of a process if needed; returns whether any are known.
    fn enter(&self, space: &mut AddressSpace) -> bool {
        space.refresh();
        if space.is_unreadable() {
            let pid = space.pid;
            space.use_mmap_events(self.recent.iter().filter(|mmap| mmap.pid == pid));
        }
        !space.is_unreadable()
    }

    /// Returns the location of the next frame, and the address for its rules; `None` if the address
    /// is not code, so that the walk has failed.
    fn code(
        &mut self,
        space: &mut AddressSpace,
        walk: &mut StackWalk<'_>,
    ) -> Option<(FrameLocation, u64)> {
        let mut address = walk.address;
        // Minus 1: a call can be the last instruction of a function that never returns.
        let mut location = space.locate(address.checked_sub(1)?, &mut self.modules);
        let may_be_probe = !space.knows_probes()
            && location == CodeLocation::Nothing
            && walk.hijacked_index().is_some();
        if space.is_probe(address) || may_be_probe {
            let Some(original) = walk.original() else {
                return Some((FrameLocation::Probe(address), address));
            };
            address = original;
            location = space.locate(address.checked_sub(1)?, &mut self.modules);
        }
        match location {
            CodeLocation::File { module, offset } => {
                let offset = offset.checked_add(1)?;
                Some((FrameLocation::File { module, offset }, address))
            }
            CodeLocation::Anonymous => {
                let code = space.generated.id;
                Some((FrameLocation::Generated { code, address }, address))
            }
            CodeLocation::Nothing => {
                walk.locations.is_empty().then_some((FrameLocation::Unmapped(address), address))
            }
        }
    }
}

/// State while a stack is unwound.
struct StackWalk<'a> {
    stack: StackCopy<'a>,
    hijacked: &'a [HijackedReturn],
    /// Entries of that list up to the last one that was used.
    used: usize,
    registers: UnwindRegs,
    /// Return address of the next frame, as on the stack.
    address: u64,
    /// Slot of that address; none for the first frame and in a frame-pointer walk.
    at: u64,
    locations: Vec<FrameLocation>,
    slots: Vec<ReturnSlot>,
}

impl<'a> StackWalk<'a> {
    fn new(registers: Registers, bytes: &'a [u8], hijacked: &'a [HijackedReturn]) -> Self {
        Self {
            stack: StackCopy { from: registers.sp, bytes },
            hijacked,
            used: 0,
            registers: arch::unwind_regs(registers),
            address: registers.ip,
            at: u64::MAX,
            locations: Vec::with_capacity(32),
            slots: Vec::with_capacity(32),
        }
    }

    fn found(&mut self, address: u64, at: u64) {
        (self.address, self.at) = (address, at);
        let offset = at.saturating_sub(self.stack.from);
        let value = self.stack.word(at).unwrap_or(address);
        self.slots.push(ReturnSlot { offset, value });
    }

    /// Returns the original address that a probe replaced: the one for this slot, else the next in
    /// order.
    fn original(&mut self) -> Option<u64> {
        let index = self.hijacked_index()?;
        self.used = self.used.max(index.saturating_add(1));
        self.hijacked.get(index).map(|hijacked| hijacked.address)
    }

    fn hijacked_index(&self) -> Option<usize> {
        let by_slot = self.hijacked.iter().position(|hijacked| hijacked.at == self.at);
        by_slot.or_else(|| (self.used < self.hijacked.len()).then_some(self.used))
    }

    fn finish(self, end: StackEnd) -> UnwoundStack {
        let Self { locations, mut slots, .. } = self;
        // The last return address may not have become a frame.
        slots.truncate(locations.len().saturating_sub(1));
        UnwoundStack { locations, slots, end }
    }
}
