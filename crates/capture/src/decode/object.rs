//! Decodes the effect of a call on CUDA objects. A call can also affect memory; its record then
//! gives two events.

use engine::event::{Event, Lost, What};
use engine::ids::{ContextId, Pid, StreamId, Tid};
use engine::object::{ObjectCall, ObjectKind};
use engine::units::Moment;

use super::{Decoded, Taken, taken};
use crate::hooks::{HOOKS, Meaning, ObjectUse};
use crate::wire::{self, Call, Head, parse};

/// Details of a call that creates an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Made {
    /// The stack.
    pub taken: Option<Taken>,
    /// The stream whose capture created the graph.
    pub captured_on: Option<StreamId>,
}

/// Decodes the effect of a record on an object; `None` if it has none.
pub fn object(bytes: &[u8]) -> Option<Decoded> {
    let head: Head = parse(bytes)?;
    if !matches!(u32::from(head.kind), wire::VS_CALL | wire::VS_CALL_DESCRIPTOR) || head.result != 0
    {
        return None;
    }
    let meaning = HOOKS.get(usize::from(head.hook))?.meaning;
    let what = meaning.object()?;
    let call: Call = parse(bytes)?;
    let [handle, graph, ..] = call.args;
    if meaning == Meaning::CaptureEnd && graph == 0 {
        return None; // the caller did not request the graph, so it has none
    }
    let (what, made) = match what {
        ObjectUse::Creates(kind) => (
            created(&call, kind),
            Made {
                taken: taken(bytes),
                captured_on: (meaning == Meaning::CaptureEnd).then_some(StreamId(handle)),
            },
        ),
        ObjectUse::Destroys(kind) => {
            (What::Object(ObjectCall::Destroyed { kind, handle }), Made::default())
        }
    };
    let (entered, at) = (Moment(call.entered), Moment(head.at));
    Some(Decoded::Object(Event { pid: Pid(head.pid), tid: Tid(head.tid), entered, at, what }, made))
}

fn created(call: &Call, kind: ObjectKind) -> What {
    let [handle, ..] = call.outs;
    // Textures and surfaces are numbers, all others pointers.
    let any = matches!(kind, ObjectKind::Texture | ObjectKind::Surface);
    if call.flags & wire::VS_OUT_UNREADABLE != 0 || (handle == 0 && !any) {
        // An object was created, but its handle is unknown.
        return What::Lost(Lost { objects: 1, ..Lost::default() });
    }
    let known = call.flags & wire::VS_CONTEXT_KNOWN != 0 && call.context != 0;
    let context = (known && kind.ends_with_context()).then_some(ContextId(call.context));
    What::Object(ObjectCall::Created { kind, handle, context, site: None })
}
