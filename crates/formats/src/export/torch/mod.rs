//! Memory snapshots for PyTorch's own viewers.
//!
//! For files with driver calls, every allocation is a segment with one block. For PyTorch
//! snapshots, segments and blocks are those of the file. Each device has a separate trace, so the
//! file is read once for the allocations that are live at its end ([`Prescan`]) and once more for
//! each device; only live allocations are kept in memory.

mod pickle_writer;
mod prescan;
mod state;
mod trace;

use std::collections::BTreeSet;
use std::io::{self, Write};

use engine::analysis::MemoryScope;
use engine::model::{AllocationChange, DeviceId, MemoryKind, Pid, SiteId};
use hashbrown::HashMap;

pub use self::prescan::Prescan;

use self::pickle_writer::{PickleList, PickleWriter};
use self::prescan::{LiveAllocation, PrescanResult};
use self::trace::TraceWriter;
use crate::import::collecting_sink::FileInfo;
use crate::sanitize::sanitize_up_to;

/// Maximum number of characters of a function or file name.
const MAX_NAME_CHARS: usize = 4096;

/// A trace of the snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceTarget {
    /// Trace of the device with this index in the list; at most one of them is unknown.
    Device(Option<DeviceId>),
    /// Trace of pinned memory.
    Host,
}

/// A snapshot in progress.
pub struct SnapshotWriter<'a> {
    pickle: PickleWriter<'a>,
    scope: MemoryScope,
    pid: Pid,
    devices: Vec<Option<DeviceId>>,
    host: bool,
    live: Vec<LiveAllocation>,
    /// Requested sizes of blocks that are live at the end, by address.
    requested: HashMap<u64, u64>,
    stacks: WrittenStacks,
    trace: Option<(TraceWriter, PickleList)>,
    changed: BTreeSet<Option<DeviceId>>,
    /// Whether segments are mapped and unmapped in parts.
    grows: bool,
}

impl<'a> SnapshotWriter<'a> {
    /// Starts a snapshot of the process that the prescan found. The inner error is the list of
    /// processes if there are several: addresses of different processes are unrelated.
    pub fn new(
        out: &'a mut dyn Write,
        prescan: Prescan,
        info: &FileInfo,
    ) -> io::Result<Result<Self, Vec<Pid>>> {
        let scope = prescan.scope;
        let PrescanResult { mut live, devices: changed, host, processes } = prescan.finish();
        if processes.len() > 1 {
            return Ok(Err(processes.into_iter().collect()));
        }
        let pid = processes.first().copied().unwrap_or(Pid(0));
        let mut snapshot = Self {
            pickle: PickleWriter::new(out)?,
            scope,
            pid,
            devices: device_list(&changed, info),
            host,
            live: live.remove(&pid).unwrap_or_default(),
            requested: state::requested(info),
            stacks: WrittenStacks::default(),
            trace: None,
            changed,
            grows: info.settings.expandable_segments == Some(true)
                || info.segments.iter().any(|segment| segment.expandable),
        };
        snapshot.begin(info)?;
        Ok(Ok(snapshot))
    }

    /// Returns the traces to write, in this order.
    pub fn targets(&self) -> Vec<TraceTarget> {
        let mut targets: Vec<TraceTarget> =
            self.devices.iter().copied().map(TraceTarget::Device).collect();
        if self.host {
            targets.push(TraceTarget::Host);
        }
        targets
    }

    /// Returns whether a trace has changes; one without needs no pass over the file.
    pub fn has_changes(&self, target: TraceTarget) -> bool {
        match target {
            TraceTarget::Device(device) => self.changed.contains(&device),
            TraceTarget::Host => true,
        }
    }

    fn begin(&mut self, info: &FileInfo) -> io::Result<()> {
        self.pickle.open_dict()?;
        self.pickle.word("segments")?;
        self.segments(info)?;
        self.pickle.word("device_traces")?;
        // The list of device traces; the list of host traces is closed separately.
        self.pickle.open_list().map(drop)
    }

    /// Starts a trace.
    pub fn open(&mut self, target: TraceTarget, info: &FileInfo) -> io::Result<()> {
        if target == TraceTarget::Host {
            self.pickle.close_list()?;
            self.pickle.word("host_traces")?;
            self.pickle.open_list()?;
        }
        let failures = info.failed_allocations.iter().filter(|failed| {
            let here = match target {
                TraceTarget::Device(device) => failed.device == device,
                TraceTarget::Host => false,
            };
            here && failed.pid == self.pid
        });
        let live = self.live.iter().map(|live| (live.address, live.lifetime.allocated_at));
        let trace = TraceWriter::new(
            self.scope,
            target,
            self.grows,
            failures.copied().collect(),
            live.collect(),
        );
        let items = self.pickle.open_list()?;
        self.trace = Some((trace, items));
        Ok(())
    }

    /// Writes a change; changes of other traces are skipped.
    pub fn change(&mut self, change: &AllocationChange, info: &FileInfo) -> io::Result<()> {
        let Self { pickle, trace, requested, stacks, .. } = self;
        let Some((trace, items)) = trace else { return Ok(()) };
        let mut context = trace::TraceContext { pickle, items, requested, stacks, info };
        trace.change(change, &mut context)
    }

    /// Ends the trace.
    pub fn close(&mut self, info: &FileInfo) -> io::Result<()> {
        let Self { pickle, trace, requested, stacks, .. } = self;
        if let Some((mut trace, mut items)) = trace.take() {
            let items = &mut items;
            trace.finish(&mut trace::TraceContext { pickle, items, requested, stacks, info })?;
        }
        self.pickle.close_list()
    }

    /// Writes the rest. Returns notes for the user.
    pub fn finish(mut self, info: &FileInfo) -> io::Result<Vec<String>> {
        self.pickle.close_list()?;
        if self.host {
            self.pickle.word("host_segments")?;
            self.host_segments(info)?;
        }
        if self.scope == MemoryScope::Torch {
            self.pickle.word("allocator_settings")?;
            state::settings(&mut self.pickle, &info.settings)?;
        }
        self.pickle.word("external_annotations")?;
        self.pickle.empty_list()?;
        self.pickle.close_dict()?;
        self.pickle.stop()?;
        let mut notes = Vec::new();
        if let Some(index) = self.devices.iter().position(Option::is_none) {
            notes.push(format!("memory whose device is not known is shown as device {index}"));
        }
        Ok(notes)
    }
}

/// Returns the devices in the order of the list of traces: the index is the ordinal. Memory of
/// unknown devices comes last.
fn device_list(changed: &BTreeSet<Option<DeviceId>>, info: &FileInfo) -> Vec<Option<DeviceId>> {
    let used = changed.iter().flatten().copied();
    let reserved = info.segments.iter().filter_map(|segment| segment.device);
    let last = used.chain(reserved).max();
    let mut devices: Vec<_> = match last {
        Some(last) => (0..=last.0).map(|ordinal| Some(DeviceId(ordinal))).collect(),
        None => Vec::new(),
    };
    if changed.contains(&None) || devices.is_empty() {
        devices.push(None);
    }
    devices
}

/// Numbers of stacks and frames that were already written.
#[derive(Default)]
struct WrittenStacks {
    sites: HashMap<SiteId, u32>,
    frames: HashMap<engine::model::stack::FrameId, u32>,
}

impl WrittenStacks {
    /// Writes the list of frames of a site; an empty one if it has none.
    fn write(
        &mut self,
        pickle: &mut PickleWriter<'_>,
        site: Option<SiteId>,
        info: &FileInfo,
    ) -> io::Result<()> {
        let Some(site) = site else { return pickle.empty_list() };
        if let Some(number) = self.sites.get(&site) {
            return pickle.again(*number);
        }
        let mut items = pickle.open_list()?;
        for id in info.stacks.ids(site) {
            pickle.item(&mut items)?;
            if let Some(number) = self.frames.get(id) {
                pickle.again(*number)?;
                continue;
            }
            let frame = info.stacks.get(*id).cloned().unwrap_or_default();
            let name = match frame.unknown {
                Some(unknown) if frame.function.is_empty() => format!("({})", unknown.reason()),
                _ => sanitize_up_to(&frame.function, MAX_NAME_CHARS).into_owned(),
            };
            let file = frame.file.as_deref().or(frame.module.as_deref()).unwrap_or("??");
            pickle.open_dict()?;
            pickle.word("name")?;
            pickle.text(&name)?;
            pickle.word("filename")?;
            pickle.text(&sanitize_up_to(file, MAX_NAME_CHARS))?;
            pickle.word("line")?;
            pickle.number(u64::from(frame.line))?;
            pickle.close_dict()?;
            self.frames.insert(*id, pickle.keep()?);
        }
        pickle.close_list()?;
        self.sites.insert(site, pickle.keep()?);
        Ok(())
    }
}

/// Returns whether memory of a kind is reserved by the cache, with blocks as parts of it.
const fn is_reserve(kind: MemoryKind) -> bool {
    matches!(kind, MemoryKind::Pool)
}
