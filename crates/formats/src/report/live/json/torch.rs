//! PyTorch's cache as JSON.

use engine::model::tensor::{TorchDeviceView, TorchView};
use serde::Serialize;

use super::ReportContext;

/// The cache of one process.
#[derive(Serialize)]
pub(super) struct TorchJson {
    exact: bool,
    lost_events: u64,
    dropped_blocks: u64,
    /// Reason why no tensors are tracked.
    #[serde(skip_serializing_if = "Option::is_none")]
    unavailable_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unavailable_summary: Option<&'static str>,
    devices: Vec<TorchDeviceJson>,
}

#[derive(Serialize)]
struct TorchDeviceJson {
    device: u16,
    allocated_bytes: u64,
    reserved_bytes: u64,
    cached_bytes: u64,
    peak_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_time: Option<String>,
    live_blocks: u64,
    tracked_bytes: u64,
    allocations_total: u64,
    frees_total: u64,
    unmatched_frees: u64,
    ooms_total: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    releasable_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fragmented_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    largest_free_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fragmentation_unknown_reason: Option<&'static str>,
}

impl TorchJson {
    pub(super) fn new(view: &TorchView, context: &ReportContext) -> Self {
        Self {
            exact: view.is_exact(),
            lost_events: view.lost,
            dropped_blocks: view.unlisted,
            unavailable_reason: view.reason.map(|reason| reason.name()),
            unavailable_summary: view.reason.map(|reason| reason.reason()),
            devices: view
                .devices
                .iter()
                .map(|device| TorchDeviceJson::new(device, context))
                .collect(),
        }
    }
}

impl TorchDeviceJson {
    fn new(view: &TorchDeviceView, context: &ReportContext) -> Self {
        let fragmentation = view.fragmentation.ok();
        Self {
            device: view.device.0,
            allocated_bytes: view.allocated.0,
            reserved_bytes: view.reserved.0,
            cached_bytes: view.cached().0,
            peak_bytes: view.peak.0,
            peak_time: (view.peak.0 > 0).then(|| context.clock.precise(view.peak_at)),
            live_blocks: view.blocks,
            tracked_bytes: view.tracked_bytes.0,
            allocations_total: view.allocations_total,
            frees_total: view.frees_total,
            unmatched_frees: view.unmatched_frees,
            ooms_total: view.ooms_total,
            releasable_bytes: fragmentation.map(|fragmentation| fragmentation.releasable.0),
            fragmented_bytes: fragmentation.map(|fragmentation| fragmentation.fragmented.0),
            largest_free_bytes: fragmentation.map(|fragmentation| fragmentation.largest_gap.0),
            fragmentation_unknown_reason: view.fragmentation.err().map(|reason| reason.name()),
        }
    }
}
