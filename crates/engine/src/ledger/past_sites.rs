//! Sites of processes that were in a snapshot as ended: the last report counts them too.

use crate::ids::Pid;
use crate::units::Moment;

use super::sites::SiteTable;

/// Rows that are kept by process; beyond it the oldest are put together.
const ROWS: usize = 65_536;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct PastSites {
    by_process: Vec<(Pid, SiteTable)>,
    rows: usize,
    /// Of processes that are too many to be told apart.
    together: SiteTable,
}

impl PastSites {
    /// Keeps what a process that is gone did; it was shown at that moment.
    pub(super) fn push(&mut self, pid: Pid, mut table: SiteTable, at: Moment) {
        if table.len() == 0 {
            return;
        }
        table.mark_shown();
        self.rows += table.len();
        self.by_process.push((pid, table));
        if self.rows > ROWS && self.by_process.len() > 1 {
            self.put_together(at);
        }
    }

    /// Half of the processes at once, so that it is done rarely.
    fn put_together(&mut self, at: Moment) {
        let half = self.by_process.len().div_ceil(2);
        let oldest: Vec<_> = self.by_process.drain(..half).collect();
        if self.together.len() == 0 {
            self.together = oldest
                .first()
                .map_or_else(SiteTable::default, |(_, table)| SiteTable::since(table.start()));
        }
        self.together.advance(at);
        for (_, mut table) in oldest {
            self.rows -= table.len();
            table.advance(at);
            self.together.absorb(table);
        }
    }

    /// Every table, with the process where that is known.
    pub(super) fn tables(&mut self, at: Moment) -> impl Iterator<Item = (Option<Pid>, &SiteTable)> {
        let Self { by_process, together, .. } = self;
        together.advance(at);
        by_process.iter_mut().for_each(|(_, table)| table.advance(at));
        let known = by_process.iter().map(|(pid, table)| (Some(*pid), table));
        known.chain([(None, &*together)])
    }
}
