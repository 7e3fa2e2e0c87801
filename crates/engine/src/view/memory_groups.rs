//! Memory by what it belongs to: the library that allocated it, or the user, job or process tree of
//! its process.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{ProcessRow, View};
use crate::model::named::named_enum;
use crate::model::{Bytes, Pid};
use crate::snapshot::LibraryView;

/// Name of the group of processes without a job.
const NO_JOB: &str = "no job";

named_enum! {
    /// What a report groups memory by.
    pub enum Grouping {
        /// Library that allocated it.
        Library => "library",
        /// User of the process.
        User => "user",
        /// Job of the process.
        Job => "job",
        /// Process tree.
        Tree => "tree",
    }
}

/// Memory of one group. Ended processes count with what they had not freed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupRow<'a> {
    /// Name of the group (untrusted); `None` for driver-reported memory that was not traced.
    pub name: Option<Cow<'a, str>>,
    /// Used device memory: of a library what was traced; of processes what the driver reports, or
    /// else what was traced.
    pub used: Bytes,
    /// What was traced of it; its `library` is unused.
    pub traced: LibraryView,
    /// Processes that hold it or held it, in the order of [`View::processes`].
    pub pids: Vec<Pid>,
}

impl<'a> View<'a> {
    /// Returns memory by group, largest first. By library, the row of memory that was not traced is
    /// the last.
    /// Cost: O(processes and their groups).
    pub fn groups(&self, by: Grouping) -> Vec<GroupRow<'a>> {
        match by {
            Grouping::Library => self.libraries(),
            Grouping::User => self.by_process(|row| row.user.clone()),
            Grouping::Job => self.by_process(|row| {
                let job = row.process.identity.group.job.as_deref();
                Cow::Borrowed(job.unwrap_or(NO_JOB))
            }),
            Grouping::Tree => self.by_process(|row| match &row.process.identity.group.tree {
                Some((pid, program)) => Cow::Owned(format!("{program} ({pid})")),
                None => Cow::Owned(format!("{} ({})", row.program, row.process.key.pid)),
            }),
        }
    }

    /// Adds up processes by a name.
    fn by_process(&self, name: impl Fn(&ProcessRow<'a>) -> Cow<'a, str>) -> Vec<GroupRow<'a>> {
        let mut rows: BTreeMap<Cow<'a, str>, GroupRow<'a>> = BTreeMap::new();
        for process in &self.processes {
            let name = name(process);
            let row = rows.entry(name.clone()).or_insert_with(|| GroupRow {
                name: Some(name),
                used: Bytes(0),
                traced: LibraryView::default(),
                pids: Vec::new(),
            });
            row.used = Bytes(row.used.0.saturating_add(process.used.0));
            for view in &process.process.libraries {
                row.traced = std::mem::take(&mut row.traced).merge(view);
            }
            row.pids.push(process.process.key.pid);
        }
        let mut rows: Vec<_> = rows.into_values().collect();
        rows.sort_by_key(|row| (Reverse(row.used), row.name.clone()));
        rows
    }

    fn libraries(&self) -> Vec<GroupRow<'a>> {
        let mut rows: BTreeMap<&'a str, GroupRow<'a>> = BTreeMap::new();
        let mut untracked = (Bytes(0), Vec::new());
        for row in &self.processes {
            let process = row.process;
            for view in &process.libraries {
                let known = rows.entry(&view.library).or_insert_with(|| GroupRow {
                    name: Some(Cow::Borrowed(&view.library)),
                    used: Bytes(0),
                    traced: LibraryView::default(),
                    pids: Vec::new(),
                });
                known.traced = std::mem::take(&mut known.traced).merge(view);
                known.used = known.traced.live_bytes;
                known.pids.push(process.key.pid);
            }
            let rest = process.untracked().filter(|rest| process.ended.is_none() && rest.0 > 0);
            if let Some(rest) = rest {
                untracked.0 = Bytes(untracked.0.0.saturating_add(rest.0));
                untracked.1.push(process.key.pid);
            }
        }
        let mut rows: Vec<_> = rows.into_values().collect();
        rows.sort_by_key(|row| {
            (Reverse(row.used), Reverse(row.traced.bytes_total), row.name.clone())
        });
        let (used, pids) = untracked;
        let traced = LibraryView::default();
        rows.extend((used.0 > 0).then_some(GroupRow { name: None, used, traced, pids }));
        rows
    }
}
