//! Maps handles to contexts: a stream belongs to a context, and a green context is a view of a
//! primary context. Events name the context that owns the memory, so both are resolved here, call
//! by call, before the ledger sees them.

use engine::model::cuda_object::{ObjectCall, ObjectKind};
use engine::model::event::{ContextCall, Event, EventKind, GraphCall};
use engine::model::ids::{ContextId, DeviceId, GraphId, Pid, StreamId};
use hashbrown::{HashMap, HashSet};

use crate::decode::{BindingChange, HandleBinding};

/// Maximum number of streams kept per process. The context of further streams is unknown.
const MAX_STREAMS_PER_PROCESS: usize = 65_536;

/// Highest handle of a default stream; default streams belong to the calling thread's context.
const LAST_DEFAULT_STREAM: u64 = 2;

#[derive(Default)]
struct ProcessHandles {
    streams: HashMap<StreamId, ContextId>,
    /// The limit was reached, so some streams are missing.
    full: bool,
    /// Green contexts, by their own handle.
    greens: HashMap<u64, DeviceId>,
    /// Contexts that are views of a device's primary context.
    views: HashMap<ContextId, DeviceId>,
    primaries: HashMap<DeviceId, ContextId>,
    /// Reference counts of the primary contexts.
    users: HashMap<DeviceId, u64>,
    /// Capturing streams. The ledger tracks fewer and counts the others as lost.
    capturing: HashSet<StreamId>,
    /// Streams that capture into an existing graph.
    captures: HashMap<StreamId, GraphId>,
}

impl ProcessHandles {
    fn owner(&self, context: ContextId) -> ContextId {
        let device = self.views.get(&context);
        device.and_then(|device| self.primaries.get(device)).copied().unwrap_or(context)
    }

    /// Returns the context of a stream; `None` if it is that of the calling thread, `Some(None)` if
    /// it is unknown.
    fn stream_context(&self, stream: StreamId) -> Option<Option<ContextId>> {
        let known = self.streams.get(&stream).copied();
        let dropped = self.full && stream.0 > LAST_DEFAULT_STREAM;
        known.map(Some).or(dropped.then_some(None))
    }

    fn create_stream(
        &mut self,
        stream: StreamId,
        owner: ContextId,
        max: usize,
    ) -> Option<EventKind> {
        if self.streams.len() < max || self.streams.contains_key(&stream) {
            self.streams.insert(stream, owner);
        } else {
            self.full = true;
        }
        // An older stream with this handle has ended.
        self.end_capture(stream)
    }

    fn end_capture(&mut self, stream: StreamId) -> Option<EventKind> {
        self.captures.remove(&stream);
        let ended = EventKind::Graph(GraphCall::CaptureEnded { stream, graph: None });
        self.capturing.remove(&stream).then_some(ended)
    }

    /// Ends the streams of a context.
    fn end_context(&mut self, context: ContextId) -> Vec<EventKind> {
        let ended = self.streams.extract_if(|_, owner| *owner == context);
        let ended: Vec<_> = ended.map(|(stream, _)| stream).collect();
        ended.into_iter().filter_map(|stream| self.end_capture(stream)).collect()
    }

    /// Returns the context that a change ends.
    fn ended(&mut self, change: ContextCall) -> Option<ContextId> {
        match change {
            ContextCall::Destroyed { context } => Some(context),
            ContextCall::PrimaryReset { device } => self.primaries.get(&device).copied(),
            ContextCall::PrimaryReleased { device } => {
                let users = self.users.get_mut(&device)?;
                *users = users.saturating_sub(1);
                self.primaries.get(&device).copied().filter(|_| *users == 0)
            }
            ContextCall::Created { .. }
            | ContextCall::PrimaryRetained { .. }
            | ContextCall::Learned { .. } => None,
        }
    }
}

/// Handles of all processes.
pub(crate) struct HandleMap {
    processes: HashMap<Pid, ProcessHandles>,
    max_streams: usize,
}

impl Default for HandleMap {
    fn default() -> Self {
        Self { processes: HashMap::new(), max_streams: MAX_STREAMS_PER_PROCESS }
    }
}

impl HandleMap {
    /// Applies a change of a handle. Returns what follows from it: the device of a context, or the
    /// end of a capture.
    pub(crate) fn apply(&mut self, change: &HandleBinding) -> Option<EventKind> {
        let process = self.processes.entry(change.pid).or_default();
        match change.binding {
            BindingChange::StreamCreated { stream, context } => {
                let owner = process.owner(context);
                return process.create_stream(stream, owner, self.max_streams);
            }
            BindingChange::GreenStreamCreated { stream, green } => {
                let device = process.greens.get(&green)?;
                let owner = *process.primaries.get(device)?;
                return process.create_stream(stream, owner, self.max_streams);
            }
            BindingChange::StreamDestroyed { stream } => {
                process.streams.remove(&stream);
                return process.end_capture(stream);
            }
            BindingChange::GreenCreated { green, device } => {
                process.greens.insert(green, device);
            }
            BindingChange::GreenDestroyed { green } => {
                process.greens.remove(&green);
            }
            BindingChange::FromGreen { context, green } => {
                let device = *process.greens.get(&green)?;
                process.views.insert(context, device);
                if !process.primaries.contains_key(&device) {
                    return Some(EventKind::Context(ContextCall::Learned { context, device }));
                }
            }
        }
        None
    }

    /// Returns whether the graph that a capture returned existed before the capture.
    pub(crate) fn keeps_graph(&mut self, pid: Pid, stream: StreamId, graph: u64) -> bool {
        let process = self.processes.get_mut(&pid);
        let into = process.and_then(|process| process.captures.remove(&stream));
        into == Some(GraphId(graph))
    }

    /// Drops the handles of a process that exited or called exec.
    pub(crate) fn process_exited(&mut self, pid: Pid) {
        self.processes.remove(&pid);
    }

    /// Returns the ends of captures that follow from the end of a context.
    pub(crate) fn ended_with(&mut self, event: &Event) -> Vec<Event> {
        let EventKind::Context(change) = event.kind else { return Vec::new() };
        let Some(process) = self.processes.get_mut(&event.pid) else { return Vec::new() };
        let Some(context) = process.ended(change) else { return Vec::new() };
        let ended = process.end_context(context).into_iter();
        ended.map(|kind| Event { kind, ..event.clone() }).collect()
    }

    /// Replaces contexts in an event by the context that owns the memory.
    pub(crate) fn resolve(&mut self, event: &mut Event) {
        match &mut event.kind {
            EventKind::Context(ContextCall::PrimaryRetained { context, device }) => {
                let process = self.processes.entry(event.pid).or_default();
                process.primaries.insert(*device, *context);
                *process.users.entry(*device).or_default() += 1;
                process.views.remove(context);
            }
            // The handle of a destroyed view was reused for another context.
            EventKind::Context(ContextCall::Created { context, .. }) => {
                if let Some(process) = self.processes.get_mut(&event.pid) {
                    process.views.remove(context);
                }
            }
            EventKind::Allocate(allocate) => {
                let Some(process) = self.processes.get(&event.pid) else { return };
                match allocate.stream.and_then(|stream| process.stream_context(stream)) {
                    Some(owner) => (allocate.context, allocate.device) = (owner, None),
                    None => allocate.context = allocate.context.map(|id| process.owner(id)),
                }
            }
            EventKind::Object(ObjectCall::Created { kind, handle, context, .. }) => {
                let Some(process) = self.processes.get(&event.pid) else { return };
                let stream = process.stream_context(StreamId(*handle));
                *context = match stream.filter(|_| *kind == ObjectKind::Stream) {
                    Some(owner) => owner.filter(|owner| owner.0 != 0),
                    None => context.map(|context| process.owner(context)),
                };
            }
            EventKind::Graph(GraphCall::CaptureBegan { stream, graph }) => {
                let process = self.processes.entry(event.pid).or_default();
                process.captures.remove(stream);
                if process.capturing.len() < self.max_streams && process.capturing.insert(*stream) {
                    process.captures.extend(graph.map(|graph| (*stream, graph)));
                }
            }
            EventKind::Graph(GraphCall::CaptureEnded { stream, .. }) => {
                if let Some(process) = self.processes.get_mut(&event.pid) {
                    process.capturing.remove(stream);
                }
            }
            EventKind::Failed(failed) => {
                let Some(process) = self.processes.get(&event.pid) else { return };
                failed.context = failed.context.map(|context| process.owner(context));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::model::event::Allocate;
    use engine::model::ids::{AllocationKey, Tid};
    use engine::model::memory_kind::MemoryKind;
    use engine::model::units::Timestamp;

    use super::*;

    const PID: Pid = Pid(7);

    fn event(kind: EventKind) -> Event {
        Event { pid: PID, tid: Tid(7), entry_time: Timestamp(1), time: Timestamp(2), kind }
    }

    fn allocation(context: u64, stream: Option<u64>) -> Event {
        event(EventKind::Allocate(Allocate {
            key: AllocationKey::address(1),
            kind: MemoryKind::Async,
            bytes: 1,
            context: Some(ContextId(context)),
            device: None,
            pool: None,
            stream: stream.map(StreamId),
            site: None,
        }))
    }

    fn owner(handles: &mut HandleMap, mut event: Event) -> Option<u64> {
        handles.resolve(&mut event);
        let EventKind::Allocate(allocate) = event.kind else { panic!() };
        allocate.context.map(|context| context.0)
    }

    fn apply(handles: &mut HandleMap, binding: BindingChange) -> Option<EventKind> {
        handles.apply(&HandleBinding { pid: PID, binding })
    }

    #[test]
    fn stream_ordered_memory_belongs_to_stream_context() {
        let mut handles = HandleMap::default();
        let (stream, context) = (StreamId(5), ContextId(0xc0));
        apply(&mut handles, BindingChange::StreamCreated { stream, context });
        assert_eq!(owner(&mut handles, allocation(0xc1, Some(5))), Some(0xc0));
        assert_eq!(owner(&mut handles, allocation(0xc1, Some(6))), Some(0xc1));
        apply(&mut handles, BindingChange::StreamDestroyed { stream });
        assert_eq!(owner(&mut handles, allocation(0xc1, Some(5))), Some(0xc1));
    }

    #[test]
    fn stream_object_belongs_to_stream_context() {
        let mut handles = HandleMap::default();
        let (stream, context) = (StreamId(5), ContextId(0xc0));
        apply(&mut handles, BindingChange::StreamCreated { stream, context });
        let mut context_of = |kind, handle| {
            let context = Some(ContextId(0xc1));
            let call = ObjectCall::Created { kind, handle, context, site: None };
            let mut event = event(EventKind::Object(call));
            handles.resolve(&mut event);
            let EventKind::Object(ObjectCall::Created { context, .. }) = event.kind else {
                panic!()
            };
            context
        };
        assert_eq!(context_of(ObjectKind::Stream, 5), Some(ContextId(0xc0)));
        assert_eq!(context_of(ObjectKind::Event, 5), Some(ContextId(0xc1)));
    }

    #[test]
    fn capture_into_existing_graph_creates_no_graph() {
        let mut handles = HandleMap::default();
        let stream = StreamId(5);
        let mut begin = |graph| {
            let call = GraphCall::CaptureBegan { stream, graph };
            handles.resolve(&mut event(EventKind::Graph(call)));
            (handles.keeps_graph(PID, stream, 9), handles.keeps_graph(PID, stream, 9))
        };
        assert_eq!(begin(Some(GraphId(9))), (true, false));
        assert_eq!(begin(Some(GraphId(8))), (false, false));
        assert_eq!(begin(None), (false, false));
    }

    #[test]
    fn green_context_resolves_to_primary_context() {
        let mut handles = HandleMap::default();
        let device = DeviceId(1);
        apply(&mut handles, BindingChange::GreenCreated { green: 9, device });
        let from = BindingChange::FromGreen { context: ContextId(0x90), green: 9 };
        let learned = ContextCall::Learned { context: ContextId(0x90), device };
        assert_eq!(apply(&mut handles, from), Some(EventKind::Context(learned)));
        assert_eq!(owner(&mut handles, allocation(0x90, None)), Some(0x90));
        let context = ContextId(0xc0);
        let retained = ContextCall::PrimaryRetained { context, device };
        handles.resolve(&mut event(EventKind::Context(retained)));
        assert_eq!(owner(&mut handles, allocation(0x90, None)), Some(0xc0));
        let created = ContextCall::Created { context: ContextId(0x90), device };
        handles.resolve(&mut event(EventKind::Context(created)));
        assert_eq!(owner(&mut handles, allocation(0x90, None)), Some(0x90));
        handles.process_exited(PID);
        assert!(handles.processes.is_empty());
    }

    fn begin(stream: u64) -> Event {
        let stream = StreamId(stream);
        event(EventKind::Graph(GraphCall::CaptureBegan { stream, graph: None }))
    }

    fn ended(stream: u64) -> EventKind {
        EventKind::Graph(GraphCall::CaptureEnded { stream: StreamId(stream), graph: None })
    }

    #[test]
    fn streams_beyond_the_limit_have_no_known_context() {
        let mut handles = HandleMap { max_streams: 2, ..HandleMap::default() };
        for stream in [5, 6, 7] {
            let (stream, context) = (StreamId(stream), ContextId(0xc0 + stream));
            apply(&mut handles, BindingChange::StreamCreated { stream, context });
        }
        let mut owner = |stream| owner(&mut handles, allocation(0xff, stream));
        assert_eq!([Some(5), Some(6), Some(7)].map(&mut owner), [Some(0xc5), Some(0xc6), None]);
        assert_eq!([None, Some(0), Some(2)].map(owner), [Some(0xff); 3], "of the thread");
        // The handle of a known stream may be reused.
        let (stream, context) = (StreamId(6), ContextId(0xd6));
        apply(&mut handles, BindingChange::StreamCreated { stream, context });
        assert_eq!(super::tests::owner(&mut handles, allocation(0xff, Some(6))), Some(0xd6));
    }

    #[test]
    fn capture_ends_with_its_stream() {
        let mut handles = HandleMap::default();
        let (stream, context) = (StreamId(5), ContextId(0xc0));
        apply(&mut handles, BindingChange::StreamCreated { stream, context });
        assert_eq!(apply(&mut handles, BindingChange::StreamDestroyed { stream }), None);
        for end in [
            BindingChange::StreamDestroyed { stream },
            BindingChange::StreamCreated { stream, context },
        ] {
            handles.resolve(&mut begin(5));
            assert_eq!(apply(&mut handles, end), Some(ended(5)));
            handles.resolve(&mut begin(5));
            handles.resolve(&mut event(ended(5)));
            assert_eq!(apply(&mut handles, end), None, "ended by a call");
        }
    }

    #[test]
    fn captures_end_with_the_context_of_their_streams() {
        let mut handles = HandleMap::default();
        let (context, device) = (ContextId(0xc0), DeviceId(0));
        let change = |change| event(EventKind::Context(change));
        for change in [
            ContextCall::Destroyed { context },
            ContextCall::PrimaryReset { device },
            ContextCall::PrimaryReleased { device },
        ] {
            let retained = ContextCall::PrimaryRetained { context, device };
            handles.resolve(&mut event(EventKind::Context(retained)));
            for (stream, context) in [(5, 0xc0), (6, 0xc0), (7, 0xc1)] {
                let (stream, context) = (StreamId(stream), ContextId(context));
                apply(&mut handles, BindingChange::StreamCreated { stream, context });
            }
            [5, 7].into_iter().for_each(|stream| handles.resolve(&mut begin(stream)));
            let ends = handles.ended_with(&event(EventKind::Context(change)));
            let ends: Vec<_> = ends.into_iter().map(|event| event.kind).collect();
            if matches!(change, ContextCall::PrimaryReleased { .. }) {
                assert_eq!(ends, [], "there are other users");
                continue;
            }
            assert_eq!(ends, [ended(5)]);
            assert!(handles.ended_with(&event(EventKind::Context(change))).is_empty());
        }
        let mut release = || {
            let release = change(ContextCall::PrimaryReleased { device });
            handles.ended_with(&release).into_iter().map(|event| event.kind).collect::<Vec<_>>()
        };
        assert_eq!([release(), release()], [vec![], vec![ended(5)]]);
    }
}
