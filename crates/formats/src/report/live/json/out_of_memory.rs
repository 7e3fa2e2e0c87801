//! Out-of-memory errors as JSON.

use engine::model::{Bytes, Pid};
use engine::snapshot::OutOfMemory;

use super::GpuJson;
use crate::export::ReportContext;
use crate::report::frame_json::{FrameJson, frames};
use crate::report::json_objects::{Word, json_objects};
use crate::sanitize::sanitized;

json_objects! {
    pub(crate) struct OutOfMemoryJson(oom: &OutOfMemory, context: &ReportContext): Deserialize {
        time: String = context.clock.precise(oom.at),
        pid: u32 = oom.pid.0,
        tid: u32 = oom.tid.0,
        process: String = sanitized(&oom.name),
        device: Option<u16> = oom.device.map(|device| device.0),
        gpu?: Option<GpuJson> = oom.gpu.map(|gpu| GpuJson::new(gpu, context)),
        requested_bytes: Option<u64> = oom.requested.map(|(_, bytes)| bytes.0),
        kind: Option<Word> = oom.requested.map(|(kind, _)| kind.name().into()),
        source: Word = if oom.framework.is_some() { "pytorch".into() } else { "driver".into() },
        torch_requested_bytes?: Option<u64> = oom.framework.map(|one| one.requested.0),
        torch_allocated_bytes?: Option<u64> = oom.framework.map(|one| one.allocated.0),
        torch_reserved_bytes?: Option<u64> = oom.framework.map(|one| one.reserved.0),
        recovered: bool = oom.recovered.is_some(),
        freed_for_retry_bytes?: Option<u64> = oom.recovered.map(|bytes| bytes.0),
        site: String = oom.site_name.to_string(),
        frames: Vec<FrameJson> = frames(&oom.frames),
        holders: Vec<HolderJson> = oom.holders.iter().map(HolderJson::new).collect(),
    }

    pub(crate) struct HolderJson(holder: &(Pid, Box<str>, Bytes)): Deserialize {
        pid: u32 = holder.0.0,
        process: String = sanitized(&holder.1),
        live_bytes: u64 = holder.2.0,
    }
}
