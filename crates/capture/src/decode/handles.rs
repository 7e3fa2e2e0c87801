//! Maps handles to contexts: a stream belongs to a context, and a green context is a view of a
//! primary context. Events name the context that owns the memory, so both are resolved here, call
//! by call, before the ledger sees them.

use engine::model::cuda_object::ObjectKind;
use engine::model::event::{ContextCall, EventKind, GraphCall};
use engine::model::ids::{ContextId, DeviceId, GraphId, StreamId};
use hashbrown::{HashMap, HashSet};

/// Maximum number of streams kept per process. The context of further streams is unknown.
const MAX_STREAMS_PER_PROCESS: usize = 65_536;

/// Highest handle of a default stream; default streams belong to the calling thread's context.
const LAST_DEFAULT_STREAM: u64 = 2;

/// A change of a process's handles: a stream or green context that was created or destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BindingChange {
    /// A stream was created in the calling thread's context.
    StreamCreated { stream: StreamId, context: ContextId },
    /// A stream was created in a green context.
    GreenStreamCreated { stream: StreamId, green: u64 },
    /// A stream was destroyed.
    StreamDestroyed { stream: StreamId },
    /// A green context was created.
    GreenCreated { green: u64, device: DeviceId },
    /// A green context was destroyed.
    GreenDestroyed { green: u64 },
    /// A context was derived from a green context.
    FromGreen { context: ContextId, green: u64 },
}

/// Handles of a process.
pub(crate) struct Handles {
    streams: HashMap<StreamId, ContextId>,
    /// The limit was reached, so some streams are missing.
    full: bool,
    max_streams: usize,
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

impl Default for Handles {
    fn default() -> Self {
        Self::with_limit(MAX_STREAMS_PER_PROCESS)
    }
}

impl Handles {
    fn with_limit(max_streams: usize) -> Self {
        Self {
            streams: HashMap::new(),
            full: false,
            max_streams,
            greens: HashMap::new(),
            views: HashMap::new(),
            primaries: HashMap::new(),
            users: HashMap::new(),
            capturing: HashSet::new(),
            captures: HashMap::new(),
        }
    }

    /// Returns the context that owns the memory of a context.
    pub(super) fn owner(&self, context: ContextId) -> ContextId {
        let device = self.views.get(&context);
        device.and_then(|device| self.primaries.get(device)).copied().unwrap_or(context)
    }

    /// Returns the context of a stream; `None` if it is that of the calling thread, `Some(None)` if
    /// it is unknown.
    pub(super) fn stream_context(&self, stream: StreamId) -> Option<Option<ContextId>> {
        let known = self.streams.get(&stream).copied();
        let dropped = self.full && stream.0 > LAST_DEFAULT_STREAM;
        known.map(Some).or(dropped.then_some(None))
    }

    /// Returns the context of a new object. `context`: that of the calling thread.
    pub(super) fn context_of_object(
        &self,
        kind: ObjectKind,
        handle: u64,
        context: Option<ContextId>,
    ) -> Option<ContextId> {
        let stream = (kind == ObjectKind::Stream).then_some(StreamId(handle));
        match stream.and_then(|stream| self.stream_context(stream)) {
            Some(owner) => owner.filter(|owner| owner.0 != 0),
            None => context.map(|context| self.owner(context)),
        }
    }

    fn create_stream(&mut self, stream: StreamId, owner: ContextId) -> Option<EventKind> {
        if self.streams.len() < self.max_streams || self.streams.contains_key(&stream) {
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

    /// Applies a change of a handle. Returns what follows from it: the device of a context, or the
    /// end of a capture.
    pub(super) fn apply(&mut self, change: BindingChange) -> Option<EventKind> {
        match change {
            BindingChange::StreamCreated { stream, context } => {
                return self.create_stream(stream, self.owner(context));
            }
            BindingChange::GreenStreamCreated { stream, green } => {
                let device = self.greens.get(&green)?;
                let owner = *self.primaries.get(device)?;
                return self.create_stream(stream, owner);
            }
            BindingChange::StreamDestroyed { stream } => {
                self.streams.remove(&stream);
                return self.end_capture(stream);
            }
            BindingChange::GreenCreated { green, device } => {
                self.greens.insert(green, device);
            }
            BindingChange::GreenDestroyed { green } => {
                self.greens.remove(&green);
            }
            BindingChange::FromGreen { context, green } => {
                let device = *self.greens.get(&green)?;
                self.views.insert(context, device);
                if !self.primaries.contains_key(&device) {
                    return Some(EventKind::Context(ContextCall::Learned { context, device }));
                }
            }
        }
        None
    }

    /// Returns whether the graph that a capture returned existed before the capture.
    pub(super) fn keeps_graph(&mut self, stream: StreamId, graph: u64) -> bool {
        self.captures.remove(&stream) == Some(GraphId(graph))
    }

    /// Follows the effect of a call. Returns the ends of captures that precede it.
    pub(super) fn observe(&mut self, kind: &EventKind) -> Vec<EventKind> {
        match kind {
            EventKind::Context(change) => return self.context_changed(*change),
            EventKind::Graph(GraphCall::CaptureBegan { stream, graph }) => {
                self.captures.remove(stream);
                if self.capturing.len() < self.max_streams && self.capturing.insert(*stream) {
                    self.captures.extend(graph.map(|graph| (*stream, graph)));
                }
            }
            EventKind::Graph(GraphCall::CaptureEnded { stream, .. }) => {
                self.capturing.remove(stream);
            }
            _ => {}
        }
        Vec::new()
    }

    fn context_changed(&mut self, change: ContextCall) -> Vec<EventKind> {
        let ended = match change {
            ContextCall::Destroyed { context } => Some(context),
            ContextCall::PrimaryReset { device } => self.primaries.get(&device).copied(),
            ContextCall::PrimaryReleased { device } => {
                let users = self.users.entry(device).or_default();
                *users = users.saturating_sub(1);
                self.primaries.get(&device).copied().filter(|_| *users == 0)
            }
            ContextCall::PrimaryRetained { context, device } => {
                self.primaries.insert(device, context);
                *self.users.entry(device).or_default() += 1;
                self.views.remove(&context);
                None
            }
            // The handle of a destroyed view was reused for another context.
            ContextCall::Created { context, .. } => {
                self.views.remove(&context);
                None
            }
            ContextCall::Learned { .. } => None,
        };
        ended.map(|context| self.end_context(context)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the context of an allocation of a thread in a context, on a stream.
    fn owner(handles: &Handles, context: u64, stream: Option<u64>) -> Option<u64> {
        let of_stream = stream.and_then(|stream| handles.stream_context(StreamId(stream)));
        let owner = of_stream.unwrap_or_else(|| Some(handles.owner(ContextId(context))));
        owner.map(|owner| owner.0)
    }

    #[test]
    fn stream_belongs_to_the_context_that_it_was_created_in() {
        let mut handles = Handles::default();
        let (stream, context) = (StreamId(5), ContextId(0xc0));
        handles.apply(BindingChange::StreamCreated { stream, context });
        assert_eq!(owner(&handles, 0xc1, Some(5)), Some(0xc0));
        assert_eq!(owner(&handles, 0xc1, Some(6)), Some(0xc1));
        let of_object = |kind| handles.context_of_object(kind, 5, Some(ContextId(0xc1)));
        assert_eq!(of_object(ObjectKind::Stream), Some(ContextId(0xc0)));
        assert_eq!(of_object(ObjectKind::Event), Some(ContextId(0xc1)));
        handles.apply(BindingChange::StreamDestroyed { stream });
        assert_eq!(owner(&handles, 0xc1, Some(5)), Some(0xc1));
    }

    #[test]
    fn green_context_resolves_to_primary_context() {
        let mut handles = Handles::default();
        let device = DeviceId(1);
        handles.apply(BindingChange::GreenCreated { green: 9, device });
        let from = BindingChange::FromGreen { context: ContextId(0x90), green: 9 };
        let learned = ContextCall::Learned { context: ContextId(0x90), device };
        assert_eq!(handles.apply(from), Some(EventKind::Context(learned)));
        assert_eq!(owner(&handles, 0x90, None), Some(0x90));
        let context = ContextId(0xc0);
        let retained = ContextCall::PrimaryRetained { context, device };
        handles.observe(&EventKind::Context(retained));
        assert_eq!(owner(&handles, 0x90, None), Some(0xc0));
        let created = ContextCall::Created { context: ContextId(0x90), device };
        handles.observe(&EventKind::Context(created));
        assert_eq!(owner(&handles, 0x90, None), Some(0x90));
    }

    fn begin(stream: u64) -> EventKind {
        EventKind::Graph(GraphCall::CaptureBegan { stream: StreamId(stream), graph: None })
    }

    fn ended(stream: u64) -> EventKind {
        EventKind::Graph(GraphCall::CaptureEnded { stream: StreamId(stream), graph: None })
    }

    #[test]
    fn streams_beyond_the_limit_have_no_known_context() {
        let mut handles = Handles::with_limit(2);
        for stream in [5, 6, 7] {
            let (stream, context) = (StreamId(stream), ContextId(0xc0 + stream));
            handles.apply(BindingChange::StreamCreated { stream, context });
        }
        let of = |stream| owner(&handles, 0xff, stream);
        assert_eq!([Some(5), Some(6), Some(7)].map(of), [Some(0xc5), Some(0xc6), None]);
        assert_eq!([None, Some(0), Some(2)].map(of), [Some(0xff); 3], "of the thread");
        // The handle of a known stream may be reused.
        let (stream, context) = (StreamId(6), ContextId(0xd6));
        handles.apply(BindingChange::StreamCreated { stream, context });
        assert_eq!(owner(&handles, 0xff, Some(6)), Some(0xd6));
    }

    #[test]
    fn capture_ends_with_its_stream() {
        let mut handles = Handles::default();
        let (stream, context) = (StreamId(5), ContextId(0xc0));
        handles.apply(BindingChange::StreamCreated { stream, context });
        assert_eq!(handles.apply(BindingChange::StreamDestroyed { stream }), None);
        for end in [
            BindingChange::StreamDestroyed { stream },
            BindingChange::StreamCreated { stream, context },
        ] {
            handles.observe(&begin(5));
            assert_eq!(handles.apply(end), Some(ended(5)));
            handles.observe(&begin(5));
            handles.observe(&ended(5));
            assert_eq!(handles.apply(end), None, "ended by a call");
        }
    }

    #[test]
    fn captures_end_with_the_context_of_their_streams() {
        let mut handles = Handles::default();
        let (context, device) = (ContextId(0xc0), DeviceId(0));
        for change in [
            ContextCall::Destroyed { context },
            ContextCall::PrimaryReset { device },
            ContextCall::PrimaryReleased { device },
        ] {
            let retained = ContextCall::PrimaryRetained { context, device };
            handles.observe(&EventKind::Context(retained));
            for (stream, context) in [(5, 0xc0), (6, 0xc0), (7, 0xc1)] {
                let (stream, context) = (StreamId(stream), ContextId(context));
                handles.apply(BindingChange::StreamCreated { stream, context });
            }
            for stream in [5, 7] {
                handles.observe(&begin(stream));
            }
            let ends = handles.observe(&EventKind::Context(change));
            if matches!(change, ContextCall::PrimaryReleased { .. }) {
                assert_eq!(ends, [], "there are other users");
                continue;
            }
            assert_eq!(ends, [ended(5)]);
            assert!(handles.observe(&EventKind::Context(change)).is_empty());
        }
        let released = EventKind::Context(ContextCall::PrimaryReleased { device });
        let mut release = || handles.observe(&released);
        assert_eq!([release(), release()], [vec![], vec![ended(5)]]);
    }
}
