//! The tables of all areas, in the form that maps of the kernel have.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use engine::ids::Pid;

use super::area::{CopyEntry, GRAPH_KEY, LaunchEntry, NULL_KEY, SENT_WAYS};
use super::open::Area;
use crate::session::{Entry, Table};
use crate::wire::{
    CopyKey, Known, KnownKey, LaunchKey, Lost, LostKey, ToWire, ToldKey, WirePython, parse,
};

/// State of an entry of the table of copies whose key is complete.
const USED: u32 = 2;

/// The open areas.
#[derive(Debug, Default)]
pub(super) struct Areas {
    pub(super) open: Vec<Area>,
    /// Lost records of areas that are closed.
    pub(super) lost_before: u64,
}

/// Which part of the areas a table is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Counters,
    Losses,
    Launches,
    Copies,
    Known,
    Sent,
    Pythons,
}

/// A part of all areas.
pub(crate) struct SharedTable {
    areas: Rc<RefCell<Areas>>,
    part: Part,
}

/// Makes the tables.
pub(crate) struct Tables(pub(super) Rc<RefCell<Areas>>);

impl Tables {
    fn table(&self, part: Part) -> Table {
        Table::Shared(SharedTable { areas: Rc::clone(&self.0), part })
    }

    pub(crate) fn counters(&self) -> Table {
        self.table(Part::Counters)
    }

    pub(crate) fn losses(&self) -> Table {
        self.table(Part::Losses)
    }

    pub(crate) fn launches(&self) -> Table {
        self.table(Part::Launches)
    }

    pub(crate) fn copies(&self) -> Table {
        self.table(Part::Copies)
    }

    pub(crate) fn known(&self) -> Table {
        self.table(Part::Known)
    }

    pub(crate) fn sent(&self) -> Table {
        self.table(Part::Sent)
    }

    pub(crate) fn pythons(&self) -> Table {
        self.table(Part::Pythons)
    }
}

impl SharedTable {
    /// Every entry.
    pub(crate) fn read_all(&self) -> Vec<Entry> {
        let areas = self.areas.borrow();
        let open = areas.open.iter();
        match self.part {
            Part::Losses => open.map(losses).collect(),
            Part::Launches => open.flat_map(launches).collect(),
            Part::Copies => open.flat_map(copies).collect(),
            Part::Counters | Part::Known | Part::Sent | Part::Pythons => Vec::new(),
        }
    }

    /// Sets an entry. False where there is no room for it, or the process is gone.
    pub(crate) fn update(&self, key: &[u8], value: &[u8]) -> bool {
        let mut areas = self.areas.borrow_mut();
        let updated = match self.part {
            Part::Known => update_known(&mut areas, key, value),
            Part::Pythons => update_python(&mut areas, key, value),
            Part::Counters | Part::Losses | Part::Launches | Part::Copies | Part::Sent => None,
        };
        updated.unwrap_or(false)
    }

    /// Removes an entry.
    pub(crate) fn delete(&self, key: &[u8]) {
        let mut areas = self.areas.borrow_mut();
        let _ = match self.part {
            Part::Known => delete_known(&mut areas, key),
            Part::Sent => delete_sent(&areas, key),
            // The others end with their area.
            Part::Counters | Part::Losses | Part::Launches | Part::Copies | Part::Pythons => None,
        };
    }

    /// Records that could not be delivered, of all processes so far.
    pub(crate) fn lost(&self) -> u64 {
        let areas = self.areas.borrow();
        let open = areas.open.iter();
        let now: u64 = open.map(|area| area.header().losses.total.load(Ordering::Acquire)).sum();
        areas.lost_before + now
    }
}

fn losses(area: &Area) -> Entry {
    let key = LostKey { pid: area.pid.0, program: area.program.0, reserved: 0, start: area.start };
    let losses = &area.header().losses;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let lost = Lost {
        allocations: read(&losses.allocations),
        allocated_bytes: read(&losses.allocated_bytes),
        frees: read(&losses.frees),
        failures: read(&losses.failures),
        other: read(&losses.other),
        launches: read(&losses.launches),
        copies: read(&losses.copies),
        stacks: read(&losses.stacks),
        objects: read(&losses.objects),
        tensors: read(&losses.tensors),
        processes: 0,
        replaced: 0,
        announced: 0,
    };
    (key.bytes(), lost.bytes())
}

fn launches(area: &Area) -> Vec<Entry> {
    let entries = area.sizes().launches;
    let table = area.table::<LaunchEntry>(area.offsets.launches, entries);
    let mut found = Vec::new();
    for index in 0..entries as usize {
        // SAFETY: the table has that many entries; the process changes them at any time, so they
        // are copied without assuming anything.
        let (key, sum) = unsafe {
            let entry = table.add(index);
            let key = (*entry).key.load(Ordering::Acquire);
            if key == 0 {
                continue;
            }
            (key, (&raw const (*entry).sum).read_volatile())
        };
        let target = match key & !GRAPH_KEY {
            NULL_KEY => 0,
            target => target,
        };
        let (pid, program) = (area.pid.0, area.program.0);
        let graph = u16::from(key & GRAPH_KEY != 0);
        let key = LaunchKey { target, pid, graph, program };
        found.push((key.bytes(), sum.bytes()));
    }
    found
}

fn copies(area: &Area) -> Vec<Entry> {
    let entries = area.sizes().copies;
    let table = area.table::<CopyEntry>(area.offsets.copies, entries);
    let mut found = Vec::new();
    for index in 0..entries as usize {
        // SAFETY: as for launches; a key does not change once it is in use.
        let (key, sum) = unsafe {
            let entry = table.add(index);
            if (*entry).state.load(Ordering::Acquire) != USED {
                continue;
            }
            let key = CopyKey {
                pid: area.pid.0,
                direction: (*entry).direction,
                asynchronous: (*entry).asynchronous,
                program: area.program.0,
                to: (*entry).to,
                from: (*entry).from,
            };
            (key, (&raw const (*entry).sum).read_volatile())
        };
        found.push((key.bytes(), sum.bytes()));
    }
    found
}

fn of_process(areas: &mut Areas, pid: u32) -> Option<&mut Area> {
    // The newest one: a process that replaced its program has an older one, too.
    areas.open.iter_mut().rev().find(|area| area.pid == Pid(pid) && !area.is_done)
}

fn update_known(areas: &mut Areas, key: &[u8], value: &[u8]) -> Option<bool> {
    let (key, value): (KnownKey, Known) = (parse(key)?, parse(value)?);
    let area = of_process(areas, key.pid).filter(|area| area.program.0 == key.program)?;
    let size = area.sizes().known_stacks;
    let store = (area.table::<u8>(area.offsets.known_stacks, size), size);
    let slots = value.slots.get(..value.count as usize)?;
    let mut entries = std::mem::take(&mut area.store);
    let at = (key.ip, key.sp, key.turn);
    // SAFETY: the store of the area, which only this side writes.
    let added = unsafe { entries.add(area.header(), store, at, value.number, slots) };
    area.store = entries;
    Some(added)
}

fn delete_known(areas: &mut Areas, key: &[u8]) -> Option<()> {
    let key: KnownKey = parse(key)?;
    let area = of_process(areas, key.pid).filter(|area| area.program.0 == key.program)?;
    let store = area.table::<u8>(area.offsets.known_stacks, area.sizes().known_stacks);
    // SAFETY: the store of the area, which only this side writes.
    unsafe { area.store.remove(store, (key.ip, key.sp, key.turn)) };
    Some(())
}

fn delete_sent(areas: &Areas, key: &[u8]) -> Option<()> {
    let key: ToldKey = parse(key)?;
    let area = areas.open.iter().find(|area| area.pid.0 == key.pid)?;
    let entries = area.sizes().sent_frames as usize;
    if entries < SENT_WAYS {
        return None;
    }
    let table = area.table::<AtomicU64>(area.offsets.sent_frames, entries as u32);
    let first = key.token as usize & (entries - 1) & !(SENT_WAYS - 1);
    for way in 0..SENT_WAYS {
        // SAFETY: the set is inside of the table.
        let entry = unsafe { &*table.add(first + way) };
        let _ = entry.compare_exchange(key.token, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
    Some(())
}

fn update_python(areas: &mut Areas, key: &[u8], value: &[u8]) -> Option<bool> {
    let (pid, python): (u32, WirePython) = (parse(key)?, parse(value)?);
    let area = of_process(areas, pid)?;
    let header = area.table::<super::area::Header>(0, 1);
    let version = &area.header().python_version;
    version.fetch_add(1, Ordering::AcqRel);
    fence(Ordering::Release);
    // SAFETY: only this side writes the structure; the process notices a change by the version.
    unsafe { (&raw mut (*header).python).write_volatile(python) };
    version.fetch_add(1, Ordering::Release);
    Some(true)
}
