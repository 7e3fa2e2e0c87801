//! Decodes the effect of a call on CUDA objects. A call can also affect memory; its record then
//! gives two events.

use engine::model::cuda_object::{ObjectCall, ObjectKind};
use engine::model::event::{Event, EventKind, LostDelta};
use engine::model::ids::{ContextId, Pid, StreamId, Tid};
use engine::model::units::Timestamp;

use super::{Record, StackRef, stack_ref};
use crate::hooks::{CallSemantics, HOOKS, ObjectEffect};
use crate::wire::{self, Call, Head, parse};

/// Details of a call that creates an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CreatedObject {
    /// The stack.
    pub stack: Option<StackRef>,
    /// The stream whose capture created the graph.
    pub captured_on: Option<StreamId>,
}

/// Decodes the effect of a record on an object; `None` if it has none.
pub fn object(bytes: &[u8]) -> Option<Record> {
    let head: Head = parse(bytes)?;
    if !matches!(u32::from(head.kind), wire::VS_CALL | wire::VS_CALL_DESCRIPTOR) || head.result != 0
    {
        return None;
    }
    let semantics = HOOKS.get(usize::from(head.hook))?.semantics;
    let effect = semantics.object()?;
    let call: Call = parse(bytes)?;
    let [handle, graph, ..] = call.args;
    if semantics == CallSemantics::CaptureEnd && graph == 0 {
        return None; // the caller did not request the graph, so it has none
    }
    let (kind, details) = match effect {
        ObjectEffect::Creates(kind) => (
            created(&call, kind),
            CreatedObject {
                stack: stack_ref(bytes),
                captured_on: (semantics == CallSemantics::CaptureEnd).then_some(StreamId(handle)),
            },
        ),
        ObjectEffect::Destroys(kind) => {
            (EventKind::Object(ObjectCall::Destroyed { kind, handle }), CreatedObject::default())
        }
    };
    let (entered, at) = (Timestamp(call.entered), Timestamp(head.at));
    Some(Record::Object(
        Event { pid: Pid(head.pid), tid: Tid(head.tid), entry_time: entered, time: at, kind },
        details,
    ))
}

fn created(call: &Call, kind: ObjectKind) -> EventKind {
    let [handle, ..] = call.outs;
    // Textures and surfaces are numbers, all others pointers.
    let may_be_zero = matches!(kind, ObjectKind::Texture | ObjectKind::Surface);
    if call.flags & wire::VS_OUT_UNREADABLE != 0 || (handle == 0 && !may_be_zero) {
        // An object was created, but its handle is unknown.
        return EventKind::Lost(LostDelta { objects: 1, ..LostDelta::default() });
    }
    let known = call.flags & wire::VS_CONTEXT_KNOWN != 0 && call.context != 0;
    let context = (known && kind.ends_with_context()).then_some(ContextId(call.context));
    EventKind::Object(ObjectCall::Created { kind, handle, context, site: None })
}
