//! What a handle stands for: streams are made in a context, and green contexts are views of a
//! primary one. Events name the context that owns the memory, so both are looked up here, call by
//! call, before the ledger sees them.

use engine::event::{ContextChange, Event, GraphCall, What};
use engine::ids::{ContextId, DeviceId, GraphId, Pid, StreamId};
use engine::object::{ObjectCall, ObjectKind};
use hashbrown::HashMap;

use crate::decode::{Binding, Bound};

/// Streams remembered per process; a program that leaks more has its newer ones taken for streams
/// of the calling thread's context.
const STREAMS: usize = 65_536;

#[derive(Default)]
struct Process {
    streams: HashMap<StreamId, ContextId>,
    /// Green contexts, by their own handle.
    greens: HashMap<u64, DeviceId>,
    /// Contexts that are a view of a device's primary one.
    views: HashMap<ContextId, DeviceId>,
    primaries: HashMap<DeviceId, ContextId>,
    /// Streams that capture into a graph that was there before.
    captures: HashMap<StreamId, GraphId>,
}

impl Process {
    fn owner(&self, context: ContextId) -> ContextId {
        let device = self.views.get(&context);
        device.and_then(|device| self.primaries.get(device)).copied().unwrap_or(context)
    }
}

/// The bindings of all processes.
#[derive(Default)]
pub(crate) struct Bindings {
    processes: HashMap<Pid, Process>,
}

impl Bindings {
    /// Takes note of what a handle stands for; what a context's device is may follow from it.
    pub(crate) fn note(&mut self, bound: &Bound) -> Option<What> {
        let process = self.processes.entry(bound.pid).or_default();
        match bound.binding {
            Binding::StreamCreated { stream, context } => {
                let owner = process.owner(context);
                if process.streams.len() < STREAMS {
                    process.streams.insert(stream, owner);
                }
            }
            Binding::GreenStreamCreated { stream, green } => {
                let device = process.greens.get(&green)?;
                let owner = *process.primaries.get(device)?;
                process.streams.insert(stream, owner);
            }
            Binding::StreamDestroyed { stream } => {
                process.streams.remove(&stream);
            }
            Binding::GreenCreated { green, device } => {
                process.greens.insert(green, device);
            }
            Binding::GreenDestroyed { green } => {
                process.greens.remove(&green);
            }
            Binding::FromGreen { context, green } => {
                let device = *process.greens.get(&green)?;
                process.views.insert(context, device);
                if !process.primaries.contains_key(&device) {
                    return Some(What::Context(ContextChange::Learned { context, device }));
                }
            }
        }
        None
    }

    /// A capture on a stream gave a graph: whether that was there before the capture.
    pub(crate) fn keeps_graph(&mut self, pid: Pid, stream: StreamId, graph: u64) -> bool {
        let process = self.processes.get_mut(&pid);
        let into = process.and_then(|process| process.captures.remove(&stream));
        into == Some(GraphId(graph))
    }

    /// A process ended, or runs another program.
    pub(crate) fn forget(&mut self, pid: Pid) {
        self.processes.remove(&pid);
    }

    /// Replaces handles by what they stand for.
    pub(crate) fn resolve(&mut self, event: &mut Event) {
        match &mut event.what {
            What::Context(ContextChange::PrimaryRetained { context, device }) => {
                let process = self.processes.entry(event.pid).or_default();
                process.primaries.insert(*device, *context);
                process.views.remove(context);
            }
            // The name of a view that is gone was given to a context of its own.
            What::Context(ContextChange::Created { context, .. }) => {
                if let Some(process) = self.processes.get_mut(&event.pid) {
                    process.views.remove(context);
                }
            }
            What::Allocate(allocate) => {
                let Some(process) = self.processes.get(&event.pid) else { return };
                let stream = allocate.stream.and_then(|stream| process.streams.get(&stream));
                if let Some(owner) = stream {
                    (allocate.context, allocate.device) = (Some(*owner), None);
                } else {
                    allocate.context = allocate.context.map(|context| process.owner(context));
                }
            }
            What::Object(ObjectCall::Created { kind, handle, context, .. }) => {
                let Some(process) = self.processes.get(&event.pid) else { return };
                let stream = process.streams.get(&StreamId(*handle));
                *context = match stream.filter(|_| *kind == ObjectKind::Stream) {
                    Some(owner) => Some(*owner).filter(|owner| owner.0 != 0),
                    None => context.map(|context| process.owner(context)),
                };
            }
            What::Graph(GraphCall::CaptureBegan { stream, graph }) => {
                let captures = &mut self.processes.entry(event.pid).or_default().captures;
                captures.remove(stream);
                if let Some(graph) = graph.filter(|_| captures.len() < STREAMS) {
                    captures.insert(*stream, graph);
                }
            }
            What::Failed(failed) => {
                let Some(process) = self.processes.get(&event.pid) else { return };
                failed.context = failed.context.map(|context| process.owner(context));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::event::Allocate;
    use engine::ids::{Key, Tid};
    use engine::kind::Kind;
    use engine::units::Moment;

    use super::*;

    const PID: Pid = Pid(7);

    fn event(what: What) -> Event {
        Event { pid: PID, tid: Tid(7), entered: Moment(1), at: Moment(2), what }
    }

    fn allocation(context: u64, stream: Option<u64>) -> Event {
        event(What::Allocate(Allocate {
            key: Key::address(1),
            kind: Kind::Async,
            bytes: 1,
            context: Some(ContextId(context)),
            device: None,
            pool: None,
            stream: stream.map(StreamId),
            site: None,
        }))
    }

    fn owner(bindings: &mut Bindings, mut event: Event) -> Option<u64> {
        bindings.resolve(&mut event);
        let What::Allocate(allocate) = event.what else { panic!() };
        allocate.context.map(|context| context.0)
    }

    fn note(bindings: &mut Bindings, binding: Binding) -> Option<What> {
        bindings.note(&Bound { pid: PID, binding })
    }

    #[test]
    fn stream_ordered_memory_belongs_to_the_streams_context() {
        let mut bindings = Bindings::default();
        let (stream, context) = (StreamId(5), ContextId(0xc0));
        note(&mut bindings, Binding::StreamCreated { stream, context });
        assert_eq!(owner(&mut bindings, allocation(0xc1, Some(5))), Some(0xc0));
        assert_eq!(owner(&mut bindings, allocation(0xc1, Some(6))), Some(0xc1));
        note(&mut bindings, Binding::StreamDestroyed { stream });
        assert_eq!(owner(&mut bindings, allocation(0xc1, Some(5))), Some(0xc1));
    }

    #[test]
    fn a_stream_is_an_object_of_its_own_context_and_others_of_the_threads() {
        let mut bindings = Bindings::default();
        let (stream, context) = (StreamId(5), ContextId(0xc0));
        note(&mut bindings, Binding::StreamCreated { stream, context });
        let mut context_of = |kind, handle| {
            let context = Some(ContextId(0xc1));
            let call = ObjectCall::Created { kind, handle, context, site: None };
            let mut event = event(What::Object(call));
            bindings.resolve(&mut event);
            let What::Object(ObjectCall::Created { context, .. }) = event.what else { panic!() };
            context
        };
        assert_eq!(context_of(ObjectKind::Stream, 5), Some(ContextId(0xc0)));
        assert_eq!(context_of(ObjectKind::Event, 5), Some(ContextId(0xc1)));
    }

    #[test]
    fn a_capture_into_a_graph_makes_no_graph() {
        let mut bindings = Bindings::default();
        let stream = StreamId(5);
        let mut begin = |graph| {
            let call = GraphCall::CaptureBegan { stream, graph };
            bindings.resolve(&mut event(What::Graph(call)));
            (bindings.keeps_graph(PID, stream, 9), bindings.keeps_graph(PID, stream, 9))
        };
        assert_eq!(begin(Some(GraphId(9))), (true, false));
        assert_eq!(begin(Some(GraphId(8))), (false, false));
        assert_eq!(begin(None), (false, false));
    }

    #[test]
    fn a_green_context_is_a_view_of_the_primary_one() {
        let mut bindings = Bindings::default();
        let device = DeviceId(1);
        note(&mut bindings, Binding::GreenCreated { green: 9, device });
        let from = Binding::FromGreen { context: ContextId(0x90), green: 9 };
        let learned = ContextChange::Learned { context: ContextId(0x90), device };
        assert_eq!(note(&mut bindings, from), Some(What::Context(learned)));
        assert_eq!(owner(&mut bindings, allocation(0x90, None)), Some(0x90));
        let context = ContextId(0xc0);
        let retained = ContextChange::PrimaryRetained { context, device };
        bindings.resolve(&mut event(What::Context(retained)));
        assert_eq!(owner(&mut bindings, allocation(0x90, None)), Some(0xc0));
        let created = ContextChange::Created { context: ContextId(0x90), device };
        bindings.resolve(&mut event(What::Context(created)));
        assert_eq!(owner(&mut bindings, allocation(0x90, None)), Some(0x90));
        bindings.forget(PID);
        assert!(bindings.processes.is_empty());
    }
}
