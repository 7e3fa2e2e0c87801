//! Anomalies of a process: see [`crate::anomaly`].

use crate::analysis::unusual::{AtSite, Grown, Growths, Sizes};
use crate::ids::{DeviceId, Key, SiteId, Tid};
use crate::kind::{Kind, Layer};
use crate::stack::{SiteName, Sites};
use crate::units::{Bytes, Moment};
use crate::verdict::{Anomaly, Unusual};

use super::allocation::Entry;
use super::process::Process;

/// Limit of anomalies kept per process.
const KEPT: usize = 64;

/// An anomaly that is kept.
#[derive(Debug)]
struct Noted {
    at: Moment,
    tid: Option<Tid>,
    site: Option<SiteId>,
    device: Option<DeviceId>,
    kind: Kind,
    what: Unusual,
}

/// Detectors and anomalies of one process.
#[derive(Debug, Default)]
pub(super) struct Unusuals {
    sizes: Sizes,
    growths: Growths,
    recorded: Vec<Noted>,
    /// Number of anomalies that were already in a snapshot.
    shown: usize,
}

impl Unusuals {
    /// Checks a new allocation; `live` is the device memory before it.
    pub(super) fn add(&mut self, entry: &Entry, tid: Tid, site: Option<AtSite>, live: Bytes) {
        if let Some(grown) = self.growths.pass(entry.returned_at, live.0) {
            self.record_growth(grown);
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
            self.record(Noted {
                at: entry.returned_at,
                tid: Some(tid),
                site: entry.site(),
                device: entry.device(),
                kind: entry.kind,
                what,
            });
        }
    }

    fn record_growth(&mut self, grown: Grown) {
        let Grown { at, bytes, within, usual } = grown;
        let what = Unusual::Growth { bytes, within, usual };
        self.record(Noted { at, tid: None, site: None, device: None, kind: Kind::Device, what });
    }

    fn record(&mut self, recorded: Noted) {
        if self.recorded.len() < KEPT {
            self.recorded.push(recorded);
        }
    }

    /// Baseline of an allocation that is a size anomaly.
    pub(super) fn of(&self, entry: &Entry) -> Option<Bytes> {
        self.recorded.iter().find_map(|recorded| match recorded.what {
            Unusual::Size { key, usual, .. } if is(entry, key, recorded.at) => Some(usual),
            _ => None,
        })
    }

    /// Called after a snapshot.
    pub(super) fn mark_shown(&mut self) {
        self.shown = self.recorded.len();
    }
}

/// Whether this is memory of the program itself.
const fn is_own(kind: Kind) -> bool {
    let layer = kind.layer();
    let own = matches!(layer, Layer::Physical | Layer::Used | Layer::Managed | Layer::Host);
    own && !kind.is_static()
}

fn is(entry: &Entry, key: Key, began: Moment) -> bool {
    entry.key() == key && entry.returned_at == began
}

/// Anomalies of a process for a snapshot: those not reported yet, or all.
pub(super) fn views(process: &Process, all: bool, registry: &Sites) -> Vec<Anomaly> {
    let unusual = &process.unusual;
    let from = if all { 0 } else { unusual.shown };
    let view = |recorded: &Noted| {
        let site = registry.name(recorded.site);
        let thread = recorded.tid.and_then(|tid| process.threads.name(tid)).unwrap_or_default();
        Anomaly {
            at: recorded.at,
            pid: process.key.pid,
            process: process.name.clone(),
            tid: recorded.tid,
            thread: thread.into(),
            site,
            frames: registry.frames_of(site),
            device: device(process, recorded),
            kind: recorded.kind,
            what: live(process, recorded),
        }
    };
    unusual.recorded.iter().skip(from).map(view).collect()
}

/// Device, which may have become known since.
fn device(process: &Process, recorded: &Noted) -> Option<DeviceId> {
    let Unusual::Size { key, .. } = recorded.what else { return recorded.device };
    let found = process.allocations.find(key).map(|slot| &process.allocations.slab[slot]);
    let own = found.filter(|entry| is(entry, key, recorded.at));
    recorded.device.or_else(|| own?.device())
}

/// The anomaly, with its current live state.
fn live(process: &Process, recorded: &Noted) -> Unusual {
    let mut what = recorded.what;
    if let Unusual::Size { key, live, .. } = &mut what {
        let slot = process.allocations.find(*key);
        *live = slot.is_some_and(|slot| is(&process.allocations.slab[slot], *key, recorded.at));
    }
    what
}

/// Updates the names of sites whose stacks have been resolved since.
pub(super) fn name_again(anomalies: &mut [Anomaly], registry: &Sites) {
    for one in anomalies {
        if let SiteName::Pending(site) = one.site {
            one.site = registry.name(Some(site));
            one.frames = registry.frames_of(one.site);
        }
    }
}
