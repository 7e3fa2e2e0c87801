//! The state of the driver in this process, behind one lock.

pub(super) mod arena;
pub(super) mod exit;
pub(super) mod fork;
pub(super) mod graph;
pub(super) mod handle;
pub(super) mod owner;
pub(super) mod shared_devices;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::Code;
use crate::api::array::Arrays;
use crate::api::context::{Context, GreenContext, Limits, PrimaryContext};
use crate::api::host_memory::HostRange;
use crate::api::ipc::{ExternalMemory, IpcImport};
use crate::api::module::Modules;
use crate::api::objects::ObjectTable;
use crate::api::pool::Pools;
use crate::api::stream::Stream;
use crate::api::vmm::VmmState;
use crate::oracle::activity::ActivityOracle;
use crate::oracle::{EndReason, Oracle};
use crate::settings::{self, MAX_DEVICES};
use crate::state::arena::{Arena, ArenaAllocation};
use crate::state::graph::Graphs;
use crate::state::handle::Slab;
use crate::state::owner::{Owner, Owners};
use crate::state::shared_devices::SharedDevices;

/// The phase of the driver in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DriverPhase {
    /// `cuInit` has not been called yet.
    Uninitialized,
    /// In use.
    Running,
    /// The process is exiting; its oracle has been written.
    Deinitialized,
}

/// The state of the driver.
pub(crate) struct DriverState {
    pub(crate) phase: DriverPhase,
    pub(crate) oracle: Oracle,
    pub(crate) owners: Owners,
    pub(crate) arena: Arena,
    pub(crate) contexts: Slab<Context>,
    /// Of all contexts.
    pub(crate) limits: Limits,
    pub(crate) primaries: [PrimaryContext; MAX_DEVICES],
    pub(crate) greens: Slab<GreenContext>,
    pub(crate) streams: Slab<Stream>,
    /// Number of streams that are being captured.
    pub(crate) captures: u32,
    pub(crate) host: BTreeMap<u64, HostRange>,
    pub(crate) pools: Pools,
    pub(crate) vmm: VmmState,
    pub(crate) arrays: Arrays,
    pub(crate) graphs: Graphs,
    pub(crate) modules: Modules,
    pub(crate) objects: ObjectTable,
    pub(crate) activity: ActivityOracle,
    /// Memory of other processes, by its address here.
    pub(crate) ipc: HashMap<u64, IpcImport>,
    pub(crate) externals: Slab<ExternalMemory>,
    /// The processes that share the devices, if `SIM_STATE_FILE` is set.
    pub(crate) shared: Option<SharedDevices>,
}

static STATE: AtomicPtr<Mutex<DriverState>> = AtomicPtr::new(std::ptr::null_mut());

/// Locks the state in any phase.
pub(crate) fn lock() -> MutexGuard<'static, DriverState> {
    let mut state = STATE.load(Ordering::Acquire);
    if state.is_null() {
        state = create();
    }
    // SAFETY: the pointer came from `Box::into_raw` and is never freed.
    let mutex: &'static Mutex<DriverState> = unsafe { &*state };
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the state of an initialized driver.
pub(crate) fn running() -> Result<MutexGuard<'static, DriverState>, Code> {
    let state = lock();
    match state.phase {
        DriverPhase::Running => Ok(state),
        DriverPhase::Uninitialized => Err(Code::NotInitialized),
        DriverPhase::Deinitialized => Err(Code::Deinitialized),
    }
}

#[cold]
fn create() -> *mut Mutex<DriverState> {
    fork::register();
    let new = Box::into_raw(Box::new(Mutex::new(DriverState::new())));
    let null = std::ptr::null_mut();
    match STATE.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => new,
        Err(other) => {
            // SAFETY: `new` was created above and is not shared.
            drop(unsafe { Box::from_raw(new) });
            other
        }
    }
}

/// Starts with a new state, after a fork. The old one is leaked: another thread of the parent may
/// have held its lock.
pub(crate) fn reset() {
    STATE.store(std::ptr::null_mut(), Ordering::Release);
}

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// Returns the id of the calling thread.
pub(crate) fn thread() -> u32 {
    THREAD.with(|cell| {
        if cell.get() == 0 {
            // SAFETY: takes no arguments and cannot fail.
            let id = unsafe { libc::gettid() };
            cell.set(u32::try_from(id).unwrap_or(0));
        }
        cell.get()
    })
}

/// Clears the cached id of the calling thread, after a fork.
pub(crate) fn reset_thread() {
    THREAD.with(|cell| cell.set(0));
}

impl DriverState {
    fn new() -> Self {
        Self {
            phase: DriverPhase::Uninitialized,
            oracle: Oracle::default(),
            owners: Owners::new(),
            arena: Arena::new(),
            contexts: Slab::new(1),
            limits: Limits::default(),
            primaries: [PrimaryContext::default(); MAX_DEVICES],
            greens: Slab::new(2),
            streams: Slab::new(3),
            captures: 0,
            host: BTreeMap::new(),
            pools: Pools::new(),
            vmm: VmmState::new(),
            arrays: Arrays::new(),
            graphs: Graphs::new(),
            modules: Modules::default(),
            objects: ObjectTable::new(),
            activity: ActivityOracle::default(),
            ipc: HashMap::new(),
            externals: Slab::new(11),
            shared: None,
        }
    }

    /// Checks the ordinal of a device.
    pub(crate) fn device(&self, ordinal: i32) -> Result<usize, Code> {
        let devices = settings::get().devices;
        usize::try_from(ordinal).ok().filter(|d| *d < devices).ok_or(Code::InvalidDevice)
    }

    /// Allocates device memory.
    pub(crate) fn charge(&mut self, device: usize, bytes: u64) -> Result<(), Code> {
        let memory = settings::get().memory;
        let Some(shared) = &self.shared else {
            return self.oracle.charge(device, bytes, memory);
        };
        shared.charge(device, bytes)?;
        let charged = self.oracle.charge(device, bytes, memory);
        if charged.is_err() {
            shared.uncharge(device, bytes);
        }
        charged
    }

    /// Frees device memory.
    pub(crate) fn uncharge(&mut self, device: usize, bytes: u64) {
        self.oracle.uncharge(device, bytes);
        if let Some(shared) = &self.shared {
            shared.uncharge(device, bytes);
        }
    }

    /// Returns the used memory of a device: by this process, or by all that share it.
    pub(crate) fn used(&self, device: usize) -> u64 {
        match &self.shared {
            Some(shared) => shared.used(device),
            None => self.oracle.devices.get(device).map_or(0, |level| level.now),
        }
    }

    /// Returns the owner with a number.
    pub(crate) fn owner(&self, id: u32) -> Result<Owner, Code> {
        self.owners.get(id).ok_or(Code::Unknown)
    }

    /// Starts an allocation: allocates its memory and counts it.
    pub(crate) fn opened(&mut self, owner: u32, bytes: u64) -> Result<(), Code> {
        if let Some(device) = self.owner(owner)?.charged_device() {
            self.charge(device, bytes)?;
        }
        self.count(owner, bytes);
        Ok(())
    }

    /// Counts an allocation whose memory is already allocated.
    fn count(&mut self, owner: u32, bytes: u64) {
        self.oracle.allocations += 1;
        let Some(owner) = self.owners.get_mut(owner) else { return };
        owner.live += 1;
        if owner.kind.is_held() {
            self.oracle.hold(owner.device, bytes);
        }
    }

    /// Ends an allocation: frees its memory and counts it.
    pub(crate) fn closed(&mut self, owner: u32, bytes: u64, end: EndReason) {
        match end {
            EndReason::Freed => self.oracle.frees += 1,
            EndReason::Released => self.oracle.released += 1,
        }
        let Some(owner) = self.owners.get_mut(owner) else { return };
        owner.live = owner.live.saturating_sub(1);
        if owner.kind.is_held() {
            self.oracle.release(owner.device, bytes);
        }
        if let Some(device) = owner.charged_device() {
            self.uncharge(device, bytes);
        }
    }

    /// Makes an allocation in the address space of the devices.
    pub(crate) fn open_at_address(&mut self, owner: u32, bytes: u64) -> Result<u64, Code> {
        // Memory first: an impossible size must not use up address space.
        let device = self.owner(owner)?.charged_device();
        if let Some(device) = device {
            self.charge(device, bytes)?;
        }
        let record = ArenaAllocation { bytes, thread: thread(), owner };
        let address = self.arena.insert(record);
        let Some(address) = address else {
            if let Some(device) = device {
                self.uncharge(device, bytes);
            }
            return Err(Code::OutOfMemory);
        };
        self.count(owner, bytes);
        Ok(address)
    }

    /// Ends an allocation in the address space of the devices.
    pub(crate) fn close_at_address(
        &mut self,
        address: u64,
        end: EndReason,
    ) -> Option<ArenaAllocation> {
        let record = self.arena.remove(address)?;
        self.closed(record.owner, record.bytes, end);
        Some(record)
    }

    /// Ends all allocations of a context.
    pub(crate) fn release_owned(&mut self, context: u32) {
        if !self.owners.context_owns(context) {
            return;
        }
        let owners = &self.owners;
        let addresses: Vec<u64> = self
            .arena
            .iter()
            .filter(|(_, record)| owners.is_of(record.owner, context))
            .map(|(address, _)| address)
            .collect();
        let ranges: Vec<u64> = self
            .host
            .iter()
            .filter(|(_, range)| owners.is_of(range.owner, context))
            .map(|(address, _)| *address)
            .collect();
        for address in addresses {
            self.close_at_address(address, EndReason::Released);
            self.ipc.remove(&address);
        }
        for address in ranges {
            self.close_host(address, EndReason::Released);
        }
        self.release_arrays(context);
    }
}
