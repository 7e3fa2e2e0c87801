//! Mapping of devices to GPUs, and its effect on memory whose device is unknown.

use engine::model::ids::{DeviceId, GpuId};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::{Bytes, Timestamp};

use super::{Live, Process};

impl Process {
    pub(super) fn set_gpus(&mut self, gpus: &[Option<GpuId>]) {
        self.gpus = gpus.to_vec();
        let other = |device: &DeviceId| device.0 != 0;
        self.sees_more = self.device_peaks.keys().flatten().any(other)
            || self.contexts.values().filter_map(|known| known.device).any(|on| other(&on));
        if let Some(device) = self.only() {
            self.set_rest_device(device, None);
            self.merge_peak(device);
        }
    }

    pub(super) fn set_driver_usage(
        &mut self,
        entered: Timestamp,
        gpu: GpuId,
        bytes: Bytes,
        only: bool,
    ) {
        self.driver_usage.insert(gpu, bytes);
        self.unplaced_on = self.unplaced_on.filter(|_| bytes.0 == 0);
        let unplaced = |live: &Live| live.device.is_none() && live.device_bytes() > 0;
        if !only || !self.live.iter().any(unplaced) {
            return;
        }
        let is_one = |ordinal: &usize| self.gpus[*ordinal] == Some(gpu);
        let found: Vec<_> = (0..self.gpus.len()).filter(is_one).collect();
        let [ordinal] = found[..] else {
            self.unplaced_on = Some(gpu);
            return;
        };
        let device = DeviceId(ordinal as u16);
        self.set_rest_device(device, Some(entered));
        if !self.any_ended && !self.broken() {
            self.merge_peak(device);
        }
    }

    fn set_rest_device(&mut self, device: DeviceId, until: Option<Timestamp>) {
        let waits = |live: &Live| {
            live.device.is_none()
                && until.is_none_or(|until| live.at <= until)
                && !matches!(live.kind, MemoryKind::HostPhysical | MemoryKind::HostAsync)
        };
        let waiting: Vec<_> = self.live.iter().filter(|live| waits(live)).cloned().collect();
        let own = waiting.iter().filter(|live| !live.kind.is_pooled());
        let mut contexts: Vec<_> = own.filter_map(|live| live.context).collect();
        if until.is_none() {
            self.set_live_device(None, device);
            let known = self.contexts.iter().filter(|(_, known)| known.device.is_none());
            contexts.extend(known.map(|(context, _)| *context));
        }
        contexts.into_iter().for_each(|context| self.set_device(context, device));
        for live in self.live.iter_mut().filter(|live| waits(live)) {
            live.device = Some(device);
        }
    }

    /// All device memory has been on this device: its peak is that of the process.
    pub(super) fn merge_peak(&mut self, device: DeviceId) {
        let only = |on: &Option<DeviceId>| on.is_none_or(|on| on == device);
        let is_placed =
            !self.live.iter().any(|live| live.device.is_none() && live.device_bytes() > 0);
        if is_placed && !self.device_peaks.is_empty() && self.device_peaks.keys().all(only) {
            self.device_peaks.insert(Some(device), self.peak.0);
        }
    }
}
