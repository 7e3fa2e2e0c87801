//! The devices of one process beyond what is allocated on them: which GPUs of the host they are, what
//! the driver's own account says of those, and what graphs reserve.

use crate::ids::{DeviceId, GpuId};
use crate::snapshot::{DeviceView, Told};
use crate::units::Bytes;

use super::totals::{OnDevice, Sum, Totals};

/// What is known of one process's devices.
#[derive(Debug, Default)]
pub(super) struct Devices {
    /// By ordinal.
    gpus: Box<[Option<GpuId>]>,
    /// With what was traced when they were asked.
    accounts: Vec<(GpuId, Bytes, Bytes)>,
    graph_reserved: Vec<(DeviceId, Told)>,
}

impl Devices {
    pub(super) fn set_gpus(&mut self, gpus: &[Option<GpuId>]) {
        self.gpus = gpus.into();
    }

    /// The driver's account of a GPU.
    pub(super) fn account(&mut self, gpu: GpuId, bytes: Bytes, totals: &Totals) {
        let here = |on: &&OnDevice| on.device.and_then(|device| self.gpu(device)) == Some(gpu);
        let rows = totals.devices().iter().filter(here);
        let traced = rows.fold(Sum::default(), |sum, on| sum.plus(on.live)).bytes();
        self.accounts.retain(|(known, ..)| *known != gpu);
        self.accounts.push((gpu, bytes, traced));
    }

    /// What the driver reported is not known any more.
    pub(super) fn forget_accounts(&mut self) {
        self.accounts.clear();
    }

    /// The driver told what graphs reserve of a device, or it is not known any more.
    pub(super) fn graphs_reserve(&mut self, device: DeviceId, told: Option<Told>) {
        self.graph_reserved.retain(|(known, _)| *known != device);
        self.graph_reserved.extend(told.map(|told| (device, told)));
    }

    pub(super) fn gpu(&self, device: DeviceId) -> Option<GpuId> {
        self.gpus.get(usize::from(device.0)).copied().flatten()
    }

    /// Device memory on a GPU, where that is known; else on the device of that ordinal.
    pub(super) fn held(&self, totals: &Totals, device: DeviceId, gpu: Option<GpuId>) -> Sum {
        let here = |on: &&OnDevice| match (gpu, on.device.and_then(|other| self.gpu(other))) {
            (Some(gpu), Some(other)) => gpu == other,
            _ => on.device == Some(device),
        };
        let rows = totals.devices().iter().filter(here);
        rows.fold(Sum::default(), |sum, on| sum.plus(on.live))
    }

    /// Every device that held memory or of which something was told, in order; then what could not
    /// be attributed to a device; then accounts of GPUs that are no known device.
    pub(super) fn rows(&self, totals: &Totals) -> Vec<DeviceView> {
        let held = totals.devices();
        let mut known: Vec<DeviceId> = held.iter().filter_map(|on| on.device).collect();
        known.extend(self.graph_reserved.iter().map(|(device, _)| *device));
        let ordinals = (0..=u16::MAX).map(DeviceId).zip(&self.gpus);
        let of_account = |gpu: &Option<GpuId>| gpu.is_some_and(|gpu| self.asked(gpu).is_some());
        known.extend(ordinals.filter(|(_, gpu)| of_account(gpu)).map(|(device, _)| device));
        known.sort_unstable();
        known.dedup();
        let on = |device: Option<DeviceId>| held.iter().find(|on| on.device == device);
        let mut rows: Vec<_> =
            known.into_iter().map(|device| self.row(Some(device), on(Some(device)))).collect();
        let unknown = on(None).filter(|on| on.live > Sum::default());
        rows.extend(unknown.map(|unknown| self.row(None, Some(unknown))));
        let mut others: Vec<_> =
            self.accounts.iter().filter(|(gpu, ..)| !self.gpus.contains(&Some(*gpu))).collect();
        others.sort_unstable();
        rows.extend(others.into_iter().map(|&(gpu, bytes, traced)| DeviceView {
            gpu: Some(gpu),
            driver_bytes: Some(bytes),
            driver_traced: Some(traced),
            ..self.row(None, None)
        }));
        rows
    }

    fn row(&self, device: Option<DeviceId>, on: Option<&OnDevice>) -> DeviceView {
        let gpu = device.and_then(|device| self.gpu(device));
        let reserved = self.graph_reserved.iter().find(|(known, _)| Some(*known) == device);
        let asked = gpu.and_then(|gpu| self.asked(gpu));
        DeviceView {
            device,
            live_bytes: on.map_or(Bytes(0), |on| on.live.bytes()),
            peak_bytes: on.map_or(Bytes(0), |on| on.peak.bytes()),
            gpu,
            driver_bytes: asked.map(|(bytes, _)| bytes),
            driver_traced: asked.map(|(_, traced)| traced),
            graph_reserved: reserved.map(|(_, told)| *told),
        }
    }

    fn asked(&self, gpu: GpuId) -> Option<(Bytes, Bytes)> {
        let known = self.accounts.iter().find(|(known, ..)| *known == gpu);
        known.map(|(_, bytes, traced)| (*bytes, *traced))
    }
}
