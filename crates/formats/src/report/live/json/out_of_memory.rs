//! Out-of-memory errors as JSON.

use engine::snapshot::OutOfMemory;
use serde::Serialize;

use super::{GpuJson, ordinal};
use crate::export::ReportContext;
use crate::report::analysis::json::{FrameJson, frame};
use crate::sanitize::sanitize;

#[derive(Serialize)]
pub(super) struct OutOfMemoryJson {
    time: String,
    pid: u32,
    tid: u32,
    process: String,
    device: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<GpuJson>,
    requested_bytes: Option<u64>,
    kind: Option<&'static str>,
    source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    torch_requested_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    torch_allocated_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    torch_reserved_bytes: Option<u64>,
    recovered: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    freed_for_retry_bytes: Option<u64>,
    site: String,
    frames: Vec<FrameJson>,
    holders: Vec<HolderJson>,
}

#[derive(Serialize)]
struct HolderJson {
    pid: u32,
    process: String,
    live_bytes: u64,
}

impl OutOfMemoryJson {
    pub(super) fn new(oom: &OutOfMemory, context: &ReportContext) -> Self {
        Self {
            time: context.clock.precise(oom.at),
            pid: oom.pid.0,
            tid: oom.tid.0,
            process: sanitize(&oom.name).into_owned(),
            device: ordinal(oom.device),
            gpu: oom.gpu.map(|gpu| GpuJson::new(gpu, context)),
            requested_bytes: oom.requested.map(|(_, bytes)| bytes.0),
            kind: oom.requested.map(|(kind, _)| kind.name()),
            source: if oom.framework.is_some() { "pytorch" } else { "driver" },
            torch_requested_bytes: oom.framework.map(|one| one.requested.0),
            torch_allocated_bytes: oom.framework.map(|one| one.allocated.0),
            torch_reserved_bytes: oom.framework.map(|one| one.reserved.0),
            recovered: oom.recovered.is_some(),
            freed_for_retry_bytes: oom.recovered.map(|bytes| bytes.0),
            site: oom.site_name.to_string(),
            frames: oom.frames.iter().map(frame).collect(),
            holders: oom
                .holders
                .iter()
                .map(|(pid, name, bytes)| HolderJson {
                    pid: pid.0,
                    process: sanitize(name).into_owned(),
                    live_bytes: bytes.0,
                })
                .collect(),
        }
    }
}
