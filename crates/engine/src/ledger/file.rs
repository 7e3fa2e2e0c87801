//! Sites of other tools' files, which contain changes and no calls. They are kept and classified as
//! those of traced processes, so live traces and files have the same verdicts.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::leak;
use crate::model::{
    AllocationChange, ChangeKind, EndReason, MemoryKind, MemoryScope, Pid, ProcessInfo,
    SiteRegistry, StackTable, Timestamp,
};
use crate::snapshot::{ProcessEnd, ProcessView, Snapshot};

use super::memory::allocation::{AllocationEntry, NIL, NewAllocation};
use super::memory::totals::ByteSum;
use super::not_freed::NotFreedProcesses;
use super::process::Process;
use super::sites::anomaly_log;
use super::sites::table::SiteTable;
use super::sites::verdicts::{self, SiteVerdicts};

/// Limit of anomalies.
const MAX_ANOMALIES: usize = 1024;

/// Limit of verdicts on sites that are not suspects.
const MAX_OTHER_VERDICTS: usize = 4096;

/// Sites and anomalies of the processes of a file.
#[derive(Debug, Default)]
pub struct FileLedger {
    scope: MemoryScope,
    origin: Option<Timestamp>,
    end: Timestamp,
    processes: HashMap<Pid, FileProcess>,
    /// Processes whose pid was reused.
    older: Vec<FileProcess>,
}

/// A process, and its live memory in the scope of the file.
#[derive(Debug)]
struct FileProcess {
    process: Process,
    live: ByteSum,
}

impl FileProcess {
    fn new(pid: Pid, origin: Timestamp) -> Self {
        let info = ProcessInfo { start: 0, uid: 0, name: Box::default(), before_trace: false };
        let process = Process::new(pid, &info, origin).with_sites(SiteTable::starting_at(origin));
        Self { process, live: ByteSum::default() }
    }

    fn apply(&mut self, change: &AllocationChange, counts: bool) {
        let AllocationChange { at, key, kind, bytes, device, site, tid, .. } = *change;
        let Self { process, live } = self;
        let new = NewAllocation { key, kind, bytes, owner: NIL, device, site, stream: None };
        let allocated_at = match change.action {
            ChangeKind::Allocated => at,
            ChangeKind::Ended { allocated_at, .. } | ChangeKind::Updated { allocated_at, .. } => {
                allocated_at
            }
        };
        let entry = AllocationEntry::new(&new, allocated_at, NIL);
        let counted = if counts { bytes } else { 0 };
        match change.action {
            ChangeKind::Allocated => {
                let tid = (tid.0 != 0).then_some(tid);
                let before = process.sites.add(&entry, None, false);
                process.anomaly_log.observe(&entry, tid, before, live.bytes());
                live.add(counted);
            }
            ChangeKind::Ended { reason: EndReason::ProcessExited, .. } => {
                process.ended.get_or_insert((ProcessEnd::Exited, at));
                live.subtract(counted);
            }
            ChangeKind::Ended { reason, .. } => {
                process.sites.remove(&entry, reason, at, 1);
                process.anomaly_log.end(&entry);
                live.subtract(counted);
            }
            ChangeKind::Updated { before, .. } => {
                let older = NewAllocation { bytes: before.bytes, device: before.device, ..new };
                let older = AllocationEntry::new(&older, allocated_at, NIL);
                process.sites.resize(&older, bytes, at);
                if let Some(device) = device {
                    process.sites.learn_device(&older, device);
                    process.anomaly_log.learn_device(&older, device);
                }
                live.add(counted.saturating_sub(before.bytes));
            }
        }
    }

    fn view(&self) -> ProcessView {
        let Process { key, name, ended, .. } = &self.process;
        let ended = ended.map(|(end, _)| end);
        let live_bytes = self.live.bytes();
        ProcessView { key: *key, name: name.clone(), live_bytes, ended, ..ProcessView::default() }
    }
}

impl FileLedger {
    /// Creates an empty ledger; `scope` selects the memory that is classified.
    pub fn new(scope: MemoryScope) -> Self {
        Self { scope, ..Self::default() }
    }

    /// Adds a change.
    pub fn observe(&mut self, change: &AllocationChange) {
        let origin = *self.origin.get_or_insert(change.at);
        self.end = self.end.max(change.at);
        let is_classified = match self.scope {
            MemoryScope::Torch => change.kind == MemoryKind::Torch,
            MemoryScope::Device => leak::resource(change.kind).is_some(),
        };
        if !is_classified {
            return;
        }
        let new = || FileProcess::new(change.pid, origin);
        let process = self.processes.entry(change.pid).or_insert_with(new);
        // An allocation after the end of a process is of another one with the same pid.
        if change.action == ChangeKind::Allocated && process.process.ended.is_some() {
            self.older.push(std::mem::replace(process, new()));
        }
        process.apply(change, self.scope.counts(change.kind));
    }

    /// Returns the state at the end of the file: processes, verdicts and anomalies. `stacks` has the
    /// frames of the sites, `names` the names of processes.
    pub fn finish(self, stacks: &StackTable, names: &BTreeMap<Pid, String>) -> Snapshot {
        let registry = SiteRegistry::from(stacks.clone());
        let origin = self.origin.unwrap_or(self.end);
        let (mut verdicts, mut not_freed) = (SiteVerdicts::default(), NotFreedProcesses::default());
        let (mut views, mut anomalies) = (Vec::new(), Vec::new());
        let mut all: Vec<_> = self.older.into_iter().chain(self.processes.into_values()).collect();
        all.sort_by_key(|one| (Reverse(one.live), one.process.key));
        for mut one in all {
            let name = names.get(&one.process.key.pid).map(String::as_str).unwrap_or_default();
            one.process.name = name.into();
            views.push(one.view());
            if one.process.ended.is_some() {
                not_freed.push(&one.process);
            }
            // Nothing can change after the end of the file.
            one.process.ended.get_or_insert((ProcessEnd::Exited, self.end));
            verdicts.append(verdicts::of(&one.process, self.end, MAX_OTHER_VERDICTS, &registry));
            anomalies.extend(anomaly_log::views(&one.process, true, &registry));
        }
        anomalies.sort_by_key(|one| (one.at, one.pid));
        anomalies.truncate(MAX_ANOMALIES);
        let SiteVerdicts { suspects, others, suspects_total, .. } =
            verdicts.ranked(usize::MAX, MAX_OTHER_VERDICTS);
        Snapshot {
            at: self.end,
            observed: self.end - origin,
            processes: views,
            suspects,
            suspects_total,
            other_verdicts: others,
            anomalies,
            not_freed: not_freed.views(&registry),
            ..Snapshot::default()
        }
    }
}
