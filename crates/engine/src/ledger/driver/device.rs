//! Devices of one process, beyond its allocations: their GPUs, driver-reported usage, and memory
//! reserved by graphs.

use crate::model::{Bytes, DeviceId, Event, GpuId, MemoryKind, Timestamp};
use crate::snapshot::{DeviceView, DriverReported};

use super::super::memory::allocation::{AllocationEntry, NIL, NO_DEVICE, Slot};
use super::super::memory::totals::{ByteSum, DeviceTotal, Totals};
use super::super::process::Process;

/// Driver-reported usage on a GPU, with the traced memory at the time of the query.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct DriverUsage {
    gpu: GpuId,
    bytes: Bytes,
    traced: Bytes,
    /// Traced memory whose device is unknown.
    unplaced: Bytes,
}

/// Devices of one process.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    /// GPU of each device ordinal.
    gpus: Box<[Option<GpuId>]>,
    /// The only device that the process can see: all its memory is there.
    only: Option<DeviceId>,
    /// GPU of all memory whose device is unknown.
    unplaced_on: Option<GpuId>,
    driver_usage: Vec<DriverUsage>,
    graph_reserved: Vec<(DeviceId, DriverReported)>,
}

impl Devices {
    fn set_gpus(&mut self, gpus: &[Option<GpuId>]) {
        self.gpus = gpus.into();
        self.only = (gpus.len() == 1).then_some(DeviceId(0));
    }

    /// The only device that the process can see, if there is just one.
    pub(crate) fn only(&self) -> Option<DeviceId> {
        self.only
    }

    /// Records that the process uses this device. If it differs from the only visible one, the
    /// process changed its environment before it called the driver.
    pub(crate) fn uses(&mut self, device: DeviceId) {
        self.only.take_if(|only| *only != device);
    }

    /// Sets the driver-reported usage on a GPU.
    fn set_driver_usage(&mut self, gpu: GpuId, bytes: Bytes, totals: &Totals) {
        let unplaced = totals.unplaced();
        let is_here = self.unplaced_on == Some(gpu);
        let here = |on: &&DeviceTotal| match on.device {
            Some(device) => self.gpu(device) == Some(gpu),
            None => is_here,
        };
        let rows = totals.devices().iter().filter(here);
        let traced = rows.fold(ByteSum::default(), |sum, on| sum.plus(on.live)).bytes();
        let unplaced = if is_here { Bytes(0) } else { unplaced.bytes() };
        self.driver_usage.retain(|known| known.gpu != gpu);
        self.driver_usage.push(DriverUsage { gpu, bytes, traced, unplaced });
    }

    /// Driver-reported usage on all GPUs, if there is any.
    pub(crate) fn driver_bytes(&self) -> Option<u64> {
        let usage = self.driver_usage.iter();
        let all = usage.fold(0_u64, |sum, usage| sum.saturating_add(usage.bytes.0));
        (!self.driver_usage.is_empty()).then_some(all)
    }

    /// Clears the driver-reported usage.
    pub(crate) fn clear_driver_usage(&mut self) {
        self.driver_usage.clear();
    }

    /// Sets or clears the memory that graphs reserve on a device.
    pub(crate) fn set_graph_reserved(
        &mut self,
        device: DeviceId,
        reported: Option<DriverReported>,
    ) {
        self.graph_reserved.retain(|(known, _)| *known != device);
        self.graph_reserved.extend(reported.map(|reported| (device, reported)));
    }

    pub(crate) fn gpu(&self, device: DeviceId) -> Option<GpuId> {
        self.gpus.get(usize::from(device.0)).copied().flatten()
    }

    /// GPU of a device. For memory whose device is unknown, the GPU if all such memory is on one.
    pub(crate) fn gpu_of(&self, device: Option<DeviceId>) -> Option<GpuId> {
        match device {
            Some(device) => self.gpu(device),
            None => self.unplaced_on,
        }
    }

    /// Device of a GPU, if exactly one is known.
    fn device_of(&self, gpu: GpuId) -> Option<DeviceId> {
        let mut found = (0..).map(DeviceId).zip(&self.gpus).filter(|(_, on)| **on == Some(gpu));
        let (device, _) = found.next()?;
        found.next().is_none().then_some(device)
    }

    /// Device memory on a GPU if known, else on the device with that ordinal.
    pub(crate) fn live_on(&self, totals: &Totals, device: DeviceId, gpu: Option<GpuId>) -> ByteSum {
        let here = |on: &&DeviceTotal| match (gpu, self.gpu_of(on.device)) {
            (Some(gpu), Some(other)) => gpu == other,
            _ => on.device == Some(device),
        };
        let rows = totals.devices().iter().filter(here);
        rows.fold(ByteSum::default(), |sum, on| sum.plus(on.live))
    }

    /// Devices with memory or reported values, in order; then memory without a known device; then
    /// driver-reported usage of GPUs that are not a known device.
    pub(crate) fn rows(&self, totals: &Totals) -> Vec<DeviceView> {
        let by_device = totals.devices();
        let mut known: Vec<DeviceId> = by_device.iter().filter_map(|on| on.device).collect();
        known.extend(self.graph_reserved.iter().map(|(device, _)| *device));
        let ordinals = (0..=u16::MAX).map(DeviceId).zip(&self.gpus);
        let is_reported = |gpu: &Option<GpuId>| gpu.is_some_and(|gpu| self.usage_on(gpu).is_some());
        known.extend(ordinals.filter(|(_, gpu)| is_reported(gpu)).map(|(device, _)| device));
        known.sort_unstable();
        known.dedup();
        let on = |device: Option<DeviceId>| by_device.iter().find(|on| on.device == device);
        let mut rows: Vec<_> =
            known.into_iter().map(|device| self.row(Some(device), on(Some(device)))).collect();
        let unknown = on(None).filter(|on| on.live > ByteSum::default());
        rows.extend(unknown.map(|unknown| self.row(None, Some(unknown))));
        let listed = |gpu: GpuId| rows.iter().any(|row| row.gpu == Some(gpu));
        let mut others: Vec<_> =
            self.driver_usage.iter().filter(|usage| !listed(usage.gpu)).copied().collect();
        others.sort_unstable();
        let others = others
            .into_iter()
            .map(|usage| DeviceView { gpu: Some(usage.gpu), ..with(usage, self.row(None, None)) });
        rows.into_iter().chain(others).collect()
    }

    fn row(&self, device: Option<DeviceId>, on: Option<&DeviceTotal>) -> DeviceView {
        // A row without a device is memory that could not be attributed.
        let gpu = if device.is_none() && on.is_none() { None } else { self.gpu_of(device) };
        let reserved = self.graph_reserved.iter().find(|(known, _)| Some(*known) == device);
        let row = DeviceView {
            device,
            live_bytes: on.map_or(Bytes(0), |on| on.live.bytes()),
            peak_bytes: on.map_or(Bytes(0), |on| on.peak.bytes()),
            peak_bounds: device.and(on).and_then(DeviceTotal::peak_bounds),
            gpu,
            driver_bytes: None,
            driver_traced: None,
            driver_unplaced: Bytes(0),
            graph_reserved: reserved.map(|(_, reported)| *reported),
        };
        match gpu.and_then(|gpu| self.usage_on(gpu)) {
            Some(usage) => with(usage, row),
            None => row,
        }
    }

    fn usage_on(&self, gpu: GpuId) -> Option<DriverUsage> {
        self.driver_usage.iter().find(|usage| usage.gpu == gpu).copied()
    }
}

/// Adds the driver-reported usage of its GPU to a row.
fn with(usage: DriverUsage, row: DeviceView) -> DeviceView {
    DeviceView {
        driver_bytes: Some(usage.bytes),
        driver_traced: Some(usage.traced),
        driver_unplaced: usage.unplaced,
        ..row
    }
}

impl Process {
    /// Sets the GPUs of the devices. If the process can see only one device, all its memory is
    /// there.
    pub(crate) fn set_gpus(&mut self, gpus: &[Option<GpuId>]) {
        self.devices.set_gpus(gpus);
        let used = self.totals.devices().iter().filter_map(|on| on.device);
        let used: Vec<_> = used.chain(self.contexts.devices()).collect();
        used.into_iter().for_each(|device| self.devices.uses(device));
        if let Some(device) = self.devices.only() {
            self.set_rest_device(device, Timestamp(u64::MAX));
            self.totals.attribute_peak_to(device);
        }
    }

    /// Applies the driver-reported usage on a GPU. If the driver lists no other GPU for the
    /// process, all memory allocated before the query is on this one.
    pub(crate) fn set_driver_usage(&mut self, event: &Event, gpu: GpuId, bytes: Bytes, only: bool) {
        // A GPU that the process no longer uses says nothing about the others.
        if bytes > Bytes(0) {
            self.devices.unplaced_on = None;
        }
        if only && self.totals.unplaced() > ByteSum::default() {
            match self.devices.device_of(gpu) {
                Some(device) => {
                    self.set_rest_device(device, event.entry_time);
                    // Contexts that have ended may have been on another device.
                    if !self.contexts.any_ended() && !self.losses.has_other_lost() {
                        self.totals.attribute_peak_to(device);
                    }
                }
                None => self.devices.unplaced_on = Some(gpu),
            }
        }
        self.devices.set_driver_usage(gpu, bytes, &self.totals);
        self.record_driver_usage(event.time);
        self.measure_overhead(event.entry_time);
    }

    /// Assigns memory up to a given time whose device is unknown to this device. Visits all live
    /// allocations.
    fn set_rest_device(&mut self, device: DeviceId, until: Timestamp) {
        let waits = |entry: &AllocationEntry| {
            let on_host = matches!(entry.kind, MemoryKind::HostPhysical | MemoryKind::HostAsync);
            entry.device().is_none() && entry.returned_at <= until && !on_host
        };
        let slots = self.allocations.select(waits);
        let mut contexts: Vec<_> =
            slots.iter().map(|slot| self.allocations.slab[*slot].context()).collect();
        contexts.sort_unstable();
        contexts.dedup();
        contexts.retain(|context| *context != NIL);
        if until == Timestamp(u64::MAX) {
            self.set_pool_device(NIL, device);
            contexts.extend(self.contexts.without_device());
        }
        contexts.into_iter().for_each(|context| self.set_context_device(context, device));
        for slot in slots {
            if self.allocations.slab[slot].device().is_none() {
                let before = self.late_fields(slot);
                self.learn_device(slot, device);
                self.log_update(slot, before);
            }
        }
    }

    /// Updates all totals when the device of a live allocation becomes known.
    pub(crate) fn learn_device(&mut self, slot: Slot, device: DeviceId) {
        if device == NO_DEVICE {
            return;
        }
        let entry = &mut self.allocations.slab[slot];
        self.totals.set_device(entry, device, self.call.1);
        self.sites.learn_device(entry, device);
        self.anomaly_log.learn_device(entry, device);
        entry.set_device(device);
    }
}
