//! The activity part of the oracle: launches, copies, memsets, and failed calls.

use std::collections::BTreeMap;
use std::ffi::c_int;

use crate::abi::{Code, Handle};

/// The grid and block size of a launch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct LaunchShape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
}

/// The outcome of a successful call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LaunchOutcome {
    /// It was executed.
    Executed,
    /// It was captured into a graph.
    Captured,
}

/// Launches of a kernel through one of its handles.
#[derive(Clone, Default, Debug)]
pub(crate) struct KernelLaunches {
    pub(crate) launches: u64,
    pub(crate) captured: u64,
    pub(crate) failed: u64,
    /// Executed launches by shape, without captured and failed ones.
    pub(crate) shapes: BTreeMap<LaunchShape, u64>,
    pub(crate) last: Option<LaunchShape>,
}

impl KernelLaunches {
    /// Counts a call.
    pub(crate) fn add(&mut self, result: Result<LaunchOutcome, Code>, shape: LaunchShape) {
        match result {
            Ok(LaunchOutcome::Executed) => {
                self.launches += 1;
                *self.shapes.entry(shape).or_default() += 1;
                self.last = Some(shape);
            }
            Ok(LaunchOutcome::Captured) => self.captured += 1,
            Err(_) => self.failed += 1,
        }
    }

    /// Adds the launches of another kernel with the same name and handle.
    pub(crate) fn merge(&mut self, later: Self) {
        self.launches += later.launches;
        self.captured += later.captured;
        self.failed += later.failed;
        for (shape, count) in later.shapes {
            *self.shapes.entry(shape).or_default() += count;
        }
        self.last = later.last.or(self.last);
    }

    /// Returns whether it was never launched.
    pub(crate) const fn is_empty(&self) -> bool {
        self.launches == 0 && self.captured == 0 && self.failed == 0
    }
}

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum CopyDirection {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
    HostToHost,
    /// From one context to another.
    Peer,
    /// From or to an array.
    Array,
    /// A memset.
    Memset,
}

impl CopyDirection {
    /// Returns its name in the oracle.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::HostToDevice => "H2D",
            Self::DeviceToHost => "D2H",
            Self::DeviceToDevice => "D2D",
            Self::HostToHost => "H2H",
            Self::Peer => "peer",
            Self::Array => "array",
            Self::Memset => "memset",
        }
    }
}

/// Copies of one function in one direction.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CopyActivity {
    pub(crate) calls: u64,
    pub(crate) captured: u64,
    pub(crate) failed: u64,
    /// Bytes that successful calls copied or set.
    pub(crate) bytes: u64,
}

/// Launches of one graph.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct GraphLaunches {
    pub(crate) launches: u64,
    pub(crate) failed: u64,
}

/// All activity, except that of loaded kernels, which have their own counts.
#[derive(Default)]
pub(crate) struct ActivityOracle {
    /// By function, direction, and whether the call is asynchronous.
    pub(crate) copies: BTreeMap<(&'static str, CopyDirection, bool), CopyActivity>,
    pub(crate) graphs: BTreeMap<Handle, GraphLaunches>,
    pub(crate) errors: BTreeMap<(&'static str, c_int), u64>,
}

impl ActivityOracle {
    /// Counts a failed call of any function.
    pub(crate) fn failed(&mut self, function: &'static str, code: c_int) {
        *self.errors.entry((function, code)).or_default() += 1;
    }
}
