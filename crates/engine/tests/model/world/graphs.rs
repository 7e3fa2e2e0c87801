//! Captures and graphs. Graph handles and node addresses are used only once.

use engine::model::event::{EventKind, Free, FreeFunction, GraphCall, MemoryLocation};
use engine::model::ids::{AllocationKey, DeviceId, GraphExecId, GraphId, Pid, StreamId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::Timestamp;

use super::memory::Memory;
use super::{DEVICES, Dice, InFlightCall, Program, World, pick, thread};

#[derive(Clone, Copy)]
struct Node {
    address: u64,
    bytes: u64,
    device: DeviceId,
}

/// The nodes of a graph.
#[derive(Clone, Default)]
pub(super) struct Nodes {
    allocates: Vec<Node>,
    frees: Vec<u64>,
    /// A record of its construction was lost and cannot be reconstructed: it is not launched.
    unknown: bool,
}

impl Nodes {
    fn unfreed(&self) -> Vec<Node> {
        let unfreed = self.allocates.iter().filter(|node| !self.frees.contains(&node.address));
        unfreed.copied().collect()
    }

    fn external_frees(&self) -> Vec<u64> {
        let own = |address: &u64| self.allocates.iter().any(|node| node.address == *address);
        self.frees.iter().copied().filter(|address| !own(address)).collect()
    }
}

pub(super) struct Capture {
    stream: StreamId,
    tid: Tid,
    since: Timestamp,
    nodes: Nodes,
}

/// The stream that joins captures of the threads that use it; others do not.
const JOINS: StreamId = StreamId(4);

impl Capture {
    pub(super) fn add(&mut self, address: u64, bytes: u64, device: DeviceId) {
        self.nodes.allocates.push(Node { address, bytes, device });
    }
}

pub(super) struct Graph {
    id: GraphId,
    nodes: Nodes,
}

pub(super) struct Exec {
    id: GraphExecId,
    nodes: Nodes,
    frees_before_launch: bool,
}

impl Program {
    /// Returns the capture of a call on a stream: its own, or that of the thread if it joined.
    pub(super) fn capture(&mut self, stream: StreamId, tid: Tid) -> Option<&mut Capture> {
        let own = self.captures.iter().position(|capture| capture.stream == stream);
        let joins = |capture: &Capture| capture.tid == tid && stream == JOINS;
        let of_thread = || self.captures.iter().rposition(joins);
        own.or_else(of_thread).map(|index| &mut self.captures[index])
    }

    pub(super) fn captures(&self, stream: StreamId, tid: Tid) -> bool {
        let joins = |capture: &Capture| capture.tid == tid && stream == JOINS;
        self.captures.iter().any(|capture| capture.stream == stream || joins(capture))
    }

    /// Whether calls do not show if a call on a stream is captured. Captures that began after the
    /// call was entered do not matter.
    pub(super) fn is_ambiguous(&self, stream: StreamId, tid: Tid, entered: Timestamp) -> bool {
        let mut captures = self.captures.iter().filter(|capture| capture.since <= entered);
        let own = captures.clone().any(|capture| capture.stream == stream);
        !own && captures.any(|capture| capture.tid == tid)
    }

    fn is_live(&self, address: u64) -> bool {
        self.live.iter().any(|memory| memory.key == AllocationKey::address(address))
    }

    fn free(&mut self, address: u64) {
        let before = self.live.len();
        self.live.retain(|memory| memory.key != AllocationKey::address(address));
        self.totals.frees += (before - self.live.len()) as u64;
    }

    fn launch(&mut self, index: usize) -> Option<GraphExecId> {
        let exec = &self.execs[index];
        let (id, frees_first) = (exec.id, exec.frees_before_launch);
        let (unfreed, external_frees) = (exec.nodes.unfreed(), exec.nodes.external_frees());
        let in_use = unfreed.iter().any(|node| self.is_live(node.address));
        let missing = external_frees.iter().any(|address| !self.is_live(*address));
        if exec.nodes.unknown || missing || (in_use && !frees_first) {
            return None;
        }
        let overtaken = |call: &&InFlightCall| {
            let freed = |node: &Node, free: &Free| free.key == AllocationKey::address(node.address);
            matches!(&call.kind, EventKind::Free(free) if unfreed.iter().any(|node| freed(node, free)))
        };
        self.totals.overtaken += self.in_flight.iter().filter(overtaken).count() as u64;
        for address in external_frees.into_iter().chain(unfreed.iter().map(|node| node.address)) {
            self.free(address);
        }
        self.totals.allocations += unfreed.len() as u64;
        self.live.extend(unfreed.into_iter().map(|node| Memory {
            key: AllocationKey::address(node.address),
            kind: MemoryKind::Graph,
            bytes: node.bytes,
            context: None,
            device: node.device,
            pool: None,
            openings: 1,
        }));
        Some(id)
    }
}

impl World {
    pub(super) fn graph(&mut self, pid: Pid, dice: Dice) {
        match dice.1 / 3 % 24 {
            0..=2 => self.begin_capture(pid, dice),
            3..=5 => self.end_capture(pid, dice),
            6..=8 => self.capture_free(pid, dice),
            9..=10 => self.add_allocation(pid, dice),
            11..=12 => self.add_free(pid, dice),
            13..=15 => self.instantiate(pid, dice),
            16..=21 => self.launch(pid, dice),
            22 => self.destroy_graph(pid, dice),
            _ => self.destroy_exec(pid, dice),
        }
    }

    fn begin_capture(&mut self, pid: Pid, dice: Dice) {
        let stream = StreamId(3 + u64::from(dice.2 % 3));
        let tid = thread((0, dice.2, 0, 0));
        if self.program(pid).captures.iter().any(|capture| capture.stream == stream) {
            return;
        }
        let call = GraphCall::CaptureBegan { stream, graph: None };
        let seen = self.called_by(pid, tid, dice, EventKind::Graph(call));
        let nodes = Nodes { unknown: !seen, ..Nodes::default() };
        let since = Timestamp(self.now);
        self.program(pid).captures.push(Capture { stream, tid, since, nodes });
    }

    fn end_capture(&mut self, pid: Pid, dice: Dice) {
        let id = GraphId(self.unique());
        let captures = &mut self.program(pid).captures;
        let Some(index) = pick(captures.len(), dice.2) else { return };
        let Capture { stream, tid, mut nodes, .. } = captures.remove(index);
        let graph = (dice.2 < 230).then_some(id);
        let call = GraphCall::CaptureEnded { stream, graph };
        let seen = self.called_by(pid, tid, dice, EventKind::Graph(call));
        nodes.unknown |= !seen;
        if graph.is_some() {
            self.program(pid).graphs.push(Graph { id, nodes });
        }
    }

    /// Frees in a capture: memory that it allocates itself, or that another graph left.
    fn capture_free(&mut self, pid: Pid, dice: Dice) {
        let program = self.program(pid);
        let Some(index) = pick(program.captures.len(), dice.2) else { return };
        let Capture { stream, tid, nodes, .. } = &program.captures[index];
        let (stream, tid) = (*stream, *tid);
        let mut possible: Vec<_> = nodes.unfreed().iter().map(|node| node.address).collect();
        if !nodes.unknown {
            let graph = program.live.iter().filter(|memory| memory.kind == MemoryKind::Graph);
            let graph = graph.map(|memory| memory.key.value);
            possible.extend(graph.filter(|address| !nodes.frees.contains(address)));
        }
        let Some(chosen) = pick(possible.len(), dice.2 / 4) else { return };
        let address = possible[chosen];
        program.captures[index].nodes.frees.push(address);
        let key = AllocationKey::address(address);
        let free = Free { key, by: FreeFunction::FreeAsync, stream: Some(stream) };
        self.called_by(pid, tid, dice, EventKind::Free(free));
    }

    /// Chooses an existing graph or adds one.
    fn choose_graph(&mut self, pid: Pid, die: u8) -> usize {
        let id = GraphId(self.unique());
        let graphs = &mut self.program(pid).graphs;
        if graphs.is_empty() || die.is_multiple_of(3) {
            graphs.push(Graph { id, nodes: Nodes::default() });
        }
        die as usize / 3 % graphs.len()
    }

    fn add_allocation(&mut self, pid: Pid, dice: Dice) {
        let address = self.unique();
        let index = self.choose_graph(pid, dice.2);
        let device = DeviceId(u16::from(dice.2 % DEVICES));
        let bytes = 1 << (dice.2 % 10);
        let graph = self.program(pid).graphs[index].id;
        let location = MemoryLocation::Device(device);
        let call = GraphCall::AllocNode { graph, address, bytes, location };
        let seen = self.called(pid, dice, EventKind::Graph(call));
        let nodes = &mut self.program(pid).graphs[index].nodes;
        nodes.allocates.push(Node { address, bytes, device });
        nodes.unknown |= !seen;
    }

    fn add_free(&mut self, pid: Pid, dice: Dice) {
        let index = self.choose_graph(pid, dice.2);
        let program = self.program(pid);
        let all = program.graphs.iter().flat_map(|graph| graph.nodes.unfreed());
        let freed = &program.graphs[index].nodes.frees;
        let possible: Vec<_> =
            all.map(|node| node.address).filter(|address| !freed.contains(address)).collect();
        let Some(chosen) = pick(possible.len(), dice.2) else { return };
        let address = possible[chosen];
        program.graphs[index].nodes.frees.push(address);
        let graph = program.graphs[index].id;
        self.called(pid, dice, EventKind::Graph(GraphCall::FreeNode { graph, address }));
    }

    fn instantiate(&mut self, pid: Pid, dice: Dice) {
        let exec = GraphExecId(self.unique());
        let program = self.program(pid);
        let Some(index) = pick(program.graphs.len(), dice.2) else { return };
        let Graph { id, nodes } = &program.graphs[index];
        let (graph, nodes) = (*id, nodes.clone());
        // A node that is allocated and not freed can be in one graph exec only.
        let mut others = program.execs.iter().flat_map(|exec| exec.nodes.unfreed());
        if others.any(|other| nodes.unfreed().iter().any(|node| node.address == other.address)) {
            return;
        }
        let frees_before_launch = dice.2.is_multiple_of(2);
        program.execs.push(Exec { id: exec, nodes, frees_before_launch });
        let call = GraphCall::Instantiated { exec, graph, frees_before_launch };
        self.called(pid, dice, EventKind::Graph(call));
    }

    fn launch(&mut self, pid: Pid, dice: Dice) {
        let program = self.program(pid);
        let Some(index) = pick(program.execs.len(), dice.2) else { return };
        if let Some(exec) = program.launch(index) {
            self.called(pid, dice, EventKind::Graph(GraphCall::Launched { exec }));
        }
    }

    fn destroy_graph(&mut self, pid: Pid, dice: Dice) {
        let graphs = &mut self.program(pid).graphs;
        let Some(index) = pick(graphs.len(), dice.2) else { return };
        let graph = graphs.remove(index).id;
        self.called(pid, dice, EventKind::Graph(GraphCall::GraphDestroyed { graph }));
    }

    fn destroy_exec(&mut self, pid: Pid, dice: Dice) {
        let execs = &mut self.program(pid).execs;
        let Some(index) = pick(execs.len(), dice.2) else { return };
        let exec = execs.remove(index).id;
        self.called(pid, dice, EventKind::Graph(GraphCall::ExecDestroyed { exec }));
    }
}
