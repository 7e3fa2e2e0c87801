//! CUDA objects other than memory, computed from a complete log.

use std::collections::BTreeMap;

use engine::model::cuda_object::{ObjectCall, ObjectKind};
use engine::model::event::Event;
use engine::model::ids::{ContextId, SiteId};
use engine::model::units::Timestamp;
use engine::snapshot::{ObjectView, SiteObjectView};

use super::process::Process;

#[derive(Clone, Copy)]
pub(super) struct Object {
    kind: ObjectKind,
    handle: u64,
    context: Option<ContextId>,
    site: Option<SiteId>,
    at: Timestamp,
    /// A context ended since, and the object's context is unknown.
    doubtful: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum ObjectOp {
    Created,
    Destroyed,
    Replaced,
    Released,
    /// Destroyed but not live: it had been replaced.
    Late,
    /// Destroyed, and its creation was not seen.
    Unknown,
}

/// A log line about an object of a site.
#[derive(Clone, Copy)]
pub(super) struct ObjectLine {
    pub(super) at: Timestamp,
    pub(super) site: Option<SiteId>,
    pub(super) kind: ObjectKind,
    pub(super) op: ObjectOp,
}

/// Returns the number of live objects after each line.
fn live_counts(lines: &[ObjectLine]) -> Vec<u64> {
    let mut live = 0_u64;
    let mut all = vec![0];
    for line in lines {
        match line.op {
            ObjectOp::Created => live += 1,
            ObjectOp::Destroyed | ObjectOp::Replaced | ObjectOp::Released => live -= 1,
            ObjectOp::Late | ObjectOp::Unknown => {}
        }
        all.push(live);
    }
    all
}

fn number(lines: &[ObjectLine], ops: &[ObjectOp]) -> u64 {
    lines.iter().filter(|line| ops.contains(&line.op)).count() as u64
}

/// Groups lines by kind.
fn by_kind<'a>(
    lines: impl Iterator<Item = &'a ObjectLine>,
) -> BTreeMap<ObjectKind, Vec<ObjectLine>> {
    let mut kinds: BTreeMap<_, Vec<_>> = BTreeMap::new();
    lines.for_each(|line| kinds.entry(line.kind).or_default().push(*line));
    kinds
}

/// Returns the objects of a site.
pub(super) fn of_site(lines: &[ObjectLine]) -> Vec<SiteObjectView> {
    let view = |(kind, lines): (ObjectKind, Vec<ObjectLine>)| SiteObjectView {
        kind,
        live: live_counts(&lines).last().copied().unwrap_or(0),
        created: number(&lines, &[ObjectOp::Created]),
        destroyed: number(&lines, &[ObjectOp::Destroyed, ObjectOp::Replaced]),
    };
    by_kind(lines.iter()).into_iter().map(view).collect()
}

impl Process {
    fn end_object(&mut self, position: usize, op: ObjectOp) {
        let Object { kind, site, .. } = self.objects.remove(position);
        self.object_log.push(ObjectLine { at: self.now, site, kind, op });
    }

    pub(super) fn object(&mut self, event: &Event, call: ObjectCall) {
        match call {
            ObjectCall::Created { kind, handle, context, site } => {
                let same = |old: &Object| (old.kind, old.handle) == (kind, handle);
                if let Some(position) = self.objects.iter().position(same) {
                    self.end_object(position, ObjectOp::Replaced);
                    self.pending_destroys.push((kind, handle));
                }
                let keeps = matches!(
                    kind,
                    ObjectKind::Graph
                        | ObjectKind::GraphExec
                        | ObjectKind::Library
                        | ObjectKind::Context
                        | ObjectKind::GreenContext
                        | ObjectKind::Pool
                );
                let context = context.filter(|id| id.0 != 0 && !keeps);
                let (at, doubtful) = (event.time, keeps);
                self.objects.push(Object { kind, handle, context, site, at, doubtful });
                let op = ObjectOp::Created;
                self.object_log.push(ObjectLine { at: event.time, site, kind, op });
            }
            // Costs are not part of the model.
            ObjectCall::Image { .. } => {}
            ObjectCall::Destroyed { kind, handle } => {
                let own = |old: &Object| {
                    (old.kind, old.handle) == (kind, handle) && old.at <= event.entry_time
                };
                let pending = self.pending_destroys.iter().position(|name| *name == (kind, handle));
                if let Some(position) = self.objects.iter().position(own) {
                    self.end_object(position, ObjectOp::Destroyed);
                    return;
                }
                let op = pending.map_or(ObjectOp::Unknown, |pending| {
                    self.pending_destroys.remove(pending);
                    ObjectOp::Late
                });
                self.object_log.push(ObjectLine { at: event.time, site: None, kind, op });
            }
        }
    }

    pub(super) fn release_objects(&mut self, context: ContextId, until: Timestamp) {
        let gone = |old: &Object| old.context == Some(context) && old.at <= until;
        while let Some(position) = self.objects.iter().position(gone) {
            self.end_object(position, ObjectOp::Released);
        }
    }

    /// Returns the number of objects that were not in doubt before.
    pub(super) fn doubt_objects(&mut self) -> u64 {
        let unknown = |object: &&mut Object| object.context.is_none() && !object.doubtful;
        let new = self.objects.iter_mut().filter(unknown);
        new.map(|object| object.doubtful = true).count() as u64
    }

    pub(super) fn object_views(&self) -> Vec<ObjectView> {
        let view = |(kind, lines): (ObjectKind, Vec<ObjectLine>)| ObjectView {
            kind,
            live: self.objects.iter().filter(|object| object.kind == kind).count() as u64,
            created: number(&lines, &[ObjectOp::Created]),
            destroyed: number(&lines, &[ObjectOp::Destroyed, ObjectOp::Late]),
            released: number(&lines, &[ObjectOp::Released]),
            peak: live_counts(&lines).into_iter().max().unwrap_or(0),
            unknown_destroys: number(&lines, &[ObjectOp::Unknown]),
            untracked: 0,
        };
        by_kind(self.object_log.iter()).into_iter().map(view).collect()
    }

    /// Returns the lines of objects that are in the site tables.
    pub(super) fn object_lines(&self) -> impl Iterator<Item = &ObjectLine> {
        let in_site_table =
            |line: &&ObjectLine| !matches!(line.op, ObjectOp::Late | ObjectOp::Unknown);
        self.object_log.iter().filter(in_site_table)
    }
}
