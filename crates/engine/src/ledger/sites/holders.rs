//! Holders: memory of every process on a device, by allocation site. Site tables do not distinguish
//! devices, so this visits every live allocation; it is meant for rare events.

use hashbrown::HashMap;
use std::cmp::Reverse;

use crate::model::event::{Allocate, FailedCall};
use crate::model::holder::{DeviceFilter, Holder, HolderSite};
use crate::model::ids::{DeviceId, GpuId, Pid, ProcessKey, SiteId};
use crate::model::stack::{CallStack, SiteName};
use crate::model::units::Bytes;

use super::super::Ledger;
use super::super::memory::allocation::{AllocationEntry, NIL};
use super::super::memory::totals::ByteSum;
use super::super::process::Process;
use super::super::process_view::walks;

impl Ledger {
    /// Returns the processes that hold memory on the selected devices, largest first, each by site.
    /// Visits every live allocation of every process.
    #[must_use]
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
        (allocations > 0).then(|| Holder {
            key: process.key,
            uid: process.uid,
            name: process.program().into(),
            live_bytes: live.bytes(),
            live_allocations: allocations,
            sites: self.held_sites(sites),
            before_trace: process.before_trace,
        })
    }

    /// Sorts the sites, largest first, and merges sites with the same frames.
    fn held_sites(&self, by_id: HashMap<Option<SiteId>, (ByteSum, u64)>) -> Vec<HolderSite> {
        let mut by_name: HashMap<SiteName, (Option<SiteId>, ByteSum, u64)> = HashMap::new();
        for (site, (bytes, count)) in by_id {
            let one = by_name.entry(self.sites.name(site)).or_insert((site, ByteSum::default(), 0));
            one.1 = one.1.plus(bytes);
            one.2 = one.2.saturating_add(count);
        }
        let mut sites: Vec<_> = by_name
            .into_iter()
            .map(|(name, (site, bytes, count))| HolderSite {
                site,
                name,
                frames: CallStack::default(),
                live_bytes: bytes.bytes(),
                live_allocations: count,
            })
            .collect();
        sites.sort_by_key(|one| (Reverse(one.live_bytes), Reverse(one.live_allocations), one.name));
        sites
    }

    /// Unused memory of a process's PyTorch cache on a device, if tensors are tracked.
    #[must_use]
    pub fn cached(&self, pid: Pid, device: DeviceId) -> Option<Bytes> {
        let process = self.running.get(&pid)?;
        process.torch.as_deref()?.unused_bytes(device, process)
    }

    /// Adds names and frames that were resolved in the meantime to the sites of holders. Keeps the
    /// first `top` sites of each process; merges sites that turn out to have the same frames.
    pub fn resolve_holder_names(&self, holders: &mut [Holder], top: usize) {
        for holder in holders {
            let mut named: Vec<HolderSite> = Vec::new();
            let mut indices: HashMap<SiteName, usize> = HashMap::new();
            for mut one in std::mem::take(&mut holder.sites) {
                one.name = self.sites.name(one.site);
                match indices.get(&one.name).and_then(|index| named.get_mut(*index)) {
                    Some(same) => {
                        same.live_bytes = Bytes(same.live_bytes.0.saturating_add(one.live_bytes.0));
                        same.live_allocations += one.live_allocations;
                    }
                    None => {
                        indices.insert(one.name, named.len());
                        named.push(one);
                    }
                }
            }
            named.sort_by_key(|one| {
                (Reverse(one.live_bytes), Reverse(one.live_allocations), one.name)
            });
            named.truncate(top);
            for one in &mut named {
                one.frames = self.sites.frames_of(one.name);
            }
            holder.sites = named;
        }
    }

    /// Device and GPU of a failed call, and the name of its process.
    #[must_use]
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
    #[must_use]
    pub fn key_of(&self, pid: Pid) -> ProcessKey {
        self.running.get(&pid).map_or(ProcessKey { pid, start: 0 }, |process| process.key)
    }

    /// Device of an allocation.
    #[must_use]
    pub fn device_of(&self, pid: Pid, allocate: &Allocate) -> Option<DeviceId> {
        let context = || {
            let process = self.running.get(&pid)?;
            let context = allocate.context.and_then(|context| process.contexts.find(context));
            process.device_of(context.unwrap_or(NIL))
        };
        allocate.device.or_else(context)
    }

    /// Name and frames of a site, innermost first; no frames if they are not resolved yet.
    #[must_use]
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
