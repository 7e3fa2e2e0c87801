//! What PyTorch's cache does, as objects.

use engine::tensor::{TorchDeviceView, TorchView};
use serde::Serialize;

use super::Names;

/// The cache of one process.
#[derive(Serialize)]
pub(super) struct Torch {
    exact: bool,
    lost_records: u64,
    unlisted_blocks: u64,
    /// Why nothing is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason_text: Option<&'static str>,
    devices: Vec<Device>,
}

#[derive(Serialize)]
struct Device {
    device: u16,
    allocated_bytes: u64,
    reserved_bytes: u64,
    cached_bytes: u64,
    peak_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_time: Option<String>,
    blocks: u64,
    seen_bytes: u64,
    given_total: u64,
    taken_total: u64,
    unknown_taken: u64,
    refused: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    whole_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fragmented_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    largest_gap_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fragmentation_unknown: Option<&'static str>,
}

impl Torch {
    pub(super) fn new(view: &TorchView, names: &Names) -> Self {
        Self {
            exact: view.exact(),
            lost_records: view.lost,
            unlisted_blocks: view.unlisted,
            reason: view.reason.map(|reason| reason.name()),
            reason_text: view.reason.map(|reason| reason.reason()),
            devices: view.devices.iter().map(|device| Device::new(device, names)).collect(),
        }
    }
}

impl Device {
    fn new(view: &TorchDeviceView, names: &Names) -> Self {
        let lies = view.fragmentation.ok();
        Self {
            device: view.device.0,
            allocated_bytes: view.allocated.0,
            reserved_bytes: view.reserved.0,
            cached_bytes: view.cached().0,
            peak_bytes: view.peak.0,
            peak_time: (view.peak.0 > 0).then(|| names.clock.precise(view.peak_at)),
            blocks: view.blocks,
            seen_bytes: view.seen_bytes.0,
            given_total: view.given_total,
            taken_total: view.taken_total,
            unknown_taken: view.unknown_taken,
            refused: view.refused,
            whole_bytes: lies.map(|lies| lies.whole.0),
            fragmented_bytes: lies.map(|lies| lies.fragmented.0),
            largest_gap_bytes: lies.map(|lies| lies.largest_gap.0),
            fragmentation_unknown: view.fragmentation.err().map(|reason| reason.name()),
        }
    }
}
