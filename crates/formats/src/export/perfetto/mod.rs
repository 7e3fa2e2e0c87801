//! Traces for the Perfetto viewer: memory over time as counters by process, device and kind, and
//! the largest allocations as slices.
//!
//! Counters are written as changes arrive; slices are chosen at the end. The order of packets in
//! the file has no meaning to the viewer, except at equal timestamps.

mod message;
mod tracks;

use std::io::{self, Write};
use std::sync::Arc;

use engine::analysis::lifetimes::{Lifetime, LifetimeTracker};
use engine::analysis::{Delta, GroupKey, MemoryScope, RunningSum, is_host};
use engine::model::{AllocationChange, DeviceId, MemoryKind, Pid, SiteId, Timestamp};
use hashbrown::HashMap;

use self::message::{
    Annotation, BEGIN, BOOTTIME, BYTES, CLEARED, COUNTER, Clock, ClockSnapshot, Counter, END,
    Event, Interned, NEEDS_STATE, Packet, Process, REALTIME, Text, Track,
};
use self::tracks::LargestSlices;
use super::allocations::StackTextCache;
use super::format_writer::FormatWriter;
use crate::import::collecting_sink::FileInfo;
use crate::sanitize::sanitize;

/// Maximum number of allocations that are shown as slices.
pub const MAX_SLICES: usize = 200_000;

/// Packet sequences: counters, and slices with their strings.
const COUNTER_SEQUENCE: u32 = 1;
const SLICE_SEQUENCE: u32 = 2;

/// Names of annotations, by id from 1.
const ANNOTATIONS: [&str; 7] = ["bytes", "address", "kind", "end_reason", "tid", "site", "stack"];

/// Writes changes as a Perfetto trace.
pub struct PerfettoWriter<'a> {
    out: &'a mut dyn Write,
    scope: MemoryScope,
    /// Last assigned track id.
    tracks: u64,
    processes: HashMap<Pid, u64>,
    counters: HashMap<(Pid, Option<DeviceId>, MemoryKind), (u64, RunningSum)>,
    totals: HashMap<Option<DeviceId>, (u64, RunningSum)>,
    lifetimes: LifetimeTracker,
    largest: LargestSlices,
    last: Timestamp,
    started: bool,
}

impl<'a> PerfettoWriter<'a> {
    /// Creates an empty trace. `scope` selects the memory that totals count. At most `slices`
    /// allocations are shown as slices.
    pub fn new(out: &'a mut dyn Write, scope: MemoryScope, slices: usize) -> Self {
        Self {
            out,
            scope,
            tracks: 0,
            processes: HashMap::new(),
            counters: HashMap::new(),
            totals: HashMap::new(),
            lifetimes: LifetimeTracker::default(),
            largest: LargestSlices::new(slices),
            last: Timestamp(0),
            started: false,
        }
    }

    /// Relates the file's clock to the wall clock.
    fn begin(&mut self, info: &FileInfo) -> io::Result<()> {
        self.started = true;
        let (at, utc) = match info.clock {
            Some((at, utc)) => (at, u64::try_from(utc).ok()),
            None => (info.origin(), None),
        };
        let own = Some(Clock { id: BOOTTIME, timestamp: time(at) });
        let wall = utc.map(|timestamp| Clock { id: REALTIME, timestamp });
        let clocks = Some(ClockSnapshot { clocks: [own, wall].into_iter().flatten().collect() });
        let timestamp = Some(time(at));
        let packet = Packet { clocks, timestamp, sequence: COUNTER_SEQUENCE, ..Packet::default() };
        Packet { flags: Some(CLEARED), ..packet }.write(self.out)
    }

    fn track(&mut self, track: Track) -> io::Result<u64> {
        self.tracks += 1;
        let track = Track { uuid: self.tracks, ..track };
        Packet { track: Some(track), sequence: COUNTER_SEQUENCE, ..Packet::default() }
            .write(self.out)?;
        Ok(self.tracks)
    }

    fn process(&mut self, pid: Pid, info: &FileInfo) -> io::Result<u64> {
        if let Some(known) = self.processes.get(&pid) {
            return Ok(*known);
        }
        let name = info.processes.get(&pid).map(|name| sanitize(name).into_owned());
        let track = match i32::try_from(pid.0) {
            // The file has no process id.
            Ok(0) | Err(_) => Track {
                name: Some(name.unwrap_or_else(|| "the program".to_owned())),
                ..Track::default()
            },
            Ok(number) => {
                Track { process: Some(Process { pid: Some(number), name }), ..Track::default() }
            }
        };
        let uuid = self.track(track)?;
        self.processes.insert(pid, uuid);
        Ok(uuid)
    }

    fn counter(&mut self, name: String, parent: Option<u64>) -> io::Result<u64> {
        let counter = Some(Counter { unit: BYTES });
        self.track(Track { name: Some(name), parent, counter, ..Track::default() })
    }

    fn step(&mut self, at: Timestamp, delta: &Delta) -> io::Result<()> {
        let GroupKey { pid, device, kind, .. } = delta.key;
        if let Some((uuid, sum)) = self.counters.get_mut(&(pid, device, kind)) {
            let packet = value(*uuid, sum, at, delta);
            packet.write(self.out)?;
        }
        if self.scope.counts(kind)
            && let Some((uuid, sum)) = self.totals.get_mut(&device)
        {
            let packet = value(*uuid, sum, at, delta);
            packet.write(self.out)?;
        }
        Ok(())
    }

    /// Creates the counters of a group if they are missing.
    fn prepare(&mut self, group: GroupKey, info: &FileInfo) -> io::Result<()> {
        let GroupKey { pid, device, kind, .. } = group;
        if !self.counters.contains_key(&(pid, device, kind)) {
            let process = self.process(pid, info)?;
            let name = format!("{} {kind}", location(device, kind));
            let uuid = self.counter(name, Some(process))?;
            self.counters.insert((pid, device, kind), (uuid, RunningSum::default()));
        }
        if self.scope.counts(kind) && !self.totals.contains_key(&device) {
            let name = format!("{} total", location(device, kind));
            let uuid = self.counter(name, None)?;
            self.totals.insert(device, (uuid, RunningSum::default()));
        }
        Ok(())
    }

    /// Writes the slices; returns the number of allocations without one.
    fn slices(&mut self, info: &FileInfo) -> io::Result<u64> {
        let largest = std::mem::replace(&mut self.largest, LargestSlices::new(0));
        let (slices, left_out) = largest.into_tracks();
        let mut tracks: HashMap<(Pid, Option<DeviceId>, usize), u64> = HashMap::new();
        let mut strings = InternedStrings::new();
        for (lifetime, track_index) in slices {
            let AllocationChange { pid, device, kind, .. } = lifetime.change;
            let track = match tracks.get(&(pid, device, track_index)) {
                Some(track) => *track,
                None => {
                    let parent = Some(self.process(pid, info)?);
                    let name = Some(format!("{} allocations", location(device, kind)));
                    let track = self.track(Track { name, parent, ..Track::default() })?;
                    tracks.insert((pid, device, track_index), track);
                    track
                }
            };
            strings.slice(&lifetime, track, info).write(self.out)?;
            if let Some((at, _)) = lifetime.ended {
                let event = Event { event_type: END, track, ..Event::default() };
                packet(SLICE_SEQUENCE, at, event).write(self.out)?;
            }
        }
        Ok(left_out)
    }
}

impl FormatWriter for PerfettoWriter<'_> {
    fn change(&mut self, change: &AllocationChange, info: &FileInfo) -> io::Result<()> {
        if !self.started {
            self.begin(info)?;
        }
        self.last = self.last.max(change.at);
        for delta in Delta::of(change).filter(Delta::changes_size) {
            self.prepare(delta.key, info)?;
            self.step(change.at, &delta)?;
        }
        if let Some(ended) = self.lifetimes.observe(change) {
            self.largest.add(ended, change.at);
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>, info: &FileInfo) -> io::Result<Vec<String>> {
        if !self.started {
            self.begin(info)?;
        }
        for live in std::mem::take(&mut self.lifetimes).finish() {
            self.largest.add(live, self.last);
        }
        let left_out = self.slices(info)?;
        self.out.flush()?;
        let mut notes = Vec::new();
        if left_out > 0 {
            notes.push(format!(
                "{left_out} of the smaller allocations are in the counters only, and not shown one \
                 by one"
            ));
        }
        Ok(notes)
    }
}

/// Strings of slices, each written with the first packet that needs it.
struct InternedStrings {
    names: HashMap<Arc<str>, u64>,
    strings: HashMap<Arc<str>, u64>,
    sites: HashMap<SiteId, [u64; 2]>,
    texts: StackTextCache,
    last: u64,
    started: bool,
}

impl InternedStrings {
    fn new() -> Self {
        Self {
            names: HashMap::new(),
            strings: HashMap::new(),
            sites: HashMap::new(),
            texts: StackTextCache::new("\n"),
            last: 0,
            started: false,
        }
    }

    /// Returns the start of an allocation's slice, with its annotations.
    fn slice(&mut self, lifetime: &Lifetime, track: u64, info: &FileInfo) -> Packet {
        let allocation = &lifetime.change;
        let mut new = Interned::default();
        let mut flags = NEEDS_STATE;
        if !self.started {
            self.started = true;
            flags |= CLEARED;
            let names = (1..).zip(ANNOTATIONS);
            new.annotation_names = names.map(|(id, name)| Text { id, text: name.into() }).collect();
        }
        let number =
            |name, number| Annotation { name, number: Some(number), ..Annotation::default() };
        let text = |name, text| Annotation { name, text: Some(text), ..Annotation::default() };
        let mut annotations = vec![
            number(1, allocation.bytes),
            Annotation { name: 2, pointer: Some(allocation.key.value), ..Annotation::default() },
            text(3, self.word(allocation.kind.name(), &mut new)),
            text(4, self.word(lifetime.end_reason(), &mut new)),
        ];
        if allocation.tid.0 > 0 {
            annotations.push(number(5, u64::from(allocation.tid.0)));
        }
        if let Some(site) = allocation.site {
            let [name, stack] = self.site(site, info, &mut new);
            annotations.extend([text(6, name), text(7, stack)]);
        }
        let name = Some(self.name(lifetime, info, &mut new));
        let event = Event { annotations, event_type: BEGIN, name, track, ..Event::default() };
        let interned = (new != Interned::default()).then_some(new);
        Packet {
            interned,
            flags: Some(flags),
            ..packet(SLICE_SEQUENCE, lifetime.allocated_at, event)
        }
    }

    /// Returns the name of a slice: the function of the program, or the kind.
    fn name(&mut self, lifetime: &Lifetime, info: &FileInfo, new: &mut Interned) -> u64 {
        let stack = lifetime.change.site.map(|site| info.stacks.call_stack(site));
        let stack = stack.unwrap_or_default();
        let name = match stack.responsible().map(|frame| sanitize(&frame.function)) {
            Some(function) if !function.is_empty() => function.into_owned(),
            _ => lifetime.change.kind.name().to_owned(),
        };
        intern(&mut self.names, &mut self.last, &name, &mut new.event_names)
    }

    fn word(&mut self, text: &str, new: &mut Interned) -> u64 {
        intern(&mut self.strings, &mut self.last, text, &mut new.texts)
    }

    fn site(&mut self, site: SiteId, info: &FileInfo, new: &mut Interned) -> [u64; 2] {
        if let Some(known) = self.sites.get(&site) {
            return *known;
        }
        let site_text = self.texts.of(site, &info.stacks);
        let mut add = |text: &str| {
            self.last += 1;
            new.texts.push(Text { id: self.last, text: text.to_owned() });
            self.last
        };
        let ids = [add(&site_text.name), add(&site_text.stack)];
        self.sites.insert(site, ids);
        ids
    }
}

fn intern(
    known: &mut HashMap<Arc<str>, u64>,
    last: &mut u64,
    text: &str,
    new: &mut Vec<Text>,
) -> u64 {
    if let Some(id) = known.get(text) {
        return *id;
    }
    *last += 1;
    known.insert(text.into(), *last);
    new.push(Text { id: *last, text: text.to_owned() });
    *last
}

/// Returns the value of a counter after a change.
fn value(track: u64, sum: &mut RunningSum, at: Timestamp, delta: &Delta) -> Packet {
    delta.apply(sum);
    let value = Some(i64::try_from(sum.value()).unwrap_or(i64::MAX));
    packet(COUNTER_SEQUENCE, at, Event { event_type: COUNTER, track, value, ..Event::default() })
}

fn packet(sequence: u32, at: Timestamp, event: Event) -> Packet {
    Packet { timestamp: Some(time(at)), sequence, event: Some(event), ..Packet::default() }
}

/// Converts a time. The viewer's times are signed.
fn time(at: Timestamp) -> u64 {
    at.0.min(i64::MAX as u64)
}

/// Returns `gpu_0`, `gpu_?` or `host`.
fn location(device: Option<DeviceId>, kind: MemoryKind) -> String {
    match device {
        Some(device) => device.to_string(),
        None if is_host(kind) => "host".to_owned(),
        None => "gpu_?".to_owned(),
    }
}
