//! A memory snapshot that PyTorch's own viewers open.
//!
//! Where the file is of the driver's calls, every allocation is a segment with one block. Where it is
//! a snapshot already, segments and blocks are those of the file. A trace is a list by itself for
//! each device, so the file is read once for what is live at its end ([`Survey`]) and once more for
//! each device; nothing but what is live is kept.

mod pickle;
mod state;
mod survey;
mod trace;

use std::collections::BTreeSet;
use std::io::{self, Write};

use engine::analysis::Measure;
use engine::change::Change;
use engine::ids::{DeviceId, Pid, SiteId};
use engine::kind::Kind;
use hashbrown::HashMap;

pub use self::survey::Survey;

use self::pickle::{Items, Pickle};
use self::survey::{Found, Live};
use self::trace::Trace;
use crate::import::gather::Facts;
use crate::plain::plain_up_to;

/// The longest name of a function or file.
const LONGEST: usize = 4096;

/// A trace of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// Of the device with this place in the list; the device is not known in one of them at most.
    Device(Option<DeviceId>),
    /// Of pinned memory.
    Host,
}

/// A snapshot, while it is written.
pub struct Snapshot<'a> {
    pickle: Pickle<'a>,
    measure: Measure,
    pid: Pid,
    devices: Vec<Option<DeviceId>>,
    host: bool,
    live: Vec<Live>,
    /// What was asked for of blocks that are live at the end, by address.
    requested: HashMap<u64, u64>,
    stacks: Stacks,
    trace: Option<(Trace, Items)>,
    changed: BTreeSet<Option<DeviceId>>,
    /// Segments come and go in pieces.
    grows: bool,
}

impl<'a> Snapshot<'a> {
    /// Begins a snapshot of the process that a survey found. An error is the list of processes where
    /// there are several: their addresses mean different things.
    pub fn new(
        out: &'a mut dyn Write,
        survey: Survey,
        facts: &Facts,
    ) -> io::Result<Result<Self, Vec<Pid>>> {
        let measure = survey.measure;
        let Found { mut live, devices: changed, host, processes } = survey.finish();
        if processes.len() > 1 {
            return Ok(Err(processes.into_iter().collect()));
        }
        let pid = processes.first().copied().unwrap_or(Pid(0));
        let mut snapshot = Self {
            pickle: Pickle::new(out)?,
            measure,
            pid,
            devices: places(&changed, facts),
            host,
            live: live.remove(&pid).unwrap_or_default(),
            requested: state::requested(facts),
            stacks: Stacks::default(),
            trace: None,
            changed,
            grows: facts.settings.expandable_segments == Some(true)
                || facts.segments.iter().any(|segment| segment.expandable),
        };
        snapshot.begin(facts)?;
        Ok(Ok(snapshot))
    }

    /// The traces that are to be written, in this order.
    #[must_use]
    pub fn lanes(&self) -> Vec<Lane> {
        let mut lanes: Vec<Lane> = self.devices.iter().copied().map(Lane::Device).collect();
        if self.host {
            lanes.push(Lane::Host);
        }
        lanes
    }

    /// Whether there are changes for a trace; one without needs no pass over the file.
    #[must_use]
    pub fn has_changes(&self, lane: Lane) -> bool {
        match lane {
            Lane::Device(device) => self.changed.contains(&device),
            Lane::Host => true,
        }
    }

    fn begin(&mut self, facts: &Facts) -> io::Result<()> {
        self.pickle.open_dict()?;
        self.pickle.word("segments")?;
        self.segments(facts)?;
        self.pickle.word("device_traces")?;
        // The list of the traces of devices; that of the host is closed by itself.
        self.pickle.open_list().map(drop)
    }

    /// The trace of a lane begins.
    pub fn open(&mut self, lane: Lane, facts: &Facts) -> io::Result<()> {
        if lane == Lane::Host {
            self.pickle.close_list()?;
            self.pickle.word("host_traces")?;
            self.pickle.open_list()?;
        }
        let failures = facts.refused.iter().filter(|refused| {
            let here = match lane {
                Lane::Device(device) => refused.device == device,
                Lane::Host => false,
            };
            here && refused.pid == self.pid
        });
        let live = self.live.iter().map(|live| (live.address, live.one.began));
        let trace =
            Trace::new(self.measure, lane, self.grows, failures.copied().collect(), live.collect());
        let items = self.pickle.open_list()?;
        self.trace = Some((trace, items));
        Ok(())
    }

    /// A change of the file; those of other lanes are left out.
    pub fn change(&mut self, change: &Change, facts: &Facts) -> io::Result<()> {
        let Self { pickle, trace, requested, stacks, .. } = self;
        let Some((trace, items)) = trace else { return Ok(()) };
        let mut page = trace::Page { pickle, items, requested, stacks, facts };
        trace.change(change, &mut page)
    }

    /// The trace of the lane ends.
    pub fn close(&mut self, facts: &Facts) -> io::Result<()> {
        let Self { pickle, trace, requested, stacks, .. } = self;
        if let Some((mut trace, mut items)) = trace.take() {
            let items = &mut items;
            trace.finish(&mut trace::Page { pickle, items, requested, stacks, facts })?;
        }
        self.pickle.close_list()
    }

    /// Writes the rest.
    pub fn finish(mut self, facts: &Facts) -> io::Result<Vec<String>> {
        self.pickle.close_list()?;
        if self.host {
            self.pickle.word("host_segments")?;
            self.host_segments(facts)?;
        }
        if self.measure == Measure::Torch {
            self.pickle.word("allocator_settings")?;
            state::settings(&mut self.pickle, &facts.settings)?;
        }
        self.pickle.word("external_annotations")?;
        self.pickle.empty_list()?;
        self.pickle.close_dict()?;
        self.pickle.stop()?;
        let mut notes = Vec::new();
        if let Some(place) = self.devices.iter().position(Option::is_none) {
            notes.push(format!("memory whose device is not known is shown as device {place}"));
        }
        Ok(notes)
    }
}

/// Devices by their place in the list of traces: their ordinal. Memory of no known device has the
/// last place.
fn places(changed: &BTreeSet<Option<DeviceId>>, facts: &Facts) -> Vec<Option<DeviceId>> {
    let used = changed.iter().flatten().copied();
    let held = facts.segments.iter().filter_map(|segment| segment.device);
    let last = used.chain(held).max();
    let mut places: Vec<_> = match last {
        Some(last) => (0..=last.0).map(|ordinal| Some(DeviceId(ordinal))).collect(),
        None => Vec::new(),
    };
    if changed.contains(&None) || places.is_empty() {
        places.push(None);
    }
    places
}

/// Stacks and frames that were written, each once.
#[derive(Default)]
struct Stacks {
    sites: HashMap<SiteId, u32>,
    frames: HashMap<engine::stack::FrameId, u32>,
}

impl Stacks {
    /// The list of frames of a site; an empty one where there is none.
    fn write(
        &mut self,
        pickle: &mut Pickle<'_>,
        site: Option<SiteId>,
        facts: &Facts,
    ) -> io::Result<()> {
        let Some(site) = site else { return pickle.empty_list() };
        if let Some(kept) = self.sites.get(&site) {
            return pickle.again(*kept);
        }
        let mut items = pickle.open_list()?;
        for id in facts.stacks.ids(site) {
            pickle.item(&mut items)?;
            if let Some(kept) = self.frames.get(id) {
                pickle.again(*kept)?;
                continue;
            }
            let frame = facts.stacks.get(*id).cloned().unwrap_or_default();
            let name = match frame.unknown {
                Some(unknown) if frame.function.is_empty() => format!("({})", unknown.reason()),
                _ => plain_up_to(&frame.function, LONGEST).into_owned(),
            };
            let file = frame.file.as_deref().or(frame.module.as_deref()).unwrap_or("??");
            pickle.open_dict()?;
            pickle.word("name")?;
            pickle.text(&name)?;
            pickle.word("filename")?;
            pickle.text(&plain_up_to(file, LONGEST))?;
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

/// Whether memory of a kind is the cache's own, of which blocks are parts.
const fn is_reserve(kind: Kind) -> bool {
    matches!(kind, Kind::Pool)
}
