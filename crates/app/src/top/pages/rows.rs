//! The processes that are listed: filtered, sorted and grouped.

use engine::model::{Bytes, Mark, Pid};
use engine::view::{
    GroupBy, GroupTotals, ProcessOrder, ProcessRow, UsageHistory, View, group_label, tree,
};
use formats::report::tables::process_filter;
use formats::report::tables::processes::ProcessCells;

use crate::top::frame::{FrameHistory, HeldFrame, TopFrame};
use crate::top::state::State;

/// A frame with its views.
pub(crate) struct Shown<'a> {
    pub(crate) frame: &'a TopFrame,
    /// Number of the frame.
    pub(crate) number: u64,
    /// View of each host.
    pub(crate) views: Vec<View<'a>>,
    pub(crate) history: &'a FrameHistory,
    pub(crate) held: Option<&'a HeldFrame>,
}

/// A line of the list of processes.
pub(crate) enum Item {
    /// A group, with its sums.
    Group(String, GroupTotals),
    /// A process: host, index of the row, depth in the tree.
    Process(usize, usize, usize),
}

impl<'a> Shown<'a> {
    /// Returns a row.
    pub(crate) fn row(&self, host: usize, index: usize) -> Option<&ProcessRow<'a>> {
        self.views.get(host)?.processes.get(index)
    }

    /// Returns what the cells of a row need. `history`: used memory of the process over time.
    pub(crate) fn cells(
        &'a self,
        host: usize,
        row: &ProcessRow<'_>,
        history: &'a [u64],
        state: &State,
    ) -> Option<ProcessCells<'a>> {
        let baseline = state.baseline.as_ref().map(|frame| used_at(frame, host, row));
        let of = self.frame.hosts.get(host)?;
        let resident = of.resident.get(&row.process.key.pid).copied();
        let view = self.views.get(host)?;
        Some(ProcessCells { view, host: &of.name, history, baseline, resident })
    }

    /// Returns the values of a chart that ends at this frame.
    pub(crate) fn usage(
        &self,
        host: usize,
        values: impl FnOnce(&UsageHistory, u64) -> Vec<u64>,
    ) -> Vec<u64> {
        let usage = self.history.usage(self.held, host);
        usage.map(|usage| values(usage, self.number)).unwrap_or_default()
    }

    /// Returns the marks of a host, newest first, each with its place in a chart of `length` values
    /// that ends at this frame. `pid`: without those of other processes.
    pub(crate) fn marks(
        &self,
        host: usize,
        pid: Option<Pid>,
        length: usize,
    ) -> impl Iterator<Item = (usize, &Mark)> {
        let is_about = move |mark: &Mark| pid.is_none() || mark.pid.is_none() || mark.pid == pid;
        let first = (self.number + 1).saturating_sub(length as u64).max(1);
        let all = self.history.marks(self.number);
        let all = all.filter(move |(of, at, mark)| *of == host && *at >= first && is_about(mark));
        all.map(move |(_, at, mark)| (usize::try_from(at - first).unwrap_or(0), mark))
    }

    /// Returns the lines of the list of processes.
    pub(crate) fn items(&self, state: &State) -> Vec<Item> {
        let mut found = self.ordered(state);
        found.retain(|(host, index)| self.is_wanted(*host, *index, state));
        match state.group_by {
            GroupBy::Nothing => {
                found.into_iter().map(|(host, index)| Item::Process(host, index, 0)).collect()
            }
            GroupBy::Tree => self.as_tree(&found),
            by => self.grouped(&found, by, state),
        }
    }

    fn ordered(&self, state: &State) -> Vec<(usize, usize)> {
        let all = self.views.iter().enumerate().flat_map(|(host, view)| {
            view.ordered(state.order).into_iter().map(move |index| (host, index))
        });
        let mut all: Vec<_> = all.collect();
        if self.views.len() > 1 {
            let rank = |order: ProcessOrder, (host, index): (usize, usize)| {
                self.row(host, index).map(|row| order.rank(row))
            };
            all.sort_by_cached_key(|one| rank(state.order, *one));
        }
        if state.is_reversed {
            all.reverse();
        }
        all
    }

    fn is_wanted(&self, host: usize, index: usize, state: &State) -> bool {
        let Some(row) = self.row(host, index) else { return false };
        if state.only_leaks && row.leaks.is_empty() {
            return false;
        }
        state.filter.is_empty()
            || self
                .cells(host, row, &[], state)
                .is_some_and(|cells| process_filter::matches(row, &cells, &state.filter))
    }

    fn as_tree(&self, found: &[(usize, usize)]) -> Vec<Item> {
        let mut items = Vec::new();
        for (host, frame) in self.frame.hosts.iter().enumerate() {
            let own: Vec<usize> =
                found.iter().filter(|(of, _)| *of == host).map(|(_, index)| *index).collect();
            let pid = |index: &usize| self.row(host, *index).map(|row| row.process.key.pid);
            let pids: Vec<_> = own.iter().filter_map(pid).collect();
            for (position, depth) in tree(&pids, &frame.parents) {
                items.extend(own.get(position).map(|index| Item::Process(host, *index, depth)));
            }
        }
        items
    }

    fn grouped(&self, found: &[(usize, usize)], by: GroupBy, state: &State) -> Vec<Item> {
        let mut groups: Vec<(String, GroupTotals, Vec<Item>)> = Vec::new();
        for (host, index) in found {
            let Some(row) = self.row(*host, *index) else { continue };
            let label = match by {
                GroupBy::Host => self.frame.hosts.get(*host).map(|host| host.name.clone()),
                by => group_label(row, by).map(std::borrow::Cow::into_owned),
            };
            let label = label.unwrap_or_else(|| "(none)".to_owned());
            let position = groups.iter().position(|(known, ..)| *known == label);
            let position = position.unwrap_or_else(|| {
                groups.push((label, GroupTotals::default(), Vec::new()));
                groups.len() - 1
            });
            if let Some((_, totals, items)) = groups.get_mut(position) {
                totals.add(row);
                items.push(Item::Process(*host, *index, 1));
            }
        }
        let mut items = Vec::new();
        for (label, totals, members) in groups {
            let is_open = !state.collapsed.contains(&label);
            items.push(Item::Group(label, totals));
            items.extend(members.into_iter().filter(|_| is_open));
        }
        items
    }
}

/// Returns the memory that a process used at the baseline.
fn used_at(frame: &TopFrame, host: usize, row: &ProcessRow<'_>) -> Bytes {
    let host = frame.hosts.get(host);
    let process = host.and_then(|host| host.process(row.process.key));
    let reported = |process: &engine::snapshot::ProcessView| {
        process.driver_bytes().filter(|_| row.is_reported).unwrap_or(process.live_bytes)
    };
    process.map(reported).unwrap_or_default()
}
