//! Series of allocation sites and of leak suspects.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::metrics::{SampleValue, catalog};
use crate::model::{Allocator, Nanos, SiteName};
use crate::snapshot::{ProcessView, Snapshot};
use crate::verdict::{Confidence, Resource, SiteVerdict};
use crate::view::{GpuFacts, View};

use super::input::CollectorInput;
use super::process_memory::gpu_of;
use super::processes::labels_of;
use super::sample_builder::{GpuLabels, SampleBuilder};
use super::{OTHER, label};

/// Value of the label `site`: the same on all hosts and after restarts. Pending sites share one
/// value, because their numbers differ each time.
fn id(site: SiteName) -> Box<str> {
    match site {
        SiteName::Pending(_) => "pending".into(),
        named => named.to_string().into(),
    }
}

/// Live bytes and allocations of a site.
#[derive(Default)]
struct SiteUsage {
    bytes: u64,
    count: u64,
    location: Box<str>,
}

/// Adds samples of the largest sites; all others are merged into `other`.
pub(super) fn add_site_samples(input: &CollectorInput<'_>, room: usize, out: &mut SampleBuilder) {
    let mut sites: BTreeMap<Box<str>, SiteUsage> = BTreeMap::new();
    for site in &input.snapshot.sites {
        let location = || label(&(input.location)(site.name, &site.frames));
        let live = sites
            .entry(id(site.name))
            .or_insert_with(|| SiteUsage { location: location(), ..SiteUsage::default() });
        live.bytes = live.bytes.saturating_add(site.live_bytes.0);
        live.count = live.count.saturating_add(site.live_allocations);
    }
    sites.remove(OTHER);
    let (mut bytes, mut count) = everything(input.snapshot);
    let mut listed: Vec<_> = sites.into_iter().collect();
    listed.sort_by(|(a, one), (b, two)| {
        (Reverse(one.bytes), Reverse(one.count), a).cmp(&(
            Reverse(two.bytes),
            Reverse(two.count),
            b,
        ))
    });
    listed.truncate(room);
    for (site, live) in listed {
        bytes = bytes.saturating_sub(live.bytes);
        count = count.saturating_sub(live.count);
        let labels = vec![site, live.location];
        out.push_integer(&catalog::SITE_LIVE, labels.clone(), live.bytes);
        out.push_integer(&catalog::SITE_COUNT, labels, live.count);
    }
    let labels: Vec<Box<str>> = vec![OTHER.into(), "".into()];
    out.push_integer(&catalog::SITE_LIVE, labels.clone(), bytes);
    out.push_integer(&catalog::SITE_COUNT, labels, count);
}

/// Live device memory of all sites, and number of allocations.
fn everything(snapshot: &Snapshot) -> (u64, u64) {
    let running = snapshot.running();
    let kinds = running.flat_map(|process| &process.kinds);
    let device = kinds.filter(|view| view.kind.takes_device_memory());
    let count = device.fold(0_u64, |sum, view| sum.saturating_add(view.live_allocations));
    (snapshot.live_bytes.0, count)
}

/// Value of the label `resource`. Some memory kinds and object kinds have the same name.
fn resource_label(resource: Resource) -> Box<str> {
    match resource {
        Resource::Memory(kind) => kind.name().into(),
        Resource::Blocks(Allocator::PyTorch) => "tensors".into(),
        Resource::Blocks(allocator) => format!("{}_blocks", allocator.name()).into(),
        Resource::Objects(kind) => format!("{}_objects", kind.name()).into(),
    }
}

/// All suspects with the same labels.
#[derive(Default)]
struct SuspectUsage {
    /// Whether they are objects rather than memory.
    are_objects: bool,
    live: u64,
    growth_per_hour: u64,
    time_until_full: Option<Nanos>,
}

/// Adds samples of suspects, the worst with their own series; and the forecasts of full GPUs.
pub(super) fn add_suspect_samples(
    input: &CollectorInput<'_>,
    gpus: GpuLabels<'_>,
    room: usize,
    out: &mut SampleBuilder,
) {
    let suspects = &input.snapshot.suspects;
    let facts: Vec<_> = input
        .gpus
        .iter()
        .map(|gpu| GpuFacts { id: gpu.id, name: &gpu.name, total: gpu.total })
        .collect();
    let view = View::of(input.snapshot, &facts);
    for confidence in [Confidence::Possible, Confidence::Likely, Confidence::Certain] {
        let these = view.leaks.iter().filter(|leak| leak.confidence == confidence).count();
        out.push_integer(&catalog::SUSPECTS, vec![confidence.name().into()], these as u64);
    }
    add_gpu_forecasts(&view, gpus, out);
    // In the order of the snapshot: worst first.
    let mut all: Vec<(Vec<Box<str>>, SuspectUsage)> = Vec::new();
    for suspect in suspects {
        let labels = labels(suspect, input, gpus);
        let at = all.iter().position(|(known, _)| *known == labels).unwrap_or(all.len());
        if at == all.len() {
            let are_objects = matches!(suspect.resource, Resource::Objects(_));
            all.push((labels, SuspectUsage { are_objects, ..SuspectUsage::default() }));
        }
        let Some((_, sum)) = all.get_mut(at) else { continue };
        let evidence = &suspect.evidence;
        sum.live = sum.live.saturating_add(evidence.live);
        sum.growth_per_hour = sum.growth_per_hour.saturating_add(evidence.growth_per_hour);
        if let Some(time) = evidence.time_until_full {
            sum.time_until_full = Some(sum.time_until_full.map_or(time, |known| known.min(time)));
        }
    }
    for (labels, sum) in all.into_iter().take(room) {
        if let Some(time) = sum.time_until_full {
            out.push(&catalog::SUSPECT_FULL_IN, labels.clone(), seconds(time));
        }
        let (growth, live) = if sum.are_objects {
            (&catalog::SUSPECT_GROWTH_OBJECTS, &catalog::SUSPECT_LIVE_OBJECTS)
        } else {
            (&catalog::SUSPECT_GROWTH, &catalog::SUSPECT_LIVE)
        };
        out.push(growth, labels.clone(), SampleValue::Real(sum.growth_per_hour as f64 / 3600.0));
        out.push_integer(live, labels, sum.live);
    }
}

/// Adds growth and forecast of the host's GPUs.
fn add_gpu_forecasts(view: &View<'_>, gpus: GpuLabels<'_>, out: &mut SampleBuilder) {
    for row in view.gpus.iter().filter(|row| gpus.known_gpu(row.gpu).is_some()) {
        let labels = || Vec::from(gpus.labels(row.gpu));
        if let Some(growth) = row.growth_per_hour {
            let growth = SampleValue::Real(growth as f64 / 3600.0);
            out.push(&catalog::GPU_GROWTH, labels(), growth);
        }
        if let Some(time) = row.time_until_full {
            out.push(&catalog::GPU_FULL_IN, labels(), seconds(time));
        }
    }
}

fn seconds(time: Nanos) -> SampleValue {
    SampleValue::Real(time.0 as f64 / 1e9)
}

fn labels(suspect: &SiteVerdict, input: &CollectorInput<'_>, gpus: GpuLabels<'_>) -> Vec<Box<str>> {
    let is_owner =
        |process: &&ProcessView| process.ended.is_none() && Some(process.key.pid) == suspect.pid;
    let process = input.snapshot.processes.iter().find(is_owner);
    let gpu = process.and_then(|process| gpu_of(process, suspect.device, gpus));
    let owner_labels = process.map_or_else(
        || {
            let pid = suspect.pid.map(|pid| pid.to_string()).unwrap_or_default();
            let [process, program] = [label(&suspect.process), label(&suspect.process)];
            [pid.into(), process, program, "".into(), "".into(), "".into(), "".into()]
        },
        labels_of,
    );
    let location = label(&(input.location)(suspect.site, &suspect.frames));
    let site_labels = [id(suspect.site), location, resource_label(suspect.resource)];
    owner_labels.into_iter().chain(gpus.labels(gpu)).chain(site_labels).collect()
}
