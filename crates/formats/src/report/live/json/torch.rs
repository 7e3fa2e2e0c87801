//! PyTorch's cache as JSON.

use engine::model::{TorchDeviceView, TorchView};

use crate::export::ReportContext;
use crate::report::json_objects::{Word, json_objects};

json_objects! {
    /// The cache of one process.
    pub(crate) struct TorchJson(view: &TorchView, context: &ReportContext): Deserialize {
        exact: bool = view.is_exact(),
        lost_events: u64 = view.lost,
        dropped_blocks: u64 = view.unlisted,
        /// Reason why no tensors are tracked.
        unavailable_reason?: Option<Word> = view.reason.map(|reason| reason.name().into()),
        unavailable_summary?: Option<Word> = view.reason.map(|reason| reason.reason().into()),
        devices: Vec<TorchDeviceJson> =
            view.devices.iter().map(|device| TorchDeviceJson::new(device, context)).collect(),
    }

    pub(crate) struct TorchDeviceJson(view: &TorchDeviceView, context: &ReportContext): Deserialize
    let { let layout = view.fragmentation.ok(); }
    {
        device: u16 = view.device.0,
        allocated_bytes: u64 = view.allocated.0,
        reserved_bytes: u64 = view.reserved.0,
        cached_bytes: u64 = view.cached().0,
        peak_bytes: u64 = view.peak.0,
        peak_time?: Option<String> =
            (view.peak.0 > 0).then(|| context.clock.precise(view.peak_at)),
        live_blocks: u64 = view.blocks,
        tracked_bytes: u64 = view.tracked_bytes.0,
        allocations_total: u64 = view.allocations_total,
        frees_total: u64 = view.frees_total,
        unmatched_frees: u64 = view.unmatched_frees,
        ooms_total: u64 = view.ooms_total,
        releasable_bytes?: Option<u64> = layout.map(|layout| layout.releasable.0),
        fragmented_bytes?: Option<u64> = layout.map(|layout| layout.fragmented.0),
        largest_free_bytes?: Option<u64> = layout.map(|layout| layout.largest_gap.0),
        fragmentation_unknown_reason?: Option<Word> =
            view.fragmentation.err().map(|reason| reason.name().into()),
    }
}
