//! Graphs with memory nodes, and the captures that create them.
//!
//! The address of a node is fixed when the node is created; its memory is allocated by a launch.
//! For a graph exec, only the lasting effects of a launch are kept: memory that it allocates and
//! does not free, and memory of others that it frees.

use std::cmp::Reverse;

use hashbrown::{HashMap, HashSet};

use crate::model::{
    AddressType, Allocate, AllocationKey, Bytes, EndReason, Event, Free, GraphCall, GraphExecId,
    GraphId, MemoryKind, MemoryLocation, SiteId, StreamId, Tid, Timestamp,
};
use crate::snapshot::DriverReported;

use super::super::memory::allocation::{AllocationEntry, NIL, NewAllocation};
use super::super::memory::loss::AtRiskSizes;
use super::super::memory::totals::ByteSum;
use super::super::process::Process;
use super::reuse::{Owners, existed};

/// Limit of nodes per process, including copies; more are counted as lost.
const MAX_NODES: usize = 1_000_000;

/// Limit of simultaneous captures; more are counted as lost.
const MAX_CAPTURES: usize = 1024;

/// Highest handle of a default stream. Default streams that can be captured exist once per thread.
const LAST_DEFAULT_STREAM: u64 = 2;

/// A node was dropped because the limit was reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NodeLimitReached {
    /// Bytes that it would have allocated.
    pub(crate) bytes: u64,
}

/// An allocation node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct AllocNode {
    address: u64,
    bytes: u64,
    /// `None` if the device is unknown.
    location: Option<MemoryLocation>,
    /// Site that created the node.
    site: Option<SiteId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Node {
    Alloc(AllocNode),
    Free(u64),
}

/// A node and its creation time.
type TimedNode = (Node, Timestamp);

/// A stream whose calls become nodes.
#[derive(Debug)]
struct Capture {
    stream: StreamId,
    /// Thread that started the capture.
    thread: Option<Tid>,
    /// Graph to which it adds nodes, if it does not create a new one.
    graph: Option<GraphId>,
    since: Timestamp,
    nodes: Vec<TimedNode>,
}

impl Capture {
    /// Whether this captures the stream with this handle in this thread.
    fn is_of(&self, stream: StreamId, tid: Tid) -> bool {
        let shared = stream.0 > LAST_DEFAULT_STREAM;
        self.stream == stream && (shared || self.thread == Some(tid))
    }
}

/// A graph exec.
#[derive(Debug)]
struct GraphExec {
    frees_before_launch: bool,
    /// Memory that a launch leaves allocated.
    unfreed: Vec<AllocNode>,
    /// Memory of other graphs that a launch frees.
    external_frees: Vec<u64>,
}

/// Whether a stream-ordered call belongs to a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Captured {
    /// It is a node: the capture of its stream, by position.
    Node(usize),
    /// The calling thread captures another stream, which this one may have joined. Streams join by
    /// waiting for an event, and those calls are too frequent to trace.
    Unknown,
}

/// Calls that may be nodes. They are neither listed as live nor added to a graph.
#[derive(Debug, Default)]
struct Ambiguous {
    calls: u64,
    /// Allocations by address: the largest size seen there.
    bytes: HashMap<u64, u64>,
    /// Sizes at addresses beyond the limit.
    more: ByteSum,
}

impl Ambiguous {
    fn add(&mut self, address: u64, bytes: u64) {
        self.calls = self.calls.saturating_add(1);
        if self.bytes.len() >= MAX_NODES && !self.bytes.contains_key(&address) {
            self.more.add(bytes);
            return;
        }
        let max = self.bytes.entry(address).or_insert(0);
        *max = bytes.max(*max);
    }
}

/// Graphs, captures and graph execs of one process.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    captures: Vec<Capture>,
    /// Number of captures that ended without a graph.
    pub(crate) failed_captures: u64,
    graphs: HashMap<GraphId, Vec<TimedNode>>,
    execs: Owners<GraphExecId, GraphExec>,
    nodes: usize,
    /// Memory that each of the dropped graphs could have left allocated.
    pub(crate) dropped: AtRiskSizes,
    ambiguous: Ambiguous,
}

/// Memory that the nodes allocate and do not free: each address once, as in its last node. Largest
/// first, because that is the order of allocations of the same age.
fn unfreed(nodes: &[TimedNode]) -> Vec<AllocNode> {
    let mut freed: HashSet<u64> = frees(nodes).collect();
    let mut unfreed: Vec<_> =
        allocations(nodes).rev().filter(|node| freed.insert(node.address)).collect();
    unfreed.sort_by_key(|node| Reverse(node.bytes));
    unfreed
}

/// Addresses that the nodes free but do not allocate.
fn external_frees(nodes: &[TimedNode]) -> Vec<u64> {
    let own: HashSet<u64> = allocations(nodes).map(|node| node.address).collect();
    frees(nodes).filter(|address| !own.contains(address)).collect()
}

fn allocations(nodes: &[TimedNode]) -> impl DoubleEndedIterator<Item = AllocNode> {
    nodes.iter().filter_map(|(node, _)| match node {
        Node::Alloc(node) => Some(*node),
        Node::Free(_) => None,
    })
}

fn frees(nodes: &[TimedNode]) -> impl Iterator<Item = u64> {
    nodes.iter().filter_map(|(node, _)| match node {
        Node::Alloc(_) => None,
        Node::Free(address) => Some(*address),
    })
}

fn sum(nodes: impl IntoIterator<Item = AllocNode>) -> ByteSum {
    nodes.into_iter().fold(ByteSum::default(), |sum, node| sum.plus(ByteSum::from(node.bytes)))
}

impl Graphs {
    /// Adds a node to the capture at a position.
    fn add_to_capture(
        &mut self,
        position: usize,
        node: Node,
        at: Timestamp,
    ) -> Result<(), NodeLimitReached> {
        self.make_room(1).ok_or(NodeLimitReached::of(node))?;
        self.captures[position].nodes.push((node, at));
        Ok(())
    }

    /// Number of calls that may be nodes.
    pub(crate) const fn ambiguous_calls(&self) -> u64 {
        self.ambiguous.calls
    }

    /// Upper bound of the memory of ambiguous allocations beyond the listed memory; `listed`
    /// returns the bytes listed at an address. At most one allocation is live at an address.
    pub(crate) fn ambiguous_bytes(&self, listed: impl Fn(u64) -> u64) -> ByteSum {
        let beyond = |(address, bytes): (&u64, &u64)| bytes.saturating_sub(listed(*address));
        let known = self.ambiguous.bytes.iter().map(beyond);
        known.fold(self.ambiguous.more, |sum, bytes| sum.plus(ByteSum::from(bytes)))
    }

    /// Whether any stream is capturing.
    pub(crate) fn capturing(&self) -> bool {
        !self.captures.is_empty()
    }

    /// Returns whether a call on a stream belongs to a capture. A call entered before the capture
    /// started does not belong to it.
    fn captured(&self, event: &Event, stream: Option<StreamId>) -> Option<Captured> {
        let Event { tid, entry_time: entered, .. } = *event;
        let has_begun = |capture: &Capture| existed(capture.since, entered);
        let is_of = |capture: &Capture| stream.is_some_and(|stream| capture.is_of(stream, tid));
        let own = |capture: &Capture| has_begun(capture) && is_of(capture);
        let threads = |capture: &Capture| has_begun(capture) && capture.thread == Some(tid);
        let own = self.captures.iter().position(own).map(Captured::Node);
        own.or_else(|| self.captures.iter().any(threads).then_some(Captured::Unknown))
    }

    /// Ends the captures of default streams of an ended thread. Other streams continue to capture.
    pub(crate) fn end_thread(&mut self, tid: Tid) {
        let own = |capture: &Capture| {
            capture.thread == Some(tid) && capture.stream.0 <= LAST_DEFAULT_STREAM
        };
        while let Some(position) = self.captures.iter().position(own) {
            self.drop_capture(position);
        }
        for capture in &mut self.captures {
            capture.thread.take_if(|thread| *thread == tid);
        }
    }

    fn drop_capture(&mut self, position: usize) {
        let capture = self.captures.remove(position);
        self.drop_nodes(&capture.nodes);
    }

    fn make_room(&mut self, nodes: usize) -> Option<()> {
        let more = self.nodes.saturating_add(nodes);
        (more <= MAX_NODES).then(|| self.nodes = more)
    }

    fn drop_nodes(&mut self, nodes: &[TimedNode]) {
        self.nodes -= nodes.len();
        self.dropped.add(sum(allocations(nodes)));
    }

    fn drop_exec(&mut self, id: GraphExecId) {
        if let Some((_, GraphExec { unfreed, external_frees, .. })) = self.execs.remove(id) {
            self.nodes -= unfreed.len() + external_frees.len();
            self.dropped.add(sum(unfreed));
        }
    }

    fn begin_capture(&mut self, new: Capture, tid: Tid) -> Result<(), NodeLimitReached> {
        let older = self.captures.iter().position(|capture| capture.is_of(new.stream, tid));
        if let Some(position) = older {
            self.drop_capture(position);
        }
        if self.captures.len() >= MAX_CAPTURES {
            return Err(NodeLimitReached { bytes: 0 });
        }
        self.captures.push(new);
        Ok(())
    }

    fn end_capture(&mut self, event: &Event, stream: StreamId, graph: Option<GraphId>) {
        let ended = |capture: &Capture| {
            capture.is_of(stream, event.tid) && existed(capture.since, event.entry_time)
        };
        let Some(position) = self.captures.iter().position(ended) else {
            return;
        };
        let capture = self.captures.remove(position);
        match graph {
            None => {
                self.failed_captures += 1;
                self.drop_nodes(&capture.nodes);
            }
            Some(graph) if capture.graph == Some(graph) => {
                self.graphs.entry(graph).or_default().extend(capture.nodes);
            }
            Some(graph) => {
                // This is a new graph: an older one with the same handle has been destroyed.
                let older = self.graphs.remove(&graph).unwrap_or_default();
                self.drop_nodes(&older);
                if !capture.nodes.is_empty() {
                    self.graphs.insert(graph, capture.nodes);
                }
            }
        }
    }

    fn add(&mut self, graph: GraphId, node: Node, at: Timestamp) -> Result<(), NodeLimitReached> {
        self.make_room(1).ok_or(NodeLimitReached::of(node))?;
        self.graphs.entry(graph).or_default().push((node, at));
        Ok(())
    }

    fn instantiate(
        &mut self,
        id: GraphExecId,
        graph: GraphId,
        frees_before_launch: bool,
        at: Timestamp,
    ) -> Result<(), NodeLimitReached> {
        self.drop_exec(id);
        let nodes = self.graphs.get(&graph).map_or(&[][..], |nodes| nodes);
        let (unfreed, external_frees) = (unfreed(nodes), external_frees(nodes));
        if unfreed.is_empty() && external_frees.is_empty() {
            return Ok(());
        }
        let bytes = sum(unfreed.iter().copied()).bytes().0;
        self.make_room(unfreed.len() + external_frees.len()).ok_or(NodeLimitReached { bytes })?;
        self.execs.insert(id, at, GraphExec { frees_before_launch, unfreed, external_frees });
        Ok(())
    }

    fn destroy_exec(&mut self, id: GraphExecId, entered: Timestamp) {
        if self.execs.is_about(id, entered) {
            self.drop_exec(id);
        }
    }

    /// Nodes created after the call was entered belong to a newer graph with the same handle.
    fn destroy(&mut self, graph: GraphId, entered: Timestamp) {
        let nodes = self.graphs.remove(&graph).unwrap_or_default();
        let (gone, newer): (Vec<_>, Vec<_>) =
            nodes.into_iter().partition(|(_, at)| existed(*at, entered));
        if !newer.is_empty() {
            self.graphs.insert(graph, newer);
        }
        self.drop_nodes(&gone);
    }

    /// Memory that known nodes could allocate at addresses that are not live. Visits all nodes.
    pub(crate) fn potential(&self, live: impl Fn(u64) -> bool) -> ByteSum {
        let nodes = self.captures.iter().map(|capture| &capture.nodes).chain(self.graphs.values());
        // A graph may have been instantiated before a free node was added.
        let nodes = nodes.flat_map(|nodes| allocations(nodes));
        let execs = self.execs.iter().flat_map(|(_, _, exec)| exec.unfreed.iter().copied());
        let all = nodes.chain(execs);
        let mut largest: HashMap<u64, u64> = HashMap::new();
        for node in all.filter(|node| !live(node.address)) {
            let bytes = largest.entry(node.address).or_insert(0);
            *bytes = node.bytes.max(*bytes);
        }
        largest.values().fold(ByteSum::default(), |sum, bytes| sum.plus(ByteSum::from(*bytes)))
    }
}

impl NodeLimitReached {
    fn of(node: Node) -> Self {
        let bytes = if let Node::Alloc(node) = node { node.bytes } else { 0 };
        Self { bytes }
    }
}

impl Process {
    /// Applies a call on graphs or captures.
    pub(crate) fn graph(&mut self, event: &Event, call: GraphCall) -> Result<(), NodeLimitReached> {
        let Event { tid, time: at, entry_time: entered, .. } = *event;
        match call {
            GraphCall::CaptureBegan { stream, graph } => {
                let thread = Some(tid);
                let capture = Capture { stream, thread, graph, since: at, nodes: Vec::new() };
                return self.graphs.begin_capture(capture, tid);
            }
            GraphCall::CaptureEnded { stream, graph } => {
                self.graphs.end_capture(event, stream, graph);
            }
            GraphCall::AllocNode { graph, address, bytes, location } => {
                self.evict_stale(AllocationKey::address(address));
                let node = AllocNode { address, bytes, location: Some(location), site: None };
                return self.graphs.add(graph, Node::Alloc(node), at);
            }
            GraphCall::FreeNode { graph, address } => {
                return self.graphs.add(graph, Node::Free(address), at);
            }
            GraphCall::Instantiated { exec, graph, frees_before_launch } => {
                return self.graphs.instantiate(exec, graph, frees_before_launch, at);
            }
            GraphCall::Launched { exec } => {
                self.overhead.graph_launches += 1;
                self.launch(event, exec);
            }
            GraphCall::ExecDestroyed { exec } => self.graphs.destroy_exec(exec, entered),
            GraphCall::GraphDestroyed { graph } => self.graphs.destroy(graph, entered),
            GraphCall::ReservedReported { device, bytes } => {
                let reported = DriverReported { bytes: Bytes(bytes), at };
                self.devices.set_graph_reserved(device, Some(reported));
            }
            GraphCall::Trimmed { device } => self.devices.set_graph_reserved(device, None),
        }
        Ok(())
    }

    /// Adds a node for a stream-ordered allocation during a capture; returns `None` without a
    /// capture.
    pub(crate) fn capture_allocation(
        &mut self,
        event: &Event,
        allocate: &Allocate,
        context: u32,
    ) -> Option<Result<(), NodeLimitReached>> {
        let captured = self.graphs.captured(event, allocate.stream)?;
        self.evict_stale(allocate.key);
        let Captured::Node(position) = captured else {
            self.graphs.ambiguous.add(allocate.key.value, allocate.bytes);
            return Some(Ok(()));
        };
        let named = allocate.pool.filter(|pool| pool.0 != 0);
        let location = named.and_then(|pool| self.pools.location_of(pool)).or_else(|| {
            let device = allocate.device.or_else(|| self.device_of(context));
            device.map(MemoryLocation::Device)
        });
        let Allocate { key, bytes, site, .. } = *allocate;
        let node = AllocNode { address: key.value, bytes, location, site };
        Some(self.graphs.add_to_capture(position, Node::Alloc(node), event.time))
    }

    /// Adds a node for a stream-ordered free during a capture: of graph memory, or of an address
    /// that a node will allocate. A graph cannot free other memory, so a successful free of such
    /// memory does not belong to the capture.
    pub(crate) fn capture_free(
        &mut self,
        event: &Event,
        free: &Free,
    ) -> Option<Result<(), NodeLimitReached>> {
        let live = self.allocations.find(free.key);
        let other = live.is_some_and(|slot| !is_of_graph(&self.allocations.slab[slot]));
        if other || free.key.space != AddressType::Pointer {
            return None;
        }
        let Captured::Node(position) = self.graphs.captured(event, free.stream)? else {
            self.graphs.ambiguous.calls = self.graphs.ambiguous.calls.saturating_add(1);
            self.losses.doubt_free(event.time, self.totals.live);
            return Some(Ok(()));
        };
        Some(self.graphs.add_to_capture(position, Node::Free(free.key.value), event.time))
    }

    fn launch(&mut self, event: &Event, id: GraphExecId) {
        let Some((since, exec)) = self.graphs.execs.remove(id) else { return };
        if !exec.unfreed.is_empty() {
            // The launch allocates, so the thread must exist before any of its memory is freed.
            self.threads.of(event.tid, self.allocations.seed());
        }
        for address in &exec.external_frees {
            if !self.free_by_graph(event, *address) {
                self.match_pending_free(AllocationKey::address(*address));
            }
        }
        // All frees come before all allocations, so that live memory in between never exceeds that
        // after the launch.
        for node in &exec.unfreed {
            if !exec.frees_before_launch || !self.free_by_graph(event, node.address) {
                self.evict_stale(AllocationKey::address(node.address));
            }
        }
        for node in &exec.unfreed {
            let (kind, device) = match node.location {
                Some(MemoryLocation::Device(device)) => (MemoryKind::Graph, Some(device)),
                Some(MemoryLocation::Host) => (MemoryKind::HostAsync, None),
                None => (MemoryKind::Graph, None),
            };
            let new = NewAllocation::plain(AllocationKey::address(node.address), kind, node.bytes);
            self.insert_allocation(event, &NewAllocation { device, site: node.site, ..new });
        }
        self.graphs.execs.insert(id, since, exec);
    }

    /// Frees graph memory that was live when the launch was entered.
    fn free_by_graph(&mut self, event: &Event, address: u64) -> bool {
        let key = AllocationKey::address(address);
        let own = self.allocations.find(key).filter(|&slot| {
            let entry = &self.allocations.slab[slot];
            is_of_graph(entry) && existed(entry.returned_at, event.entry_time)
        });
        if let Some(slot) = own {
            self.remove_allocation(slot, EndReason::Freed);
            self.counts.frees += 1;
            self.freed.push(key);
        }
        own.is_some()
    }
}

/// Whether it was allocated by the launch of a graph.
pub(crate) fn is_of_graph(entry: &AllocationEntry) -> bool {
    entry.kind == MemoryKind::Graph || (entry.kind == MemoryKind::HostAsync && entry.pool() == NIL)
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: GraphId = GraphId(1);
    const E: GraphExecId = GraphExecId(1);

    fn alloc(address: u64, bytes: u64) -> Node {
        Node::Alloc(AllocNode { address, bytes, location: None, site: None })
    }

    fn instantiate(graphs: &mut Graphs) -> Result<(), NodeLimitReached> {
        graphs.instantiate(E, G, false, Timestamp(1))
    }

    fn graphs(nodes: &[Node]) -> Graphs {
        let mut graphs = Graphs::default();
        for node in nodes {
            graphs.add(G, *node, Timestamp(1)).unwrap();
        }
        graphs
    }

    #[test]
    fn graph_exec_keeps_only_lasting_effects() {
        let nodes = [alloc(1, 8), alloc(2, 4), Node::Free(1), Node::Free(3), alloc(4, 16)];
        let mut graphs = graphs(&nodes);
        instantiate(&mut graphs).unwrap();
        let exec = graphs.execs.get(E).unwrap();
        let unfreed: Vec<_> = exec.unfreed.iter().map(|node| node.address).collect();
        assert_eq!((unfreed, &exec.external_frees), (vec![4, 2], &vec![3]));
    }

    #[test]
    fn nodes_beyond_the_limit_are_dropped_until_others_end() {
        let mut graphs = graphs(&[alloc(1, 8), alloc(2, 4)]);
        graphs.nodes = MAX_NODES;
        assert_eq!(graphs.add(G, alloc(3, 2), Timestamp(1)), Err(NodeLimitReached { bytes: 2 }));
        assert_eq!(graphs.add(G, Node::Free(1), Timestamp(1)), Err(NodeLimitReached { bytes: 0 }));
        assert_eq!(instantiate(&mut graphs), Err(NodeLimitReached { bytes: 12 }));
        assert_eq!(graphs.execs.len(), 0);
        graphs.destroy(G, Timestamp(2));
        assert_eq!(graphs.add(G, alloc(3, 2), Timestamp(3)), Ok(()));
        assert_eq!(graphs.nodes, MAX_NODES - 1);
    }

    #[test]
    fn destroyed_graphs_free_their_nodes() {
        let mut graphs = graphs(&[alloc(1, 8), Node::Free(2)]);
        instantiate(&mut graphs).unwrap();
        assert_eq!(graphs.nodes, 4);
        instantiate(&mut graphs).unwrap();
        assert_eq!(graphs.nodes, 4);
        graphs.destroy_exec(E, Timestamp(0));
        graphs.destroy_exec(E, Timestamp(2));
        graphs.destroy(G, Timestamp(2));
        assert_eq!(graphs.nodes, 0);
        assert_eq!(graphs.dropped.at_most(1), ByteSum::from(8));
    }

    #[test]
    fn potential_counts_each_address_once_unless_live() {
        let mut graphs = graphs(&[alloc(1, 8), alloc(2, 4)]);
        instantiate(&mut graphs).unwrap();
        graphs.add(GraphId(2), alloc(2, 32), Timestamp(1)).unwrap();
        assert_eq!(graphs.potential(|_| false), ByteSum::from(40));
        assert_eq!(graphs.potential(|address| address == 2), ByteSum::from(8));
    }
}
