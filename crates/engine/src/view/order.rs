//! Orders of processes that a reader can choose.

use std::cmp::Reverse;

use super::{ProcessRow, View};
use crate::model::Bytes;
use crate::snapshot::SiteView;
use crate::verdict::{SiteVerdict, Verdict};

use crate::model::named::named_enum;

named_enum! {
    /// Order of processes.
    #[derive(Default)]
    pub enum ProcessOrder {
        /// Leaks first, by what fills a GPU first; then by used memory.
        #[default]
        Urgency => "urgency",
        /// Most used memory first.
        Used => "used",
        /// Fastest growing first.
        Growth => "growth",
        /// Those that fill a GPU first.
        TimeUntilFull => "time to full",
        /// Oldest first.
        Age => "age",
        /// Most live allocations first.
        Count => "count",
    }
}

named_enum! {
    /// Order of the sites of a process.
    #[derive(Default)]
    pub enum SiteOrder {
        /// Leaks first; then by live memory.
        #[default]
        Urgency => "urgency",
        /// Most live memory first.
        Live => "live memory",
        /// Most live allocations first.
        Count => "allocations",
        /// Fastest growing first.
        Growth => "growth",
        /// Shortest median lifetime first.
        Lifetime => "lifetime",
    }
}

impl SiteOrder {
    /// Sort key of a site with its worst verdict. Unknown values come last.
    pub fn rank(
        self,
        site: &SiteView,
        verdict: Option<&SiteVerdict>,
    ) -> (Reverse<(bool, u64)>, Reverse<Bytes>) {
        let growth = verdict.map_or(0, |one| one.evidence.growth_per_hour);
        let is_leak = verdict.is_some_and(|one| one.verdict == Verdict::Leak);
        let (first, value) = match self {
            Self::Urgency => (is_leak, site.live_bytes.0),
            Self::Live => (false, site.live_bytes.0),
            Self::Count => (false, site.live_allocations),
            Self::Growth => (verdict.is_some_and(|one| one.resource.is_bytes()), growth),
            Self::Lifetime => {
                let life = site.median_lifetime();
                (life.is_some(), life.map_or(0, |life| u64::MAX - life.0))
            }
        };
        (Reverse((first, value)), Reverse(site.live_bytes))
    }
}

impl ProcessOrder {
    /// Sort key of a process, over several hosts. Unknown values come last.
    pub fn rank(self, row: &ProcessRow<'_>) -> (bool, Reverse<i128>) {
        let value = match self {
            Self::Urgency if row.leaks.is_empty() => {
                return (true, Reverse(i128::from(row.used.0)));
            }
            Self::Urgency => {
                Some(row.time_until_full.map_or(i128::MIN, |time| -i128::from(time.0)))
            }
            Self::Used => Some(i128::from(row.used.0)),
            Self::Growth => row.growth_per_hour.map(i128::from),
            Self::TimeUntilFull => row.time_until_full.map(|time| -i128::from(time.0)),
            Self::Age => row.age.map(|age| i128::from(age.0)),
            Self::Count => Some(i128::from(row.process.live_allocations)),
        };
        (value.is_none(), Reverse(value.unwrap_or(0)))
    }
}

impl View<'_> {
    /// Indices of [`View::processes`] in an order; equal ones by urgency.
    pub fn ordered(&self, order: ProcessOrder) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.processes.len()).collect();
        // Processes are in this order already.
        if order != ProcessOrder::Urgency {
            all.sort_by_cached_key(|index| self.processes.get(*index).map(|row| order.rank(row)));
        }
        all
    }
}
