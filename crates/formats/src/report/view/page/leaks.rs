//! Leaks: one row each, and the evidence and call stacks of a leak on request.

use std::collections::HashSet;

use engine::verdict::SiteVerdict;
use engine::view::{Leak, View};
use serde::Serialize;

use super::{FrameItem, Keyed, redacted, stack};
use crate::report::tables::columns;
use crate::report::verdict;
use crate::report::view::{
    growth, held, held_phrase, leak_location, leak_pids, leak_sentence, location, rate,
};
use crate::sanitize::sanitize;

columns! {
    /// Returns the cells of a leak.
    pub const LEAK_COLUMNS, fn cells(leak: &Leak<'_>)
    let { let (size, number) = held(leak); }
    {
        right("PID", 0): leak_pids(leak),
        left("PROGRAM", 0): sanitize(&leak.program).into_owned(),
        left("LEAKS AT", 0): sanitize(&leak_location(leak)).into_owned(),
        right("HOLDS", 0): size,
        left("", 0): number,
        right("GROWS", 0): rate(leak),
        left("CONFIDENCE", 0): leak.confidence.name().to_owned(),
    }
}

/// A leak.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LeakItem {
    key: String,
    cells: Vec<String>,
    sentence: String,
    advice: String,
    pids: Vec<u32>,
}

impl LeakItem {
    /// Returns the first leaks of a view.
    pub fn all(view: &View<'_>, limit: usize) -> Vec<Self> {
        let keyed = keys(view).into_iter().zip(&view.leaks).take(limit);
        keyed.map(|(key, leak)| Self::of(key, leak)).collect()
    }

    fn of(key: String, leak: &Leak<'_>) -> Self {
        Self {
            key,
            cells: cells(leak),
            sentence: sanitize(&leak_sentence(leak)).into_owned(),
            advice: sanitize(&leak.advice.text).into_owned(),
            pids: pids(leak),
        }
    }
}

impl Keyed for LeakItem {
    fn key(&self) -> &str {
        &self.key
    }
}

fn pids(leak: &Leak<'_>) -> Vec<u32> {
    leak.processes.iter().filter_map(|process| Some(process.pid?.0)).collect()
}

/// Returns a key per leak that stays the same while the leak grows.
fn keys(view: &View<'_>) -> Vec<String> {
    let mut seen = HashSet::new();
    let key = |leak: &Leak<'_>| {
        let place = location(leak.stack, &[]);
        let key = format!("{} {} {place}", leak.program, leak.resource.name());
        let key = sanitize(&key).into_owned();
        let mut number = 1;
        while !seen.insert((key.clone(), number)) {
            number += 1;
        }
        if number == 1 { key } else { format!("{key} {number}") }
    };
    view.leaks.iter().map(key).collect()
}

/// A leak with its evidence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LeakDetails {
    #[serde(flatten)]
    item: LeakItem,
    user: Option<String>,
    gpu: Option<u16>,
    holds: String,
    grows: String,
    sites: Vec<LeakSite>,
}

/// A site of a leak.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct LeakSite {
    site: String,
    pid: Option<u32>,
    location: String,
    holds: String,
    evidence: Vec<String>,
    stack: Vec<FrameItem>,
}

/// Maximum number of sites with evidence per leak, the fastest growing.
const MAX_SITES: usize = 8;

impl LeakDetails {
    /// Returns the leaks of a view that `is_wanted` selects. `paths`: with whole paths.
    pub fn all(view: &View<'_>, is_wanted: impl Fn(&Leak<'_>) -> bool, paths: bool) -> Vec<Self> {
        let keyed = keys(view).into_iter().zip(&view.leaks);
        let wanted = keyed.filter(|(_, leak)| is_wanted(leak));
        wanted.map(|(key, leak)| Self::of(key, leak, paths)).collect()
    }

    fn of(key: String, leak: &Leak<'_>, paths: bool) -> Self {
        let sites = leak.sites.iter().take(MAX_SITES);
        Self {
            item: LeakItem::of(key, leak),
            user: leak.user.map(|user| sanitize(user).into_owned()),
            gpu: leak.gpu.map(|gpu| gpu.0),
            holds: held_phrase(leak),
            grows: growth(leak),
            sites: sites.map(|site| LeakSite::of(site, paths)).collect(),
        }
    }
}

impl LeakSite {
    fn of(site: &SiteVerdict, paths: bool) -> Self {
        let frames = redacted(&site.frames, paths);
        let place = verdict::location(site.site, &frames);
        Self {
            site: site.site.to_string(),
            pid: site.pid.map(|pid| pid.0),
            location: sanitize(&place).into_owned(),
            holds: verdict::live(site.resource, &site.evidence),
            evidence: verdict::evidence(site),
            stack: stack(&frames),
        }
    }
}
