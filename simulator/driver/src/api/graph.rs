//! The entry points for graphs.

use std::ffi::{c_int, c_uint, c_void};

use crate::abi::{Code, CuDevice, DevicePointer, Handle, InParam, OutParam, Outcome, plain};
use crate::api::objects::ObjectKind;
use crate::api::pool::PoolProps;
use crate::entry::{ActiveCall, exports};
use crate::state::{self, DriverState};

exports! {
    call cuGraphCreate(graph: OutParam<Handle>, flags: c_uint) = create;
    call cuGraphClone(clone: OutParam<Handle>, graph: Handle) = clone;
    call cuGraphDestroy(graph: Handle) = destroy;
    call cuGraphAddMemAllocNode(node: OutParam<Handle>, graph: Handle, dependencies: *const c_void,
        count: usize, params: OutParam<AllocParams>) = add_alloc;
    call cuGraphAddMemFreeNode(node: OutParam<Handle>, graph: Handle, dependencies: *const c_void,
        count: usize, dptr: DevicePointer) = add_free;
    call cuGraphAddNode(node: OutParam<Handle>, graph: Handle, dependencies: *const c_void,
        count: usize, params: OutParam<NodeParams>) = add_node;
    call cuGraphGetNodes(graph: Handle, nodes: OutParam<Handle>, count: OutParam<usize>) = get_nodes;
    call cuGraphInstantiate(exec: OutParam<Handle>, graph: Handle, node: *const c_void,
        log: *const c_void, size: usize) = instantiate_v2;
    call cuGraphInstantiate_v2(exec: OutParam<Handle>, graph: Handle, node: *const c_void,
        log: *const c_void, size: usize) = instantiate_v2;
    call cuGraphInstantiateWithFlags(exec: OutParam<Handle>, graph: Handle, flags: u64) = instantiate;
    activity cuGraphLaunch(exec: Handle, stream: Handle) = launch;
    activity cuGraphLaunch_ptsz(exec: Handle, stream: Handle) = launch;
    call cuGraphExecDestroy(exec: Handle) = destroy_exec;
    call cuDeviceGraphMemTrim(device: CuDevice) = trim;
    call cuDeviceGetGraphMemAttribute(device: CuDevice, attribute: c_int, value: OutParam<u64>) =
        get_attribute;
    call cuDeviceSetGraphMemAttribute(device: CuDevice, attribute: c_int, value: InParam<u64>) =
        set_attribute;
}

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
const FREES_FIRST: u64 = 1;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AllocParams {
    pool: PoolProps,
    access: u64,
    access_count: u64,
    bytes: u64,
    dptr: DevicePointer,
}
plain!(AllocParams);

/// `CUgraphNodeParams`; its largest variant determines its size.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct NodeParams {
    node_type: c_int,
    reserved: [c_int; 3],
    data: [u64; 29],
    end: u64,
}
plain!(NodeParams);

/// Returns the graph of a handle.
fn graph_of(state: &DriverState, graph: Handle) -> Result<u32, Code> {
    state.graphs.graphs.find(graph).map(|key| key.index).ok_or(Code::InvalidValue)
}

fn create(graph: OutParam<Handle>, flags: c_uint) -> Outcome {
    graph.check()?;
    let mut state = state::running()?;
    if flags != 0 {
        return Err(Code::InvalidValue);
    }
    let index = state.new_graph();
    state.objects.created(ObjectKind::Graph);
    graph.set(state.graphs.graphs.handle(index))
}

/// Graphs with memory nodes cannot be cloned, as in real drivers.
fn clone(clone: OutParam<Handle>, graph: Handle) -> Outcome {
    clone.check()?;
    let mut state = state::running()?;
    let index = graph_of(&state, graph)?;
    if state.graphs.graphs.get(index).is_none_or(|graph| !graph.nodes.is_empty()) {
        return Err(Code::NotSupported);
    }
    let index = state.new_graph();
    state.objects.created(ObjectKind::Graph);
    clone.set(state.graphs.graphs.handle(index))
}

fn destroy(graph: Handle) -> Outcome {
    let mut state = state::running()?;
    let index = graph_of(&state, graph)?;
    state.drop_graph(index);
    state.objects.destroyed(ObjectKind::Graph);
    Ok(())
}

fn add_alloc(
    node: OutParam<Handle>,
    graph: Handle,
    _dependencies: *const c_void,
    _count: usize,
    params: OutParam<AllocParams>,
) -> Outcome {
    node.check()?;
    let mut values = params.get()?;
    let mut state = state::running()?;
    let index = graph_of(&state, graph)?;
    if values.bytes == 0 || values.pool.allocation_type != 1 || values.pool.location_type != 1 {
        return Err(Code::InvalidValue);
    }
    let device = state.device(values.pool.location_id)?;
    let (handle, address) = state.add_alloc_node(index, device, values.bytes)?;
    values.dptr = address;
    params.set(values)?;
    node.set(handle)
}

fn add_free(
    node: OutParam<Handle>,
    graph: Handle,
    _dependencies: *const c_void,
    _count: usize,
    dptr: DevicePointer,
) -> Outcome {
    node.check()?;
    let mut state = state::running()?;
    let index = graph_of(&state, graph)?;
    node.set(state.add_free_node(index, dptr)?)
}

/// The generic function: its parameters start with the node type and have those of the specific
/// functions at byte 16.
fn add_node(
    node: OutParam<Handle>,
    graph: Handle,
    dependencies: *const c_void,
    count: usize,
    params: OutParam<NodeParams>,
) -> Outcome {
    let NodeParams { node_type, data, .. } = params.get()?;
    match node_type {
        10 => add_alloc(node, graph, dependencies, count, params.field(16)),
        11 => add_free(node, graph, dependencies, count, data[0]),
        _ => Err(Code::NotSupported),
    }
}

fn get_nodes(graph: Handle, nodes: OutParam<Handle>, count: OutParam<usize>) -> Outcome {
    let state = state::running()?;
    let index = graph_of(&state, graph)?;
    let known = state.graphs.graphs.get(index).map_or(&[][..], |graph| &graph.nodes);
    let handles: Vec<Handle> = known.iter().map(|(handle, _)| *handle).collect();
    let capacity = count.get()?;
    if nodes.check().is_ok() {
        nodes.fill(handles.get(..capacity.min(handles.len())).unwrap_or_default())?;
        return count.set(capacity.min(handles.len()));
    }
    count.set(handles.len())
}

fn instantiate(exec: OutParam<Handle>, graph: Handle, flags: u64) -> Outcome {
    exec.check()?;
    let mut state = state::running()?;
    if flags & !15 != 0 {
        return Err(Code::InvalidValue);
    }
    let index = state.instantiate(graph, flags & FREES_FIRST != 0)?;
    state.objects.created(ObjectKind::GraphExec);
    exec.set(state.graphs.execs.handle(index))
}

fn instantiate_v2(
    exec: OutParam<Handle>,
    graph: Handle,
    _node: *const c_void,
    _log: *const c_void,
    _size: usize,
) -> Outcome {
    instantiate(exec, graph, 0)
}

fn launch(call: ActiveCall, exec: Handle, stream: Handle) -> Outcome {
    let mut state = state::running()?;
    let known = state.graphs.execs.find(exec).is_some();
    let result = call.attempt(|| {
        if state.stream(call.stream(stream))?.capture.is_some() {
            return Err(Code::NotSupported);
        }
        state.launch(exec)
    });
    if known {
        let launches = state.activity.graphs.entry(exec).or_default();
        match result {
            Ok(()) => launches.launches += 1,
            Err(_) => launches.failed += 1,
        }
    }
    result
}

fn destroy_exec(exec: Handle) -> Outcome {
    let mut state = state::running()?;
    let key = state.graphs.execs.find(exec).ok_or(Code::InvalidValue)?;
    state.drop_exec(key.index);
    state.objects.destroyed(ObjectKind::GraphExec);
    Ok(())
}

fn trim(device: CuDevice) -> Outcome {
    let mut state = state::running()?;
    let ordinal = state.device(device)?;
    state.trim_graph_memory(ordinal);
    Ok(())
}

fn get_attribute(device: CuDevice, attribute: c_int, value: OutParam<u64>) -> Outcome {
    let state = state::running()?;
    let ordinal = state.device(device)?;
    let (used, reserved) = state.graphs.levels(ordinal);
    let high = state.graphs.high.get(ordinal).copied().unwrap_or_default();
    value.set(match attribute {
        0 => used,
        1 => high.used,
        2 => reserved,
        3 => high.reserved,
        _ => return Err(Code::InvalidValue),
    })
}

fn set_attribute(device: CuDevice, attribute: c_int, value: InParam<u64>) -> Outcome {
    let mut state = state::running()?;
    let ordinal = state.device(device)?;
    let (used, reserved) = state.graphs.levels(ordinal);
    let high = state.graphs.high.get_mut(ordinal).ok_or(Code::InvalidDevice)?;
    match (attribute, value.get()?) {
        (1, 0) => high.used = used,
        (3, 0) => high.reserved = reserved,
        _ => return Err(Code::InvalidValue),
    }
    Ok(())
}
