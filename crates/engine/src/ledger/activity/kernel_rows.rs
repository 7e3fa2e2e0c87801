//! Kernels in a snapshot: one row per name, whatever handles it was launched with.

use std::cmp::Reverse;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::model::{LaunchShape, LaunchTarget, UnnamedReason};
use crate::snapshot::KernelView;

use super::{KernelActivity, KernelNameState, ShapeCounts};

/// Identifies a row.
#[derive(PartialEq, Eq, Hash)]
pub(crate) enum KernelRowKey {
    Named(Arc<str>),
    Handle(LaunchTarget),
}

/// A row while it is computed. The result does not depend on the order of the handles.
pub(crate) struct KernelRow {
    view: KernelView,
    handles: HashSet<LaunchTarget>,
    last: Option<(u64, LaunchShape)>,
    shapes: HashMap<LaunchShape, u64>,
    /// Calls whose shape is unknown, or may belong to another kernel.
    other: u64,
}

impl KernelRow {
    pub(crate) fn new(target: LaunchTarget, name: Option<&KernelNameState>) -> Self {
        let (name, name_source, unnamed_reason) = match (target, name) {
            (_, Some(KernelNameState::Known(name, source))) => {
                (Some(Arc::clone(name)), Some(*source), None)
            }
            (_, Some(KernelNameState::Unknown(reason))) => (None, None, Some(*reason)),
            (LaunchTarget::Kernel(_), None) => (None, None, Some(UnnamedReason::Lost)),
            (LaunchTarget::Graph(_), None) => (None, None, None),
        };
        let view = KernelView {
            target,
            name,
            name_source,
            unnamed_reason,
            common_is_exact: true,
            ..KernelView::default()
        };
        let (handles, shapes) = (HashSet::new(), HashMap::new());
        Self { view, handles, last: None, shapes, other: 0 }
    }

    /// Adds a handle. `before`: shapes of the previous kernel with this handle.
    pub(crate) fn add(
        &mut self,
        handle: LaunchTarget,
        name: Option<&KernelNameState>,
        kernel: &KernelActivity,
        before: Option<&ShapeCounts>,
    ) {
        let row = &mut self.view;
        row.target = row.target.min(handle);
        if let Some(KernelNameState::Known(_, source)) = name {
            row.name_source = row.name_source.map(|known| known.min(*source));
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
        let mut previous = HashMap::new();
        if let Some(before) = before {
            other = other.saturating_sub(before.other);
            previous.extend(before.counts.iter().copied());
        }
        // If the handle was reused, some calls of its previous kernel may still be included.
        let mut remaining = kernel.calls;
        for (shape, count) in &kernel.shapes.counts {
            let own = count.saturating_sub(previous.get(shape).copied().unwrap_or(0));
            let certain = own.min(remaining);
            remaining -= certain;
            other = other.saturating_add(own - certain);
            if certain > 0 {
                let sum = self.shapes.entry(*shape).or_default();
                *sum = sum.saturating_add(certain);
            }
        }
        self.other = self.other.saturating_add(other);
    }

    /// Returns the row, with the values that depend on all handles.
    pub(crate) fn finish(self) -> KernelView {
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
