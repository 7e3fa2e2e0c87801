//! Python stacks: where the interpreter keeps them, and what its code is called.

use engine::ids::Pid;
use engine::stack::Frame;

use crate::wire::{Python, PythonFrame};

#[derive(Debug, Default)]
pub(crate) struct Pythons;

impl Pythons {
    pub(crate) fn look(&mut self, _pid: Pid) -> Option<Python> {
        None
    }
    pub(crate) fn frame(&mut self, _pid: Pid, _frame: &PythonFrame) -> Frame {
        Frame::default()
    }
    pub(crate) fn forget(&mut self, _pid: Pid) {}
}
