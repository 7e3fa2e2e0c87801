//! The account of what devices were asked to do besides holding memory: launches, copies, fills,
//! and which calls failed.

use std::collections::BTreeMap;
use std::ffi::c_int;

use crate::abi::{Code, Handle};

/// The size of a launch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
}

/// What became of a call that did not fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Done {
    /// It was done.
    Now,
    /// It became a part of a graph; nothing was done.
    Captured,
}

/// Launches of one kernel by one handle.
#[derive(Clone, Default, Debug)]
pub(crate) struct Launches {
    pub(crate) launches: u64,
    pub(crate) captured: u64,
    pub(crate) failed: u64,
    /// Launches by shape; those that were captured or failed are not among them.
    pub(crate) shapes: BTreeMap<Shape, u64>,
    pub(crate) last: Option<Shape>,
}

impl Launches {
    /// Counts a call.
    pub(crate) fn note(&mut self, result: Result<Done, Code>, shape: Shape) {
        match result {
            Ok(Done::Now) => {
                self.launches += 1;
                *self.shapes.entry(shape).or_default() += 1;
                self.last = Some(shape);
            }
            Ok(Done::Captured) => self.captured += 1,
            Err(_) => self.failed += 1,
        }
    }

    /// Takes over what an earlier kernel of the same name and handle was launched.
    pub(crate) fn merge(&mut self, later: Self) {
        self.launches += later.launches;
        self.captured += later.captured;
        self.failed += later.failed;
        for (shape, count) in later.shapes {
            *self.shapes.entry(shape).or_default() += count;
        }
        self.last = later.last.or(self.last);
    }

    /// Whether nobody ever tried to launch it.
    pub(crate) const fn is_empty(&self) -> bool {
        self.launches == 0 && self.captured == 0 && self.failed == 0
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Direction {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
    HostToHost,
    /// From one context to another.
    Peer,
    /// From or to an array.
    Array,
    /// No copy: memory is filled.
    Fill,
}

impl Direction {
    /// The word in the account.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::HostToDevice => "H2D",
            Self::DeviceToHost => "D2H",
            Self::DeviceToDevice => "D2D",
            Self::HostToHost => "H2H",
            Self::Peer => "peer",
            Self::Array => "array",
            Self::Fill => "memset",
        }
    }
}

/// Copies by one function in one direction.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Copies {
    pub(crate) calls: u64,
    pub(crate) captured: u64,
    pub(crate) failed: u64,
    /// What the successful calls copied or filled.
    pub(crate) bytes: u64,
}

/// Launches of one graph.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct GraphLaunches {
    pub(crate) launches: u64,
    pub(crate) failed: u64,
}

/// The whole account, but for the kernels that are still known: they keep theirs themselves.
#[derive(Default)]
pub(crate) struct Work {
    /// By function, direction, and whether the call returns before the copy is done.
    pub(crate) copies: BTreeMap<(&'static str, Direction, bool), Copies>,
    pub(crate) graphs: BTreeMap<Handle, GraphLaunches>,
    pub(crate) errors: BTreeMap<(&'static str, c_int), u64>,
}

impl Work {
    /// Counts a call that failed, of whichever function.
    pub(crate) fn failed(&mut self, function: &'static str, code: c_int) {
        *self.errors.entry((function, code)).or_default() += 1;
    }
}
