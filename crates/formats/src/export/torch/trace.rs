//! Entries of the trace of one device, or of pinned memory.

use std::io;

use engine::analysis::Measure;
use engine::change::{Change, How, Turn};
use engine::ids::{SiteId, StreamId};
use engine::kind::Kind;
use engine::units::Moment;
use hashbrown::{HashMap, HashSet};

use super::pickle::{Items, Pickle};
use super::survey::{Addresses, is_wanted};
use super::{Lane, Stacks, is_reserve};
use crate::import::Refused;
use crate::import::gather::Facts;

/// Context for writing entries.
pub(super) struct Page<'p, 'a> {
    pub(super) pickle: &'p mut Pickle<'a>,
    pub(super) items: &'p mut Items,
    pub(super) requested: &'p HashMap<u64, u64>,
    pub(super) stacks: &'p mut Stacks,
    pub(super) facts: &'p Facts,
}

/// Writes one trace.
pub(super) struct Trace {
    measure: Measure,
    lane: Lane,
    /// Whether segments are mapped and unmapped in parts.
    grows: bool,
    /// Failed requests of the device, last one first.
    failures: Vec<Refused>,
    /// Allocations that are live at the end, by address and start time.
    live: HashSet<(u64, Moment)>,
    addresses: Addresses,
    /// Allocations that were live at process exit: they stay, unless another program follows.
    exited: Vec<(Change, u64)>,
}

impl Trace {
    pub(super) fn new(
        measure: Measure,
        lane: Lane,
        grows: bool,
        mut failures: Vec<Refused>,
        live: HashSet<(u64, Moment)>,
    ) -> Self {
        failures.sort_by_key(|failed| std::cmp::Reverse(failed.at));
        let addresses = Addresses::default();
        Self { measure, lane, grows, failures, live, addresses, exited: Vec::new() }
    }

    pub(super) fn change(&mut self, change: &Change, context: &mut Page<'_, '_>) -> io::Result<()> {
        if !is_wanted(self.measure, change) {
            return Ok(());
        }
        let address = self.addresses.of(change);
        self.ooms(Some(change.at), context)?;
        if change.what == Turn::Began {
            for (exited, address) in std::mem::take(&mut self.exited) {
                self.end(&exited, address, context)?;
            }
        }
        let here = self.is_here(change.kind, change.device);
        match change.what {
            Turn::Began if here => self.begin(change, address, context),
            Turn::Ended { how: How::Exited, .. } if here && !is_reserve(change.kind) => {
                self.exited.push((*change, address));
                Ok(())
            }
            Turn::Ended { .. } if here => self.end(change, address, context),
            Turn::Learned { before, .. } => {
                if self.is_here(change.kind, before.device) {
                    let before = Change { bytes: before.bytes, ..*change };
                    self.end(&before, address, context)?;
                }
                if here { self.begin(change, address, context) } else { Ok(()) }
            }
            Turn::Began | Turn::Ended { .. } => Ok(()),
        }
    }

    pub(super) fn finish(&mut self, context: &mut Page<'_, '_>) -> io::Result<()> {
        self.ooms(None, context)
    }

    fn is_here(&self, kind: Kind, device: Option<engine::ids::DeviceId>) -> bool {
        match self.lane {
            Lane::Device(own) => kind != Kind::Pinned && own == device,
            Lane::Host => kind == Kind::Pinned,
        }
    }

    fn begin(&self, change: &Change, address: u64, context: &mut Page<'_, '_>) -> io::Result<()> {
        if is_reserve(change.kind) {
            let action = if self.grows { "segment_map" } else { "segment_alloc" };
            return context.entry(action, change, address, change.bytes);
        }
        if self.measure == Measure::Device {
            context.entry("segment_alloc", change, address, change.bytes)?;
        }
        // A trace has requested sizes. They are known for allocations that are live at the end; for
        // others, the block size is used.
        let is_live = self.live.contains(&(address, change.at));
        let requested = context.requested.get(&address).copied().filter(|_| is_live);
        context.entry("alloc", change, address, requested.unwrap_or(change.bytes))
    }

    fn end(&self, change: &Change, address: u64, context: &mut Page<'_, '_>) -> io::Result<()> {
        if is_reserve(change.kind) {
            let action = if self.grows { "segment_unmap" } else { "segment_free" };
            return context.entry(action, change, address, change.bytes);
        }
        context.entry("free_requested", change, address, change.bytes)?;
        context.entry("free_completed", change, address, change.bytes)?;
        if self.measure == Measure::Device {
            context.entry("segment_free", change, address, change.bytes)?;
        }
        Ok(())
    }

    /// Writes the requests that failed up to a time.
    fn ooms(&mut self, until: Option<Moment>, context: &mut Page<'_, '_>) -> io::Result<()> {
        while let Some(failed) =
            self.failures.pop_if(|failed| until.is_none_or(|until| failed.at <= until))
        {
            context.oom(&failed)?;
        }
        Ok(())
    }
}

impl Page<'_, '_> {
    fn entry(
        &mut self,
        action: &'static str,
        change: &Change,
        address: u64,
        bytes: u64,
    ) -> io::Result<()> {
        self.open(action)?;
        self.pickle.word("addr")?;
        self.pickle.number(address)?;
        self.close(bytes, change.stream, change.at, change.site)
    }

    /// Writes a failed request. Only PyTorch snapshots have the free memory at that time.
    fn oom(&mut self, failed: &Refused) -> io::Result<()> {
        self.open("oom")?;
        self.pickle.word("device_free")?;
        self.pickle.number(failed.free_bytes.unwrap_or(0))?;
        self.close(failed.bytes, None, failed.at, failed.site)
    }

    fn open(&mut self, action: &'static str) -> io::Result<()> {
        self.pickle.item(self.items)?;
        self.pickle.open_dict()?;
        self.pickle.word("action")?;
        self.pickle.word(action)
    }

    fn close(
        &mut self,
        bytes: u64,
        stream: Option<StreamId>,
        at: Moment,
        site: Option<SiteId>,
    ) -> io::Result<()> {
        let nanos = self.facts.utc_nanos(at).unwrap_or_else(|| self.facts.nanos(at));
        let micros = u64::try_from(nanos / 1000).unwrap_or(0);
        let stream = stream.map_or(0, |stream| stream.0);
        for (key, number) in [("size", bytes), ("stream", stream), ("time_us", micros)] {
            self.pickle.word(key)?;
            self.pickle.number(number)?;
        }
        self.pickle.word("frames")?;
        self.stacks.write(self.pickle, site, self.facts)?;
        self.pickle.close_dict()
    }
}
