//! Decodes records of the ring into events. Any bytes give an event, nothing, or [`DecodeError`];
//! never a panic.

mod array;
mod call;
mod cuda_object;
mod tensor;
#[cfg(test)]
mod tests;

use engine::model::event::{ContextCall, Event, EventKind, ProcessInfo, VmmCall};
use engine::model::ids::{ContextId, DeviceId, KernelId, Pid, StreamId, Tid};
use engine::model::units::Timestamp;

use crate::hooks::{CallSemantics, HOOKS};
use crate::wire::{
    self, Call, CallDescriptor, ContextDevice, Head, KernelName, Process, ThreadName, parse,
};
use call::CallRecord;

pub(crate) use array::element_table;
pub use cuda_object::{CreatedObject, object};

/// A record that cannot be decoded: the probes and user space disagree about the format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeError;

/// A decoded record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// An event.
    Event(Event),
    /// A call with its stack.
    CallWithStack(Event, StackRef),
    /// An object was created or destroyed.
    Object(Event, CreatedObject),
    /// The first record of a process, with its exec generation.
    ProcessStart(Event, ExecGeneration),
    /// A process called exec, with the new exec generation.
    Exec(Event, ExecGeneration),
    /// The GPU behind a device ordinal.
    DeviceUuid(DeviceUuid),
    /// A handle was created or destroyed.
    HandleBinding(HandleBinding),
    /// The name of a kernel.
    KernelName(KernelNameRecord),
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
    /// The process.
    pub pid: Pid,
    /// Start time of the process, in nanoseconds since boot.
    pub start: u64,
    /// Exec generation of the process.
    pub exec_gen: ExecGeneration,
    /// Time of the call.
    pub at: Timestamp,
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

/// A change of one of a process's handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandleBinding {
    /// The process.
    pub pid: Pid,
    /// The change.
    pub binding: BindingChange,
}

/// A stream or green context that was created or destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BindingChange {
    /// A stream was created in a context.
    StreamCreated {
        /// The stream.
        stream: StreamId,
        /// The calling thread's context.
        context: ContextId,
    },
    /// A stream was created in a green context.
    GreenStreamCreated {
        /// The stream.
        stream: StreamId,
        /// The green context.
        green: u64,
    },
    /// A stream was destroyed.
    StreamDestroyed {
        /// The stream.
        stream: StreamId,
    },
    /// A green context was created.
    GreenCreated {
        /// Its handle.
        green: u64,
        /// Its device.
        device: DeviceId,
    },
    /// A green context was destroyed.
    GreenDestroyed {
        /// Its handle.
        green: u64,
    },
    /// A context was derived from a green context.
    FromGreen {
        /// The context.
        context: ContextId,
        /// The handle of the green context.
        green: u64,
    },
}

/// The UUID of a device, as the driver returned it to a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceUuid {
    /// The process.
    pub pid: Pid,
    /// The ordinal.
    pub device: DeviceId,
    /// The GPU or MIG instance.
    pub uuid: [u8; 16],
}

/// Decodes one record. Returns `Ok(None)` for a call without effect, such as a free of null.
pub fn decode(bytes: &[u8]) -> Result<Option<Record>, DecodeError> {
    if let Some(uuid) = device_uuid(bytes) {
        return Ok(Some(Record::DeviceUuid(uuid)));
    }
    if let Some(binding) = handle_binding(bytes) {
        return Ok(Some(Record::HandleBinding(binding)));
    }
    if let Some(name) = kernel_name(bytes) {
        return Ok(Some(Record::KernelName(name)));
    }
    if let Some(head) = parse::<Head>(bytes)
        && u32::from(head.kind) == wire::VS_TENSOR
    {
        return tensor::decode(bytes);
    }
    let event = event(bytes)?;
    let exec_gen = || ExecGeneration(parse::<Head>(bytes).map_or(0, |head| head.result as u16));
    Ok(event.map(|event| match event.kind {
        EventKind::Exec => Record::Exec(event, exec_gen()),
        EventKind::Process(_) => Record::ProcessStart(event, exec_gen()),
        EventKind::Allocate(_) | EventKind::Vmm(VmmCall::Create { .. }) | EventKind::Failed(_) => {
            match stack_ref(bytes) {
                Some(stack) => Record::CallWithStack(event, stack),
                None => Record::Event(event),
            }
        }
        _ => Record::Event(event),
    }))
}

/// Adds everything that one record means. `objects`: CUDA objects are tracked.
pub(crate) fn decode_all(
    bytes: &[u8],
    objects: bool,
    records: &mut Vec<Record>,
    decode_errors: &mut u64,
) {
    match decode(bytes) {
        Ok(record) => records.extend(record),
        Err(DecodeError) => *decode_errors += 1,
    }
    records.extend(capture_end(bytes));
    // After the memory event of the call: the context of a new stream is known by then.
    records.extend(objects.then(|| object(bytes)).flatten());
}

/// Returns the end of a capture in a record that [`decode`] decodes as something else.
pub fn capture_end(bytes: &[u8]) -> Option<Record> {
    let head: Head = parse(bytes)?;
    let semantics = HOOKS.get(usize::from(head.hook))?.semantics;
    if u32::from(head.kind) != wire::VS_CALL || semantics != CallSemantics::CaptureEnd {
        return None;
    }
    let call: Call = parse(bytes)?;
    CallRecord { call: &call, descriptor: &[] }.capture_end().map(Record::Event)
}

fn stack_ref(bytes: &[u8]) -> Option<StackRef> {
    let call: Call = parse(bytes)?;
    let known = call.flags & wire::VS_STACK_KNOWN != 0;
    let Call { stack, python, .. } = call;
    (stack != 0 || python != 0).then_some(StackRef { hook: call.head.hook, stack, known, python })
}

fn kernel_name(bytes: &[u8]) -> Option<KernelNameRecord> {
    // Most records are of another kind: check before parsing all of it.
    if u32::from(parse::<Head>(bytes)?.kind) != wire::VS_KERNEL_NAME {
        return None;
    }
    let KernelName { head, kernel, text, length, flags, calls, captured, checked, failed, start } =
        parse(bytes)?;
    let name = bytes.get(size_of::<KernelName>()..)?.get(..length as usize)?;
    Some(KernelNameRecord {
        pid: Pid(head.pid),
        start,
        exec_gen: ExecGeneration(head.result as u16),
        at: Timestamp(head.at),
        kernel: KernelId(kernel),
        name: (length > 0).then(|| String::from_utf8_lossy(name).into()),
        text,
        truncated: flags & wire::VS_NAME_TRUNCATED != 0,
        from_memory: flags & wire::VS_NAME_FROM_MEMORY != 0,
        before: LaunchCounts { calls, captured, checked, failed },
    })
}

fn device_uuid(bytes: &[u8]) -> Option<DeviceUuid> {
    let head: Head = parse(bytes)?;
    let hook = HOOKS.get(usize::from(head.hook))?;
    if u32::from(head.kind) != wire::VS_CALL_DESCRIPTOR
        || hook.semantics != CallSemantics::DeviceUuid
        || head.result != 0
    {
        return None;
    }
    let CallDescriptor { call, descriptor } = parse(bytes)?;
    if call.flags & wire::VS_OUT_UNREADABLE != 0 {
        return None;
    }
    let device = device(call.args[1] as u32 as i32)?;
    Some(DeviceUuid { pid: Pid(head.pid), device, uuid: *descriptor.first_chunk()? })
}

fn handle_binding(bytes: &[u8]) -> Option<HandleBinding> {
    let head: Head = parse(bytes)?;
    if u32::from(head.kind) != wire::VS_CALL || head.result != 0 {
        return None;
    }
    let semantics = HOOKS.get(usize::from(head.hook))?.semantics;
    if !semantics.binds_handle() {
        return None;
    }
    let call: Call = parse(bytes)?;
    if call.flags & wire::VS_OUT_UNREADABLE != 0 {
        return None;
    }
    let out = call.outs[0];
    let binding = match semantics {
        CallSemantics::StreamCreate => {
            BindingChange::StreamCreated { stream: StreamId(out), context: ContextId(call.context) }
        }
        CallSemantics::GreenStreamCreate => {
            BindingChange::GreenStreamCreated { stream: StreamId(out), green: call.args[1] }
        }
        CallSemantics::StreamDestroy => {
            BindingChange::StreamDestroyed { stream: StreamId(call.args[0]) }
        }
        CallSemantics::GreenCreate => {
            let device = device(call.args[2] as u32 as i32)?;
            BindingChange::GreenCreated { green: out, device }
        }
        CallSemantics::GreenDestroy => BindingChange::GreenDestroyed { green: call.args[0] },
        _ => BindingChange::FromGreen { context: ContextId(out), green: call.args[1] },
    };
    Some(HandleBinding { pid: Pid(head.pid), binding })
}

fn event(bytes: &[u8]) -> Result<Option<Event>, DecodeError> {
    let head: Head = parse(bytes).ok_or(DecodeError)?;
    match u32::from(head.kind) {
        wire::VS_CALL => {
            let call: Call = parse(bytes).ok_or(DecodeError)?;
            CallRecord { call: &call, descriptor: &[] }.event()
        }
        wire::VS_CALL_DESCRIPTOR => {
            let record: CallDescriptor = parse(bytes).ok_or(DecodeError)?;
            CallRecord { call: &record.call, descriptor: &record.descriptor }.event()
        }
        wire::VS_PROCESS => {
            let record: Process = parse(bytes).ok_or(DecodeError)?;
            let name = text(&record.name);
            let info =
                ProcessInfo { start: record.start, uid: record.uid, name, before_trace: false };
            Ok(Some(lifecycle_event(&head, EventKind::Process(info))))
        }
        wire::VS_THREAD => {
            let record: ThreadName = parse(bytes).ok_or(DecodeError)?;
            Ok(Some(lifecycle_event(&head, EventKind::ThreadName(text(&record.name)))))
        }
        wire::VS_EXEC => Ok(Some(lifecycle_event(&head, EventKind::Exec))),
        wire::VS_EXIT => Ok(Some(lifecycle_event(&head, EventKind::Exit))),
        wire::VS_THREAD_EXIT => Ok(Some(lifecycle_event(&head, EventKind::ThreadExit))),
        wire::VS_CONTEXT_DEVICE => {
            let record: ContextDevice = parse(bytes).ok_or(DecodeError)?;
            let context = ContextId(record.context);
            let event = |device| {
                let call = ContextCall::Learned { context, device };
                lifecycle_event(&head, EventKind::Context(call))
            };
            Ok(device(record.device).map(event))
        }
        _ => Err(DecodeError),
    }
}

/// Converts a name from the kernel: zero-terminated, any bytes.
fn text(name: &[u8]) -> Box<str> {
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into()
}

fn lifecycle_event(head: &Head, kind: EventKind) -> Event {
    let at = Timestamp(head.at);
    Event { pid: Pid(head.pid), tid: Tid(head.tid), entry_time: at, time: at, kind }
}

/// Converts a `CUdevice`, an int; negative values (`CU_DEVICE_CPU`) are not GPUs.
fn device(ordinal: i32) -> Option<DeviceId> {
    u16::try_from(ordinal).ok().map(DeviceId)
}
