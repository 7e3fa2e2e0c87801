//! A driver and the programs that use it, with the truth at hand. Every call becomes an event, in
//! the order in which returns are seen; some of them are lost and counted instead.

use std::collections::BTreeMap;

use engine::event::{
    Allocate, ContextChange, Event, Failed, Free, FreeBy, Lost, OUT_OF_MEMORY, ProcessFacts, What,
};
use engine::ids::{ContextId, DeviceId, FunctionId, Key, Pid, Tid};
use engine::kind::Kind;
use engine::ledger::Ledger;
use engine::units::Moment;

/// Numbers that choose what happens next.
pub(crate) type Dice = (u8, u8, u8, u8);

const DEVICES: u8 = 2;

struct Memory {
    key: Key,
    kind: Kind,
    bytes: u64,
    context: ContextId,
}

/// A call whose work is done and whose return is not seen yet.
struct UnderWay {
    tid: Tid,
    entered: Moment,
    what: What,
}

#[derive(Default)]
struct Program {
    live: Vec<Memory>,
    /// Contexts by `cuCtxCreate`.
    created: BTreeMap<ContextId, DeviceId>,
    /// Users of the primary contexts.
    users: BTreeMap<DeviceId, u64>,
    under_way: Vec<UnderWay>,
    /// A program that was just started calls nothing before its first event.
    allocations: u64,
}

impl Program {
    /// Ends what is in a context; says how much that is.
    fn drop_context(&mut self, context: ContextId) -> u64 {
        let before = self.live.len();
        self.live.retain(|memory| memory.context != context);
        (before - self.live.len()) as u64
    }

    /// Every context that memory can be allocated in.
    fn contexts(&self) -> Vec<ContextId> {
        let primary = self.users.iter().filter(|(_, users)| **users > 0);
        self.created.keys().copied().chain(primary.map(|(device, _)| primary_of(*device))).collect()
    }
}

fn primary_of(device: DeviceId) -> ContextId {
    ContextId(100 + u64::from(device.0))
}

/// See the module.
pub(crate) struct World {
    pub(crate) ledger: Ledger,
    pub(crate) losses: u64,
    /// Memory that ended with a context while that call was under way: if its address is given out
    /// again before the return is seen, it looks like one whose free is still to come.
    pub(crate) ended_quietly: u64,
    programs: BTreeMap<Pid, Program>,
    lost: BTreeMap<Pid, Lost>,
    now: u64,
    starts: u64,
    /// An event is lost when its die is below this.
    loss_below: u8,
}

impl World {
    pub(crate) fn new(loss_below: u8) -> Self {
        Self {
            ledger: Ledger::new(),
            losses: 0,
            ended_quietly: 0,
            programs: BTreeMap::new(),
            lost: BTreeMap::new(),
            now: 0,
            starts: 0,
            loss_below,
        }
    }

    /// The device memory that a process really holds.
    pub(crate) fn truth(&self, pid: Pid) -> u64 {
        let live = self.programs.get(&pid).map_or(&[][..], |program| &program.live);
        let device = live.iter().filter(|memory| memory.kind.takes_device_memory());
        device.map(|memory| memory.bytes).sum()
    }

    /// The device memory of all processes.
    pub(crate) fn truth_of_all(&self) -> u64 {
        self.programs.keys().map(|pid| self.truth(*pid)).sum()
    }

    /// How often a process's program called for memory with success.
    pub(crate) fn allocations(&self, pid: Pid) -> u64 {
        self.programs.get(&pid).map_or(0, |program| program.allocations)
    }

    /// Lets every call return and tells of every loss.
    pub(crate) fn settle(&mut self) -> Moment {
        let pids: Vec<_> = self.programs.keys().copied().collect();
        for pid in pids {
            while self.finish(pid, 0, (0, 0, 0, u8::MAX)) {}
        }
        self.tell_losses();
        self.tick()
    }

    /// Something happens.
    pub(crate) fn step(&mut self, dice: Dice) {
        let (choice, a, b, _) = dice;
        let pid = Pid(1 + u32::from(a % 3));
        if !self.programs.contains_key(&pid) {
            self.start(pid);
            return;
        }
        match choice % 40 {
            0..=13 => self.allocate(pid, dice),
            14..=20 => self.free(pid, dice, false),
            21..=24 => self.free(pid, dice, true),
            25..=26 => {
                self.finish(pid, b, dice);
            }
            27..=28 => self.create_context(pid, dice),
            29 => self.destroy_context(pid, dice, false),
            30 => self.destroy_context(pid, dice, true),
            31..=32 => self.retain(pid, dice),
            33 => self.release(pid, dice),
            34 => self.reset(pid, dice),
            35 => self.ask(pid, dice),
            36 => self.fail(pid, dice),
            37 => self.tell_losses(),
            38 => self.end(pid, dice),
            _ => self.start_again(pid),
        }
    }

    fn tick(&mut self) -> Moment {
        self.now += 10;
        Moment(self.now)
    }

    fn deliver(&mut self, pid: Pid, tid: Tid, entered: Moment, what: What) {
        let at = self.tick();
        self.ledger.apply(&Event { pid, tid, entered: entered.min(at), at, what });
    }

    /// A call that was entered and has returned now; its record may be lost.
    fn called(&mut self, pid: Pid, dice: Dice, what: What) {
        let entered = Moment(self.now + 5);
        self.returned(pid, Tid(u32::from(dice.1)), entered, dice, what);
    }

    fn returned(&mut self, pid: Pid, tid: Tid, entered: Moment, dice: Dice, what: What) {
        if dice.3 >= self.loss_below {
            self.deliver(pid, tid, entered, what);
            return;
        }
        self.losses += 1;
        self.tick();
        let pid = if dice.3.is_multiple_of(2) { pid } else { Pid(0) };
        let lost = self.lost.entry(pid).or_default();
        match what {
            What::Allocate(allocate) => {
                lost.allocations += 1;
                lost.allocated_bytes += allocate.bytes;
            }
            What::Free(_) => lost.frees += 1,
            What::Failed(_) => lost.failures += 1,
            _ => lost.other += 1,
        }
    }

    fn tell_losses(&mut self) {
        for (pid, lost) in std::mem::take(&mut self.lost) {
            let entered = Moment(self.now);
            self.deliver(pid, Tid(0), entered, What::Lost(lost));
        }
    }

    fn program(&mut self, pid: Pid) -> &mut Program {
        self.programs.entry(pid).or_default()
    }

    fn start(&mut self, pid: Pid) {
        self.starts += 1;
        self.programs.insert(pid, Program::default());
        let start = self.starts;
        let facts = ProcessFacts { start, uid: 0, name: "p".into(), before_trace: false };
        let entered = Moment(self.now);
        self.deliver(pid, Tid(pid.0), entered, What::Process(facts));
    }

    /// The process is gone and its pid is given to a new one at once.
    fn start_again(&mut self, pid: Pid) {
        self.start(pid);
    }

    fn end(&mut self, pid: Pid, dice: Dice) {
        if dice.2.is_multiple_of(2) {
            self.programs.remove(&pid);
            self.called(pid, dice, What::Exit);
        } else {
            self.programs.insert(pid, Program::default());
            self.called(pid, dice, What::Exec);
        }
    }

    fn allocate(&mut self, pid: Pid, dice: Dice) {
        let (_, a, b, _) = dice;
        let program = self.program(pid);
        let contexts = program.contexts();
        // Few addresses, so that they are given out again soon.
        let free = (1..=12).map(Key::address).find(|key| {
            key.value % 4 >= u64::from(b % 4) && program.live.iter().all(|m| m.key != *key)
        });
        let Some(key) = free else { return };
        if contexts.is_empty() {
            return;
        }
        let context = contexts[a as usize % contexts.len()];
        let kind = [Kind::Device, Kind::Device, Kind::Array, Kind::Pinned, Kind::Pool]
            [usize::from(a / 3) % 5];
        let bytes = 1 << (b % 10);
        program.live.push(Memory { key, kind, bytes, context });
        program.allocations += 1;
        let context = Some(context);
        let allocate = Allocate {
            key,
            kind,
            bytes,
            context,
            device: None,
            pool: None,
            stream: None,
            site: None,
        };
        self.called(pid, dice, What::Allocate(allocate));
    }

    fn free(&mut self, pid: Pid, dice: Dice, slowly: bool) {
        let entered = Moment(self.now + 5);
        let program = self.program(pid);
        if program.live.is_empty() {
            let unknown = Free { key: Key::address(99), by: FreeBy::Free, stream: None };
            self.called(pid, dice, What::Free(unknown));
            return;
        }
        let memory = program.live.remove(dice.2 as usize % program.live.len());
        let what = What::Free(Free { key: memory.key, by: FreeBy::Free, stream: None });
        if slowly {
            let tid = Tid(u32::from(dice.1));
            program.under_way.push(UnderWay { tid, entered, what });
            self.tick();
        } else {
            self.called(pid, dice, what);
        }
    }

    /// The return of one call under way is seen.
    fn finish(&mut self, pid: Pid, which: u8, dice: Dice) -> bool {
        let under_way = &mut self.program(pid).under_way;
        if under_way.is_empty() {
            return false;
        }
        let call = under_way.remove(which as usize % under_way.len());
        self.returned(pid, call.tid, call.entered, dice, call.what);
        true
    }

    fn create_context(&mut self, pid: Pid, dice: Dice) {
        let device = DeviceId(u16::from(dice.2 % DEVICES));
        let program = self.program(pid);
        let unused = (1..=3).map(ContextId).find(|id| !program.created.contains_key(id));
        if let Some(context) = unused {
            program.created.insert(context, device);
            let change = ContextChange::Created { context, device };
            self.called(pid, dice, What::Context(change));
        }
    }

    fn destroy_context(&mut self, pid: Pid, dice: Dice, slowly: bool) {
        let entered = Moment(self.now + 5);
        let program = self.program(pid);
        let count = program.created.len().max(1);
        let chosen = program.created.keys().copied().nth(dice.2 as usize % count);
        let Some(context) = chosen else { return };
        program.created.remove(&context);
        let ended = program.drop_context(context);
        let what = What::Context(ContextChange::Destroyed { context });
        if slowly {
            program.under_way.push(UnderWay { tid: Tid(9), entered, what });
            self.ended_quietly += ended;
            self.tick();
        } else {
            self.called(pid, dice, what);
        }
    }

    fn retain(&mut self, pid: Pid, dice: Dice) {
        let device = DeviceId(u16::from(dice.2 % DEVICES));
        *self.program(pid).users.entry(device).or_default() += 1;
        let context = primary_of(device);
        let change = ContextChange::PrimaryRetained { context, device };
        self.called(pid, dice, What::Context(change));
    }

    fn release(&mut self, pid: Pid, dice: Dice) {
        let device = DeviceId(u16::from(dice.2 % DEVICES));
        let program = self.program(pid);
        let users = program.users.entry(device).or_default();
        if *users == 0 {
            return;
        }
        *users -= 1;
        if *users == 0 {
            program.drop_context(primary_of(device));
        }
        self.called(pid, dice, What::Context(ContextChange::PrimaryReleased { device }));
    }

    fn reset(&mut self, pid: Pid, dice: Dice) {
        let entered = Moment(self.now + 5);
        let device = DeviceId(u16::from(dice.2 % DEVICES));
        let program = self.program(pid);
        let ended = program.drop_context(primary_of(device));
        let what = What::Context(ContextChange::PrimaryReset { device });
        if dice.1 >= 128 {
            program.under_way.push(UnderWay { tid: Tid(9), entered, what });
            self.ended_quietly += ended;
            self.tick();
        } else {
            self.called(pid, dice, what);
        }
    }

    /// The program asks for the device of a context.
    fn ask(&mut self, pid: Pid, dice: Dice) {
        let program = self.program(pid);
        let count = program.created.len().max(1);
        let chosen = program.created.iter().nth(dice.2 as usize % count);
        if let Some((&context, &device)) = chosen {
            let change = ContextChange::Learned { context, device };
            self.called(pid, dice, What::Context(change));
        }
    }

    fn fail(&mut self, pid: Pid, dice: Dice) {
        let failed = Failed {
            function: FunctionId(1),
            code: OUT_OF_MEMORY,
            asked: Some((Kind::Device, 1)),
            freed: None,
            device: None,
            context: None,
        };
        self.called(pid, dice, What::Failed(failed));
    }
}
