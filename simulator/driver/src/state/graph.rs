//! Graphs, as far as memory is concerned: nodes that allocate and free.
//!
//! The address of a node is fixed when the node is created. Its memory is allocated at the first
//! launch of the graph and kept, used or not, until the graph memory of the device is trimmed. It
//! does not belong to a context.

use std::collections::BTreeMap;

use crate::abi::{Code, Handle, Outcome};
use crate::oracle::MemoryKind;
use crate::settings::MAX_DEVICES;
use crate::state::handle::Slab;
use crate::state::{self, DriverState};

/// The operation of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Node {
    Alloc(u64),
    Free(u64),
}

/// A graph, with its nodes in an order that respects their dependencies.
#[derive(Clone, Default, Debug)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<(Handle, Node)>,
}

/// An executable graph (`CUgraphExec`).
#[derive(Clone, Debug)]
pub(crate) struct GraphExec {
    nodes: Vec<Node>,
    frees_first: bool,
}

/// The memory of an allocation node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GraphMemory {
    pub(crate) bytes: u64,
    pub(crate) thread: u32,
    pub(crate) owner: u32,
    /// Whether device memory is allocated for it.
    pub(crate) backed: bool,
    /// Allocated and not yet freed.
    pub(crate) in_use: bool,
    device: usize,
    /// Number of graphs and executable graphs that contain the node.
    references: u32,
    /// Number of executable graphs that allocate it and do not free it.
    unfreed: u32,
}

/// Peak of the used and reserved graph memory of a device.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct HighWater {
    pub(crate) used: u64,
    pub(crate) reserved: u64,
}

/// All graphs.
pub(crate) struct Graphs {
    pub(crate) graphs: Slab<Graph>,
    pub(crate) execs: Slab<GraphExec>,
    pub(crate) memory: BTreeMap<u64, GraphMemory>,
    pub(crate) high: [HighWater; MAX_DEVICES],
    next_node: u64,
}

impl Graphs {
    pub(crate) fn new() -> Self {
        Self {
            graphs: Slab::new(8),
            execs: Slab::new(9),
            memory: BTreeMap::new(),
            high: [HighWater::default(); MAX_DEVICES],
            next_node: 0x558a_0000_0080,
        }
    }

    /// Returns used and reserved graph memory of a device.
    pub(crate) fn levels(&self, device: usize) -> (u64, u64) {
        let mut levels = (0, 0);
        for memory in self.memory.values().filter(|memory| memory.device == device) {
            levels.0 += if memory.in_use { memory.bytes } else { 0 };
            levels.1 += if memory.backed { memory.bytes } else { 0 };
        }
        levels
    }

    fn raise_high(&mut self, device: usize) {
        let (used, reserved) = self.levels(device);
        if let Some(high) = self.high.get_mut(device) {
            high.used = high.used.max(used);
            high.reserved = high.reserved.max(reserved);
        }
    }

    fn add_node(&mut self, graph: u32, node: Node) -> Result<Handle, Code> {
        let handle = self.next_node;
        let graph = self.graphs.get_mut(graph).ok_or(Code::InvalidValue)?;
        graph.nodes.push((handle, node));
        self.next_node += 0x80;
        Ok(handle)
    }
}

/// Returns the addresses that nodes allocate and do not free.
fn unfreed(nodes: &[Node]) -> Vec<u64> {
    let freed = |address: u64| nodes.contains(&Node::Free(address));
    let allocated = nodes.iter().filter_map(|node| match node {
        Node::Alloc(address) => Some(*address),
        Node::Free(_) => None,
    });
    allocated.filter(|address| !freed(*address)).collect()
}

impl DriverState {
    /// Creates an empty graph.
    pub(crate) fn new_graph(&mut self) -> u32 {
        self.graphs.graphs.insert(Graph::default()).index
    }

    /// Adds an allocation node and returns its handle and address.
    pub(crate) fn add_alloc_node(
        &mut self,
        graph: u32,
        device: usize,
        bytes: u64,
    ) -> Result<(Handle, u64), Code> {
        self.graphs.graphs.get(graph).ok_or(Code::InvalidValue)?;
        let address = self.arena.reserve(bytes).ok_or(Code::OutOfMemory)?;
        let memory = GraphMemory {
            bytes,
            thread: 0,
            owner: self.owners.common(MemoryKind::Graph, Some(device)),
            backed: false,
            in_use: false,
            device,
            references: 1,
            unfreed: 0,
        };
        self.graphs.memory.insert(address, memory);
        Ok((self.graphs.add_node(graph, Node::Alloc(address))?, address))
    }

    /// Adds a node that frees memory of an allocation node.
    pub(crate) fn add_free_node(&mut self, graph: u32, address: u64) -> Result<Handle, Code> {
        let memory = self.graphs.memory.get_mut(&address).ok_or(Code::InvalidValue)?;
        let nodes = &self.graphs.graphs.get(graph).ok_or(Code::InvalidValue)?.nodes;
        if nodes.iter().any(|(_, node)| *node == Node::Free(address)) {
            return Err(Code::InvalidValue);
        }
        memory.references += 1;
        self.graphs.add_node(graph, Node::Free(address))
    }

    /// Instantiates a graph.
    pub(crate) fn instantiate(&mut self, graph: Handle, frees_first: bool) -> Result<u32, Code> {
        let key = self.graphs.graphs.find(graph).ok_or(Code::InvalidValue)?;
        let graph = self.graphs.graphs.get(key.index).ok_or(Code::InvalidValue)?;
        let nodes: Vec<Node> = graph.nodes.iter().map(|(_, node)| *node).collect();
        let not_freed = unfreed(&nodes);
        // A node whose memory is not freed can be in one executable graph only.
        let memory = &mut self.graphs.memory;
        if not_freed.iter().any(|address| memory.get(address).is_some_and(|m| m.unfreed > 0)) {
            return Err(Code::NotSupported);
        }
        for address in not_freed {
            if let Some(memory) = memory.get_mut(&address) {
                memory.unfreed += 1;
            }
        }
        for Node::Alloc(address) | Node::Free(address) in &nodes {
            if let Some(memory) = memory.get_mut(address) {
                memory.references += 1;
            }
        }
        Ok(self.graphs.execs.insert(GraphExec { nodes, frees_first }).index)
    }

    /// Runs the nodes of a graph.
    pub(crate) fn launch(&mut self, exec: Handle) -> Outcome {
        let key = self.graphs.execs.find(exec).ok_or(Code::InvalidValue)?;
        let exec = self.graphs.execs.get(key.index).ok_or(Code::InvalidValue)?.clone();
        let allocated: Vec<u64> = exec
            .nodes
            .iter()
            .filter_map(|node| if let Node::Alloc(address) = node { Some(*address) } else { None })
            .collect();
        for address in &allocated {
            let memory = self.graphs.memory.get_mut(address).ok_or(Code::InvalidValue)?;
            if memory.in_use && !exec.frees_first {
                return Err(Code::InvalidValue);
            }
        }
        self.ensure_backed(&allocated)?;
        // Memory that the previous launch left allocated is freed first; that counts as a free by
        // the program.
        for address in unfreed(&exec.nodes) {
            self.set_in_use(address, false);
        }
        for node in &exec.nodes {
            let (Node::Alloc(address) | Node::Free(address)) = node;
            let Some(memory) = self.graphs.memory.get_mut(address) else { continue };
            memory.thread = state::thread();
            let device = memory.device;
            // Memory that the graph both allocates and frees is never held by the program.
            let own = allocated.contains(address) && exec.nodes.contains(&Node::Free(*address));
            if own {
                memory.in_use = matches!(node, Node::Alloc(_));
            } else {
                self.set_in_use(*address, matches!(node, Node::Alloc(_)));
            }
            self.graphs.raise_high(device);
        }
        Ok(())
    }

    /// Marks graph memory as held by the program, or not.
    fn set_in_use(&mut self, address: u64, in_use: bool) {
        let Some(memory) = self.graphs.memory.get_mut(&address) else { return };
        if memory.in_use == in_use {
            return;
        }
        memory.in_use = in_use;
        let (device, bytes) = (Some(memory.device), memory.bytes);
        if in_use {
            self.oracle.allocations += 1;
            self.oracle.hold(device, bytes);
        } else {
            self.oracle.frees += 1;
            self.oracle.release(device, bytes);
        }
    }

    /// Allocates the memory that a launch needs and that is not allocated yet: all of it, or none.
    fn ensure_backed(&mut self, addresses: &[u64]) -> Outcome {
        let mut new = Vec::new();
        for address in addresses {
            let Some(memory) = self.graphs.memory.get(address).copied() else { continue };
            if memory.backed {
                continue;
            }
            if let Err(code) = self.charge(memory.device, memory.bytes) {
                for address in new {
                    self.unback(address);
                }
                return Err(code);
            }
            if let Some(memory) = self.graphs.memory.get_mut(address) {
                memory.backed = true;
            }
            new.push(*address);
        }
        Ok(())
    }

    fn unback(&mut self, address: u64) {
        let Some(memory) = self.graphs.memory.get_mut(&address) else { return };
        memory.backed = false;
        let (device, bytes) = (memory.device, memory.bytes);
        self.uncharge(device, bytes);
    }

    /// Frees memory that a launched graph left allocated. It stays in the device's graph memory.
    pub(crate) fn free_graph_memory(&mut self, address: u64) -> Outcome {
        let memory = self.graphs.memory.get_mut(&address).ok_or(Code::InvalidValue)?;
        if !memory.in_use {
            return Err(Code::InvalidValue);
        }
        self.set_in_use(address, false);
        Ok(())
    }

    /// Returns unused graph memory to the device.
    pub(crate) fn trim_graph_memory(&mut self, device: usize) {
        let unused: Vec<u64> = self
            .graphs
            .memory
            .iter()
            .filter(|(_, memory)| memory.device == device && memory.backed && !memory.in_use)
            .map(|(address, _)| *address)
            .collect();
        for address in unused {
            self.unback(address);
            self.remove_if_unreferenced(address);
        }
    }

    fn remove_if_unreferenced(&mut self, address: u64) {
        let Some(memory) = self.graphs.memory.get(&address).copied() else { return };
        if memory.references == 0 && !memory.backed && !memory.in_use {
            self.graphs.memory.remove(&address);
            self.arena.release(address, memory.bytes);
        }
    }

    fn drop_node_references(&mut self, nodes: &[Node]) {
        for Node::Alloc(address) | Node::Free(address) in nodes {
            if let Some(memory) = self.graphs.memory.get_mut(address) {
                memory.references = memory.references.saturating_sub(1);
            }
            self.remove_if_unreferenced(*address);
        }
    }

    /// Destroys a graph; graphs instantiated from it stay.
    pub(crate) fn drop_graph(&mut self, graph: u32) {
        let Some(graph) = self.graphs.graphs.remove(graph) else { return };
        let nodes: Vec<Node> = graph.nodes.iter().map(|(_, node)| *node).collect();
        self.drop_node_references(&nodes);
    }

    /// Destroys an executable graph; memory that it left allocated stays allocated.
    pub(crate) fn drop_exec(&mut self, exec: u32) {
        let Some(exec) = self.graphs.execs.remove(exec) else { return };
        for address in unfreed(&exec.nodes) {
            if let Some(memory) = self.graphs.memory.get_mut(&address) {
                memory.unfreed = memory.unfreed.saturating_sub(1);
            }
        }
        self.drop_node_references(&exec.nodes);
    }
}
