//! Holders: memory of every process on a device, by allocation site. Site tables do not distinguish
//! devices, so this visits every live allocation; it is meant for rare events.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use std::cmp::Reverse;

use crate::model::{
    Allocate, Bytes, CallStack, DeviceFilter, DeviceId, FailedCall, GpuId, Holder, HolderSite, Pid,
    ProcessKey, SiteId, SiteName,
};

use super::super::Ledger;
use super::super::memory::allocation::{AllocationEntry, NIL};
use super::super::memory::totals::ByteSum;
use super::super::process::Process;
use super::super::process_view::walks;

impl Ledger {
    /// Returns the processes that hold memory on the selected devices, largest first, each by site.
    /// Visits every live allocation of every process.
    pub fn holders(&self, filter: DeviceFilter) -> Vec<Holder> {
        let mut all: Vec<_> =
            self.shown().filter_map(|process| self.holder(process, filter)).collect();
        all.sort_by_key(|one| (Reverse(one.live_bytes), one.key.pid));
        all
    }

    fn holder(&self, process: &Process, filter: DeviceFilter) -> Option<Holder> {
        let mut sites: HashMap<Option<SiteId>, (ByteSum, u64)> = HashMap::new();
        let (mut live, mut allocations) = (ByteSum::default(), 0_u64);
        for (slab, walk) in walks(process) {
            for slot in walk {
                let entry = &slab[slot];
                if entry.kind.takes_device_memory() && is_selected(entry, process, filter) {
                    let site = sites.entry(entry.site()).or_default();
                    site.0.add(entry.bytes);
                    site.1 += 1;
                    live.add(entry.bytes);
                    allocations += 1;
                }
            }
        }
        let site = |(site, (bytes, count)): (Option<SiteId>, (ByteSum, u64))| HolderSite {
            site,
            name: SiteName::Unknown,
            frames: CallStack::default(),
            live_bytes: bytes.bytes(),
            live_allocations: count,
        };
        (allocations > 0).then(|| Holder {
            key: process.key,
            uid: process.uid,
            name: process.program().into(),
            live_bytes: live.bytes(),
            live_allocations: allocations,
            sites: self.named(sites.into_iter().map(site)),
            before_trace: process.before_trace,
        })
    }

    /// Names the sites, merges those with the same frames, and sorts them, largest first.
    fn named(&self, sites: impl Iterator<Item = HolderSite>) -> Vec<HolderSite> {
        let mut by_name: HashMap<SiteName, HolderSite> = HashMap::new();
        for one in sites {
            let name = self.sites.name(one.site);
            match by_name.entry(name) {
                Entry::Vacant(entry) => {
                    entry.insert(HolderSite { name, ..one });
                }
                Entry::Occupied(mut same) => {
                    let same = same.get_mut();
                    same.live_bytes = Bytes(same.live_bytes.0.saturating_add(one.live_bytes.0));
                    same.live_allocations += one.live_allocations;
                }
            }
        }
        let mut named: Vec<_> = by_name.into_values().collect();
        named.sort_by_key(|one| (Reverse(one.live_bytes), Reverse(one.live_allocations), one.name));
        named
    }

    /// Unused memory of a process's PyTorch cache on a device, if tensors are tracked.
    pub fn cached(&self, pid: Pid, device: DeviceId) -> Option<Bytes> {
        let process = self.running.get(&pid)?;
        process.allocators.torch()?.unused_bytes(device, process)
    }

    /// Adds names and frames that were resolved in the meantime to the sites of holders. Keeps the
    /// first `top` sites of each process; merges sites that turn out to have the same frames.
    pub fn resolve_holder_names(&self, holders: &mut [Holder], top: usize) {
        for holder in holders {
            holder.sites = self.named(std::mem::take(&mut holder.sites).into_iter());
            holder.sites.truncate(top);
            for one in &mut holder.sites {
                one.frames = self.sites.frames_of(one.name);
            }
        }
    }

    /// Device and GPU of a failed call, and the name of its process.
    pub fn requested_device(
        &self,
        pid: Pid,
        failed: &FailedCall,
    ) -> (Option<DeviceId>, Option<GpuId>, Box<str>) {
        let Some(process) = self.running.get(&pid) else {
            return (failed.device, None, Box::default());
        };
        let device = process.requested_device(failed);
        let gpu = device.and_then(|device| process.devices.gpu(device));
        (device, gpu, process.name.clone())
    }

    /// Key of the process that has this pid now.
    pub fn key_of(&self, pid: Pid) -> ProcessKey {
        self.running.get(&pid).map_or(ProcessKey { pid, start: 0 }, |process| process.key)
    }

    /// Device of an allocation.
    pub fn device_of(&self, pid: Pid, allocate: &Allocate) -> Option<DeviceId> {
        let context = || {
            let process = self.running.get(&pid)?;
            let context = allocate.context.and_then(|context| process.contexts.find(context));
            process.device_of(context.unwrap_or(NIL))
        };
        allocate.device.or_else(context)
    }

    /// Name and frames of a site, innermost first; no frames if they are not resolved yet.
    pub fn site(&self, site: Option<SiteId>) -> (SiteName, CallStack) {
        let name = self.sites.name(site);
        (name, site.and_then(|site| self.sites.frames(site)).unwrap_or_default())
    }
}

/// Whether an allocation is on the selected devices, by the rules of
/// [`super::super::driver::device::Devices::live_on`].
fn is_selected(entry: &AllocationEntry, process: &Process, filter: DeviceFilter) -> bool {
    let on = |device: DeviceId, gpu: Option<GpuId>| match (
        gpu,
        process.devices.gpu_of(entry.device()),
    ) {
        (Some(gpu), Some(other)) => gpu == other,
        _ => entry.device() == Some(device),
    };
    match filter {
        DeviceFilter::AllDevices => true,
        DeviceFilter::Device(device, gpu) => on(device, gpu),
        DeviceFilter::Gpu(gpu) => process.devices.gpu_of(entry.device()) == Some(gpu),
    }
}
