//! Compares two files site by site. Ids and addresses are meaningless across files, so sites match
//! if all their frames do: function, file, line and module. Of the remaining sites, those match
//! whose functions and modules agree, if that match is unique: lines move between builds.

use std::cmp::Reverse;

use hashbrown::HashMap;

use super::Amount;
use super::groups::{Group, GroupTable};
use crate::model::named::named_enum;
use crate::model::{Frame, MemoryKind, SiteId, StackTable};

/// A file to compare.
#[derive(Clone, Copy, Debug)]
pub struct DiffInput<'a> {
    /// Its totals by group.
    pub groups: &'a GroupTable,
    /// Its stacks.
    pub stacks: &'a StackTable,
}

/// A site in one file, summed over processes and devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiffSide {
    /// Its stack in that file.
    pub site: Option<SiteId>,
    /// Memory that was never freed.
    pub never_freed: Amount,
    /// All allocations.
    pub allocated: Amount,
    /// Sum of the peaks of its groups.
    pub peak_bytes: u64,
}

named_enum! {
    /// Change of a site from the first file to the second.
    pub enum Trend {
        /// Only in the second file.
        New => "new",
        /// More memory was never freed, or the same with a higher peak.
        Grew => "grew",
        /// Less memory was never freed, or the same with a lower peak.
        Shrank => "shrank",
        /// Only in the first file.
        Gone => "removed",
        /// No change.
        Same => "unchanged",
    }
}

/// A site of either file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiffRow {
    /// Memory kind.
    pub kind: MemoryKind,
    /// How it changed.
    pub trend: Trend,
    /// Whether file or line of a frame differs.
    pub moved: bool,
    /// Values in the first file, if it has the site.
    pub before: Option<DiffSide>,
    /// Values in the second file, if it has the site.
    pub after: Option<DiffSide>,
}

/// Result of a comparison.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Diff {
    /// Memory never freed, before and after.
    pub never_freed: (Amount, Amount),
    /// Peaks, before and after, over all processes and devices.
    pub peak_bytes: (u64, u64),
    /// All sites, largest difference first.
    pub rows: Vec<DiffRow>,
}

type DiffKey<'a> = (&'a str, Option<&'a str>, u32, Option<&'a str>);

type SiteIndex<'a> = HashMap<(MemoryKind, Vec<DiffKey<'a>>), DiffSide>;

fn exact_key(frame: &Frame) -> DiffKey<'_> {
    (&frame.function, frame.file.as_deref(), frame.line, frame.module.as_deref())
}

fn rough_key<'a>(frame: &DiffKey<'a>) -> DiffKey<'a> {
    (frame.0, None, 0, frame.3)
}

fn sites<'a>(file: &DiffInput<'a>) -> SiteIndex<'a> {
    let scope = file.groups.scope();
    let mut sites = SiteIndex::new();
    for group in file.groups.iter().filter(|group| scope.counts(group.key.kind)) {
        let frames: Vec<_> = match group.key.site {
            Some(site) => file.stacks.frames(site).map(exact_key).collect(),
            None => Vec::new(),
        };
        sites.entry((group.key.kind, frames)).or_default().add(&group);
    }
    sites
}

impl DiffSide {
    fn add(&mut self, group: &Group) {
        self.site = self.site.or(group.key.site);
        self.never_freed = self.never_freed.plus(group.never_freed());
        self.allocated = self.allocated.plus(group.allocated);
        self.peak_bytes = self.peak_bytes.saturating_add(group.peak_bytes);
    }
}

impl Diff {
    /// Compares two files.
    pub fn of(before: &DiffInput<'_>, after: &DiffInput<'_>) -> Self {
        let mut rows = Vec::new();
        let (mut old, mut new) = (sites(before), sites(after));
        let sum = |sites: &SiteIndex<'_>| {
            sites.values().fold(Amount::default(), |sum, side| sum.plus(side.never_freed))
        };
        let never_freed = (sum(&old), sum(&new));
        old.retain(|key, before| match new.remove(key) {
            Some(after) => {
                rows.push(DiffRow::new(key.0, Some(*before), Some(after), false));
                false
            }
            None => true,
        });
        pair_moved(&mut old, &mut new, &mut rows);
        rows.extend(old.iter().map(|(key, side)| DiffRow::new(key.0, Some(*side), None, false)));
        rows.extend(new.iter().map(|(key, side)| DiffRow::new(key.0, None, Some(*side), false)));
        rows.sort_by_key(|row| {
            let site = |side: Option<DiffSide>| side.map(|side| side.site);
            (Reverse(row.difference()), row.trend, row.kind, site(row.before), site(row.after))
        });
        let peak_bytes = (before.groups.peak().0, after.groups.peak().0);
        Self { never_freed, peak_bytes, rows }
    }
}

/// Matches remaining sites whose functions and modules agree, if there is one on each side.
fn pair_moved<'a>(old: &mut SiteIndex<'a>, new: &mut SiteIndex<'a>, rows: &mut Vec<DiffRow>) {
    type Rough<'a> = (MemoryKind, Vec<DiffKey<'a>>);
    let rough = |key: &Rough<'a>| -> Rough<'a> { (key.0, key.1.iter().map(rough_key).collect()) };
    let mut candidates: HashMap<Rough<'a>, (Vec<Rough<'a>>, Vec<Rough<'a>>)> = HashMap::new();
    for key in old.keys() {
        candidates.entry(rough(key)).or_default().0.push(key.clone());
    }
    for key in new.keys() {
        candidates.entry(rough(key)).or_default().1.push(key.clone());
    }
    for (before, after) in candidates.into_values() {
        if let ([before], [after]) = (&before[..], &after[..])
            && let (Some(from), Some(to)) = (old.remove(before), new.remove(after))
        {
            rows.push(DiffRow::new(before.0, Some(from), Some(to), true));
        }
    }
}

impl DiffRow {
    fn new(
        kind: MemoryKind,
        before: Option<DiffSide>,
        after: Option<DiffSide>,
        moved: bool,
    ) -> Self {
        let trend = match (before, after) {
            (None, _) => Trend::New,
            (_, None) => Trend::Gone,
            (Some(before), Some(after)) => {
                let live = after.never_freed.bytes.cmp(&before.never_freed.bytes);
                match live.then(after.peak_bytes.cmp(&before.peak_bytes)) {
                    std::cmp::Ordering::Greater => Trend::Grew,
                    std::cmp::Ordering::Less => Trend::Shrank,
                    std::cmp::Ordering::Equal => Trend::Same,
                }
            }
        };
        Self { kind, trend, moved, before, after }
    }

    /// Absolute differences of the memory never freed and of the peak.
    fn difference(&self) -> (u64, u64) {
        let (before, after) = (self.before.unwrap_or_default(), self.after.unwrap_or_default());
        (
            after.never_freed.bytes.abs_diff(before.never_freed.bytes),
            after.peak_bytes.abs_diff(before.peak_bytes),
        )
    }
}
