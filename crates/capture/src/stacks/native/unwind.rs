//! From a copy of a stack to the places in files that its frames are at.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use engine::ids::Pid;
use engine::stack::Unknown;
use framehop::x86_64::UnwindRegsX86_64;
use hashbrown::HashMap;

use super::modules::{Module, ModuleId, Modules, Registry};
use super::rules::{Caches, Rules, StackCopy, Step};
use super::space::{AddressSpace, Place};
use crate::libraries::MappedCode;

/// Frames of a stack.
const MOST_FRAMES: usize = 128;
/// Processes that are remembered; when there are more, all are forgotten.
const MOST_PROCESSES: usize = 1 << 12;
/// Mappings of any process that are remembered.
const MOST_RECENT: usize = 1 << 14;

/// The registers of a caller when a function has returned to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Registers {
    /// Where it goes on.
    pub(crate) ip: u64,
    /// The stack pointer.
    pub(crate) sp: u64,
    /// The frame pointer, or whatever it is used for.
    pub(crate) bp: u64,
}

/// A return address that a return probe took off the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pending {
    /// Where on the stack it was.
    pub(crate) at: u64,
    /// The address.
    pub(crate) address: u64,
}

/// Where a frame is. All addresses are return addresses: those after the call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Code {
    /// Code of a file, at this offset in the file.
    File {
        /// The file.
        module: ModuleId,
        /// Of the instruction that the frame goes on with, in the file.
        offset: u64,
    },
    /// Code that was made at run time.
    Anonymous {
        /// Whose.
        pid: Pid,
        /// Where.
        address: u64,
    },
    /// No code is known there.
    Unmapped(u64),
    /// A return probe has replaced the address, and what it was is not known.
    Probe(u64),
}

/// A return address as it lies on the stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Slot {
    /// From the stack pointer of the innermost frame.
    pub(crate) offset: u64,
    /// What lies there, whatever a probe did to it.
    pub(crate) value: u64,
}

/// Why a stack ends where it ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum End {
    /// The last frame is the first function.
    Start,
    /// The stack goes on above the copy.
    CopyTooShort,
    /// There are more frames than are kept.
    TooDeep,
    /// Nothing says how to go on, or what there is says nonsense.
    NoRule,
    /// The process was gone before anything was known of it.
    Gone,
}

impl End {
    /// What to say of the frames that are missing, if any are.
    pub(crate) const fn missing(self) -> Option<Unknown> {
        match self {
            Self::Start => None,
            Self::CopyTooShort | Self::TooDeep => Some(Unknown::Deep),
            Self::NoRule => Some(Unknown::NoRule),
            Self::Gone => Some(Unknown::Gone),
        }
    }
}

/// A stack, innermost frame first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Unwound {
    /// The frames.
    pub(crate) codes: Vec<Code>,
    /// Where the return addresses lie, of all frames but the first. Another call with the same
    /// registers and the same values in these places has the same stack.
    pub(crate) slots: Vec<Slot>,
    /// What comes after the last frame.
    pub(crate) end: End,
}

/// A module and how to unwind it.
struct Known {
    module: Arc<Module>,
    rules: Rules,
}

/// How to unwind each module.
struct Tables {
    /// By id; filled on first use.
    known: Vec<Option<Known>>,
    pointers: Rules,
    /// The module whose rules were asked for last: the culprit when they break a reader.
    last: Option<ModuleId>,
}

impl Tables {
    /// The rules for a frame, and its address as they know it.
    fn rules(&mut self, code: Code, address: u64, registry: &Registry) -> (&mut Rules, u64) {
        let Code::File { module, offset } = code else { return (&mut self.pointers, address) };
        self.last = Some(module);
        let index = module.0 as usize;
        if self.known.len() <= index {
            self.known.resize_with(index.saturating_add(1), || None);
        }
        let Some(place) = self.known.get_mut(index) else { return (&mut self.pointers, address) };
        if place.is_none() {
            *place = registry.get(module).map(|module| {
                let rules = module.image.as_ref().map_or_else(|_| Rules::pointers(), Rules::of);
                Known { module, rules }
            });
        }
        let known = place.as_mut().and_then(|known| {
            let image = known.module.image.as_ref().ok()?;
            let call = image.address(offset.checked_sub(1)?)?;
            Some((&mut known.rules, call.checked_add(1)?))
        });
        known.unwrap_or((&mut self.pointers, address))
    }

    /// The tables that were used last are no good.
    fn give_up(&mut self, registry: &Registry) {
        let Some((id, module)) = self.last.and_then(|id| Some((id, registry.get(id)?))) else {
            return;
        };
        if let Some(place) = self.known.get_mut(id.0 as usize) {
            *place = Some(Known { module, rules: Rules::pointers() });
        }
    }
}

/// Unwinds stacks of any process.
pub(crate) struct Native {
    spaces: HashMap<Pid, AddressSpace>,
    modules: Modules,
    tables: Tables,
    caches: Caches,
    /// What was mapped lately, by whomever: some processes end before they can be asked.
    recent: VecDeque<MappedCode>,
}

impl Default for Native {
    fn default() -> Self {
        Self::new()
    }
}

impl Native {
    /// Nothing is known of any process.
    pub(crate) fn new() -> Self {
        Self {
            spaces: HashMap::new(),
            modules: Modules::default(),
            tables: Tables { known: Vec::new(), pointers: Rules::pointers(), last: None },
            caches: Caches::default(),
            recent: VecDeque::new(),
        }
    }

    /// The modules, for the thread that finds names.
    pub(crate) fn registry(&self) -> Registry {
        self.modules.registry().clone()
    }

    /// The path of a module as a process sees it. Hostile text.
    pub(crate) fn path(&self, module: ModuleId) -> Arc<str> {
        self.modules.registry().path(module)
    }

    /// A process mapped code.
    pub(crate) fn mapped(&mut self, code: MappedCode) {
        self.changed(code.pid);
        if self.recent.len() >= MOST_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(code);
    }

    /// Addresses of a process can mean something else than before.
    pub(crate) fn changed(&mut self, pid: Pid) {
        if let Some(space) = self.spaces.get_mut(&pid) {
            space.changed();
        }
    }

    /// The process ended, or became another program.
    pub(crate) fn forget(&mut self, pid: Pid) {
        self.spaces.remove(&pid);
    }

    /// The stack of which `copy` is the part from the stack pointer upwards.
    pub(crate) fn unwind(
        &mut self,
        pid: Pid,
        registers: Registers,
        copy: &[u8],
        pending: &[Pending],
    ) -> Unwound {
        let mut walk = Walk::new(pid, registers, copy, pending);
        let end = self.guarded(|native| native.walk(&mut walk));
        walk.finish(end)
    }

    /// The stack that a walk along frame pointers found, innermost address first.
    pub(crate) fn place(&mut self, pid: Pid, addresses: &[u64], pending: &[Pending]) -> Unwound {
        let ip = addresses.first().copied().unwrap_or(0);
        let mut walk = Walk::new(pid, Registers { ip, sp: 0, bp: 0 }, &[], pending);
        let end = self.guarded(|native| native.place_all(&mut walk, addresses));
        walk.finish(end)
    }

    /// Files of traced programs can be made to break a reader of them. That costs the rest of this
    /// stack and the tables of that file, not the trace.
    fn guarded(&mut self, work: impl FnOnce(&mut Self) -> End) -> End {
        self.tables.last = None;
        if let Ok(end) = catch_unwind(AssertUnwindSafe(|| work(self))) {
            return end;
        }
        self.caches = Caches::default();
        self.tables.give_up(self.modules.registry());
        End::NoRule
    }

    fn walk(&mut self, walk: &mut Walk<'_>) -> End {
        if !self.enter(walk.pid) {
            walk.codes.push(Code::Unmapped(walk.address));
            return End::Gone;
        }
        loop {
            let Some((code, lookup)) = self.code(walk) else { return End::NoRule };
            walk.codes.push(code);
            let (rules, address) = self.tables.rules(code, lookup, self.modules.registry());
            match self.caches.step(rules, address, &mut walk.registers, &walk.stack) {
                Step::Start if !matches!(code, Code::Probe(_)) => return End::Start,
                Step::Start | Step::NoRule => return End::NoRule,
                Step::Unread(at) if walk.stack.ends_below(at) => return End::CopyTooShort,
                Step::Unread(_) => return End::NoRule,
                Step::Caller { .. } if walk.codes.len() >= MOST_FRAMES => return End::TooDeep,
                Step::Caller { address, at } => walk.found(address, at),
            }
        }
    }

    fn place_all(&mut self, walk: &mut Walk<'_>, addresses: &[u64]) -> End {
        if !self.enter(walk.pid) {
            walk.codes.push(Code::Unmapped(walk.address));
            return End::Gone;
        }
        for &address in addresses.iter().take(MOST_FRAMES) {
            walk.address = address;
            let Some((code, _)) = self.code(walk) else { return End::NoRule };
            walk.codes.push(code);
        }
        if addresses.len() >= MOST_FRAMES { End::TooDeep } else { End::Start }
    }

    /// Whether anything is known of the process.
    fn enter(&mut self, pid: Pid) -> bool {
        if self.spaces.len() >= MOST_PROCESSES && !self.spaces.contains_key(&pid) {
            self.spaces.clear();
        }
        let space = self.spaces.entry(pid).or_insert_with(|| AddressSpace::new(pid));
        space.refresh();
        if space.is_gone() {
            space.believe(self.recent.iter().filter(|code| code.pid == pid));
        }
        !space.is_gone()
    }

    /// What the walk has come to, and the address by which its rules are found. `None`: the address
    /// is no code, so the walk has gone astray.
    fn code(&mut self, walk: &mut Walk<'_>) -> Option<(Code, u64)> {
        let space = self.spaces.get_mut(&walk.pid)?;
        let mut address = walk.address;
        // A function that never returns can have its call at its very end.
        let mut place = space.place(address.checked_sub(1)?, &mut self.modules);
        // Where the kernel puts return probes is not known of a process that is gone.
        let may_be_probe =
            space.is_believed() && place == Place::Nothing && walk.used < walk.pending.len();
        if space.is_probe(address) || may_be_probe {
            let Some(original) = walk.original() else {
                return Some((Code::Probe(address), address));
            };
            address = original;
            walk.registers.set_ip(address);
            place = space.place(address.checked_sub(1)?, &mut self.modules);
        }
        match place {
            Place::File { module, offset } => {
                let offset = offset.checked_add(1)?;
                Some((Code::File { module, offset }, address))
            }
            Place::Anonymous => Some((Code::Anonymous { pid: walk.pid, address }, address)),
            Place::Nothing => walk.codes.is_empty().then_some((Code::Unmapped(address), address)),
        }
    }
}

/// One stack on the way.
struct Walk<'a> {
    pid: Pid,
    stack: StackCopy<'a>,
    pending: &'a [Pending],
    /// Entries of that list up to the last one that was needed.
    used: usize,
    registers: UnwindRegsX86_64,
    /// Of the frame that is next, as it lies on the stack.
    address: u64,
    /// Where that is; nowhere for the first one, and in a walk along frame pointers.
    at: u64,
    codes: Vec<Code>,
    slots: Vec<Slot>,
}

impl<'a> Walk<'a> {
    fn new(pid: Pid, registers: Registers, bytes: &'a [u8], pending: &'a [Pending]) -> Self {
        let Registers { ip, sp, bp } = registers;
        Self {
            pid,
            stack: StackCopy { from: sp, bytes },
            pending,
            used: 0,
            registers: UnwindRegsX86_64::new(ip, sp, bp),
            address: ip,
            at: u64::MAX,
            codes: Vec::with_capacity(32),
            slots: Vec::with_capacity(32),
        }
    }

    fn found(&mut self, address: u64, at: u64) {
        (self.address, self.at) = (address, at);
        let offset = at.saturating_sub(self.stack.from);
        self.slots.push(Slot { offset, value: address });
    }

    /// What was on the stack before a probe changed it: what is told of that very place, else the
    /// next in order.
    fn original(&mut self) -> Option<u64> {
        let here = self.pending.iter().position(|pending| pending.at == self.at);
        let index = here.unwrap_or(self.used);
        self.used = self.used.max(index.saturating_add(1));
        self.pending.get(index).map(|pending| pending.address)
    }

    fn finish(self, end: End) -> Unwound {
        let Self { codes, mut slots, .. } = self;
        // The last return address can turn out to be none.
        slots.truncate(codes.len().saturating_sub(1));
        Unwound { codes, slots, end }
    }
}
