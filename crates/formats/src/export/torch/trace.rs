//! What happened on one device, or to pinned memory, as entries of a trace.

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

/// What entries are written with.
pub(super) struct Page<'p, 'a> {
    pub(super) pickle: &'p mut Pickle<'a>,
    pub(super) items: &'p mut Items,
    pub(super) requested: &'p HashMap<u64, u64>,
    pub(super) stacks: &'p mut Stacks,
    pub(super) facts: &'p Facts,
}

/// One trace.
pub(super) struct Trace {
    measure: Measure,
    lane: Lane,
    /// Segments come and go in pieces.
    grows: bool,
    /// Requests that the device refused, the last one first.
    failures: Vec<Refused>,
    /// What is live at the end, by address and beginning.
    live: HashSet<(u64, Moment)>,
    addresses: Addresses,
    /// What was live when its process ended: it stays, unless another program follows.
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
        failures.sort_by_key(|refused| std::cmp::Reverse(refused.at));
        let addresses = Addresses::default();
        Self { measure, lane, grows, failures, live, addresses, exited: Vec::new() }
    }

    pub(super) fn change(&mut self, change: &Change, page: &mut Page<'_, '_>) -> io::Result<()> {
        if !is_wanted(self.measure, change) {
            return Ok(());
        }
        let address = self.addresses.of(change);
        self.refused(Some(change.at), page)?;
        if change.what == Turn::Began {
            for (gone, address) in std::mem::take(&mut self.exited) {
                self.end(&gone, address, page)?;
            }
        }
        let here = self.is_here(change.kind, change.device);
        match change.what {
            Turn::Began if here => self.begin(change, address, page),
            Turn::Ended { how: How::Exited, .. } if here && !is_reserve(change.kind) => {
                self.exited.push((*change, address));
                Ok(())
            }
            Turn::Ended { .. } if here => self.end(change, address, page),
            Turn::Learned { before, .. } => {
                if self.is_here(change.kind, before.device) {
                    let before = Change { bytes: before.bytes, ..*change };
                    self.end(&before, address, page)?;
                }
                if here { self.begin(change, address, page) } else { Ok(()) }
            }
            Turn::Began | Turn::Ended { .. } => Ok(()),
        }
    }

    pub(super) fn finish(&mut self, page: &mut Page<'_, '_>) -> io::Result<()> {
        self.refused(None, page)
    }

    fn is_here(&self, kind: Kind, device: Option<engine::ids::DeviceId>) -> bool {
        match self.lane {
            Lane::Device(own) => kind != Kind::Pinned && own == device,
            Lane::Host => kind == Kind::Pinned,
        }
    }

    fn begin(&self, change: &Change, address: u64, page: &mut Page<'_, '_>) -> io::Result<()> {
        if is_reserve(change.kind) {
            let word = if self.grows { "segment_map" } else { "segment_alloc" };
            return page.entry(word, change, address, change.bytes);
        }
        if self.measure == Measure::Device {
            page.entry("segment_alloc", change, address, change.bytes)?;
        }
        // A trace tells what was asked for. That is known of what is live at the end; of the rest,
        // what the block takes.
        let is_live = self.live.contains(&(address, change.at));
        let asked = page.requested.get(&address).copied().filter(|_| is_live);
        page.entry("alloc", change, address, asked.unwrap_or(change.bytes))
    }

    fn end(&self, change: &Change, address: u64, page: &mut Page<'_, '_>) -> io::Result<()> {
        if is_reserve(change.kind) {
            let word = if self.grows { "segment_unmap" } else { "segment_free" };
            return page.entry(word, change, address, change.bytes);
        }
        page.entry("free_requested", change, address, change.bytes)?;
        page.entry("free_completed", change, address, change.bytes)?;
        if self.measure == Measure::Device {
            page.entry("segment_free", change, address, change.bytes)?;
        }
        Ok(())
    }

    /// Requests that were refused up to a moment.
    fn refused(&mut self, until: Option<Moment>, page: &mut Page<'_, '_>) -> io::Result<()> {
        while let Some(refused) =
            self.failures.pop_if(|refused| until.is_none_or(|until| refused.at <= until))
        {
            page.oom(&refused)?;
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

    /// What was free then is told only by snapshots of PyTorch.
    fn oom(&mut self, refused: &Refused) -> io::Result<()> {
        self.open("oom")?;
        self.pickle.word("device_free")?;
        self.pickle.number(refused.free_bytes.unwrap_or(0))?;
        self.close(refused.bytes, None, refused.at, refused.site)
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
        for (word, number) in [("size", bytes), ("stream", stream), ("time_us", micros)] {
            self.pickle.word(word)?;
            self.pickle.number(number)?;
        }
        self.pickle.word("frames")?;
        self.stacks.write(self.pickle, site, self.facts)?;
        self.pickle.close_dict()
    }
}
