//! A driver and the programs that use it, with the actual state. Every call becomes an event, in
//! the order of the returns; some are lost and only counted.

mod contexts;
mod graphs;
mod memory;
mod physical;

use std::collections::BTreeMap;

use engine::ledger::Ledger;
use engine::model::event::{
    Event, EventKind, FailedCall, LostDelta, OUT_OF_MEMORY, ProcessInfo, VmmCall,
};
use engine::model::ids::{ContextId, DeviceId, FunctionId, Pid, PoolId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::Timestamp;

use graphs::{Capture, Exec, Graph};
use memory::{Memory, Pool};
use physical::Handle;

/// Random numbers that select the next step.
pub(crate) type Dice = (u8, u8, u8, u8);

const DEVICES: u8 = 2;

/// A call that has taken effect and has not returned yet.
struct InFlightCall {
    tid: Tid,
    entered: Timestamp,
    kind: EventKind,
}

#[derive(Default)]
struct Program {
    live: Vec<Memory>,
    /// Contexts of `cuCtxCreate`.
    created: BTreeMap<ContextId, DeviceId>,
    /// Retain counts of the primary contexts.
    users: BTreeMap<DeviceId, u64>,
    handles: Vec<Handle>,
    /// Mapped handle by slot.
    mapped: BTreeMap<u64, u64>,
    pools: Vec<Pool>,
    /// Current pools that the program set.
    current: BTreeMap<DeviceId, PoolId>,
    captures: Vec<Capture>,
    graphs: Vec<Graph>,
    execs: Vec<Exec>,
    in_flight: Vec<InFlightCall>,
    /// A new program makes no calls before its first event.
    totals: Totals,
}

/// Call counts of a program.
#[derive(Clone, Copy, Default)]
pub(crate) struct Totals {
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
    pub(crate) unknown_frees: u64,
    /// Frees in flight when a launch freed memory of the previous one: its record arrives first and
    /// ends their memory.
    pub(crate) overtaken: u64,
}

impl Program {
    /// Ends the memory of a context.
    fn drop_context(&mut self, context: ContextId) {
        self.live.retain(|memory| memory.context != Some(context));
    }

    /// Returns every context that memory can be allocated in, with its device.
    fn contexts(&self) -> Vec<(ContextId, DeviceId)> {
        let primary = self.users.iter().filter(|(_, users)| **users > 0);
        let primary = primary.map(|(device, _)| (primary_of(*device), *device));
        self.created.iter().map(|(id, device)| (*id, *device)).chain(primary).collect()
    }

    /// Returns device memory by device.
    fn held(&self) -> BTreeMap<DeviceId, u64> {
        let mut held = BTreeMap::new();
        for memory in self.live.iter().filter(|memory| memory.kind.takes_device_memory()) {
            *held.entry(memory.device).or_default() += memory.bytes;
        }
        for handle in &self.handles {
            if let Some(device) = handle.device {
                *held.entry(device).or_default() += handle.bytes;
            }
        }
        held.retain(|_, bytes| *bytes > 0);
        held
    }
}

fn primary_of(device: DeviceId) -> ContextId {
    ContextId(100 + u64::from(device.0))
}

/// Picks one of `count` items.
fn pick(count: usize, die: u8) -> Option<usize> {
    (count > 0).then(|| die as usize % count)
}

/// A driver and the programs that use it.
pub(crate) struct World {
    pub(crate) ledger: Ledger,
    pub(crate) losses: u64,
    /// Calls were made that may be of a capture or not.
    pub(crate) has_ambiguous: bool,
    programs: BTreeMap<Pid, Program>,
    lost: BTreeMap<Pid, LostDelta>,
    now: u64,
    starts: u64,
    /// The last handle or address that is used only once.
    unique: u64,
    /// All events, and whether they were delivered.
    log: Vec<(Event, bool)>,
    /// An event is lost when its die is below this.
    loss_below: u8,
    /// The context of an allocation is unknown if its die is below this.
    unknown_below: u8,
}

impl World {
    pub(crate) fn new(loss_below: u8) -> Self {
        Self {
            ledger: Ledger::new(),
            losses: 0,
            has_ambiguous: false,
            programs: BTreeMap::new(),
            lost: BTreeMap::new(),
            now: 0,
            starts: 0,
            unique: 1000,
            log: Vec::new(),
            loss_below,
            unknown_below: 0,
        }
    }

    pub(crate) fn with_unknown_contexts(self, unknown_below: u8) -> Self {
        Self { unknown_below, ..self }
    }

    pub(crate) fn all_contexts_known(&self) -> bool {
        self.unknown_below == 0
    }

    /// Returns the device memory that a process actually holds, by device.
    pub(crate) fn held(&self, pid: Pid) -> BTreeMap<DeviceId, u64> {
        self.programs.get(&pid).map(Program::held).unwrap_or_default()
    }

    /// Returns the bytes that a process actually has allocated from its own pools.
    pub(crate) fn used(&self, pid: Pid) -> BTreeMap<PoolId, u64> {
        self.programs.get(&pid).map(Program::used).unwrap_or_default()
    }

    /// Returns the device memory of all processes.
    pub(crate) fn total_held(&self) -> u64 {
        self.programs.keys().flat_map(|pid| self.held(*pid).into_values()).sum()
    }

    /// Returns the call counts of a process.
    pub(crate) fn totals(&self, pid: Pid) -> Totals {
        self.programs.get(&pid).map(|program| program.totals).unwrap_or_default()
    }

    /// Lets every call return and reports every loss.
    pub(crate) fn finish_all(&mut self) -> Timestamp {
        let pids: Vec<_> = self.programs.keys().copied().collect();
        for pid in pids {
            while self.finish(pid, 0, (0, 0, 0, u8::MAX)) {}
        }
        self.report_losses();
        self.tick()
    }

    /// Performs a random step.
    pub(crate) fn step(&mut self, dice: Dice) {
        let (choice, a, b, _) = dice;
        let pid = Pid(1 + u32::from(a % 3));
        if !self.programs.contains_key(&pid) {
            self.start(pid);
            return;
        }
        match choice % 100 {
            0..=15 => self.allocate(pid, dice),
            16..=24 => self.free(pid, dice, false),
            25..=29 => self.free(pid, dice, true),
            30..=33 => {
                self.finish(pid, b, dice);
            }
            34..=50 => self.physical(pid, dice),
            51..=62 => self.stream_ordered(pid, dice),
            63..=66 => self.change_pools(pid, dice),
            67..=84 => self.graph(pid, dice),
            85..=86 => self.create_context(pid, dice),
            87 => self.destroy_context(pid, dice, false),
            88 => self.destroy_context(pid, dice, true),
            89..=91 => self.retain(pid, dice),
            92 => self.release(pid, dice),
            93 => self.reset(pid, dice),
            94 => self.query_device(pid, dice),
            95 => self.fail(pid, dice),
            96..=97 => self.report_losses(),
            98 if b < 64 => self.end(pid, dice),
            99 if b < 64 => self.start(pid),
            _ => self.allocate(pid, dice),
        }
    }

    fn tick(&mut self) -> Timestamp {
        self.now += 10;
        Timestamp(self.now)
    }

    fn unique(&mut self) -> u64 {
        self.unique += 1;
        self.unique
    }

    fn deliver(&mut self, pid: Pid, tid: Tid, entered: Timestamp, kind: EventKind) {
        let at = self.tick();
        let event = Event { pid, tid, entry_time: entered.min(at), time: at, kind };
        self.ledger.apply(&event);
        self.log.push((event, true));
    }

    /// Formats the events of a process, for failure messages.
    pub(crate) fn log(&self, pid: Pid) -> String {
        let of = self.log.iter().filter(|(event, _)| event.pid == pid || event.pid == Pid(0));
        let line = |(event, seen): &(Event, bool)| {
            let Event { tid, entry_time: entered, time: at, kind, .. } = event;
            let lost = if *seen { "" } else { " (lost)" };
            format!("{}.{} {}-{} {kind:?}{lost}\n", event.pid, tid, entered.0, at.0)
        };
        of.map(line).collect()
    }

    /// Completes a call that was entered; its record may be lost. Returns whether it was delivered.
    fn called(&mut self, pid: Pid, dice: Dice, kind: EventKind) -> bool {
        self.called_by(pid, thread(dice), dice, kind)
    }

    fn called_by(&mut self, pid: Pid, tid: Tid, dice: Dice, kind: EventKind) -> bool {
        let entered = Timestamp(self.now + 5);
        self.returned(pid, tid, entered, dice, kind)
    }

    /// Remembers calls that may be of a capture or not.
    fn mark_ambiguous(&mut self, pid: Pid, tid: Tid, entered: Timestamp, kind: &EventKind) {
        let stream = match kind {
            EventKind::Allocate(allocate) => allocate.stream,
            EventKind::Free(free) => free.stream,
            _ => None,
        };
        self.has_ambiguous |=
            stream.is_some_and(|stream| self.program(pid).is_ambiguous(stream, tid, entered));
    }

    fn returned(
        &mut self,
        pid: Pid,
        tid: Tid,
        entered: Timestamp,
        dice: Dice,
        kind: EventKind,
    ) -> bool {
        self.mark_ambiguous(pid, tid, entered, &kind);
        if dice.3 >= self.loss_below {
            self.deliver(pid, tid, entered, kind);
            return true;
        }
        self.losses += 1;
        let at = self.tick();
        self.log
            .push((Event { pid, tid, entry_time: entered, time: at, kind: kind.clone() }, false));
        let pid = if dice.3.is_multiple_of(2) { pid } else { Pid(0) };
        let lost = self.lost.entry(pid).or_default();
        match kind {
            EventKind::Allocate(allocate) => {
                lost.allocations += 1;
                lost.allocated_bytes += allocate.bytes;
            }
            EventKind::Vmm(VmmCall::Create { bytes, .. }) => {
                lost.allocations += 1;
                lost.allocated_bytes += bytes;
            }
            EventKind::Vmm(VmmCall::Import { .. }) => lost.allocations += 1,
            EventKind::Free(_)
            | EventKind::Vmm(VmmCall::Release { .. } | VmmCall::Unmap { .. }) => {
                lost.frees += 1;
            }
            EventKind::Failed(_) => lost.failures += 1,
            _ => lost.other += 1,
        }
        false
    }

    /// A call that takes effect now and returns later.
    fn begin_slowly(&mut self, pid: Pid, dice: Dice, kind: EventKind) {
        let call = InFlightCall { tid: thread(dice), entered: Timestamp(self.now + 5), kind };
        self.program(pid).in_flight.push(call);
        self.tick();
    }

    /// Completes one call in flight.
    fn finish(&mut self, pid: Pid, which: u8, dice: Dice) -> bool {
        let in_flight = &mut self.program(pid).in_flight;
        if in_flight.is_empty() {
            return false;
        }
        let call = in_flight.remove(which as usize % in_flight.len());
        self.returned(pid, call.tid, call.entered, dice, call.kind);
        true
    }

    fn report_losses(&mut self) {
        for (pid, lost) in std::mem::take(&mut self.lost) {
            let entered = Timestamp(self.now);
            self.deliver(pid, Tid(0), entered, EventKind::Lost(lost));
        }
    }

    fn program(&mut self, pid: Pid) -> &mut Program {
        self.programs.entry(pid).or_default()
    }

    /// Starts a process; an existing one with the pid is gone.
    fn start(&mut self, pid: Pid) {
        self.starts += 1;
        self.programs.insert(pid, Program::default());
        let start = self.starts;
        let info = ProcessInfo { start, uid: 0, name: "p".into(), before_trace: false };
        let entered = Timestamp(self.now);
        self.deliver(pid, Tid(pid.0), entered, EventKind::Process(info));
    }

    fn end(&mut self, pid: Pid, dice: Dice) {
        if dice.2.is_multiple_of(2) {
            self.programs.remove(&pid);
            self.called(pid, dice, EventKind::Exit);
        } else {
            self.programs.insert(pid, Program::default());
            self.called(pid, dice, EventKind::Exec);
        }
    }

    fn fail(&mut self, pid: Pid, dice: Dice) {
        let failed = FailedCall {
            function: FunctionId(1),
            code: OUT_OF_MEMORY,
            requested: Some((MemoryKind::Device, 1)),
            freed: None,
            device: None,
            context: None,
            site: None,
        };
        self.called(pid, dice, EventKind::Failed(failed));
    }
}

fn thread(dice: Dice) -> Tid {
    Tid(1 + u32::from(dice.1 / 3 % 4))
}
