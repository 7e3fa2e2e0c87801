//! Places in programs: where memory came from, and which of them are suspected.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::ids::GpuId;
use crate::metrics::{Value, catalogue};
use crate::snapshot::{ProcessView, Snapshot};
use crate::stack::SiteName;
use crate::units::Nanos;
use crate::verdict::{Judgement, Subject, Sureness};

use super::held::gpu_of;
use super::input::Input;
use super::processes::labels_of;
use super::sheet::{Gpus, Sheet};
use super::{OTHER, label};

/// What a site is called in the label `site`: the same on every host, and after every start. Numbers
/// that stand for a stack that is not told yet would be others each time.
fn id(site: SiteName) -> Box<str> {
    match site {
        SiteName::Pending(_) => "pending".into(),
        named => named.to_string().into(),
    }
}

/// Live bytes and allocations of a site.
#[derive(Default)]
struct Live {
    bytes: u64,
    count: u64,
    place: Box<str>,
}

/// Puts down the biggest sites; the others are one.
pub(super) fn put_sites(input: &Input<'_>, room: usize, sheet: &mut Sheet) {
    let mut sites: BTreeMap<Box<str>, Live> = BTreeMap::new();
    for site in &input.snapshot.sites {
        let place = || label(&(input.place)(site.name, &site.frames));
        let live = sites
            .entry(id(site.name))
            .or_insert_with(|| Live { place: place(), ..Live::default() });
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
        let labels = vec![site, live.place];
        sheet.whole(&catalogue::SITE_LIVE, labels.clone(), live.bytes);
        sheet.whole(&catalogue::SITE_COUNT, labels, live.count);
    }
    let labels: Vec<Box<str>> = vec![OTHER.into(), "".into()];
    sheet.whole(&catalogue::SITE_LIVE, labels.clone(), bytes);
    sheet.whole(&catalogue::SITE_COUNT, labels, count);
}

/// Device memory of all sites, and how many allocations that is.
fn everything(snapshot: &Snapshot) -> (u64, u64) {
    let running = snapshot.processes.iter().filter(|process| process.ended.is_none());
    let kinds = running.flat_map(|process| &process.kinds);
    let device = kinds.filter(|view| view.kind.takes_device_memory());
    let count = device.fold(0_u64, |sum, view| sum.saturating_add(view.live_allocations));
    (snapshot.live_bytes.0, count)
}

/// The label `resource`. Some kinds of memory and of objects have the same name.
fn subject(subject: Subject) -> Box<str> {
    match subject {
        Subject::Memory(kind) => kind.name().into(),
        Subject::Tensors => "tensors".into(),
        Subject::Objects(kind) => format!("{}_objects", kind.name()).into(),
    }
}

/// All suspects with the same labels.
#[derive(Default)]
struct Suspected {
    /// They are objects, not memory.
    are_objects: bool,
    live: u64,
    per_hour: u64,
    full_in: Option<Nanos>,
}

/// Puts down the suspects, the worst of them by themselves; and when GPUs will be full.
pub(super) fn put_suspects(input: &Input<'_>, gpus: Gpus<'_>, room: usize, sheet: &mut Sheet) {
    let suspects = &input.snapshot.suspects;
    for sureness in [Sureness::Possible, Sureness::Likely, Sureness::Certain] {
        let these = suspects.iter().filter(|one| one.sureness == sureness).count();
        sheet.whole(&catalogue::SUSPECTS, vec![sureness.name().into()], these as u64);
    }
    let mut full: BTreeMap<GpuId, Nanos> = BTreeMap::new();
    // In the order in which they are told: the worst first.
    let mut all: Vec<(Vec<Box<str>>, Suspected)> = Vec::new();
    for suspect in suspects {
        let (gpu, labels) = labels(suspect, input, gpus);
        let at = all.iter().position(|(known, _)| *known == labels).unwrap_or(all.len());
        if at == all.len() {
            let are_objects = matches!(suspect.subject, Subject::Objects(_));
            all.push((labels, Suspected { are_objects, ..Suspected::default() }));
        }
        let Some((_, sum)) = all.get_mut(at) else { continue };
        let evidence = &suspect.evidence;
        sum.live = sum.live.saturating_add(evidence.live);
        sum.per_hour = sum.per_hour.saturating_add(evidence.per_hour);
        if let Some(time) = evidence.full_in {
            sum.full_in = Some(sum.full_in.map_or(time, |known| known.min(time)));
            if let Some(gpu) = gpu {
                full.entry(gpu).and_modify(|known| *known = (*known).min(time)).or_insert(time);
            }
        }
    }
    for (labels, sum) in all.into_iter().take(room) {
        if let Some(time) = sum.full_in {
            sheet.put(&catalogue::SUSPECT_FULL_IN, labels.clone(), seconds(time));
        }
        let (growth, live) = if sum.are_objects {
            (&catalogue::SUSPECT_GROWTH_OBJECTS, &catalogue::SUSPECT_LIVE_OBJECTS)
        } else {
            (&catalogue::SUSPECT_GROWTH, &catalogue::SUSPECT_LIVE)
        };
        sheet.put(growth, labels.clone(), Value::Real(sum.per_hour as f64 / 3600.0));
        sheet.whole(live, labels, sum.live);
    }
    for (gpu, time) in full {
        sheet.put(&catalogue::GPU_FULL_IN, gpus.labels(Some(gpu)).into(), seconds(time));
    }
}

fn seconds(time: Nanos) -> Value {
    Value::Real(time.0 as f64 / 1e9)
}

fn labels(
    suspect: &Judgement,
    input: &Input<'_>,
    gpus: Gpus<'_>,
) -> (Option<GpuId>, Vec<Box<str>>) {
    let is_it =
        |process: &&ProcessView| process.ended.is_none() && Some(process.key.pid) == suspect.pid;
    let process = input.snapshot.processes.iter().find(is_it);
    let gpu = process.and_then(|process| gpu_of(process, suspect.device, gpus));
    let who = process.map_or_else(
        || {
            let pid = suspect.pid.map(|pid| pid.to_string()).unwrap_or_default();
            [pid.into(), label(&suspect.process), "".into(), "".into(), "".into()]
        },
        labels_of,
    );
    let place = label(&(input.place)(suspect.site, &suspect.frames));
    let what = [id(suspect.site), place, subject(suspect.subject)];
    (gpu, who.into_iter().chain(gpus.labels(gpu)).chain(what).collect())
}
