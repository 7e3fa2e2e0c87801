//! What is in use now, by call stack: a profile of a snapshot, for those that collect one after the
//! other. Only device memory is in it, so that its sum is what is live of it.

use std::io::{self, Write};

use engine::analysis::{Amount, Place};
use engine::ids::{GpuId, ProcessKey};
use engine::kind::Kind;
use engine::snapshot::{ProcessView, SiteKindView, SiteView, Snapshot};
use engine::stack::{SiteName, Stacks};
use engine::units::Moment;
use hashbrown::{HashMap, HashSet};

use super::Sample;
use super::pprof::{Maker, Tag};
use super::proto::ValueType;
use crate::export::Names;
use crate::export::places::{shown, without};

/// All that was ever allocated in each place, when a profile was made: the next one can tell what came
/// since then.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Allocated {
    at: Moment,
    places: HashMap<(ProcessKey, SiteName, Kind), Amount>,
    /// Processes whose sites were not all listed: what is new in their lists may be old.
    cut: HashSet<ProcessKey>,
}

impl Allocated {
    /// What a snapshot says of it.
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Self {
        let mut told = Self { at: snapshot.at, ..Self::default() };
        for process in running(snapshot) {
            if process.sites_total > process.sites.len() as u64 {
                told.cut.insert(process.key);
            }
            for (site, kind) in process.sites.iter().flat_map(parts) {
                told.places.insert((process.key, site.name, kind.kind), ever(kind));
            }
        }
        told
    }

    fn since(&self, process: ProcessKey, site: SiteName, kind: &SiteKindView) -> Amount {
        let all = ever(kind);
        match self.places.get(&(process, site, kind.kind)) {
            Some(before) => Amount {
                bytes: all.bytes.saturating_sub(before.bytes),
                allocations: all.allocations.saturating_sub(before.allocations),
            },
            None if self.cut.contains(&process) => Amount::default(),
            None => all,
        }
    }
}

/// Writes the profile. Stores that add up what was allocated over profiles tell `since` when; for
/// others that is since tracing began. With `paths`, folders of files and libraries are told.
///
/// What is in use at sites that the snapshot does not list is one sample for each process.
pub fn live_pprof(
    out: &mut dyn Write,
    snapshot: &Snapshot,
    names: &Names,
    since: Option<&Allocated>,
    paths: bool,
) -> io::Result<()> {
    let mut made = Maker::new("GPU memory in use");
    made.proto.time_nanos = names.clock.nanos(snapshot.at);
    let begun = since.map_or(names.clock.start(), |since| since.at);
    let lasted = snapshot.at.0.saturating_sub(begun.0);
    made.proto.duration_nanos = i64::try_from(lasted).unwrap_or(0);
    let period = ValueType { kind: made.text("space"), unit: made.text("bytes") };
    (made.proto.period_type, made.proto.period) = (Some(period), 1);
    let mut stacks = Stacks::default();
    for process in running(snapshot) {
        let who = Who::new(process, names);
        let mut rest = device_memory(process);
        for (site, kind) in process.sites.iter().flat_map(parts) {
            let in_use = Amount { bytes: kind.live_bytes.0, allocations: kind.live_allocations };
            rest.bytes = rest.bytes.saturating_sub(in_use.bytes);
            rest.allocations = rest.allocations.saturating_sub(in_use.allocations);
            let allocated = match (site.name, since) {
                // It counts as a whole when its frames are known.
                (SiteName::Pending(_), Some(_)) => Amount::default(),
                (_, None) => ever(kind),
                (name, Some(since)) => since.since(process.key, name, kind),
            };
            let stack: Vec<_> =
                site.frames.iter().map(|frame| stacks.frame(shown(frame, paths))).collect();
            let sample = who.sample(kind.kind, in_use, allocated);
            made.sample(&stacks, &stack, without(site.name), &sample, &who.tags(Some(kind.kind)));
        }
        let sample = who.sample(Kind::Unknown, rest, Amount::default());
        made.sample(&stacks, &[], "(other sites)", &sample, &who.tags(None));
    }
    made.write(out)
}

/// Processes that hold something now.
fn running(snapshot: &Snapshot) -> impl Iterator<Item = &ProcessView> {
    snapshot.processes.iter().filter(|process| process.ended.is_none())
}

/// Device memory of a site by kind.
fn parts(site: &SiteView) -> impl Iterator<Item = (&SiteView, &SiteKindView)> {
    let counted = site.kinds.iter().filter(|kind| kind.kind.takes_device_memory());
    counted.map(move |kind| (site, kind))
}

const fn ever(kind: &SiteKindView) -> Amount {
    Amount { bytes: kind.bytes_total.0, allocations: kind.allocations_total }
}

fn device_memory(process: &ProcessView) -> Amount {
    let counted = process.kinds.iter().filter(|kind| kind.kind.takes_device_memory());
    let counts = counted.map(|kind| kind.live_allocations);
    Amount { bytes: process.live_bytes.0, allocations: counts.fold(0, u64::saturating_add) }
}

/// A process, as its samples tell of it.
struct Who<'a> {
    process: &'a ProcessView,
    /// Its GPU, where it is only one: sites are not told apart by device.
    gpu: Option<GpuId>,
    uuid: &'a str,
}

impl<'a> Who<'a> {
    fn new(process: &'a ProcessView, names: &'a Names) -> Self {
        let mut held = process.devices.iter().filter(|device| device.live_bytes.0 > 0);
        let gpu = match (held.next(), held.next()) {
            (Some(only), None) => only.gpu,
            _ => None,
        };
        let uuid = gpu.and_then(|gpu| names.gpu(gpu)).map_or("", |gpu| &*gpu.uuid);
        Self { process, gpu, uuid }
    }

    const fn sample(&self, kind: Kind, in_use: Amount, allocated: Amount) -> Sample {
        let place = Place { pid: self.process.key.pid, device: None, kind, site: None };
        Sample { place, in_use, allocated }
    }

    fn tags(&self, kind: Option<Kind>) -> Vec<Tag<'a>> {
        let mut tags = vec![
            Tag::Number("pid", i64::from(self.process.key.pid.0)),
            Tag::Text("process", &self.process.name),
        ];
        tags.extend(kind.map(|kind| Tag::Text("kind", kind.name())));
        if let Some(gpu) = self.gpu {
            tags.push(Tag::Ordinal("gpu", gpu.0));
            tags.push(Tag::Text("uuid", self.uuid));
        }
        if let Some(container) = &self.process.container {
            tags.push(Tag::Text("container", &container.id));
            if let Some(pod) = &container.pod {
                tags.extend(pod.name.as_deref().map(|name| Tag::Text("pod", name)));
                tags.extend(pod.namespace.as_deref().map(|name| Tag::Text("namespace", name)));
            }
        }
        tags
    }
}

#[cfg(test)]
mod tests;
