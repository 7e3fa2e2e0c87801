//! The tables of all areas, with the keys and values of the BPF maps.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::model::ids::Pid;

use super::area::{CopyEntry, GRAPH_KEY, LaunchEntry, NULL_KEY, SENT_WAYS};
use super::open_area::Area;
use crate::session::{MapEntry, Table};
use crate::wire::{
    CopyKey, KnownStack, KnownStackKey, LaunchKey, Lost, LostKey, SentFramesKey, ToWire,
    UnknownKey, WirePython, parse,
};

/// State of an entry of the table of copies that is in use.
const USED: u32 = 2;

/// The open areas.
#[derive(Debug, Default)]
pub(super) struct Areas {
    pub(super) open: Vec<Area>,
    /// Lost records of closed areas, and their calls of unknown functions.
    closed: (u64, u64),
}

/// A part of the areas that is accessed as a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Losses,
    Launches,
    Copies,
    Unknown,
    KnownStacks,
    SentFrames,
    Pythons,
}

/// A table over all areas.
pub(crate) struct SharedTable {
    areas: Tables,
    part: Part,
}

/// The open areas, from which the tables are created.
#[derive(Clone, Default)]
pub(crate) struct Tables(Arc<Mutex<Areas>>);

impl Tables {
    pub(super) fn lock(&self) -> MutexGuard<'_, Areas> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn table(&self, part: Part) -> Table {
        Table::Shared(SharedTable { areas: self.clone(), part })
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

    pub(crate) fn unknown_calls(&self) -> Table {
        self.table(Part::Unknown)
    }

    pub(crate) fn known_stacks(&self) -> Table {
        self.table(Part::KnownStacks)
    }

    pub(crate) fn sent_frames(&self) -> Table {
        self.table(Part::SentFrames)
    }

    pub(crate) fn pythons(&self) -> Table {
        self.table(Part::Pythons)
    }
}

impl SharedTable {
    /// Reads every entry.
    pub(crate) fn read_all(&self) -> Vec<MapEntry> {
        let areas = self.areas.lock();
        let open = areas.open.iter();
        match self.part {
            Part::Losses => open.map(losses).collect(),
            Part::Launches => open.flat_map(launches).collect(),
            Part::Copies => open.flat_map(copies).collect(),
            Part::Unknown => open.flat_map(unknown).collect(),
            Part::KnownStacks | Part::SentFrames | Part::Pythons => Vec::new(),
        }
    }

    /// Sets an entry. Returns false if it does not fit or the process has ended.
    pub(crate) fn update(&self, key: &[u8], value: &[u8]) -> bool {
        let mut areas = self.areas.lock();
        let updated = match self.part {
            Part::KnownStacks => update_known_stack(&mut areas, key, value),
            Part::Pythons => update_python(&mut areas, key, value),
            _ => None,
        };
        updated.unwrap_or(false)
    }

    /// Deletes an entry.
    pub(crate) fn delete(&self, key: &[u8]) {
        let mut areas = self.areas.lock();
        let _ = match self.part {
            Part::KnownStacks => delete_known_stack(&mut areas, key),
            Part::SentFrames => delete_sent(&areas, key),
            // The others end with their area.
            _ => None,
        };
    }
}

impl Areas {
    /// Returns the number of lost records of all processes so far.
    pub(super) fn lost(&self) -> u64 {
        self.closed.0 + self.open.iter().map(lost).sum::<u64>()
    }

    /// Returns the number of calls of unknown functions of all processes so far.
    pub(super) fn unknown(&self) -> u64 {
        self.closed.1 + self.open.iter().map(unknown_calls).sum::<u64>()
    }

    /// Closes the areas of processes whose end was reported.
    pub(super) fn close_ended(&mut self) {
        for area in self.open.extract_if(.., |area| area.is_done) {
            self.closed.0 += lost(&area);
            self.closed.1 += unknown_calls(&area);
        }
    }
}

/// Returns the number of lost records of an area.
fn lost(area: &Area) -> u64 {
    area.header().losses.total.load(Ordering::Acquire)
}

/// Returns the number of calls of unknown functions in an area.
fn unknown_calls(area: &Area) -> u64 {
    let counters = area.unknown.iter().zip(&area.header().unknown);
    counters.map(|(_, function)| function.calls.load(Ordering::Relaxed)).sum()
}

fn losses(area: &Area) -> MapEntry {
    let (pid, exec_gen) = (area.pid.0, area.exec_gen.0);
    let key = LostKey { pid, exec_gen, reserved: 0, start: area.start };
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

fn launches(area: &Area) -> Vec<MapEntry> {
    let entries = area.sizes().launches;
    let table = area.table::<LaunchEntry>(area.offsets.launches, entries);
    let mut found = Vec::new();
    for index in 0..entries as usize {
        // SAFETY: the table has this many entries. The process may change them at any time; any
        // bytes are a valid value.
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
        let (pid, exec_gen) = (area.pid.0, area.exec_gen.0);
        let graph = u16::from(key & GRAPH_KEY != 0);
        let key = LaunchKey { target, pid, graph, exec_gen, start: area.start };
        found.push((key.bytes(), sum.bytes()));
    }
    found
}

fn copies(area: &Area) -> Vec<MapEntry> {
    let entries = area.sizes().copies;
    let table = area.table::<CopyEntry>(area.offsets.copies, entries);
    let mut found = Vec::new();
    for index in 0..entries as usize {
        // SAFETY: as for launches; the key of an entry in use never changes.
        let (key, sum) = unsafe {
            let entry = table.add(index);
            if (*entry).state.load(Ordering::Acquire) != USED {
                continue;
            }
            let key = CopyKey {
                pid: area.pid.0,
                direction: (*entry).direction,
                asynchronous: (*entry).asynchronous,
                exec_gen: area.exec_gen.0,
                to: (*entry).to,
                from: (*entry).from,
                start: area.start,
            };
            (key, (&raw const (*entry).sum).read_volatile())
        };
        found.push((key.bytes(), sum.bytes()));
    }
    found
}

fn unknown(area: &Area) -> impl Iterator<Item = MapEntry> {
    let (pid, exec_gen, start) = (area.pid.0, area.exec_gen.0, area.start);
    area.unknown.iter().zip(&area.header().unknown).map(move |(function, counter)| {
        let key = UnknownKey { pid, exec_gen, function: *function, start };
        (key.bytes(), counter.calls.load(Ordering::Relaxed).bytes())
    })
}

/// Returns the area of a running process.
fn of_process(areas: &mut Areas, pid: u32) -> Option<&mut Area> {
    // The newest one: a process that called exec may also have an older one.
    areas.open.iter_mut().rev().find(|area| area.pid == Pid(pid) && !area.is_done)
}

fn update_known_stack(areas: &mut Areas, key: &[u8], value: &[u8]) -> Option<bool> {
    let (key, value): (KnownStackKey, KnownStack) = (parse(key)?, parse(value)?);
    let area = of_process(areas, key.pid).filter(|area| area.exec_gen.0 == key.exec_gen)?;
    let size = area.sizes().known_stacks;
    let store = (area.table::<u8>(area.offsets.known_stacks, size), size);
    let slots = value.slots.get(..value.count as usize)?;
    let mut entries = std::mem::take(&mut area.known_stacks);
    let at = (key.ip, key.sp, key.index);
    // SAFETY: the store of the area, which only the collector writes.
    let added = unsafe { entries.add(area.header(), store, at, value.number, slots) };
    area.known_stacks = entries;
    Some(added)
}

fn delete_known_stack(areas: &mut Areas, key: &[u8]) -> Option<()> {
    let key: KnownStackKey = parse(key)?;
    let area = of_process(areas, key.pid).filter(|area| area.exec_gen.0 == key.exec_gen)?;
    let store = area.table::<u8>(area.offsets.known_stacks, area.sizes().known_stacks);
    // SAFETY: the store of the area, which only the collector writes.
    unsafe { area.known_stacks.remove(store, (key.ip, key.sp, key.index)) };
    Some(())
}

fn delete_sent(areas: &Areas, key: &[u8]) -> Option<()> {
    let key: SentFramesKey = parse(key)?;
    let area =
        areas.open.iter().find(|area| area.pid.0 == key.pid && area.exec_gen.0 == key.exec_gen)?;
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
    // SAFETY: only the collector writes the structure; the process detects a change by the version.
    unsafe { (&raw mut (*header).python).write_volatile(python) };
    version.fetch_add(1, Ordering::Release);
    Some(true)
}
