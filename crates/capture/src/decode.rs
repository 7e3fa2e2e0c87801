//! Bytes of the ring → events. Total: any bytes give an event, nothing, or [`Unreadable`]; never a
//! panic.

use engine::event::{
    Allocate, ContextChange, Event, Failed, Free, Lost as LostEvent, ProcessFacts, What,
};
use engine::ids::{ContextId, DeviceId, FunctionId, Key, Pid, Tid};
use engine::units::Moment;

use crate::hooks::{HOOKS, Hook, Meaning, Pointer, Size};
use crate::wire::{self, Call, CallDescriptor, Head, Learned, Process, ThreadName, parse};

/// A record that this version does not understand: the two sides of the wire disagree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unreadable;

/// Translates one record. `Ok(None)` is a call without consequence, such as a free of null.
pub fn decode(bytes: &[u8]) -> Result<Option<Event>, Unreadable> {
    let head: Head = parse(bytes).ok_or(Unreadable)?;
    match u32::from(head.kind) {
        wire::VS_CALL => call(&parse::<Call>(bytes).ok_or(Unreadable)?),
        wire::VS_CALL_DESCRIPTOR => call(&parse::<CallDescriptor>(bytes).ok_or(Unreadable)?.call),
        wire::VS_PROCESS => {
            let record: Process = parse(bytes).ok_or(Unreadable)?;
            Ok(Some(life(
                &head,
                What::Process(ProcessFacts {
                    start: record.start,
                    uid: record.uid,
                    name: text(&record.name),
                    before_trace: false,
                }),
            )))
        }
        wire::VS_THREAD => {
            let record: ThreadName = parse(bytes).ok_or(Unreadable)?;
            Ok(Some(life(&head, What::ThreadName(text(&record.name)))))
        }
        wire::VS_EXEC => Ok(Some(life(&head, What::Exec))),
        wire::VS_EXIT => Ok(Some(life(&head, What::Exit))),
        wire::VS_THREAD_EXIT => Ok(Some(life(&head, What::ThreadExit))),
        wire::VS_LEARNED => {
            let record: Learned = parse(bytes).ok_or(Unreadable)?;
            let context = ContextId(record.context);
            Ok(device(record.device).map(|device| {
                life(&head, What::Context(ContextChange::Learned { context, device }))
            }))
        }
        _ => Err(Unreadable),
    }
}

/// A name of the kernel: zero-terminated, any bytes.
fn text(name: &[u8]) -> Box<str> {
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into()
}

fn life(head: &Head, what: What) -> Event {
    let at = Moment(head.at);
    Event { pid: Pid(head.pid), tid: Tid(head.tid), entered: at, at, what }
}

/// The driver's `CUdevice` is an int; negative values (`CU_DEVICE_CPU`) are no device.
fn device(ordinal: i32) -> Option<DeviceId> {
    u16::try_from(ordinal).ok().map(DeviceId)
}

fn device_argument(call: &Call, index: u8) -> Option<DeviceId> {
    // An int in a 64-bit register: the upper half is not defined by the calling convention.
    device(argument(call, index) as u32 as i32)
}

fn argument(call: &Call, index: u8) -> u64 {
    call.args.get(usize::from(index)).copied().unwrap_or(0)
}

fn call(call: &Call) -> Result<Option<Event>, Unreadable> {
    let hook = HOOKS.get(usize::from(call.head.hook)).ok_or(Unreadable)?;
    let what = if call.head.result == 0 { success(hook, call) } else { Some(failure(hook, call)) };
    Ok(what.map(|what| Event {
        pid: Pid(call.head.pid),
        tid: Tid(call.head.tid),
        entered: Moment(call.entered),
        at: Moment(call.head.at),
        what,
    }))
}

fn context(call: &Call) -> Option<ContextId> {
    (call.flags & wire::VS_CONTEXT_KNOWN != 0 && call.context != 0)
        .then_some(ContextId(call.context))
}

/// The device that a query told for a thread whose context is not known.
fn thread_device(call: &Call) -> Option<DeviceId> {
    if call.flags & wire::VS_DEVICE_KNOWN == 0 || call.flags & wire::VS_CONTEXT_KNOWN != 0 {
        return None;
    }
    device(call.device)
}

/// What was asked for, which is what a failed or lost call would have given at the least.
fn asked(size: Size, call: &Call) -> u64 {
    match size {
        Size::Argument(index) => argument(call, index),
        Size::Pitch { width, height } => {
            argument(call, width).saturating_mul(argument(call, height))
        }
    }
}

fn given(size: Size, call: &Call) -> u64 {
    match size {
        Size::Argument(index) => argument(call, index),
        Size::Pitch { height, .. } => call.outs[1].saturating_mul(argument(call, height)),
    }
}

fn failure(hook: &Hook, call: &Call) -> What {
    let asked = match hook.meaning {
        Meaning::Allocate { kind, size, .. } => Some((kind, asked(size, call))),
        _ => None,
    };
    What::Failed(Failed {
        function: FunctionId(call.head.hook),
        code: call.head.result,
        asked,
        device: thread_device(call),
        context: context(call),
    })
}

fn success(hook: &Hook, call: &Call) -> Option<What> {
    let change = match hook.meaning {
        Meaning::Allocate { kind, pointer, size } => {
            let unreadable = call.flags & wire::VS_OUT_UNREADABLE != 0;
            let value = match pointer {
                Pointer::Out => call.outs[0],
                Pointer::Argument => argument(call, 0),
            };
            if unreadable || value == 0 {
                // It happened, but what the driver gave cannot be told: as good as lost.
                let allocated_bytes = asked(size, call);
                let lost = LostEvent { allocations: 1, allocated_bytes, ..LostEvent::default() };
                return Some(What::Lost(lost));
            }
            return Some(What::Allocate(Allocate {
                key: Key::address(value),
                kind,
                bytes: given(size, call),
                context: context(call),
                device: thread_device(call),
                site: None,
            }));
        }
        Meaning::Free { space } => {
            let value = argument(call, 0);
            return (value != 0).then_some(What::Free(Free { key: Key { space, value } }));
        }
        Meaning::ContextCreate { device } => ContextChange::Created {
            context: ContextId(call.outs[0]),
            device: device_argument(call, device)?,
        },
        Meaning::ContextDestroy => {
            ContextChange::Destroyed { context: ContextId(argument(call, 0)) }
        }
        Meaning::PrimaryRetain => ContextChange::PrimaryRetained {
            context: ContextId(call.outs[0]),
            device: device_argument(call, 1)?,
        },
        Meaning::PrimaryRelease => {
            ContextChange::PrimaryReleased { device: device_argument(call, 0)? }
        }
        Meaning::PrimaryReset => ContextChange::PrimaryReset { device: device_argument(call, 0)? },
        // Kept inside the probes; they send no record.
        Meaning::ContextSet
        | Meaning::ContextPush
        | Meaning::ContextPop
        | Meaning::ContextGet
        | Meaning::ContextDevice { .. } => return None,
    };
    Some(What::Context(change))
}
