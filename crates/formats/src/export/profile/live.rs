//! Profiles of snapshots: memory in use by call stack, for continuous profiling. Only device memory
//! is included, so that the sum is the live device memory.

use std::io::{self, Write};

use engine::analysis::{Amount, GroupKey};
use engine::model::{GpuId, MemoryKind, StackTable};
use engine::snapshot::{ProcessView, SiteKindView, SiteView, Snapshot};

use super::ProfileSample;
use super::pprof::{LabelValue, PprofBuilder};
use super::proto::ValueType;
use crate::export::ReportContext;
use crate::report::redact::placeholder;

/// Writes the profile; allocations count from the start of the trace.
///
/// Memory in use at sites that the snapshot does not list is one sample per process.
pub fn live_pprof(
    out: &mut dyn Write,
    snapshot: &Snapshot,
    context: &ReportContext,
) -> io::Result<()> {
    let mut builder = PprofBuilder::new("GPU memory in use");
    builder.proto.time_nanos = context.clock.nanos(snapshot.at);
    let duration = snapshot.at.0.saturating_sub(context.clock.start().0);
    builder.proto.duration_nanos = i64::try_from(duration).unwrap_or(0);
    let period = ValueType { kind: builder.text("space"), unit: builder.text("bytes") };
    (builder.proto.period_type, builder.proto.period) = (Some(period), 1);
    let mut stacks = StackTable::default();
    for process in snapshot.running() {
        let labels = ProcessLabels::new(process, context);
        let mut rest = device_memory(process);
        for (site, kind) in process.sites.iter().flat_map(parts) {
            let in_use = Amount { bytes: kind.live_bytes.0, allocations: kind.live_allocations };
            rest.bytes = rest.bytes.saturating_sub(in_use.bytes);
            rest.allocations = rest.allocations.saturating_sub(in_use.allocations);
            let allocated =
                Amount { bytes: kind.bytes_total.0, allocations: kind.allocations_total };
            let stack: Vec<_> =
                site.frames.iter().map(|frame| stacks.frame(frame.clone())).collect();
            let sample = labels.sample(kind.kind, in_use, allocated);
            let tags = labels.tags(Some(kind.kind));
            builder.sample(&stacks, &stack, placeholder(site.name), &sample, &tags);
        }
        let sample = labels.sample(MemoryKind::Unknown, rest, Amount::default());
        builder.sample(&stacks, &[], "(other sites)", &sample, &labels.tags(None));
    }
    builder.write(out)
}

/// Returns the device memory of a site by kind.
fn parts(site: &SiteView) -> impl Iterator<Item = (&SiteView, &SiteKindView)> {
    let counted = site.kinds.iter().filter(|kind| kind.kind.takes_device_memory());
    counted.map(move |kind| (site, kind))
}

fn device_memory(process: &ProcessView) -> Amount {
    let counted = process.kinds.iter().filter(|kind| kind.kind.takes_device_memory());
    let counts = counted.map(|kind| kind.live_allocations);
    Amount { bytes: process.live_bytes.0, allocations: counts.fold(0, u64::saturating_add) }
}

/// Labels of the samples of a process.
struct ProcessLabels<'a> {
    process: &'a ProcessView,
    /// GPU, if the process uses only one: sites are not split by device.
    gpu: Option<GpuId>,
    uuid: &'a str,
}

impl<'a> ProcessLabels<'a> {
    fn new(process: &'a ProcessView, context: &'a ReportContext) -> Self {
        let mut used = process.devices.iter().filter(|device| device.live_bytes.0 > 0);
        let gpu = match (used.next(), used.next()) {
            (Some(only), None) => only.gpu,
            _ => None,
        };
        let uuid = gpu.and_then(|gpu| context.gpu(gpu)).map_or("", |gpu| &*gpu.uuid);
        Self { process, gpu, uuid }
    }

    const fn sample(&self, kind: MemoryKind, in_use: Amount, allocated: Amount) -> ProfileSample {
        let group = GroupKey { pid: self.process.key.pid, device: None, kind, site: None };
        ProfileSample { key: group, in_use, allocated }
    }

    fn tags(&self, kind: Option<MemoryKind>) -> Vec<LabelValue<'a>> {
        let mut tags = vec![
            LabelValue::Number("pid", i64::from(self.process.key.pid.0)),
            LabelValue::Text("process", &self.process.name),
        ];
        tags.extend(kind.map(|kind| LabelValue::Text("kind", kind.name())));
        if let Some(gpu) = self.gpu {
            tags.push(LabelValue::Ordinal("gpu", gpu.0));
            tags.push(LabelValue::Text("uuid", self.uuid));
        }
        if let Some(container) = &self.process.container {
            tags.push(LabelValue::Text("container", &container.id));
            if let Some(pod) = &container.pod {
                tags.extend(pod.name.as_deref().map(|name| LabelValue::Text("pod", name)));
                tags.extend(
                    pod.namespace.as_deref().map(|name| LabelValue::Text("namespace", name)),
                );
            }
        }
        tags
    }
}

#[cfg(test)]
mod tests;
