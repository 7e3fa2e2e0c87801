//! Sites of one process, and of tensors of all processes.

use engine::model::{Bytes, Timestamp};
use engine::snapshot::SiteView;
use engine::verdict::{Resource, SiteVerdict};

use super::processes::added;
use super::{columns, percent, sparkline};
use crate::report::live::text::format_duration;
use crate::report::verdict::{objects, verdict_label};
use crate::report::view::site_location;
use crate::report::view::units::{compact_count, compact_size};
use crate::sanitize::sanitize;

/// Width of the chart of a site.
const CHART_WIDTH: usize = 12;

columns! {
    /// Returns the cells of a site. `verdict`: its worst one, if it was classified. `baseline`: show what
    /// was added since then.
    pub const COLUMNS, pub fn cells(site: &SiteView, verdict: Option<&SiteVerdict>, baseline: Option<Timestamp>)
    let {
        let live = match baseline {
            Some(at) => added(site.live_bytes, site.growth.level_at(at)),
            None => estimated(site, compact_size(site.live_bytes.0)),
        };
        let live = if site.live_bytes.0 == 0 && site.kinds.is_empty() { String::new() } else { live };
        let growth = verdict.map(|one| (one.resource, one.evidence.growth_per_hour));
        let growth = match growth {
            Some((_, 0)) => "·".to_owned(),
            Some((Resource::Objects(_), rate)) => format!("+{}", compact_count(rate)),
            Some((_, rate)) => format!("+{}", compact_size(rate)),
            None => String::new(),
        };
        let history: Vec<u64> = site.growth.live.iter().map(|bytes| bytes.0).collect();
        let is_memory = !site.kinds.is_empty() || site.objects.is_empty();
        let allocations = if is_memory { estimated(site, compact_count(site.live_allocations)) } else { String::new() };
        let life = site.median_lifetime().map_or_else(String::new, format_duration);
    }
    {
        place("PLACE", 12, 0): sanitize(&site_location(site.name, &site.frames)).into_owned(),
        right("LIVE", 0): live,
        right("ALLOCS", 3): allocations,
        right("FREED", 4): percent(site.freed_total, site.allocations_total),
        right("LIFE", 7): life,
        right("GROWTH/H", 1): growth,
        left("HISTORY", 5): sparkline(&history, CHART_WIDTH),
        left("VERDICT", 2): verdict.map_or_else(String::new, label),
        flexible("KIND", 6, 6): kinds(site),
    }
}

/// Marks a value of a site that is an estimate.
pub(crate) fn estimated(site: &SiteView, value: String) -> String {
    if site.sampling.is_some() { format!("~{value}") } else { value }
}

/// Returns `leak, likely` or `plateau`.
pub(crate) fn label(verdict: &SiteVerdict) -> String {
    match verdict.verdict {
        engine::verdict::Verdict::Leak => format!("leak, {}", verdict.confidence.name()),
        other => verdict_label(other).to_owned(),
    }
}

/// Returns the kinds of memory and objects: `device`, `pinned, 3 events`.
fn kinds(site: &SiteView) -> String {
    let memory = site.kinds.iter().map(|view| view.kind.name().to_owned());
    let of_objects = site.objects.iter().map(|view| objects(view.kind, view.live));
    memory.chain(of_objects).collect::<Vec<_>>().join(", ")
}

/// Returns the parts of the line above the sites of a process: what its memory consists of.
pub fn composition(process: &engine::snapshot::ProcessView) -> Vec<String> {
    let mut parts: Vec<String> = process
        .kinds
        .iter()
        .filter(|view| view.kind.allocator().is_none())
        .map(|view| {
            let size = compact_size(view.live_bytes.0);
            let count = compact_count(view.live_allocations);
            let noun = if view.live_allocations == 1 { "alloc" } else { "allocs" };
            format!("{} {size} in {count} {noun}", view.kind.name())
        })
        .collect();
    if let Some(untracked) = process.untracked().filter(|bytes| *bytes > Bytes(0)) {
        parts.push(format!("untracked {} (contexts, code)", compact_size(untracked.0)));
    }
    for view in &process.allocators {
        let (title, noun) = (view.allocator.title(), view.allocator.noun());
        for pool in &view.pools {
            let [allocated, cached] = [pool.allocated, pool.cached()].map(|b| compact_size(b.0));
            parts.push(format!("{title}: {noun}s {allocated}, cached {cached}"));
        }
    }
    if parts.is_empty() {
        parts.push("no live memory".to_owned());
    }
    parts
}
