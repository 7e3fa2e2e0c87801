//! Contexts: created ones, the primary one of each device, and the context stack of each thread.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::abi::{Code, CuDevice, Handle, OutParam, Outcome};
use crate::api::objects::ObjectKind;
use crate::entry::exports;
use crate::oracle::MemoryKind;
use crate::settings;
use crate::state::fork;
use crate::state::handle::ObjectKey;
use crate::state::{self, DriverState};

exports! {
    call cuCtxCreate(context: OutParam<Handle>, flags: c_uint, device: CuDevice) = create;
    call cuCtxCreate_v2(context: OutParam<Handle>, flags: c_uint, device: CuDevice) = create;
    call cuCtxCreate_v3(context: OutParam<Handle>, affinity: *const c_void, count: i32, flags: c_uint,
        device: CuDevice) = create_v3;
    call cuCtxCreate_v4(context: OutParam<Handle>, params: *const c_void, flags: c_uint,
        device: CuDevice) = create_v4;
    call cuCtxDestroy(context: Handle) = destroy;
    call cuCtxDestroy_v2(context: Handle) = destroy;
    call cuCtxSetCurrent(context: Handle) = set_current;
    call cuCtxPushCurrent(context: Handle) = push_current;
    call cuCtxPushCurrent_v2(context: Handle) = push_current;
    call cuCtxPopCurrent(context: OutParam<Handle>) = pop_current;
    call cuCtxPopCurrent_v2(context: OutParam<Handle>) = pop_current;
    call cuCtxGetCurrent(context: OutParam<Handle>) = get_current;
    call cuCtxGetDevice(device: OutParam<i32>) = get_device;
    call cuCtxGetDevice_v2(device: OutParam<i32>, context: Handle) = get_device_of;
    call cuCtxSetLimit(limit: c_uint, value: usize) = set_limit;
    call cuCtxGetLimit(value: OutParam<usize>, limit: c_uint) = get_limit;
    call cuCtxGetFlags(flags: OutParam<u32>) = get_flags;
    call cuCtxGetApiVersion(context: Handle, version: OutParam<u32>) = api_version;
    call cuCtxSynchronize() = synchronize;
    call cuCtxSynchronize_v2(context: Handle) = synchronize_of;
    call cuDevicePrimaryCtxRetain(context: OutParam<Handle>, device: CuDevice) = primary_retain;
    call cuDevicePrimaryCtxRelease(device: CuDevice) = primary_release;
    call cuDevicePrimaryCtxRelease_v2(device: CuDevice) = primary_release;
    call cuDevicePrimaryCtxReset(device: CuDevice) = primary_reset;
    call cuDevicePrimaryCtxReset_v2(device: CuDevice) = primary_reset;
    call cuDevicePrimaryCtxGetState(device: CuDevice, flags: OutParam<u32>, active: OutParam<i32>) =
        primary_state;
    call cuDevicePrimaryCtxSetFlags(device: CuDevice, flags: c_uint) = primary_flags;
    call cuDevicePrimaryCtxSetFlags_v2(device: CuDevice, flags: c_uint) = primary_flags;
    call cuDeviceGetDevResource(device: CuDevice, resource: *mut c_void, kind: c_int) =
        device_resource;
    call cuDevResourceGenerateDesc(descriptor: OutParam<Handle>, resources: *const c_void,
        count: c_uint) = resource_descriptor;
    call cuGreenCtxCreate(green: OutParam<Handle>, descriptor: Handle, device: CuDevice,
        flags: c_uint) = green_create;
    call cuGreenCtxDestroy(green: Handle) = green_destroy;
    call cuCtxFromGreenCtx(context: OutParam<Handle>, green: Handle) = green_context;
}

/// Threads that a simulated GPU runs at a time: each has a stack.
const GPU_THREADS: u64 = 65_536;

/// Stack, `printf` buffer, heap, and what limits launches by kernels, by the number in `CUlimit`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits([u64; 5]);

impl Limits {
    const DEFAULT: Self = Self([1024, 1 << 20, 8 << 20, 2, 2048]);

    /// Device memory beyond that of the defaults, which contexts contain.
    fn cost(self) -> i64 {
        let beyond =
            |index: usize| self.0[index].cast_signed() - Self::DEFAULT.0[index].cast_signed();
        beyond(0) * GPU_THREADS.cast_signed() + beyond(1) + beyond(2)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    pub(crate) index: u32,
    pub(crate) device: usize,
    pub(crate) device_owner: u32,
    pub(crate) managed_owner: u32,
    pub(crate) pinned_owner: u32,
    pub(crate) registered_owner: u32,
    pub(crate) array_owner: u32,
    pub(crate) imported_owner: u32,
    origin: ContextOrigin,
    active: bool,
    flags: u32,
}

/// How a context was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ContextOrigin {
    Created,
    Primary,
    /// A view of the primary context, which owns all memory allocated in it.
    Green,
}

/// A green context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GreenContext {
    context: ObjectKey,
    device: usize,
}

/// The primary context of a device. Its handle never changes, whether it is active or not.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct PrimaryContext {
    key: Option<ObjectKey>,
    references: u32,
    flags: u32,
}

/// Number of contexts whose entries in stacks are counted.
const MAX_COUNTED: usize = 1024;

/// Entries in all stacks, by the index of their context.
static ENTRIES: [AtomicU32; MAX_COUNTED] = [const { AtomicU32::new(0) }; MAX_COUNTED];

fn entries(index: u32) -> Option<&'static AtomicU32> {
    ENTRIES.get(index as usize)
}

/// Whether a handle may be used for a new context: the real driver does not reuse the handle of a destroyed context that is
/// still in the stack of a thread.
fn is_unused(index: u32) -> bool {
    entries(index).is_none_or(|count| count.load(Ordering::Relaxed) == 0)
}

/// An entry of a context stack.
#[derive(PartialEq, Eq)]
struct StackEntry(ObjectKey);

impl StackEntry {
    fn new(key: ObjectKey) -> Self {
        if let Some(count) = entries(key.index) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Self(key)
    }
}

impl Drop for StackEntry {
    fn drop(&mut self) {
        if let Some(count) = entries(self.0.index) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The context stack of a thread.
struct ContextStack {
    epoch: u32,
    keys: Vec<StackEntry>,
}

thread_local! {
    static STACK: RefCell<ContextStack> = const { RefCell::new(ContextStack { epoch: 0, keys: Vec::new() }) };
}

/// Runs a function on the calling thread's stack; a thread that is exiting has none.
fn stack<R>(body: impl FnOnce(&mut Vec<StackEntry>) -> R) -> Result<R, Code> {
    let result = STACK.try_with(|stack| {
        let mut stack = stack.try_borrow_mut().ok()?;
        if stack.epoch != fork::epoch() {
            stack.epoch = fork::epoch();
            stack.keys.clear();
        }
        Some(body(&mut stack.keys))
    });
    result.ok().flatten().ok_or(Code::InvalidContext)
}

/// Returns the calling thread's context, which may have been destroyed.
fn top() -> Result<Option<ObjectKey>, Code> {
    stack(|keys| keys.last().map(|entry| entry.0))
}

/// Clears the calling thread's stack, after a fork.
pub(crate) fn clear_stack() {
    // The epoch invalidates the stack if the thread is using it right now.
    let _ = stack(Vec::clear);
}

impl DriverState {
    /// Returns the calling thread's context.
    pub(crate) fn current(&self) -> Result<Context, Code> {
        let key = top()?.ok_or(Code::InvalidContext)?;
        self.active(key)
    }

    /// Fails if the calling thread's context was destroyed; no context is fine.
    pub(crate) fn current_or_none(&self) -> Outcome {
        match top() {
            Ok(Some(key)) => self.active(key).map(|_| ()),
            Ok(None) | Err(_) => Ok(()),
        }
    }

    fn active(&self, key: ObjectKey) -> Result<Context, Code> {
        match self.contexts.by_key(key) {
            Some(context) if context.origin == ContextOrigin::Green => {
                let primary = self.primaries.get(context.device).and_then(|primary| primary.key);
                self.active(primary.ok_or(Code::ContextDestroyed)?)
            }
            Some(context) if context.active => Ok(*context),
            _ => Err(Code::ContextDestroyed),
        }
    }

    /// Returns the context of a handle.
    fn context(&self, handle: Handle) -> Result<ObjectKey, Code> {
        let key = self.contexts.find(handle).ok_or(Code::InvalidContext)?;
        self.active(key).map(|_| key)
    }

    /// Fails unless the handle is that of a live context.
    pub(crate) fn check_context(&self, handle: Handle) -> Outcome {
        self.context(handle).map(|_| ())
    }

    /// Publishes to other processes the device memory that this one's contexts use.
    fn publish_overhead(&self, device: usize, any: bool) -> Outcome {
        let Some(shared) = &self.shared else { return Ok(()) };
        shared.set_overhead(device, if any { settings::get().overhead } else { 0 })
    }

    /// Publishes the device memory of contexts and of all objects, which are on the first device with
    /// a context.
    pub(crate) fn publish_objects(&self) {
        let Some(shared) = &self.shared else { return };
        let settings = settings::get();
        let mut objects = self.objects.cost(&settings.object_costs);
        let limits = self.limits;
        let active = |device: usize| {
            self.contexts.iter().any(|(_, context)| context.active && context.device == device)
        };
        for device in (0..settings.devices).filter(|device| active(*device)) {
            // Memory of objects is never refused.
            let all = settings.overhead + std::mem::take(&mut objects);
            let _ = shared.set_overhead(device, all.saturating_add_signed(limits.cost()));
        }
    }

    fn open_context(&mut self, device: usize, flags: u32, origin: ContextOrigin) -> ObjectKey {
        let context = Context {
            index: 0,
            device,
            device_owner: 0,
            managed_owner: 0,
            pinned_owner: 0,
            registered_owner: 0,
            array_owner: 0,
            imported_owner: 0,
            origin,
            active: true,
            flags,
        };
        let key = self.contexts.insert_if(context, is_unused);
        let Some(context) = self.contexts.get_mut(key.index) else { return key };
        context.index = key.index;
        if origin != ContextOrigin::Green {
            let mut owner = |kind| self.owners.add_for_context(kind, device, key.index);
            context.device_owner = owner(MemoryKind::Device);
            context.managed_owner = owner(MemoryKind::Managed);
            context.pinned_owner = owner(MemoryKind::Pinned);
            context.registered_owner = owner(MemoryKind::Registered);
            context.array_owner = owner(MemoryKind::Array);
            context.imported_owner = owner(MemoryKind::Imported);
        }
        key
    }

    /// Ends a context and everything that it owns.
    fn end_context(&mut self, key: ObjectKey) {
        self.release_owned(key.index);
        self.end_streams(key.index);
        for _ in 0..self.modules.end_context(key.index) {
            self.objects.released(ObjectKind::Module);
        }
        self.objects.end_context(key.index);
        let Some(context) = self.contexts.get_mut(key.index) else { return };
        context.active = false;
        let ended = *context;
        if ended.origin == ContextOrigin::Created {
            self.contexts.remove(key.index);
            for owner in [
                ended.device_owner,
                ended.managed_owner,
                ended.pinned_owner,
                ended.registered_owner,
                ended.array_owner,
                ended.imported_owner,
            ] {
                self.owners.remove(owner);
            }
        }
        let mut contexts = self.contexts.iter();
        let any = contexts.any(|(_, context)| context.active && context.device == ended.device);
        // Publishing less memory never fails.
        let _ = self.publish_overhead(ended.device, any);
    }

    fn primary(&mut self, device: CuDevice) -> Result<&mut PrimaryContext, Code> {
        let ordinal = self.device(device)?;
        self.primaries.get_mut(ordinal).ok_or(Code::InvalidDevice)
    }
}

fn create(context: OutParam<Handle>, flags: c_uint, device: CuDevice) -> Outcome {
    context.check()?;
    let mut state = state::running()?;
    let ordinal = state.device(device)?;
    state.publish_overhead(ordinal, true)?;
    let key = state.open_context(ordinal, flags, ContextOrigin::Created);
    state.objects.created(ObjectKind::Context);
    stack(|keys| keys.push(StackEntry::new(key)))?;
    context.set(state.contexts.handle(key.index))
}

fn create_v3(
    context: OutParam<Handle>,
    _affinity: *const c_void,
    _count: i32,
    flags: c_uint,
    device: CuDevice,
) -> Outcome {
    create(context, flags, device)
}

fn create_v4(
    context: OutParam<Handle>,
    _params: *const c_void,
    flags: c_uint,
    device: CuDevice,
) -> Outcome {
    create(context, flags, device)
}

fn destroy(context: Handle) -> Outcome {
    let mut state = state::running()?;
    let key = state.context(context)?;
    if state.contexts.get(key.index).is_none_or(|context| context.origin != ContextOrigin::Created)
    {
        return Err(Code::InvalidContext);
    }
    state.end_context(key);
    state.objects.destroyed(ObjectKind::Context);
    stack(|keys| {
        if keys.last().is_some_and(|entry| entry.0 == key) {
            keys.pop();
        }
    })
}

fn set_current(context: Handle) -> Outcome {
    let state = state::running()?;
    let key = if context == 0 { None } else { Some(state.context(context)?) };
    stack(|keys| {
        keys.pop();
        keys.extend(key.map(StackEntry::new));
    })
}

fn push_current(context: Handle) -> Outcome {
    let state = state::running()?;
    if context == 0 {
        return Err(Code::InvalidValue);
    }
    let key = state.context(context)?;
    stack(|keys| keys.push(StackEntry::new(key)))
}

fn pop_current(context: OutParam<Handle>) -> Outcome {
    let state = state::running()?;
    let entry = stack(Vec::pop)?.ok_or(Code::InvalidContext)?;
    context.set_if_not_null(state.contexts.handle(entry.0.index));
    Ok(())
}

fn get_current(context: OutParam<Handle>) -> Outcome {
    let state = state::running()?;
    let key = top()?;
    context.set(key.map_or(0, |key| state.contexts.handle(key.index)))
}

fn ordinal(context: &Context) -> i32 {
    i32::try_from(context.device).unwrap_or(0)
}

fn get_device(device: OutParam<i32>) -> Outcome {
    let context = state::running()?.current()?;
    device.set(ordinal(&context))
}

/// Returns the context of a handle; null is the current context.
fn given_or_current(state: &DriverState, context: Handle) -> Result<Context, Code> {
    if context == 0 { state.current() } else { state.active(state.context(context)?) }
}

fn get_device_of(device: OutParam<i32>, context: Handle) -> Outcome {
    let context = given_or_current(&*state::running()?, context)?;
    device.set(ordinal(&context))
}

fn set_limit(limit: c_uint, value: usize) -> Outcome {
    let mut state = state::running()?;
    state.current()?;
    match state.limits.0.get_mut(limit as usize) {
        Some(known) => *known = value as u64,
        // Limits of caches.
        None if limit < 8 => {}
        None => return Err(Code::InvalidValue),
    }
    Ok(())
}

fn get_limit(value: OutParam<usize>, limit: c_uint) -> Outcome {
    let state = state::running()?;
    state.current()?;
    value.set(*state.limits.0.get(limit as usize).ok_or(Code::InvalidValue)? as usize)
}

fn get_flags(flags: OutParam<u32>) -> Outcome {
    flags.set(state::running()?.current()?.flags)
}

fn api_version(context: Handle, version: OutParam<u32>) -> Outcome {
    given_or_current(&*state::running()?, context)?;
    version.set(3020)
}

fn synchronize() -> Outcome {
    synchronize_of(0)
}

fn synchronize_of(context: Handle) -> Outcome {
    let mut state = state::running()?;
    let Context { index, device, .. } = given_or_current(&state, context)?;
    state.cannot_be_captured()?;
    if state.is_captured(index) {
        return Err(Code::CaptureUnsupported);
    }
    state.synchronized(device);
    Ok(())
}

impl DriverState {
    /// Returns the primary context behind a green one, and its device.
    pub(crate) fn primary_of_green(&self, green: Handle) -> Result<(u32, usize), Code> {
        let key = self.greens.find(green).ok_or(Code::InvalidContext)?;
        let green = self.greens.get(key.index).ok_or(Code::InvalidContext)?;
        let primary = self.primaries.get(green.device).and_then(|primary| primary.key);
        Ok((primary.ok_or(Code::ContextDestroyed)?.index, green.device))
    }

    /// Adds a reference to the primary context of a device, which activates it.
    fn retain_primary(&mut self, device: CuDevice) -> Result<ObjectKey, Code> {
        let ordinal = self.device(device)?;
        let PrimaryContext { key, flags, .. } = *self.primary(device)?;
        self.publish_overhead(ordinal, true)?;
        let key = match key {
            Some(key) => key,
            None => self.open_context(ordinal, flags, ContextOrigin::Primary),
        };
        if let Some(context) = self.contexts.get_mut(key.index) {
            context.active = true;
            context.flags = flags;
        }
        let primary = self.primary(device)?;
        primary.key = Some(key);
        primary.references = primary.references.saturating_add(1);
        Ok(key)
    }

    /// Drops a reference to the primary context of a device; the last one ends it.
    fn release_primary(&mut self, device: CuDevice) -> Outcome {
        let primary = self.primary(device)?;
        primary.references = primary.references.checked_sub(1).ok_or(Code::InvalidContext)?;
        if primary.references == 0
            && let Some(key) = primary.key
        {
            self.end_context(key);
        }
        Ok(())
    }
}

fn primary_retain(context: OutParam<Handle>, device: CuDevice) -> Outcome {
    context.check()?;
    let mut state = state::running()?;
    let key = state.retain_primary(device)?;
    context.set(state.contexts.handle(key.index))
}

fn primary_release(device: CuDevice) -> Outcome {
    state::running()?.release_primary(device)
}

fn primary_reset(device: CuDevice) -> Outcome {
    let mut state = state::running()?;
    if let Some(key) = state.primary(device)?.key {
        state.end_context(key);
    }
    Ok(())
}

fn primary_state(device: CuDevice, flags: OutParam<u32>, active: OutParam<i32>) -> Outcome {
    let mut state = state::running()?;
    let primary = *state.primary(device)?;
    let is_active = primary.key.is_some_and(|key| state.active(key).is_ok());
    flags.set(primary.flags)?;
    active.set(i32::from(is_active))
}

fn primary_flags(device: CuDevice, flags: c_uint) -> Outcome {
    state::running()?.primary(device)?.flags = flags;
    Ok(())
}

fn device_resource(device: CuDevice, _resource: *mut c_void, _type: c_int) -> Outcome {
    state::running()?.device(device).map(|_| ())
}

fn resource_descriptor(
    descriptor: OutParam<Handle>,
    _resources: *const c_void,
    count: c_uint,
) -> Outcome {
    drop(state::running()?);
    // There are no multiprocessors to partition: any descriptor is accepted.
    if count == 0 { Err(Code::InvalidValue) } else { descriptor.set(1) }
}

fn green_create(
    green: OutParam<Handle>,
    descriptor: Handle,
    device: CuDevice,
    flags: c_uint,
) -> Outcome {
    green.check()?;
    let mut state = state::running()?;
    let ordinal = state.device(device)?;
    // The default-stream flag (1) is required.
    if descriptor == 0 || flags != 1 {
        return Err(Code::InvalidValue);
    }
    state.retain_primary(device)?;
    let context = state.open_context(ordinal, 0, ContextOrigin::Green);
    let key = state.greens.insert(GreenContext { context, device: ordinal });
    state.objects.created(ObjectKind::GreenContext);
    green.set(state.greens.handle(key.index))
}

fn green_destroy(green: Handle) -> Outcome {
    let mut state = state::running()?;
    let key = state.greens.find(green).ok_or(Code::InvalidContext)?;
    let green = state.greens.remove(key.index).ok_or(Code::InvalidContext)?;
    state.contexts.remove(green.context.index);
    state.objects.destroyed(ObjectKind::GreenContext);
    state.release_primary(CuDevice::try_from(green.device).unwrap_or(0))
}

fn green_context(context: OutParam<Handle>, green: Handle) -> Outcome {
    let state = state::running()?;
    let key = state.greens.find(green).ok_or(Code::InvalidContext)?;
    let green = state.greens.get(key.index).ok_or(Code::InvalidContext)?;
    context.set(state.contexts.handle(green.context.index))
}
