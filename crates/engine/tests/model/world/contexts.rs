//! Creation and end of contexts.

use engine::model::event::{ContextCall, EventKind};
use engine::model::ids::{ContextId, DeviceId, Pid, Tid};
use engine::model::units::Timestamp;

use super::{DEVICES, Dice, InFlightCall, World, primary_of};

impl World {
    pub(super) fn create_context(&mut self, pid: Pid, dice: Dice) {
        let device = DeviceId(u16::from(dice.2 % DEVICES));
        let program = self.program(pid);
        let unused = (1..=3).map(ContextId).find(|id| !program.created.contains_key(id));
        if let Some(context) = unused {
            program.created.insert(context, device);
            let call = ContextCall::Created { context, device };
            self.called(pid, dice, EventKind::Context(call));
        }
    }

    pub(super) fn destroy_context(&mut self, pid: Pid, dice: Dice, slowly: bool) {
        let entered = Timestamp(self.now + 5);
        let program = self.program(pid);
        let count = program.created.len().max(1);
        let chosen = program.created.keys().copied().nth(dice.2 as usize % count);
        let Some(context) = chosen else { return };
        program.created.remove(&context);
        program.drop_context(context);
        let kind = EventKind::Context(ContextCall::Destroyed { context });
        if slowly {
            program.in_flight.push(InFlightCall { tid: Tid(9), entered, kind });
            self.tick();
        } else {
            self.called(pid, dice, kind);
        }
    }

    pub(super) fn retain(&mut self, pid: Pid, dice: Dice) {
        let device = DeviceId(u16::from(dice.2 % DEVICES));
        *self.program(pid).users.entry(device).or_default() += 1;
        let context = primary_of(device);
        let call = ContextCall::PrimaryRetained { context, device };
        self.called(pid, dice, EventKind::Context(call));
    }

    pub(super) fn release(&mut self, pid: Pid, dice: Dice) {
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
        self.called(pid, dice, EventKind::Context(ContextCall::PrimaryReleased { device }));
    }

    pub(super) fn reset(&mut self, pid: Pid, dice: Dice) {
        let entered = Timestamp(self.now + 5);
        let device = DeviceId(u16::from(dice.2 % DEVICES));
        let program = self.program(pid);
        program.drop_context(primary_of(device));
        let kind = EventKind::Context(ContextCall::PrimaryReset { device });
        if dice.1 >= 128 {
            program.in_flight.push(InFlightCall { tid: Tid(9), entered, kind });
            self.tick();
        } else {
            self.called(pid, dice, kind);
        }
    }

    /// The program queries the device of a context.
    pub(super) fn query_device(&mut self, pid: Pid, dice: Dice) {
        let program = self.program(pid);
        let count = program.created.len().max(1);
        let chosen = program.created.iter().nth(dice.2 as usize % count);
        if let Some((&context, &device)) = chosen {
            let call = ContextCall::Learned { context, device };
            self.called(pid, dice, EventKind::Context(call));
        }
    }
}
