//! Allocation sites: one row each, and the call stack of a site on request.

use engine::model::Pid;
use engine::snapshot::{SiteView, Snapshot};
use engine::verdict::SiteVerdict;
use serde::Serialize;

use super::{FrameItem, Keyed, redacted, stack};
use crate::report::tables::columns;
use crate::report::tables::sites::{estimated, label};
use crate::report::verdict;
use crate::report::view::compact_size;
use crate::sanitize::sanitized;

columns! {
    /// Returns the cells of a site.
    pub const SITE_COLUMNS, fn cells(site: &SiteView, verdict: Option<&SiteVerdict>)
    let {
        let freed = site.freed_total.saturating_mul(100).checked_div(site.allocations_total);
        let count = site.kinds.iter().fold(0_u64, |sum, kind| sum + kind.live_allocations);
        // A site of objects has no memory.
        let of_memory =
            |text: String| if site.allocations_total > 0 { text } else { String::new() };
    }
    {
        right("LIVE", 0): estimated(site, live(site)),
        right("COUNT", 0): of_memory(estimated(site, count.to_string())),
        right("PEAK", 0): of_memory(compact_size(site.peak_bytes.0)),
        right("ALLOCATED", 0): of_memory(compact_size(site.bytes_total.0)),
        right("FREED", 0): freed.map_or_else(String::new, |freed| format!("{freed} %")),
        left("VERDICT", 0): verdict.map_or_else(String::new, label),
        left("AT", 0): site_location(site),
    }
}

/// A site.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SiteItem {
    /// Its id.
    key: String,
    state: &'static str,
    cells: Vec<String>,
}

impl Keyed for SiteItem {
    fn key(&self) -> &str {
        &self.key
    }
}

impl SiteItem {
    /// Returns a site of all processes, or of one.
    pub fn of(site: &SiteView, snapshot: &Snapshot, pid: Option<Pid>) -> Self {
        let verdict = verdict_of(site, snapshot, pid);
        Self {
            key: site.name.to_string(),
            state: verdict.map_or("", |one| one.verdict.name()),
            cells: cells(site, verdict),
        }
    }
}

fn verdict_of<'a>(
    site: &SiteView,
    snapshot: &'a Snapshot,
    pid: Option<Pid>,
) -> Option<&'a SiteVerdict> {
    let mut all = snapshot.suspects.iter().chain(&snapshot.other_verdicts);
    all.find(|one| one.site == site.name && (pid.is_none() || one.pid == pid))
}

/// Returns live memory by kind, since kinds are never added: `1.20G, 64.0M pinned`.
fn live(site: &SiteView) -> String {
    let device = site.live_bytes.0;
    let others = site.kinds.iter().filter(|one| !one.kind.takes_device_memory());
    let others = others.filter(|one| one.live_allocations > 0);
    let others =
        others.map(|one| format!("{} {}", compact_size(one.live_bytes.0), one.kind.name()));
    let objects = site.objects.iter().filter(|one| one.live > 0);
    let objects = objects.map(|one| verdict::objects(one.kind, one.live));
    let own = (device > 0).then(|| compact_size(device));
    let parts: Vec<String> = own.into_iter().chain(others).chain(objects).collect();
    if parts.is_empty() { "0B".to_owned() } else { parts.join(", ") }
}

/// Returns the line and function of a site, sanitized.
pub fn site_location(site: &SiteView) -> String {
    sanitized(&crate::report::view::site_location(site.name, &site.frames))
}

/// A site with its call stack and the processes that hold it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SiteDetails {
    #[serde(flatten)]
    item: SiteItem,
    location: String,
    processes: Vec<SiteHolder>,
    summary: Option<String>,
    evidence: Vec<String>,
    stack: Vec<FrameItem>,
}

/// A process that holds memory of a site.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct SiteHolder {
    pid: u32,
    live: String,
}

/// Maximum number of listed processes per site.
const MAX_HOLDERS: usize = 20;

impl SiteDetails {
    /// Finds a site by its id: in the list of all sites, or else in those of processes. `paths`:
    /// with whole paths.
    pub fn find(snapshot: &Snapshot, id: &str, paths: bool) -> Option<Self> {
        let of_processes = snapshot.processes.iter().flat_map(|process| &process.sites);
        let mut all = snapshot.sites.iter().chain(&snapshot.tensor_sites).chain(of_processes);
        let site = all.find(|site| site.name.to_string() == id)?;
        let verdict = verdict_of(site, snapshot, None);
        let holder = |one: &engine::snapshot::SiteProcess| {
            Some(SiteHolder { pid: one.pid?.0, live: compact_size(one.live_bytes.0) })
        };
        Some(Self {
            item: SiteItem::of(site, snapshot, None),
            location: site_location(site),
            processes: site.processes.iter().filter_map(holder).take(MAX_HOLDERS).collect(),
            summary: verdict.map(|one| verdict::summary(one.resource, one.verdict, &one.evidence)),
            evidence: verdict.map_or_else(Vec::new, verdict::evidence),
            stack: stack(&redacted(&site.frames, paths)),
        })
    }
}
