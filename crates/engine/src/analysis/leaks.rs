//! Memory that was never freed: live at the end of the file, or when its process ended.

use std::cmp::Reverse;

use super::groups::{Group, GroupTable};
use super::{Amount, GroupKey, by_kind, is_host, is_managed};
use crate::model::MemoryKind;

/// Memory of one group that was never freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeakGroup {
    /// Process, device, kind and site.
    pub key: GroupKey,
    /// Bytes and number of allocations.
    pub amount: Amount,
    /// Number of them that were live when their process ended; the others are live at the end of
    /// the file.
    pub at_exit: u64,
    /// Number of allocations ever made in this group.
    pub allocations_total: u64,
}

/// Memory that was never freed. Lists are sorted by size, largest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeakReport {
    /// Counted memory, including static variables.
    pub leaked: Amount,
    /// Part of it that was live when its process ended; the rest is live at the end of the file.
    pub at_exit: Amount,
    /// Static part of it: lives as long as its module and cannot be freed.
    pub statics: Amount,
    /// `leaked` by kind.
    pub by_kind: Vec<(MemoryKind, Amount)>,
    /// `leaked` by group, static variables last.
    pub sites: Vec<LeakGroup>,
    /// Managed memory, which may reside on the host.
    pub managed: Vec<LeakGroup>,
    /// Host memory.
    pub host: Vec<LeakGroup>,
    /// `host` by kind.
    pub host_by_kind: Vec<(MemoryKind, Amount)>,
    /// Everything else: pool reserves, imports, unknown kinds, framework caches next to device
    /// memory.
    pub other_by_kind: Vec<(MemoryKind, Amount)>,
}

impl LeakReport {
    /// Collects the memory that was never freed from the totals of a file.
    pub fn of(groups: &GroupTable) -> Self {
        let scope = groups.scope();
        let mut report = Self::default();
        let mut other = Vec::new();
        for group in groups.iter().filter(|group| group.never_freed().allocations > 0) {
            let kind = group.key.kind;
            if scope.counts(kind) {
                report.leaked = report.leaked.plus(group.never_freed());
                report.at_exit = report.at_exit.plus(group.exited);
                if kind.is_static() {
                    report.statics = report.statics.plus(group.never_freed());
                }
                report.sites.push(LeakGroup::of(&group));
            } else if is_managed(kind) {
                report.managed.push(LeakGroup::of(&group));
            } else if is_host(kind) {
                report.host.push(LeakGroup::of(&group));
            } else {
                other.push((kind, group.never_freed()));
            }
        }
        let kinds =
            |leaks: &[LeakGroup]| by_kind(leaks.iter().map(|leak| (leak.key.kind, leak.amount)));
        report.by_kind = kinds(&report.sites);
        report.host_by_kind = kinds(&report.host);
        report.other_by_kind = by_kind(other.into_iter());
        for list in [&mut report.sites, &mut report.managed, &mut report.host] {
            list.sort_by_key(|leak| {
                (leak.key.kind.is_static(), Reverse(leak.amount.bytes), leak.key)
            });
        }
        report
    }
}

impl LeakGroup {
    const fn of(group: &Group) -> Self {
        Self {
            key: group.key,
            amount: group.never_freed(),
            at_exit: group.exited.allocations,
            allocations_total: group.allocated.allocations,
        }
    }
}
