//! What was never freed: live at the end of the file, or when its process ended.

use std::cmp::Reverse;

use super::groups::{Group, Groups};
use super::{Amount, Place, by_kind, is_host, is_managed};
use crate::kind::Kind;

/// Memory of one place that was never freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leak {
    /// The place.
    pub place: Place,
    /// How much, and how many.
    pub amount: Amount,
    /// How many of them were live when their process ended; the others are live at the end of the
    /// file.
    pub at_exit: u64,
    /// All that ever began in this place.
    pub began: u64,
}

/// What was never freed. Lists are ordered by size, the biggest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Leakage {
    /// Memory that counts in this file, static variables included.
    pub leaked: Amount,
    /// The part of it that is static: there as long as its module, nobody can free it.
    pub statics: Amount,
    /// `leaked` by kind.
    pub by_kind: Vec<(Kind, Amount)>,
    /// `leaked` by place, static variables last.
    pub sites: Vec<Leak>,
    /// Managed memory, which may lie on the host.
    pub managed: Vec<Leak>,
    /// Host memory.
    pub host: Vec<Leak>,
    /// `host` by kind.
    pub host_by_kind: Vec<(Kind, Amount)>,
    /// What is neither: reserves of pools, imports, unknown kinds, caches beside device memory.
    pub other_by_kind: Vec<(Kind, Amount)>,
}

impl Leakage {
    /// What was never freed, by the sums of a file.
    #[must_use]
    pub fn of(groups: &Groups) -> Self {
        let measure = groups.measure();
        let mut leakage = Self::default();
        let mut other = Vec::new();
        for group in groups.iter().filter(|group| group.never_freed().allocations > 0) {
            let kind = group.place.kind;
            if measure.counts(kind) {
                leakage.leaked = leakage.leaked.plus(group.never_freed());
                if kind.is_static() {
                    leakage.statics = leakage.statics.plus(group.never_freed());
                }
                leakage.sites.push(Leak::of(&group));
            } else if is_managed(kind) {
                leakage.managed.push(Leak::of(&group));
            } else if is_host(kind) {
                leakage.host.push(Leak::of(&group));
            } else {
                other.push((kind, group.never_freed()));
            }
        }
        let kinds =
            |leaks: &[Leak]| by_kind(leaks.iter().map(|leak| (leak.place.kind, leak.amount)));
        leakage.by_kind = kinds(&leakage.sites);
        leakage.host_by_kind = kinds(&leakage.host);
        leakage.other_by_kind = by_kind(other.into_iter());
        for list in [&mut leakage.sites, &mut leakage.managed, &mut leakage.host] {
            list.sort_by_key(|leak| {
                (leak.place.kind.is_static(), Reverse(leak.amount.bytes), leak.place)
            });
        }
        leakage
    }

    /// What the program could have freed and did not.
    #[must_use]
    pub const fn avoidable(&self) -> Amount {
        Amount {
            bytes: self.leaked.bytes.saturating_sub(self.statics.bytes),
            allocations: self.leaked.allocations.saturating_sub(self.statics.allocations),
        }
    }
}

impl Leak {
    const fn of(group: &Group) -> Self {
        Self {
            place: group.place,
            amount: group.never_freed(),
            at_exit: group.exited.allocations,
            began: group.began.allocations,
        }
    }
}
