//! Captures and graphs with all their nodes.

use std::cmp::Reverse;

use engine::model::event::{Allocate, Event, Free, GraphCall, MemoryLocation};
use engine::model::ids::{AddressType, AllocationKey, DeviceId, GraphId, SiteId, StreamId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::{Bytes, Timestamp};
use engine::snapshot::DriverReported;

use super::{Live, Process};

#[derive(Clone, Copy)]
pub(super) enum Node {
    Alloc(u64, u64, Option<MemoryLocation>, Option<SiteId>),
    Free(u64),
}

pub(super) type TimedNode = (Node, Timestamp);

#[derive(Clone)]
pub(super) struct Capture {
    stream: StreamId,
    thread: Option<Tid>,
    graph: Option<GraphId>,
    since: Timestamp,
    nodes: Vec<TimedNode>,
}

#[derive(Clone)]
pub(super) struct Exec {
    since: Timestamp,
    frees_before_launch: bool,
    nodes: Vec<TimedNode>,
}

impl Exec {
    fn frees(&self, address: u64) -> bool {
        self.nodes.iter().any(|(node, _)| matches!(node, Node::Free(freed) if *freed == address))
    }

    fn allocates(&self, address: u64) -> bool {
        let alloc = |node: &Node| matches!(node, Node::Alloc(given, ..) if *given == address);
        self.nodes.iter().any(|(node, _)| alloc(node))
    }
}

impl Process {
    pub(super) fn graph(&mut self, event: &Event, call: GraphCall) {
        let Event { tid, time: at, entry_time: entered, .. } = *event;
        match call {
            GraphCall::CaptureBegan { stream, graph } => {
                self.captures.retain(|capture| !is_of(capture, stream, tid));
                let thread = Some(tid);
                let nodes = Vec::new();
                self.captures.push(Capture { stream, thread, graph, since: at, nodes });
            }
            GraphCall::CaptureEnded { stream, graph } => self.end_capture(event, stream, graph),
            GraphCall::AllocNode { graph, address, bytes, location } => {
                self.make_room(AllocationKey::address(address), at);
                let node = Node::Alloc(address, bytes, Some(location), None);
                self.graphs.entry(graph).or_default().push((node, at));
            }
            GraphCall::FreeNode { graph, address } => {
                self.graphs.entry(graph).or_default().push((Node::Free(address), at));
            }
            GraphCall::Instantiated { exec, graph, frees_before_launch } => {
                let nodes = self.graphs.get(&graph).cloned().unwrap_or_default();
                self.execs.insert(exec, Exec { since: at, frees_before_launch, nodes });
            }
            GraphCall::Launched { exec } => {
                if let Some(exec) = self.execs.get(&exec).cloned() {
                    self.launch(event, &exec);
                }
            }
            GraphCall::ExecDestroyed { exec } => {
                // An exec without lasting effect need not be removed.
                self.execs.retain(|id, known| *id != exec || known.since > entered);
            }
            GraphCall::GraphDestroyed { graph } => {
                self.graphs
                    .entry(graph)
                    .or_default()
                    .retain(|(_, created_at)| *created_at > entered);
            }
            GraphCall::ReservedReported { device, bytes } => {
                self.graph_reserved.insert(device, DriverReported { bytes: Bytes(bytes), at });
            }
            GraphCall::Trimmed { device } => {
                self.graph_reserved.remove(&device);
            }
        }
    }

    fn end_capture(&mut self, event: &Event, stream: StreamId, graph: Option<GraphId>) {
        let ended = |capture: &Capture| {
            is_of(capture, stream, event.tid) && capture.since <= event.entry_time
        };
        let Some(position) = self.captures.iter().position(ended) else { return };
        let capture = self.captures.remove(position);
        if let Some(graph) = graph {
            let nodes = self.graphs.entry(graph).or_default();
            if capture.graph != Some(graph) {
                nodes.clear();
            }
            nodes.extend(capture.nodes);
        }
    }

    pub(super) fn end_captures_of(&mut self, tid: Tid) {
        self.captures.retain(|capture| capture.thread != Some(tid) || capture.stream.0 > 2);
        for capture in &mut self.captures {
            capture.thread.take_if(|thread| *thread == tid);
        }
    }

    /// The capture of a stream; `Some(None)`: perhaps one of another stream.
    fn capture(&self, event: &Event, stream: Option<StreamId>) -> Option<Option<usize>> {
        let has_begun = |capture: &Capture| capture.since <= event.entry_time;
        let is_of = |capture: &Capture| stream.is_some_and(|s| is_of(capture, s, event.tid));
        let of_thread = |capture: &Capture| capture.thread == Some(event.tid);
        let own = self.captures.iter().position(|c| has_begun(c) && is_of(c));
        let is_doubtful = self.captures.iter().any(|c| has_begun(c) && of_thread(c));
        if own.is_some() { Some(own) } else { is_doubtful.then_some(None) }
    }

    pub(super) fn capture_allocation(
        &mut self,
        event: &Event,
        allocate: &Allocate,
        device: Option<DeviceId>,
    ) -> bool {
        let Some(position) = self.capture(event, allocate.stream) else { return false };
        self.make_room(allocate.key, event.time);
        let Some(position) = position else {
            self.ambiguous += 1;
            return true;
        };
        let pool = allocate.pool.filter(|id| id.0 != 0);
        let pool = pool.and_then(|id| self.named.get(&id).copied());
        let of_pool = pool.and_then(|number| self.pools[number].location);
        let location = of_pool.or(device.map(MemoryLocation::Device));
        let node = Node::Alloc(allocate.key.value, allocate.bytes, location, allocate.site);
        self.captures[position].nodes.push((node, event.time));
        true
    }

    pub(super) fn capture_free(&mut self, event: &Event, free: &Free) -> bool {
        let live = self.find(free.key).map(|position| &self.live[position]);
        if free.key.space != AddressType::Pointer || live.is_some_and(|live| !live.of_graph()) {
            return false;
        }
        match self.capture(event, free.stream) {
            None => return false,
            Some(None) => self.ambiguous += 1,
            Some(Some(position)) => {
                let node = Node::Free(free.key.value);
                self.captures[position].nodes.push((node, event.time));
            }
        }
        true
    }

    fn launch(&mut self, event: &Event, exec: &Exec) {
        for (node, _) in &exec.nodes {
            if let Node::Free(address) = node
                && !exec.allocates(*address)
                && !self.free_by_graph(event, *address)
            {
                self.match_pending_free(event, AllocationKey::address(*address));
            }
        }
        let mut unfreed: Vec<(u64, u64, Option<MemoryLocation>, Option<SiteId>)> = Vec::new();
        for (node, _) in exec.nodes.iter().rev() {
            if let Node::Alloc(address, bytes, location, site) = *node
                && !exec.frees(address)
                && unfreed.iter().all(|(other, ..)| *other != address)
            {
                unfreed.push((address, bytes, location, site));
            }
        }
        unfreed.sort_by_key(|(_, bytes, ..)| Reverse(*bytes));
        for (address, ..) in &unfreed {
            if !exec.frees_before_launch || !self.free_by_graph(event, *address) {
                self.make_room(AllocationKey::address(*address), event.time);
            }
        }
        for (address, bytes, location, site) in unfreed {
            let (kind, device) = match location {
                Some(MemoryLocation::Device(device)) => (MemoryKind::Graph, Some(device)),
                Some(MemoryLocation::Host) => (MemoryKind::HostAsync, None),
                None => (MemoryKind::Graph, None),
            };
            let live = Live::new(AllocationKey::address(address), kind, bytes, device);
            self.begin(event, Live { site, ..live });
        }
    }

    fn free_by_graph(&mut self, event: &Event, address: u64) -> bool {
        let key = AllocationKey::address(address);
        let own = |live: &Live| live.key == key && live.of_graph() && live.at <= event.entry_time;
        let position = self.live.iter().position(own);
        if let Some(position) = position {
            self.end(position, true);
            self.frees_total += 1;
            self.freed.push(key);
        }
        position.is_some()
    }
}

fn is_of(capture: &Capture, stream: StreamId, tid: Tid) -> bool {
    capture.stream == stream && (stream.0 > 2 || capture.thread == Some(tid))
}
