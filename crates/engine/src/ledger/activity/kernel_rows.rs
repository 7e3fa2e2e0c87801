//! Kernels in a snapshot: one row per name, whatever handles it was launched with.

use std::cmp::Reverse;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::model::activity::{LaunchShape, LaunchTarget, UnnamedReason};
use crate::snapshot::KernelView;

use super::{KernelActivity, KernelNameState, ShapeCounts};

/// Identifies a row.
#[derive(PartialEq, Eq, Hash)]
pub(in crate::ledger) enum KernelRowKey {
    Named(Arc<str>),
    Handle(LaunchTarget),
}

/// A row while it is computed. The result does not depend on the order of the handles.
pub(in crate::ledger) struct KernelRow {
    view: KernelView,
    handles: HashSet<LaunchTarget>,
    last: Option<(u64, LaunchShape)>,
    shapes: HashMap<LaunchShape, u64>,
    /// Calls whose shape is unknown, or may belong to another kernel.
    other: u64,
}

impl KernelRow {
    pub(in crate::ledger) fn new(target: LaunchTarget, name: Option<&KernelNameState>) -> Self {
        let (name, by, why) = match (target, name) {
            (_, Some(KernelNameState::Known(name, by))) => {
                (Some(Arc::clone(name)), Some(*by), None)
            }
            (_, Some(KernelNameState::Unknown(why))) => (None, None, Some(*why)),
            (LaunchTarget::Kernel(_), None) => (None, None, Some(UnnamedReason::Lost)),
            (LaunchTarget::Graph(_), None) => (None, None, None),
        };
        let view = KernelView {
            target,
            name,
            by,
            why,
            handles: 0,
            launches: 0,
            recent: 0,
            captured: 0,
            failed: 0,
            checked: 0,
            last: None,
            common: None,
            common_is_exact: true,
        };
        let (handles, shapes) = (HashSet::new(), HashMap::new());
        Self { view, handles, last: None, shapes, other: 0 }
    }

    /// Adds a handle. `before`: shapes of the previous kernel with this handle.
    pub(in crate::ledger) fn add(
        &mut self,
        handle: LaunchTarget,
        name: Option<&KernelNameState>,
        kernel: &KernelActivity,
        before: Option<&ShapeCounts>,
    ) {
        let row = &mut self.view;
        row.target = row.target.min(handle);
        if let Some(KernelNameState::Known(_, by)) = name {
            row.by = row.by.map(|known| known.min(*by));
        }
        row.launches = row.launches.saturating_add(kernel.launches());
        row.recent = row.recent.saturating_add(kernel.launches().saturating_sub(kernel.shown));
        row.captured = row.captured.saturating_add(kernel.captured);
        row.failed = row.failed.saturating_add(kernel.failed);
        row.checked = row.checked.saturating_add(kernel.checked);
        self.handles.insert(handle);
        self.last = self.last.max(kernel.last);
        self.add_shapes(kernel, before);
    }

    fn add_shapes(&mut self, kernel: &KernelActivity, before: Option<&ShapeCounts>) {
        let mut other = kernel.shapes.other;
        let mut taken = HashMap::new();
        if let Some(before) = before {
            other = other.saturating_sub(before.other);
            taken.extend(before.kept.iter().copied());
        }
        // If the handle was reused, some calls of its previous kernel may still be included.
        let mut left = kernel.calls;
        for (shape, count) in &kernel.shapes.kept {
            let own = count.saturating_sub(taken.get(shape).copied().unwrap_or(0));
            let sure = own.min(left);
            left -= sure;
            other = other.saturating_add(own - sure);
            if sure > 0 {
                let sum = self.shapes.entry(*shape).or_default();
                *sum = sum.saturating_add(sure);
            }
        }
        self.other = self.other.saturating_add(other);
    }

    /// Returns the row, with the values that depend on all handles.
    pub(in crate::ledger) fn finish(self) -> KernelView {
        let Self { mut view, handles, last, shapes, other } = self;
        let mut counts: Vec<(LaunchShape, u64)> = shapes.into_iter().collect();
        counts.sort_unstable_by_key(|(shape, count)| (Reverse(*count), *shape));
        view.handles = handles.len() as u64;
        view.last = last.map(|(_, shape)| shape);
        view.common = counts.first().copied();
        let runner_up = counts.get(1).map_or(0, |(_, count)| *count);
        // All calls with an unknown shape could have had the same other shape.
        view.common_is_exact =
            view.common.map_or(0, |(_, count)| count) >= runner_up.saturating_add(other);
        view
    }
}
