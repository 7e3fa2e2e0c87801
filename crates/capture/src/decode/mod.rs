//! The pipeline from bytes to events: [`Record::parse`] reads a record of the ring once, and
//! `Record::events` turns it into finished events with the state of its process. Both are pure.
//! Any bytes give a record or [`DecodeError`]; never a panic.

mod array;
mod block;
mod call;
mod handles;
mod image;
mod share;
#[cfg(test)]
mod tests;

use engine::model::event::{ContextCall, Event, EventKind, LostDelta};
use engine::model::ids::{ContextId, DeviceId, KernelId, Pid, SiteId, Tid};
use engine::model::units::Timestamp;

use crate::wire::{
    self, CallDescriptor, ContextDevice, Head, KernelName, Process, ThreadName, parse,
};
pub use block::BlockRecord;
pub use call::{CallRecord, DeviceUuid};

pub(crate) use array::element_table;
pub(crate) use handles::Handles;

/// A record that cannot be decoded: the probes and user space disagree about the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeError;

/// A record of the ring.
#[derive(Clone, Debug)]
pub struct Record {
    /// The process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// When the call was entered; for other records the same as `time`.
    pub entry_time: Timestamp,
    /// When the call returned, or the record was written.
    pub time: Timestamp,
    /// The content.
    pub body: RecordBody,
}

/// Content of a record.
#[derive(Clone, Debug)]
pub enum RecordBody {
    /// A driver call.
    Call(CallRecord),
    /// A block of PyTorch's caching allocator.
    Block(BlockRecord),
    /// The first record of a process.
    Process(ProcessRecord),
    /// The name of a thread.
    ThreadName(Box<str>),
    /// The process called exec, with the new exec generation.
    Exec(ExecGeneration),
    /// The last thread of the process ended.
    Exit,
    /// A thread ended.
    ThreadExit,
    /// The device of a context; `None` if it is not a GPU.
    ContextDevice(ContextId, Option<DeviceId>),
    /// The name of a kernel.
    KernelName(KernelNameRecord),
    /// Calls that are known to be missing.
    Lost(LostDelta),
}

/// The announcement of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessRecord {
    /// Start time, in nanoseconds since boot.
    pub start: u64,
    /// User id.
    pub uid: u32,
    /// Name of the main thread.
    pub name: Box<str>,
    /// Exec generation.
    pub exec_gen: ExecGeneration,
}

/// Reference from a call to its stack, by the tokens in the records of the stack ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StackRef {
    /// The row of the hook table; no valid row for a tensor.
    pub hook: u16,
    /// The native stack: a token, or the number of a known stack; 0: none.
    pub stack: u64,
    /// `stack` is a number.
    pub known: bool,
    /// Token of the Python stack; 0: none.
    pub python: u64,
}

impl StackRef {
    /// Returns the reference in the fields of a record; `None` if it has no stack.
    fn new(hook: u16, stack: u64, python: u64, flags: u32) -> Option<Self> {
        let known = flags & wire::VS_STACK_KNOWN != 0;
        (stack != 0 || python != 0).then_some(Self { hook, stack, known, python })
    }
}

/// Exec generation of a process: increases with each exec, and wraps around.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ExecGeneration(pub u16);

impl ExecGeneration {
    /// Returns whether it ran before the other one.
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i16) < 0
    }
}

/// The name of a kernel, from a call or from the driver's memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelNameRecord {
    /// Start time of the process, in nanoseconds since boot.
    pub start: u64,
    /// Exec generation of the process.
    pub exec_gen: ExecGeneration,
    /// The handle.
    pub kernel: KernelId,
    /// The name, as far as the probe could read it.
    pub name: Option<Box<str>>,
    /// Address of the name in the process.
    pub text: u64,
    /// The name is longer than `name`.
    pub truncated: bool,
    /// Read from the driver's memory, not from a call.
    pub from_memory: bool,
    /// Earlier launches under this handle.
    pub before: LaunchCounts,
}

/// Cumulative launches under one handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaunchCounts {
    /// Calls.
    pub calls: u64,
    /// Of those: captured into a graph.
    pub captured: u64,
    /// Of those: result was checked.
    pub checked: u64,
    /// Of those: failed.
    pub failed: u64,
}

impl LaunchCounts {
    /// Returns the larger of two readings, count by count.
    #[must_use]
    pub fn max(&self, other: &Self) -> Self {
        Self {
            calls: self.calls.max(other.calls),
            captured: self.captured.max(other.captured),
            checked: self.checked.max(other.checked),
            failed: self.failed.max(other.failed),
        }
    }
}

impl Record {
    /// Reads a record of the ring.
    pub fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        let kind = bytes.first_chunk().map(|kind| u16::from_ne_bytes(*kind)).ok_or(DecodeError)?;
        Self::of_kind(kind.into(), bytes).ok_or(DecodeError)
    }

    fn of_kind(kind: u32, bytes: &[u8]) -> Option<Self> {
        let lifecycle = |body: fn(&Head) -> RecordBody| {
            let head: Head = parse(bytes)?;
            Some(Self::new(&head, body(&head)))
        };
        match kind {
            wire::VS_CALL => CallRecord::record(parse(bytes)?, None),
            wire::VS_CALL_DESCRIPTOR => {
                let CallDescriptor { call, descriptor } = parse(bytes)?;
                CallRecord::record(call, Some(Box::new(descriptor)))
            }
            wire::VS_BLOCK => BlockRecord::record(&parse(bytes)?),
            wire::VS_PROCESS => {
                let Process { head, start, uid, name, .. } = parse(bytes)?;
                let (name, exec_gen) = (text(&name), exec_gen(&head));
                let process = ProcessRecord { start, uid, name, exec_gen };
                Some(Self::new(&head, RecordBody::Process(process)))
            }
            wire::VS_THREAD => {
                let ThreadName { head, name } = parse(bytes)?;
                Some(Self::new(&head, RecordBody::ThreadName(text(&name))))
            }
            wire::VS_EXEC => lifecycle(|head| RecordBody::Exec(exec_gen(head))),
            wire::VS_EXIT => lifecycle(|_| RecordBody::Exit),
            wire::VS_THREAD_EXIT => lifecycle(|_| RecordBody::ThreadExit),
            wire::VS_CONTEXT_DEVICE => {
                let ContextDevice { head, context, device: ordinal, .. } = parse(bytes)?;
                let body = RecordBody::ContextDevice(ContextId(context), device(ordinal));
                Some(Self::new(&head, body))
            }
            wire::VS_KERNEL_NAME => kernel_name(bytes),
            _ => None,
        }
    }

    fn new(head: &Head, body: RecordBody) -> Self {
        Self::at(Pid(head.pid), Tid(head.tid), Timestamp(head.at), body)
    }

    /// Returns a record that was written at that time.
    pub(crate) const fn at(pid: Pid, tid: Tid, time: Timestamp, body: RecordBody) -> Self {
        Self { pid, tid, entry_time: time, time, body }
    }

    /// Adds the finished events of the record. `handles`: those of its process; `tracks_objects`:
    /// CUDA objects are tracked; `site`: resolves the stack of a call. Announcements, ends and
    /// kernel names concern more than the process, so the session adds their events.
    pub(crate) fn events(
        &self,
        handles: &mut Handles,
        tracks_objects: bool,
        site: &mut dyn FnMut(StackRef) -> Option<SiteId>,
        events: &mut Vec<Event>,
    ) {
        let kind = match &self.body {
            RecordBody::Call(call) => {
                return call.events(self, handles, tracks_objects, site, events);
            }
            RecordBody::Block(tensor) => tensor.event(site),
            RecordBody::ThreadName(name) => Some(EventKind::ThreadName(name.clone())),
            RecordBody::ThreadExit => Some(EventKind::ThreadExit),
            RecordBody::ContextDevice(context, device) => device.map(|device| {
                EventKind::Context(ContextCall::Learned { context: *context, device })
            }),
            RecordBody::Lost(lost) => Some(EventKind::Lost(*lost)),
            RecordBody::Process(_)
            | RecordBody::Exec(_)
            | RecordBody::Exit
            | RecordBody::KernelName(_) => None,
        };
        events.extend(kind.map(|kind| self.event(kind)));
    }

    /// Returns an event at the time of the record.
    pub(crate) const fn event(&self, kind: EventKind) -> Event {
        let Self { pid, tid, entry_time, time, .. } = *self;
        Event { pid, tid, entry_time, time, kind }
    }
}

const fn exec_gen(head: &Head) -> ExecGeneration {
    ExecGeneration(head.result as u16)
}

fn kernel_name(bytes: &[u8]) -> Option<Record> {
    let KernelName { head, kernel, text, length, flags, calls, captured, checked, failed, start } =
        parse(bytes)?;
    let name = bytes.get(size_of::<KernelName>()..)?.get(..length as usize)?;
    let name = KernelNameRecord {
        start,
        exec_gen: exec_gen(&head),
        kernel: KernelId(kernel),
        name: (length > 0).then(|| String::from_utf8_lossy(name).into()),
        text,
        truncated: flags & wire::VS_NAME_TRUNCATED != 0,
        from_memory: flags & wire::VS_NAME_FROM_MEMORY != 0,
        before: LaunchCounts { calls, captured, checked, failed },
    };
    Some(Record::new(&head, RecordBody::KernelName(name)))
}

/// Converts a name from the kernel: zero-terminated, any bytes.
fn text(name: &[u8]) -> Box<str> {
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into()
}

/// Converts a `CUdevice`, an int; negative values (`CU_DEVICE_CPU`) are not GPUs.
fn device(ordinal: i32) -> Option<DeviceId> {
    u16::try_from(ordinal).ok().map(DeviceId)
}
