//! Entries of the trace of one device, or of pinned memory.

use std::io;

use engine::analysis::MemoryScope;
use engine::model::{
    AllocationChange, ChangeKind, EndReason, MemoryKind, SiteId, StreamId, Timestamp,
};
use hashbrown::{HashMap, HashSet};

use super::pickle_writer::{PickleList, PickleWriter};
use super::prescan::{AddressAssigner, is_wanted};
use super::{TraceTarget, WrittenStacks, is_reserve};
use crate::import::FailedAllocation;
use crate::import::collecting_sink::FileInfo;

/// Context for writing entries.
pub(super) struct TraceContext<'p, 'a> {
    pub(super) pickle: &'p mut PickleWriter<'a>,
    pub(super) items: &'p mut PickleList,
    pub(super) requested: &'p HashMap<u64, u64>,
    pub(super) stacks: &'p mut WrittenStacks,
    pub(super) info: &'p FileInfo,
}

/// Writes one trace.
pub(super) struct TraceWriter {
    scope: MemoryScope,
    target: TraceTarget,
    /// Whether segments are mapped and unmapped in parts.
    grows: bool,
    /// Failed requests of the device, last one first.
    failures: Vec<FailedAllocation>,
    /// Allocations that are live at the end, by address and start time.
    live: HashSet<(u64, Timestamp)>,
    addresses: AddressAssigner,
    /// Allocations that were live at process exit: they stay, unless another program follows.
    exited: Vec<(AllocationChange, u64)>,
}

impl TraceWriter {
    pub(super) fn new(
        scope: MemoryScope,
        target: TraceTarget,
        grows: bool,
        mut failures: Vec<FailedAllocation>,
        live: HashSet<(u64, Timestamp)>,
    ) -> Self {
        failures.sort_by_key(|failed| std::cmp::Reverse(failed.at));
        let addresses = AddressAssigner::default();
        Self { scope, target, grows, failures, live, addresses, exited: Vec::new() }
    }

    pub(super) fn change(
        &mut self,
        change: &AllocationChange,
        context: &mut TraceContext<'_, '_>,
    ) -> io::Result<()> {
        if !is_wanted(self.scope, change) {
            return Ok(());
        }
        let address = self.addresses.of(change);
        self.ooms(Some(change.at), context)?;
        if change.action == ChangeKind::Allocated {
            for (exited, address) in std::mem::take(&mut self.exited) {
                self.end(&exited, address, context)?;
            }
        }
        let here = self.is_here(change.kind, change.device);
        match change.action {
            ChangeKind::Allocated if here => self.begin(change, address, context),
            ChangeKind::Ended { reason: EndReason::ProcessExited, .. }
                if here && !is_reserve(change.kind) =>
            {
                self.exited.push((*change, address));
                Ok(())
            }
            ChangeKind::Ended { .. } if here => self.end(change, address, context),
            ChangeKind::Updated { before, .. } => {
                if self.is_here(change.kind, before.device) {
                    let before = AllocationChange { bytes: before.bytes, ..*change };
                    self.end(&before, address, context)?;
                }
                if here { self.begin(change, address, context) } else { Ok(()) }
            }
            ChangeKind::Allocated | ChangeKind::Ended { .. } => Ok(()),
        }
    }

    pub(super) fn finish(&mut self, context: &mut TraceContext<'_, '_>) -> io::Result<()> {
        self.ooms(None, context)
    }

    fn is_here(&self, kind: MemoryKind, device: Option<engine::model::ids::DeviceId>) -> bool {
        match self.target {
            TraceTarget::Device(own) => kind != MemoryKind::Pinned && own == device,
            TraceTarget::Host => kind == MemoryKind::Pinned,
        }
    }

    fn begin(
        &self,
        change: &AllocationChange,
        address: u64,
        context: &mut TraceContext<'_, '_>,
    ) -> io::Result<()> {
        if is_reserve(change.kind) {
            let action = if self.grows { "segment_map" } else { "segment_alloc" };
            return context.entry(action, change, address, change.bytes);
        }
        if self.scope == MemoryScope::Device {
            context.entry("segment_alloc", change, address, change.bytes)?;
        }
        // A trace has requested sizes. They are known for allocations that are live at the end; for
        // others, the block size is used.
        let is_live = self.live.contains(&(address, change.at));
        let requested = context.requested.get(&address).copied().filter(|_| is_live);
        context.entry("alloc", change, address, requested.unwrap_or(change.bytes))
    }

    fn end(
        &self,
        change: &AllocationChange,
        address: u64,
        context: &mut TraceContext<'_, '_>,
    ) -> io::Result<()> {
        if is_reserve(change.kind) {
            let action = if self.grows { "segment_unmap" } else { "segment_free" };
            return context.entry(action, change, address, change.bytes);
        }
        context.entry("free_requested", change, address, change.bytes)?;
        context.entry("free_completed", change, address, change.bytes)?;
        if self.scope == MemoryScope::Device {
            context.entry("segment_free", change, address, change.bytes)?;
        }
        Ok(())
    }

    /// Writes the requests that failed up to a time.
    fn ooms(
        &mut self,
        until: Option<Timestamp>,
        context: &mut TraceContext<'_, '_>,
    ) -> io::Result<()> {
        while let Some(failed) =
            self.failures.pop_if(|failed| until.is_none_or(|until| failed.at <= until))
        {
            context.oom(&failed)?;
        }
        Ok(())
    }
}

impl TraceContext<'_, '_> {
    fn entry(
        &mut self,
        action: &'static str,
        change: &AllocationChange,
        address: u64,
        bytes: u64,
    ) -> io::Result<()> {
        self.open(action)?;
        self.pickle.word("addr")?;
        self.pickle.number(address)?;
        self.close(bytes, change.stream, change.at, change.site)
    }

    /// Writes a failed request. Only PyTorch snapshots have the free memory at that time.
    fn oom(&mut self, failed: &FailedAllocation) -> io::Result<()> {
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
        at: Timestamp,
        site: Option<SiteId>,
    ) -> io::Result<()> {
        let nanos = self.info.utc_nanos(at).unwrap_or_else(|| self.info.nanos(at));
        let micros = u64::try_from(nanos / 1000).unwrap_or(0);
        let stream = stream.map_or(0, |stream| stream.0);
        for (key, number) in [("size", bytes), ("stream", stream), ("time_us", micros)] {
            self.pickle.word(key)?;
            self.pickle.number(number)?;
        }
        self.pickle.word("frames")?;
        self.stacks.write(self.pickle, site, self.info)?;
        self.pickle.close_dict()
    }
}
