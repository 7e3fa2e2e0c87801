//! Everything the driver knows about this process, behind one lock.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::abi::Code;
use crate::arena::{Arena, Record};
use crate::context::{Context, Primary};
use crate::fork;
use crate::handle::{Key, Slab};
use crate::host::HostRange;
use crate::ledger::{End, Kind, Ledger};
use crate::settings::{self, MAX_DEVICES};

/// How far the driver's life has come in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    /// `cuInit` was not called yet.
    Uninitialized,
    /// In use.
    Running,
    /// The process is ending; its account is written.
    Over,
}

/// Whom allocations belong to. Many share one; each has a reference here instead of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) kind: Kind,
    pub(crate) device: usize,
    /// The context that takes them along when it ends.
    pub(crate) context: Option<u32>,
    /// How many there are.
    live: u64,
}

/// Everything the driver knows.
pub(crate) struct State {
    pub(crate) life: Life,
    pub(crate) ledger: Ledger,
    pub(crate) arena: Arena,
    pub(crate) contexts: Slab<Context>,
    pub(crate) primaries: [Primary; MAX_DEVICES],
    pub(crate) host: BTreeMap<u64, HostRange>,
    owners: Vec<Owner>,
    free_owners: Vec<u32>,
}

static STATE: AtomicPtr<Mutex<State>> = AtomicPtr::new(std::ptr::null_mut());

/// Locks the state, whatever the driver's life.
pub(crate) fn lock() -> MutexGuard<'static, State> {
    let mut state = STATE.load(Ordering::Acquire);
    if state.is_null() {
        state = create();
    }
    // SAFETY: the pointer came from `Box::into_raw` and is never freed.
    let mutex: &'static Mutex<State> = unsafe { &*state };
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the state of an initialised driver.
pub(crate) fn running() -> Result<MutexGuard<'static, State>, Code> {
    let state = lock();
    match state.life {
        Life::Running => Ok(state),
        Life::Uninitialized => Err(Code::NotInitialized),
        Life::Over => Err(Code::Deinitialized),
    }
}

#[cold]
fn create() -> *mut Mutex<State> {
    fork::watch();
    let new = Box::into_raw(Box::new(Mutex::new(State::new())));
    match STATE.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => new,
        Err(other) => {
            // SAFETY: `new` was made above and nobody else has seen it.
            drop(unsafe { Box::from_raw(new) });
            other
        }
    }
}

/// Begins anew, after a fork. The old state is left alone: another thread of the parent may have
/// held its lock.
pub(crate) fn forget() {
    STATE.store(std::ptr::null_mut(), Ordering::Release);
}

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// The calling thread's id.
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

/// Forgets the calling thread's id, after a fork.
pub(crate) fn forget_thread() {
    THREAD.with(|cell| cell.set(0));
}

impl State {
    fn new() -> Self {
        let nobody = Owner { kind: Kind::Device, device: 0, context: None, live: 0 };
        Self {
            life: Life::Uninitialized,
            ledger: Ledger::default(),
            arena: Arena::new(),
            contexts: Slab::new(1),
            primaries: [Primary::default(); MAX_DEVICES],
            host: BTreeMap::new(),
            // Number 0 means nobody.
            owners: vec![nobody],
            free_owners: Vec::new(),
        }
    }

    /// Checks a device's ordinal.
    pub(crate) fn device(&self, ordinal: i32) -> Result<usize, Code> {
        let devices = settings::get().devices;
        usize::try_from(ordinal).ok().filter(|d| *d < devices).ok_or(Code::InvalidDevice)
    }

    /// Takes device memory.
    pub(crate) fn take(&mut self, device: usize, bytes: u64) -> Result<(), Code> {
        self.ledger.take(device, bytes, settings::get().memory)
    }

    /// Gives device memory back.
    pub(crate) fn give(&mut self, device: usize, bytes: u64) {
        self.ledger.give(device, bytes);
    }

    /// Adds an owner of allocations.
    pub(crate) fn add_owner(&mut self, kind: Kind, device: usize, context: Option<u32>) -> u32 {
        let owner = Owner { kind, device, context, live: 0 };
        if let Some(id) = self.free_owners.pop()
            && let Some(place) = self.owners.get_mut(id as usize)
        {
            *place = owner;
            return id;
        }
        self.owners.push(owner);
        u32::try_from(self.owners.len() - 1).unwrap_or(0)
    }

    /// Removes an owner who owns nothing any more.
    pub(crate) fn remove_owner(&mut self, id: u32) {
        self.free_owners.push(id);
    }

    /// The owner behind a number.
    pub(crate) fn owner(&self, id: u32) -> Result<Owner, Code> {
        self.owners.get(id as usize).copied().ok_or(Code::Unknown)
    }

    /// Notes that an owner got an allocation.
    pub(crate) fn opened(&mut self, owner: u32) {
        self.ledger.allocations += 1;
        if let Some(owner) = self.owners.get_mut(owner as usize) {
            owner.live += 1;
        }
    }

    /// Notes that one of an owner's allocations ended; gives the device its bytes back.
    pub(crate) fn closed(&mut self, owner: u32, bytes: u64, end: End) {
        match end {
            End::Freed => self.ledger.frees += 1,
            End::Released => self.ledger.released += 1,
        }
        let Some(owner) = self.owners.get_mut(owner as usize) else { return };
        owner.live = owner.live.saturating_sub(1);
        let Owner { kind, device, .. } = *owner;
        if kind.takes_device_memory() {
            self.give(device, bytes);
        }
    }

    /// Makes an allocation in the devices' address space.
    pub(crate) fn open_device(&mut self, owner: u32, bytes: u64) -> Result<u64, Code> {
        let Owner { kind, device, .. } = self.owner(owner)?;
        let taken = kind.takes_device_memory();
        if taken {
            self.take(device, bytes)?;
        }
        let record = Record { bytes, thread: thread(), owner };
        let Some(address) = self.arena.insert(record) else {
            if taken {
                self.give(device, bytes);
            }
            return Err(Code::OutOfMemory);
        };
        self.opened(owner);
        Ok(address)
    }

    /// Ends what a context owns.
    pub(crate) fn release_owned(&mut self, context: Key) {
        let owned = |owner: &Owner| owner.context == Some(context.index);
        if self.owners.iter().any(|owner| owned(owner) && owner.live > 0) {
            let owners = &self.owners;
            let is_owned = |id: u32| owners.get(id as usize).is_some_and(owned);
            let addresses: Vec<u64> = self
                .arena
                .iter()
                .filter(|(_, record)| is_owned(record.owner))
                .map(|(address, _)| address)
                .collect();
            let ranges: Vec<u64> = self
                .host
                .iter()
                .filter(|(_, range)| is_owned(range.owner))
                .map(|(address, _)| *address)
                .collect();
            for address in addresses {
                if let Some(record) = self.arena.remove(address) {
                    self.closed(record.owner, record.bytes, End::Released);
                }
            }
            for address in ranges {
                self.close_host(address, End::Released);
            }
        }
    }
}
