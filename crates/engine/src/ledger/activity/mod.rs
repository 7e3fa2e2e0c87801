//! GPU activity of one process: launches by kernel, copies by direction.

pub(super) mod address_map;
pub(super) mod kernel_rows;

use std::cmp::Reverse;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::model::activity;
use crate::model::{
    AddressType, Bytes, CopyActivity, CopyDirection, Event, EventKind, GraphCall, KernelId,
    KernelLaunches, LaunchShape, LaunchTarget, NameSource, Nanos, Timestamp, UnnamedReason,
    VmmCall,
};
use crate::snapshot::{ActivityView, CopyView, KernelView};

use super::activity::address_map::{AddressMap, PointerLocation};
use super::activity::kernel_rows::{KernelRow, KernelRowKey};

/// Limit of kernel names per process. Programs that compile kernels at run time have thousands;
/// beyond the limit, names of kernels that were never launched are dropped from time to time.
const MAX_KERNEL_NAMES: usize = 200_000;

/// Activity of one process.
#[derive(Debug, Default)]
pub(super) struct ProcessActivity {
    kernels: HashMap<LaunchTarget, KernelActivity>,
    /// Kernels that no longer exist and whose handles were reused.
    retired: HashMap<Arc<str>, (KernelId, KernelActivity)>,
    names: HashMap<KernelId, KernelNameState>,
    aliases: HashMap<KernelId, KernelId>,
    /// Number of names at which unused ones are dropped next; at least [`MAX_KERNEL_NAMES`].
    names_limit: usize,
    /// Shapes of a handle at the time it was reused for another kernel.
    shapes_before: HashMap<KernelId, ShapeCounts>,
    /// Number of launch events so far.
    launch_events: u64,
    copies: HashMap<(CopyDirection, bool), CopyTotals>,
    addresses: AddressMap,
    /// Time of the last snapshot.
    shown_at: Option<Timestamp>,
}

/// Name of a kernel, if known.
#[derive(Clone, Debug)]
pub(super) enum KernelNameState {
    Known(Arc<str>, NameSource),
    Unknown(UnnamedReason),
}

/// Launches with one handle.
#[derive(Clone, Debug, Default)]
pub(super) struct KernelActivity {
    pub(super) calls: u64,
    pub(super) captured: u64,
    pub(super) checked: u64,
    pub(super) failed: u64,
    /// Last shape, and the number of the event that reported it.
    pub(super) last: Option<(u64, LaunchShape)>,
    /// Over all kernels that had this handle.
    pub(super) shapes: ShapeCounts,
    /// Launches up to the last snapshot.
    pub(super) shown: u64,
}

/// Calls by shape, as reported by the probes: totals since the start.
#[derive(Clone, Debug, Default)]
pub(super) struct ShapeCounts {
    pub(super) counts: Vec<(LaunchShape, u64)>,
    pub(super) other: u64,
}

impl KernelActivity {
    pub(super) const fn launches(&self) -> u64 {
        self.calls.saturating_sub(self.captured).saturating_sub(self.failed)
    }
}

#[derive(Clone, Debug, Default)]
struct CopyTotals {
    calls: u64,
    bytes: u64,
    nanos: u64,
    bandwidths: HashMap<u8, u64>,
    shown: u64,
}

impl ProcessActivity {
    /// Number of kernels and graphs that were launched.
    pub(super) fn kernel_count(&self) -> u64 {
        (self.kernels.len() + self.retired.len()) as u64
    }

    /// Applies activity from the probes. `complete`: all memory of the process is known, so that
    /// any address unknown to the driver is pageable host memory.
    pub(super) fn apply(&mut self, activity: &activity::GpuActivity, complete: bool) {
        match activity {
            activity::GpuActivity::Launches(launches) => self.launched(launches),
            activity::GpuActivity::Named { kernel, name, source } => {
                self.rename(*kernel, KernelNameState::Known(name.as_ref().into(), *source));
            }
            activity::GpuActivity::Unnamed { kernel, reason } => {
                let known = matches!(self.names.get(kernel), Some(KernelNameState::Known(..)));
                if !known {
                    self.rename(*kernel, KernelNameState::Unknown(*reason));
                }
            }
            activity::GpuActivity::Alias { function, kernel } => {
                // The handle of the kernel may be reused later, while this one stays the same.
                if let Some(name @ KernelNameState::Known(..)) = self.name(*kernel).cloned() {
                    self.rename(*function, name);
                    return;
                }
                self.names.remove(function);
                if self.aliases.len() >= MAX_KERNEL_NAMES {
                    self.aliases.clear();
                }
                self.aliases.insert(*function, *kernel);
            }
            activity::GpuActivity::Copies(copies) => self.copied(copies, complete),
        }
    }

    /// Records the addresses of driver memory.
    pub(super) fn record_address(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Allocate(new) if new.key.space == AddressType::Pointer => {
                self.addresses.set(new.key.value, new.bytes, PointerLocation::lookup(new.kind));
            }
            EventKind::Vmm(VmmCall::Map { address, bytes, .. })
            | EventKind::Graph(GraphCall::AllocNode { address, bytes, .. }) => {
                self.addresses.set(*address, *bytes, PointerLocation::Device);
            }
            _ => {}
        }
    }

    fn rename(&mut self, kernel: KernelId, name: KernelNameState) {
        if self.names.len() >= self.names_limit.max(MAX_KERNEL_NAMES) {
            let kernels = &self.kernels;
            self.names.retain(|kernel, _| kernels.contains_key(&LaunchTarget::Kernel(*kernel)));
            self.names_limit = self.names.len().saturating_mul(2);
        }
        self.retire(kernel, &name);
        self.aliases.remove(&kernel);
        self.names.insert(kernel, name);
    }

    /// Handles the reuse of a handle: earlier launches with it belong to another kernel.
    fn retire(&mut self, handle: KernelId, name: &KernelNameState) {
        let (Some(KernelNameState::Known(old, _)), KernelNameState::Known(new, _)) =
            (self.name(handle), name)
        else {
            return;
        };
        if old == new {
            return;
        }
        let old = Arc::clone(old);
        if let Some(kernel) = self.kernels.remove(&LaunchTarget::Kernel(handle)) {
            let (_, retired) =
                self.retired.entry(old).or_insert_with(|| (handle, KernelActivity::default()));
            retired.calls = retired.calls.saturating_add(kernel.calls);
            retired.captured = retired.captured.saturating_add(kernel.captured);
            retired.checked = retired.checked.saturating_add(kernel.checked);
            retired.failed = retired.failed.saturating_add(kernel.failed);
            retired.shown = retired.shown.saturating_add(kernel.shown);
            retired.last = kernel.last.max(retired.last);
            retired.shapes.other = retired.shapes.other.saturating_add(kernel.calls);
            self.shapes_before.insert(handle, kernel.shapes);
        }
    }

    fn launched(&mut self, new: &KernelLaunches) {
        let kernel = self.kernels.entry(new.target).or_default();
        kernel.calls = kernel.calls.saturating_add(new.calls);
        kernel.captured = kernel.captured.saturating_add(new.captured);
        kernel.checked = kernel.checked.saturating_add(new.checked);
        kernel.failed = kernel.failed.saturating_add(new.failed);
        if new.last.is_some() || new.other_shapes > 0 {
            self.launch_events += 1;
            kernel.last = new.last.map(|shape| (self.launch_events, shape)).or(kernel.last);
            kernel.shapes = ShapeCounts { counts: new.shapes.clone(), other: new.other_shapes };
        }
    }

    fn copied(&mut self, new: &CopyActivity, complete: bool) {
        let direction = match new.pointers {
            Some((to, from)) => self.addresses.direction(to, from, complete),
            None => new.direction,
        };
        let sum = self.copies.entry((direction, new.asynchronous)).or_default();
        sum.calls = sum.calls.saturating_add(new.calls);
        sum.bytes = sum.bytes.saturating_add(new.bytes);
        sum.nanos = sum.nanos.saturating_add(new.nanos);
        for (bucket, count) in &new.bandwidths {
            let sum = sum.bandwidths.entry(*bucket).or_default();
            *sum = sum.saturating_add(*count);
        }
    }

    fn name(&self, kernel: KernelId) -> Option<&KernelNameState> {
        let own = self.names.get(&kernel);
        own.or_else(|| self.names.get(self.aliases.get(&kernel)?))
    }

    /// Called when the process ends: from now on, its whole activity counts as recent.
    pub(super) fn finish(&mut self) {
        self.shown_at = None;
        let retired = self.retired.values_mut().map(|(_, kernel)| kernel);
        self.kernels.values_mut().chain(retired).for_each(|kernel| kernel.shown = 0);
        self.copies.values_mut().for_each(|copies| copies.shown = 0);
    }

    /// Returns the view for a snapshot: kernels by name, most launches first. Resets the counts
    /// since the last snapshot.
    pub(super) fn view(&mut self, at: Timestamp, start: Timestamp, top: usize) -> ActivityView {
        let mut rows: HashMap<KernelRowKey, KernelRow> = HashMap::new();
        for (launched, kernel) in &self.kernels {
            let (name, before) = match launched {
                LaunchTarget::Kernel(kernel) => {
                    (self.name(*kernel), self.shapes_before.get(kernel))
                }
                LaunchTarget::Graph(_) => (None, None),
            };
            let key = match name {
                Some(KernelNameState::Known(name, _)) => KernelRowKey::Named(Arc::clone(name)),
                _ => KernelRowKey::Handle(*launched),
            };
            let row = rows.entry(key).or_insert_with(|| KernelRow::new(*launched, name));
            row.add(*launched, name, kernel, before);
        }
        for (name, (handle, kernel)) in &self.retired {
            let known = KernelNameState::Known(Arc::clone(name), NameSource::Call);
            let target = LaunchTarget::Kernel(*handle);
            let row = rows.entry(KernelRowKey::Named(Arc::clone(name)));
            let row = row.or_insert_with(|| KernelRow::new(target, Some(&known)));
            row.add(target, Some(&known), kernel, None);
        }
        let mut kernels: Vec<_> = rows.into_values().map(KernelRow::finish).collect();
        kernels.sort_by(|a, b| {
            let rank = |row: &KernelView| (Reverse(row.launches), row.name.clone(), row.target);
            rank(a).cmp(&rank(b))
        });
        let sum =
            |of: fn(&KernelView) -> u64| kernels.iter().map(of).fold(0_u64, u64::saturating_add);
        let view = ActivityView {
            launches: sum(|row| row.launches),
            recent_launches: sum(|row| row.recent),
            captured: sum(|row| row.captured),
            failed: sum(|row| row.failed),
            checked: sum(|row| row.checked),
            window: at - self.shown_at.unwrap_or(start),
            kernels_total: kernels.len() as u64,
            copies: self.copy_views(),
            kernels: {
                kernels.truncate(top);
                kernels
            },
        };
        self.shown_at = Some(at);
        let retired = self.retired.values_mut().map(|(_, kernel)| kernel);
        for kernel in self.kernels.values_mut().chain(retired) {
            kernel.shown = kernel.launches();
        }
        for copies in self.copies.values_mut() {
            copies.shown = copies.bytes;
        }
        view
    }

    fn copy_views(&self) -> Vec<CopyView> {
        let mut views: Vec<_> = self
            .copies
            .iter()
            .map(|((direction, asynchronous), sum)| {
                let mut bandwidths: Vec<_> =
                    sum.bandwidths.iter().map(|(bucket, count)| (*bucket, *count)).collect();
                bandwidths.sort_unstable();
                CopyView {
                    direction: *direction,
                    asynchronous: *asynchronous,
                    calls: sum.calls,
                    bytes: Bytes(sum.bytes),
                    recent_bytes: Bytes(sum.bytes.saturating_sub(sum.shown)),
                    time: Nanos(sum.nanos),
                    bandwidths,
                }
            })
            .collect();
        views.sort_by_key(|view| (view.direction, view.asynchronous));
        views
    }
}
