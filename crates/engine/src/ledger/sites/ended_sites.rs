//! Sites of processes that were in a snapshot as ended, for the last report.

use crate::model::Pid;

use super::table::SiteTable;

/// Limit of rows kept by process; beyond it, the oldest processes are merged.
const MAX_ROWS: usize = 65_536;

/// Sites of ended processes.
#[derive(Debug, Default)]
pub(crate) struct EndedSites {
    by_process: Vec<(Pid, SiteTable)>,
    rows: usize,
    /// Sites of merged processes.
    merged: SiteTable,
}

impl EndedSites {
    /// Keeps the sites of an ended process that was in a snapshot.
    pub(crate) fn push(&mut self, pid: Pid, mut table: SiteTable) {
        if table.len() == 0 {
            return;
        }
        table.reset_delta();
        table.freeze();
        self.rows += table.len();
        self.by_process.push((pid, table));
        if self.rows > MAX_ROWS && self.by_process.len() > 1 {
            self.merge_oldest();
        }
    }

    /// Merges half of the processes at once, so that this is rare.
    fn merge_oldest(&mut self) {
        let half = self.by_process.len().div_ceil(2);
        let oldest: Vec<_> = self.by_process.drain(..half).collect();
        if self.merged.len() == 0 {
            self.merged = oldest.first().map_or_else(SiteTable::default, |(_, table)| {
                SiteTable::starting_at(table.start())
            });
        }
        for (_, table) in oldest {
            self.rows -= table.len();
            self.merged.absorb(table);
        }
    }

    /// All tables, with their process if known.
    pub(crate) fn tables(&self) -> impl Iterator<Item = (Option<Pid>, &SiteTable)> {
        let known = self.by_process.iter().map(|(pid, table)| (Some(*pid), table));
        known.chain([(None, &self.merged)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::memory::allocation::{AllocationEntry, NewAllocation};
    use crate::model::ids::{AllocationKey, SiteId, Tid};
    use crate::model::memory_kind::MemoryKind;
    use crate::model::units::Timestamp;

    fn table(sites: std::ops::Range<u32>) -> SiteTable {
        let mut table = SiteTable::starting_at(Timestamp(0));
        for site in sites {
            let new = NewAllocation::plain(AllocationKey::address(1), MemoryKind::Device, 8);
            let _ = table.add(
                &AllocationEntry::new(
                    &NewAllocation { site: Some(SiteId(site)), ..new },
                    Timestamp(5),
                    0,
                ),
                Some(Tid(1)),
                false,
            );
        }
        table
    }

    #[test]
    fn oldest_processes_are_merged_beyond_the_limit() {
        let mut ended_sites = EndedSites::default();
        ended_sites.push(Pid(1), table(0..0));
        for pid in 2..=5 {
            ended_sites.push(Pid(pid), table(0..30_000));
        }
        let tables: Vec<_> = ended_sites.tables().collect();
        let pids: Vec<_> = tables.iter().map(|(pid, _)| pid.map(|pid| pid.0)).collect();
        assert_eq!(pids, [Some(4), Some(5), None]);
        let rows = || tables.iter().flat_map(|(_, table)| table.rows());
        assert_eq!(rows().map(|row| row.track.count).sum::<u64>(), 120_000);
        assert_eq!(rows().map(|row| row.track.live.bytes().0).sum::<u64>(), 960_000);
        assert_eq!(rows().count(), 90_000);
    }
}
