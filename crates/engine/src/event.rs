//! The closed vocabulary of what can happen. Live capture, recordings and other tools' files all
//! become this stream; nothing else changes the ledger.

use crate::ids::{ContextId, DeviceId, FunctionId, Key, Pid, SiteId, Tid};
use crate::kind::Kind;
use crate::units::Moment;

/// One thing that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The process it happened in.
    pub pid: Pid,
    /// The thread that made the call.
    pub tid: Tid,
    /// When the call was entered; equal to `at` for things that have no duration.
    pub entered: Moment,
    /// When it was over. Events of one process arrive in this order, except for calls of different
    /// threads that overlap.
    pub at: Moment,
    /// What it was.
    pub what: What,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// A process was seen for the first time. Events of a pid that was never announced make the
    /// ledger open an anonymous process.
    Process(ProcessFacts),
    /// A thread's name, sent with its first call and when it changed.
    ThreadName(Box<str>),
    /// The process replaced its program: everything it held is released.
    Exec,
    /// The last thread of the process ended: everything it held is released.
    Exit,
    /// One thread ended; the process lives on.
    ThreadExit,
    /// A call gave memory.
    Allocate(Allocate),
    /// A call gave memory back.
    Free(Free),
    /// A driver call failed and changed nothing.
    Failed(Failed),
    /// A context began or ended.
    Context(ContextChange),
    /// The kernel could not deliver some records.
    Lost(Lost),
}

/// What is known of a process when it is first seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessFacts {
    /// When it started, nanoseconds since boot; 0 when unknown.
    pub start: u64,
    /// The owner's user id.
    pub uid: u32,
    /// The process's name; hostile text, to be sanitised by whoever prints it.
    pub name: Box<str>,
    /// It had mapped the driver before tracing began, so it may hold memory that was never seen.
    pub before_trace: bool,
}

/// Memory begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocate {
    /// The driver's name for it.
    pub key: Key,
    /// The sort of memory.
    pub kind: Kind,
    /// How much.
    pub bytes: u64,
    /// The context it belongs to, where the thread's current context is known.
    pub context: Option<ContextId>,
    /// The device, where the call itself or the thread's state names it. When it is `None` the
    /// ledger takes the device of the context.
    pub device: Option<DeviceId>,
    /// Where in the program.
    pub site: Option<SiteId>,
}

/// Memory ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Free {
    /// The driver's name for it. A null pointer is a legal no-op and never becomes an event.
    pub key: Key,
}

/// A driver call returned an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failed {
    /// Which function.
    pub function: FunctionId,
    /// The `CUresult`.
    pub code: i32,
    /// For an allocating call: what was asked for.
    pub asked: Option<(Kind, u64)>,
    /// The device it was asked of, where known.
    pub device: Option<DeviceId>,
    /// The context of the calling thread, where known.
    pub context: Option<ContextId>,
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: i32 = 2;

/// Contexts decide the device of an allocation and how long it can live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ContextChange {
    /// `cuCtxCreate`: a context of its own.
    Created {
        /// The new context.
        context: ContextId,
        /// Its device.
        device: DeviceId,
    },
    /// `cuCtxDestroy`: everything in it is freed at once.
    Destroyed {
        /// The context.
        context: ContextId,
    },
    /// `cuDevicePrimaryCtxRetain`: one more user of the device's primary context.
    PrimaryRetained {
        /// The primary context.
        context: ContextId,
        /// Its device.
        device: DeviceId,
    },
    /// `cuDevicePrimaryCtxRelease`: one user less; the last one frees everything in it.
    PrimaryReleased {
        /// The device.
        device: DeviceId,
    },
    /// `cuDevicePrimaryCtxReset`: everything in it is freed at once, whoever uses it.
    PrimaryReset {
        /// The device.
        device: DeviceId,
    },
    /// A query revealed which device a context belongs to that was made before tracing began.
    Learned {
        /// The context.
        context: ContextId,
        /// Its device.
        device: DeviceId,
    },
}

/// Records that were not delivered, as *increments* since the last such event of the process. The
/// event's pid is 0 when the process is not known.
///
/// The event's moment is when the losses were read: none of them is younger, and the records from
/// before that moment are delivered first. Bounds of a snapshot hold for losses that were told
/// before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lost {
    /// Allocating calls that succeeded.
    pub allocations: u64,
    /// The bytes those calls asked for.
    pub allocated_bytes: u64,
    /// Freeing calls that succeeded.
    pub frees: u64,
    /// Failed calls.
    pub failures: u64,
    /// Everything else: contexts, process life.
    pub other: u64,
}
