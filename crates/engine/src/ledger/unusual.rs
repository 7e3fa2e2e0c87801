//! What was unusual in a process: see [`crate::analysis::unusual`].

use crate::analysis::unusual::{AtSite, Grown, Growths, Sizes};
use crate::ids::{DeviceId, Key, SiteId, Tid};
use crate::kind::{Kind, Layer};
use crate::stack::{SiteName, Sites};
use crate::units::{Bytes, Moment};
use crate::verdict::{Anomaly, Unusual};

use super::allocation::Entry;
use super::process::Process;

/// How much of a process is remembered.
const KEPT: usize = 64;

/// One that is remembered.
#[derive(Debug)]
struct Noted {
    at: Moment,
    tid: Option<Tid>,
    site: Option<SiteId>,
    device: Option<DeviceId>,
    kind: Kind,
    what: Unusual,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Unusuals {
    sizes: Sizes,
    growths: Growths,
    noted: Vec<Noted>,
    /// How many of them were in a snapshot.
    shown: usize,
}

impl Unusuals {
    /// An allocation began, and so much device memory was live before it.
    pub(super) fn add(&mut self, entry: &Entry, tid: Tid, site: Option<AtSite>, live: Bytes) {
        if let Some(grown) = self.growths.pass(entry.returned_at, live.0) {
            self.note_growth(grown);
        }
        if !is_own(entry.kind) {
            return;
        }
        if let Some(usual) = self.sizes.add(entry.bytes, site) {
            self.growths.explain(entry.bytes);
            let what = Unusual::Size {
                key: entry.key(),
                bytes: Bytes(entry.bytes),
                usual: usual.bytes,
                of: usual.of,
                of_site: usual.of_site,
                live: true,
            };
            self.note(Noted {
                at: entry.returned_at,
                tid: Some(tid),
                site: entry.site(),
                device: entry.device(),
                kind: entry.kind,
                what,
            });
        }
    }

    fn note_growth(&mut self, grown: Grown) {
        let Grown { at, bytes, within, usual } = grown;
        let what = Unusual::Growth { bytes, within, usual };
        self.note(Noted { at, tid: None, site: None, device: None, kind: Kind::Device, what });
    }

    fn note(&mut self, noted: Noted) {
        if self.noted.len() < KEPT {
            self.noted.push(noted);
        }
    }

    /// What is usual where an allocation began that was much bigger.
    pub(super) fn of(&self, entry: &Entry) -> Option<Bytes> {
        self.noted.iter().find_map(|noted| match noted.what {
            Unusual::Size { key, usual, .. } if is(entry, key, noted.at) => Some(usual),
            _ => None,
        })
    }

    /// A snapshot was made.
    pub(super) fn mark_shown(&mut self) {
        self.shown = self.noted.len();
    }
}

/// The program's own memory.
const fn is_own(kind: Kind) -> bool {
    let layer = kind.layer();
    let own = matches!(layer, Layer::Physical | Layer::Used | Layer::Managed | Layer::Host);
    own && !kind.is_static()
}

fn is(entry: &Entry, key: Key, began: Moment) -> bool {
    entry.key() == key && entry.returned_at == began
}

/// What a snapshot tells of a process: what it did not tell before, or all.
pub(super) fn views(process: &Process, all: bool, told: &Sites) -> Vec<Anomaly> {
    let unusual = &process.unusual;
    let from = if all { 0 } else { unusual.shown };
    let view = |noted: &Noted| {
        let site = told.name(noted.site);
        let thread = noted.tid.and_then(|tid| process.threads.name(tid)).unwrap_or_default();
        Anomaly {
            at: noted.at,
            pid: process.key.pid,
            process: process.name.clone(),
            tid: noted.tid,
            thread: thread.into(),
            site,
            frames: told.frames_of(site),
            device: device(process, noted),
            kind: noted.kind,
            what: live(process, noted),
        }
    };
    unusual.noted.iter().skip(from).map(view).collect()
}

/// The device, which may have become known since.
fn device(process: &Process, noted: &Noted) -> Option<DeviceId> {
    let Unusual::Size { key, .. } = noted.what else { return noted.device };
    let found = process.allocations.find(key).map(|slot| &process.allocations.slab[slot]);
    let own = found.filter(|entry| is(entry, key, noted.at));
    noted.device.or_else(|| own?.device())
}

/// The same, with whether it is live now.
fn live(process: &Process, noted: &Noted) -> Unusual {
    let mut what = noted.what;
    if let Unusual::Size { key, live, .. } = &mut what {
        let slot = process.allocations.find(*key);
        *live = slot.is_some_and(|slot| is(&process.allocations.slab[slot], *key, noted.at));
    }
    what
}

/// Stacks may have been told since.
pub(super) fn name_again(anomalies: &mut [Anomaly], told: &Sites) {
    for one in anomalies {
        if let SiteName::Pending(site) = one.site {
            one.site = told.name(Some(site));
            one.frames = told.frames_of(one.site);
        }
    }
}
