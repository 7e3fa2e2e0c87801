//! Processes grouped by user, container, GPU or ancestors.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::ProcessRow;
use crate::model::named::named_enum;
use crate::model::{Bytes, Nanos, Pid};

named_enum! {
    /// What processes are grouped by.
    #[derive(Default)]
    pub enum GroupBy {
        /// Not grouped.
        #[default]
        Nothing => "nothing",
        /// User.
        User => "user",
        /// Pod, or else the container.
        Container => "container",
        /// GPU with most of the memory of the process.
        Gpu => "GPU",
        /// Parents with their children.
        Tree => "process tree",
        /// Host.
        Host => "host",
    }
}

/// Sums of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupTotals {
    /// Number of processes.
    pub processes: usize,
    /// Of those: processes that leak.
    pub leaking: usize,
    /// Used device memory.
    pub used: Bytes,
    /// Growth per hour of those whose growth is known.
    pub growth_per_hour: Option<i64>,
    /// Live allocations.
    pub live_allocations: u64,
    /// The shortest time until a GPU is full.
    pub time_until_full: Option<Nanos>,
}

impl GroupTotals {
    /// Adds a process.
    pub fn add(&mut self, row: &ProcessRow<'_>) {
        self.processes += 1;
        self.leaking += usize::from(!row.leaks.is_empty());
        self.used = Bytes(self.used.0.saturating_add(row.used.0));
        if let Some(growth) = row.growth_per_hour {
            self.growth_per_hour = Some(self.growth_per_hour.unwrap_or(0).saturating_add(growth));
        }
        self.live_allocations = self.live_allocations.saturating_add(row.process.live_allocations);
        let times = [self.time_until_full, row.time_until_full];
        self.time_until_full = times.into_iter().flatten().min();
    }
}

/// Returns the group of a process (untrusted); `None` if it belongs to none. Trees and hosts are
/// not known from the process alone.
pub fn group_label<'a>(row: &'a ProcessRow<'_>, by: GroupBy) -> Option<Cow<'a, str>> {
    match by {
        GroupBy::Nothing | GroupBy::Tree | GroupBy::Host => None,
        GroupBy::User => Some(Cow::Borrowed(&row.user)),
        GroupBy::Gpu => row.gpus.first().map(|gpu| Cow::Owned(format!("GPU {}", gpu.0))),
        GroupBy::Container => {
            let container = row.process.container.as_deref()?;
            let pod = container.pod.as_ref();
            let named = pod.and_then(|pod| Some((pod.namespace.as_deref(), pod.name.as_deref()?)));
            Some(match named {
                Some((Some(namespace), name)) => Cow::Owned(format!("{namespace}/{name}")),
                Some((None, name)) => Cow::Borrowed(name),
                // As `docker ps` shows it.
                None => Cow::Owned(container.id.chars().take(12).collect()),
            })
        }
    }
}

/// Orders processes so that children follow their parents, and returns the index and the depth of
/// each. `parent` returns the parent of a process; ancestors that are not listed are skipped.
/// Siblings keep their order.
pub fn tree(pids: &[Pid], parent: &BTreeMap<Pid, Pid>) -> Vec<(usize, usize)> {
    let listed: BTreeMap<Pid, usize> =
        pids.iter().enumerate().map(|(index, pid)| (*pid, index)).collect();
    let above = |pid: Pid| {
        let mut seen = BTreeSet::from([pid]);
        let mut next = parent.get(&pid).copied();
        // Pids are reused, so the links can form a cycle.
        while let Some(pid) = next.filter(|pid| seen.insert(*pid)) {
            if let Some(index) = listed.get(&pid) {
                return Some(*index);
            }
            next = parent.get(&pid).copied();
        }
        None
    };
    let parents: Vec<Option<usize>> = pids.iter().map(|pid| above(*pid)).collect();
    let mut children: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
    for (index, parent) in parents.iter().enumerate() {
        children.entry(*parent).or_default().push(index);
    }
    let of = |parent: Option<usize>| children.get(&parent).map_or(&[][..], |all| all);
    let mut order = Vec::with_capacity(pids.len());
    let mut done = vec![false; pids.len()];
    let mut rest: Vec<(usize, usize)> = of(None).iter().rev().map(|index| (*index, 0)).collect();
    while let Some((index, depth)) = rest.pop() {
        order.push((index, depth));
        if let Some(done) = done.get_mut(index) {
            *done = true;
        }
        rest.extend(of(Some(index)).iter().rev().map(|child| (*child, depth + 1)));
    }
    // Members of a cycle have no root.
    let cycle = done.iter().enumerate().filter(|(_, done)| !**done);
    order.extend(cycle.map(|(index, _)| (index, 0)));
    order
}
