//! Out-of-memory errors until the next snapshot: their number per GPU, and the holders at the time
//! of the first ones.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::model::event::{Event, FailedCall};
use crate::model::ids::{DeviceId, GpuId, Pid};
use crate::model::units::Bytes;
use crate::snapshot::OutOfMemory;

use super::super::Ledger;
use super::super::process::Process;

/// Limit of errors in a snapshot: the first ones are the most informative.
const MAX_LISTED_OOMS: usize = 64;

impl Ledger {
    pub(in crate::ledger) fn record_oom(&mut self, event: &Event, failed: &FailedCall) {
        let Some(process) = self.running.get(&event.pid) else {
            return;
        };
        let device = process.requested_device(failed);
        let gpu = device.and_then(|device| process.devices.gpu(device));
        // A call can fail on a GPU although it requested other memory.
        let of_gpu = failed.requested.is_some_and(|(kind, _)| kind.takes_device_memory());
        let count = self.ooms_by_gpu.entry(gpu.filter(|_| of_gpu)).or_default();
        *count = count.saturating_add(1);
        if failed.requested.is_none() || self.out_of_memory.len() >= MAX_LISTED_OOMS {
            return;
        }
        self.out_of_memory.push(OutOfMemory {
            at: event.time,
            pid: event.pid,
            tid: event.tid,
            name: process.name.clone(),
            device,
            gpu,
            requested: failed.requested.map(|(kind, bytes)| (kind, Bytes(bytes))),
            site: failed.site,
            site_name: self.sites.name(failed.site),
            frames: Arc::default(),
            holders: self.holders_on(device, gpu),
        });
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
            .map(|process| (process.key.pid, process.name.clone(), live(process).bytes()))
            .filter(|(_, _, bytes)| bytes.0 > 0)
            .collect();
        holders.sort_by_key(|(pid, _, bytes)| (Reverse(*bytes), *pid));
        holders
    }

    pub(in crate::ledger) fn drain_ooms(&mut self) -> Vec<OutOfMemory> {
        let mut all = std::mem::take(&mut self.out_of_memory);
        for one in &mut all {
            one.site_name = self.sites.name(one.site);
            one.frames = self.sites.frames_of(one.site_name);
        }
        all
    }
}
