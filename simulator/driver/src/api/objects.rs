//! Counts of CUDA objects of each kind, and the objects without a module of their own: events,
//! textures, surfaces and linkers.

use std::ffi::{c_uint, c_void};

use crate::abi::{Code, Handle, OutParam, Outcome};
use crate::entry::exports;
use crate::state::handle::Slab;
use crate::state::{self, DriverState};

exports! {
    call cuEventCreate(event: OutParam<Handle>, flags: c_uint) = create_event;
    call cuEventDestroy(event: Handle) = destroy_event;
    call cuEventDestroy_v2(event: Handle) = destroy_event;
    call cuEventRecord(event: Handle, stream: Handle) = record;
    call cuEventRecord_ptsz(event: Handle, stream: Handle) = record;
    call cuEventQuery(event: Handle) = wait;
    call cuEventSynchronize(event: Handle) = wait;
    call cuIpcGetEventHandle(handle: OutParam<[u8; 64]>, event: Handle) = get_ipc;
    call cuIpcOpenEventHandle(event: OutParam<Handle>, handle: EventTicket) = open_ipc;
    call cuTexObjectCreate(texture: OutParam<Handle>, resource: *const c_void,
        description: *const c_void, view: *const c_void) = create_texture;
    call cuTexObjectDestroy(texture: Handle) = destroy_texture;
    call cuSurfObjectCreate(surface: OutParam<Handle>, resource: *const c_void) = create_surface;
    call cuSurfObjectDestroy(surface: Handle) = destroy_surface;
    call cuLinkCreate(count: c_uint, options: *const c_void, values: *const c_void,
        linker: OutParam<Handle>) = create_linker;
    call cuLinkCreate_v2(count: c_uint, options: *const c_void, values: *const c_void,
        linker: OutParam<Handle>) = create_linker;
    call cuLinkDestroy(linker: Handle) = destroy_linker;
}

/// An object kind, named as in the tracer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ObjectKind {
    Stream,
    Event,
    Graph,
    GraphExec,
    Module,
    Library,
    Context,
    GreenContext,
    Texture,
    Surface,
    Pool,
    Linker,
}

/// The kinds with their names in the oracle.
const KINDS: [(ObjectKind, &str); 12] = [
    (ObjectKind::Stream, "stream"),
    (ObjectKind::Event, "event"),
    (ObjectKind::Graph, "graph"),
    (ObjectKind::GraphExec, "graph_exec"),
    (ObjectKind::Module, "module"),
    (ObjectKind::Library, "library"),
    (ObjectKind::Context, "context"),
    (ObjectKind::GreenContext, "green_context"),
    (ObjectKind::Texture, "texture"),
    (ObjectKind::Surface, "surface"),
    (ObjectKind::Pool, "pool"),
    (ObjectKind::Linker, "linker"),
];

/// Counts of one kind.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct ObjectCounts {
    pub(crate) created: u64,
    pub(crate) destroyed: u64,
    /// Ended with their context.
    pub(crate) released: u64,
    pub(crate) peak: u64,
}

impl ObjectCounts {
    pub(crate) const fn live(&self) -> u64 {
        self.created.saturating_sub(self.destroyed).saturating_sub(self.released)
    }
}

/// An object without further state.
struct Object {
    kind: ObjectKind,
    context: u32,
    /// An event that other processes may open.
    shared: bool,
}

/// Counts of all kinds, and the objects of this module.
pub(crate) struct ObjectTable {
    counts: [ObjectCounts; KINDS.len()],
    slab: Slab<Object>,
}

impl ObjectTable {
    pub(crate) const fn new() -> Self {
        let none = ObjectCounts { created: 0, destroyed: 0, released: 0, peak: 0 };
        Self { counts: [none; KINDS.len()], slab: Slab::new(13) }
    }

    /// Returns the counts of kinds that were ever created, with their names.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, ObjectCounts)> {
        let all = KINDS.iter().zip(&self.counts).map(|((_, name), count)| (*name, *count));
        all.filter(|(_, count)| count.created > 0)
    }

    /// Returns the device memory of all live objects, given that of one object of each kind.
    pub(crate) fn cost(&self, costs: &[(String, u64)]) -> u64 {
        let of = |(name, count): (&str, ObjectCounts)| {
            let cost = costs.iter().find(|(kind, _)| kind == name).map_or(0, |(_, cost)| *cost);
            cost.saturating_mul(count.live())
        };
        self.counts().map(of).fold(0, u64::saturating_add)
    }

    fn count(&mut self, kind: ObjectKind, change: impl FnOnce(&mut ObjectCounts)) {
        if let Some(count) = self.counts.get_mut(kind as usize) {
            change(count);
            count.peak = count.peak.max(count.live());
        }
    }

    pub(crate) fn created(&mut self, kind: ObjectKind) {
        self.count(kind, |count| count.created += 1);
    }

    pub(crate) fn destroyed(&mut self, kind: ObjectKind) {
        self.count(kind, |count| count.destroyed += 1);
    }

    pub(crate) fn released(&mut self, kind: ObjectKind) {
        self.count(kind, |count| count.released += 1);
    }

    fn find(&self, handle: Handle, kind: ObjectKind) -> Result<u32, Code> {
        let key = self.slab.find(handle).ok_or(Code::InvalidHandle)?;
        let known = self.slab.get(key.index).filter(|object| object.kind == kind);
        known.map(|_| key.index).ok_or(Code::InvalidHandle)
    }

    /// Destroys the objects of a context.
    pub(crate) fn end_context(&mut self, context: u32) {
        let of_context = self.slab.iter().filter(|(_, object)| object.context == context);
        let ended: Vec<(u32, ObjectKind)> =
            of_context.map(|(index, object)| (index, object.kind)).collect();
        for (index, kind) in ended {
            self.slab.remove(index);
            self.released(kind);
        }
    }
}

fn create(
    state: &mut DriverState,
    out: OutParam<Handle>,
    kind: ObjectKind,
    shared: bool,
) -> Outcome {
    let context = state.current()?.index;
    let key = state.objects.slab.insert(Object { kind, context, shared });
    state.objects.created(kind);
    out.set(state.objects.slab.handle(key.index))
}

fn destroy(handle: Handle, kind: ObjectKind) -> Outcome {
    let mut state = state::running()?;
    let index = state.objects.find(handle, kind)?;
    state.objects.slab.remove(index);
    state.objects.destroyed(kind);
    Ok(())
}

/// `CU_EVENT_DISABLE_TIMING`.
const UNTIMED: c_uint = 2;
/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: c_uint = 4;

fn create_event(event: OutParam<Handle>, flags: c_uint) -> Outcome {
    event.check()?;
    let mut state = state::running()?;
    let shared = flags & INTERPROCESS != 0;
    if flags > 7 || (shared && flags & UNTIMED == 0) {
        return Err(Code::InvalidValue);
    }
    create(&mut state, event, ObjectKind::Event, shared)
}

fn destroy_event(event: Handle) -> Outcome {
    destroy(event, ObjectKind::Event)
}

fn record(event: Handle, stream: Handle) -> Outcome {
    let mut state = state::running()?;
    state.objects.find(event, ObjectKind::Event)?;
    state.stream(stream).map(|_| ())
}

/// All work completes immediately here, so a query and a wait are the same.
fn wait(event: Handle) -> Outcome {
    state::running()?.objects.find(event, ObjectKind::Event).map(|_| ())
}

const MAGIC: [u8; 8] = *b"VSIMEVT1";

/// `CUipcEventHandle`, which is passed by value and therefore on the stack.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct EventTicket {
    bytes: [u8; 64],
}

fn get_ipc(handle: OutParam<[u8; 64]>, event: Handle) -> Outcome {
    let state = state::running()?;
    let index = state.objects.find(event, ObjectKind::Event)?;
    if state.objects.slab.get(index).is_none_or(|object| !object.shared) {
        return Err(Code::InvalidHandle);
    }
    let mut bytes = [0; 64];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&event.to_le_bytes());
    handle.set(bytes)
}

/// Opens another object for the same event. Unlike a real driver, this one also allows it in the
/// event's own process.
fn open_ipc(event: OutParam<Handle>, handle: EventTicket) -> Outcome {
    event.check()?;
    let mut state = state::running()?;
    if handle.bytes.get(..8) != Some(&MAGIC[..]) {
        return Err(Code::InvalidValue);
    }
    create(&mut state, event, ObjectKind::Event, false)
}

fn create_texture(
    texture: OutParam<Handle>,
    resource: *const c_void,
    description: *const c_void,
    _view: *const c_void,
) -> Outcome {
    texture.check()?;
    let mut state = state::running()?;
    if resource.is_null() || description.is_null() {
        return Err(Code::InvalidValue);
    }
    create(&mut state, texture, ObjectKind::Texture, false)
}

fn destroy_texture(texture: Handle) -> Outcome {
    destroy(texture, ObjectKind::Texture)
}

fn create_surface(surface: OutParam<Handle>, resource: *const c_void) -> Outcome {
    surface.check()?;
    let mut state = state::running()?;
    if resource.is_null() {
        return Err(Code::InvalidValue);
    }
    create(&mut state, surface, ObjectKind::Surface, false)
}

fn destroy_surface(surface: Handle) -> Outcome {
    destroy(surface, ObjectKind::Surface)
}

fn create_linker(
    _count: c_uint,
    _options: *const c_void,
    _values: *const c_void,
    linker: OutParam<Handle>,
) -> Outcome {
    linker.check()?;
    let mut state = state::running()?;
    create(&mut state, linker, ObjectKind::Linker, false)
}

fn destroy_linker(linker: Handle) -> Outcome {
    destroy(linker, ObjectKind::Linker)
}
