//! Out-of-memory errors until the next snapshot: their number per GPU, and the holders at the time
//! of the first ones.

use std::cmp::Reverse;

use crate::model::{
    BlockEvent, BlockOp, Bytes, CallStack, DeviceId, Event, EventKind, FailedCall, GpuId,
    MemoryKind, Pid, SiteId, Tid, VmmCall,
};
use crate::snapshot::{FrameworkOom, OutOfMemory};

use super::super::Ledger;
use super::super::memory::totals::ByteSum;
use super::super::process::Process;

/// Limit of errors in a snapshot: the first ones are the most informative.
const MAX_LISTED_OOMS: usize = 64;

/// A rejected request of a process with a PyTorch cache: it frees cached memory and tries again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OomRetry {
    pid: Pid,
    tid: Tid,
    /// Index in the list of errors.
    index: usize,
    requested: u64,
    /// Live device memory of the process when the request was rejected.
    live: ByteSum,
}

impl OomRetry {
    fn is_of(&self, event: &Event) -> bool {
        (self.pid, self.tid) == (event.pid, event.tid)
    }
}

impl Ledger {
    pub(crate) fn record_oom(&mut self, event: &Event, failed: &FailedCall) {
        let Some(process) = self.running.get(&event.pid) else {
            return;
        };
        let device = process.requested_device(failed);
        let requested = failed.requested.map(|(kind, bytes)| (kind, Bytes(bytes)));
        let retry =
            requested.filter(|_| process.allocators.torch().is_some()).map(|(_, bytes)| OomRetry {
                pid: event.pid,
                tid: event.tid,
                index: self.out_of_memory.len(),
                requested: bytes.0,
                live: process.totals.live,
            });
        let before = self.oom_retries.iter().find(|one| one.is_of(event)).copied();
        if before.zip(retry).is_some_and(|(before, retry)| before.requested == retry.requested) {
            // The same request again, after some cached memory was freed.
            self.count_oom(event.pid, device, requested);
            return;
        }
        if self.list_oom(event, device, requested, failed.site) {
            self.oom_retries.retain(|one| !one.is_of(event));
            self.oom_retries.extend(retry);
        }
    }

    /// Records that PyTorch's allocator gave up; the driver's rejections before are the same error.
    pub(crate) fn record_framework_oom(&mut self, event: &Event, call: &BlockEvent) {
        let BlockOp::OutOfMemory { bytes, site } = call.op else { return };
        let framework = call.totals.map(|totals| FrameworkOom {
            requested: Bytes(bytes),
            allocated: Bytes(totals.allocated),
            reserved: Bytes(totals.reserved),
        });
        let known = self.oom_retries.iter().position(|one| one.is_of(event));
        let known = known.map(|position| self.oom_retries.swap_remove(position).index);
        if known.is_none() {
            let requested = Some((MemoryKind::Device, Bytes(bytes)));
            self.list_oom(event, call.device, requested, site);
        }
        let index = known.unwrap_or(self.out_of_memory.len().saturating_sub(1));
        let listed = self.out_of_memory.get_mut(index);
        if let Some(one) = listed.filter(|one| (one.pid, one.tid) == (event.pid, event.tid)) {
            one.framework = framework;
            one.site = one.site.or(site);
        }
    }

    /// Checks whether an allocation satisfies a request that was rejected before.
    pub(crate) fn check_retries(&mut self, event: &Event) {
        let bytes = match &event.kind {
            EventKind::Allocate(allocate) if allocate.kind.takes_device_memory() => allocate.bytes,
            EventKind::Vmm(VmmCall::Create { bytes, .. }) => *bytes,
            _ => return,
        };
        let Some(process) = self.running.get(&event.pid) else { return };
        let known = self.oom_retries.iter().position(|one| one.is_of(event));
        let Some(position) = known else { return };
        let retry = self.oom_retries[position];
        if bytes < retry.requested {
            return;
        }
        self.oom_retries.swap_remove(position);
        let before = process.totals.live.minus(ByteSum::from(bytes));
        if let Some(one) = self.out_of_memory.get_mut(retry.index) {
            one.recovered = Some(retry.live.minus(before).bytes());
        }
    }

    /// Counts an error by its GPU, and returns that.
    fn count_oom(
        &mut self,
        pid: Pid,
        device: Option<DeviceId>,
        requested: Option<(MemoryKind, Bytes)>,
    ) -> Option<GpuId> {
        let process = self.running.get(&pid)?;
        let gpu = device.and_then(|device| process.devices.gpu(device));
        // A call can fail on a GPU although it requested other memory.
        let of_gpu = requested.is_some_and(|(kind, _)| kind.takes_device_memory());
        let count = self.ooms_by_gpu.entry(gpu.filter(|_| of_gpu)).or_default();
        *count = count.saturating_add(1);
        gpu
    }

    /// Counts an error, and lists it unless the list is full.
    fn list_oom(
        &mut self,
        event: &Event,
        device: Option<DeviceId>,
        requested: Option<(MemoryKind, Bytes)>,
        site: Option<SiteId>,
    ) -> bool {
        let gpu = self.count_oom(event.pid, device, requested);
        let Some(process) = self.running.get(&event.pid) else { return false };
        if requested.is_none() || self.out_of_memory.len() >= MAX_LISTED_OOMS {
            return false;
        }
        self.out_of_memory.push(OutOfMemory {
            at: event.time,
            pid: event.pid,
            tid: event.tid,
            name: process.program().into(),
            device,
            gpu,
            requested,
            site,
            site_name: self.sites.name(site),
            frames: CallStack::default(),
            framework: None,
            recovered: None,
            holders: self.holders_on(device, gpu),
        });
        true
    }

    fn holders_on(
        &self,
        device: Option<DeviceId>,
        gpu: Option<GpuId>,
    ) -> Vec<(Pid, Box<str>, Bytes)> {
        let live = |process: &Process| match device {
            Some(device) => process.devices.live_on(&process.totals, device, gpu),
            None => process.totals.live,
        };
        let mut holders: Vec<_> = self
            .shown()
            .map(|process| (process.key.pid, process.program().into(), live(process).bytes()))
            .filter(|(_, _, bytes)| bytes.0 > 0)
            .collect();
        holders.sort_by_key(|(pid, _, bytes)| (Reverse(*bytes), *pid));
        holders
    }

    pub(crate) fn drain_ooms(&mut self) -> Vec<OutOfMemory> {
        self.oom_retries.clear();
        let mut all = std::mem::take(&mut self.out_of_memory);
        for one in &mut all {
            one.site_name = self.sites.name(one.site);
            one.frames = self.sites.frames_of(one.site_name);
        }
        all
    }
}
