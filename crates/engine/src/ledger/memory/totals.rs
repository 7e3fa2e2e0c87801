//! Totals that are updated with every event, so that a report never sums up live allocations.

pub(crate) use crate::model::units::ByteSum;
use crate::model::{Bytes, DeviceId, MemoryKind, Timestamp};
use crate::snapshot::KindView;

use super::allocation::AllocationEntry;
use super::peak_bounds::PeakBounds;

/// Bytes and number of allocations.
#[derive(Clone, Copy, Debug, Default)]
struct KindTotal {
    bytes: ByteSum,
    count: u64,
    /// Number of allocations of unknown size.
    unknown_sizes: u64,
}

impl KindTotal {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes.add(bytes);
        self.unknown_sizes += u64::from(bytes == 0);
    }

    fn subtract(&mut self, bytes: u64) {
        self.count = self.count.saturating_sub(1);
        self.bytes.subtract(bytes);
        self.unknown_sizes = self.unknown_sizes.saturating_sub(u64::from(bytes == 0));
    }

    fn view(&self, kind: MemoryKind) -> KindView {
        KindView {
            kind,
            live_bytes: self.bytes.bytes(),
            live_allocations: self.count,
            unknown_sizes: self.unknown_sizes,
        }
    }
}

/// Totals by kind, for an owner with few kinds.
#[derive(Clone, Debug, Default)]
pub(crate) struct KindSums(Vec<(MemoryKind, KindTotal)>);

impl KindSums {
    pub(crate) fn add(&mut self, kind: MemoryKind, bytes: u64) {
        self.of(kind).add(bytes);
    }

    pub(crate) fn subtract(&mut self, kind: MemoryKind, bytes: u64) {
        self.of(kind).subtract(bytes);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// All kinds with allocations, in order.
    pub(crate) fn views(&self) -> Vec<KindView> {
        let live = self.0.iter().filter(|(_, total)| total.count > 0);
        let mut views: Vec<_> = live.map(|(kind, total)| total.view(*kind)).collect();
        views.sort_unstable_by_key(|view| view.kind);
        views
    }

    fn of(&mut self, kind: MemoryKind) -> &mut KindTotal {
        let known = self.0.iter().position(|(known, _)| *known == kind);
        let at = known.unwrap_or_else(|| {
            self.0.push((kind, KindTotal::default()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }
}

/// Device memory on one device.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceTotal {
    pub(crate) device: Option<DeviceId>,
    pub(crate) live: ByteSum,
    pub(crate) peak: ByteSum,
    bounds: PeakBounds,
}

/// Peak of the device memory since some time.
#[derive(Clone, Debug)]
struct PeakWindow {
    id: u64,
    peak: ByteSum,
    bounds: PeakBounds,
}

/// Entry and return time of a call.
type Call = (Timestamp, Timestamp);

/// Totals of one process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    /// Live device memory.
    pub(crate) live: ByteSum,
    /// Number of live allocations of all kinds.
    pub(crate) count: u64,
    /// Peak of `live` so far, and when it was reached.
    pub(crate) peak: ByteSum,
    pub(crate) peak_at: Timestamp,
    bounds: PeakBounds,
    kinds: [KindTotal; MemoryKind::COUNT],
    /// Ordered by device, the unknown one last.
    devices: Vec<DeviceTotal>,
    /// Peaks of measurements that have not ended.
    windows: Vec<PeakWindow>,
}

impl Totals {
    pub(crate) fn new(at: Timestamp) -> Self {
        Self { peak_at: at, ..Self::default() }
    }

    /// Tracks the peak from a time on.
    pub(crate) fn open_window(&mut self, id: u64, at: Timestamp) {
        let bounds = PeakBounds::starting_with(self.live.bytes(), at);
        self.windows.push(PeakWindow { id, peak: self.live, bounds });
    }

    /// Returns the peak since the window was opened, and its bounds if they differ.
    pub(crate) fn close_window(&mut self, id: u64) -> Option<(Bytes, Option<(Bytes, Bytes)>)> {
        let index = self.windows.iter().position(|window| window.id == id)?;
        let window = self.windows.swap_remove(index);
        Some((window.peak.bytes(), window.bounds.bounds()))
    }

    /// Adds an allocation made by a call.
    pub(crate) fn add(&mut self, entry: &AllocationEntry, call: Call) {
        self.count += 1;
        self.kinds[entry.kind.index()].add(entry.bytes);
        if entry.kind.takes_device_memory() {
            self.live.add(entry.bytes);
            if self.live > self.peak {
                self.peak = self.live;
                self.peak_at = entry.returned_at;
            }
            self.bounds.add(call, entry.bytes);
            for window in &mut self.windows {
                window.peak = window.peak.max(self.live);
                window.bounds.add(call, entry.bytes);
            }
            self.device(entry.device()).add(call, entry.bytes);
        }
    }

    /// Removes an allocation freed by a call.
    pub(crate) fn subtract(&mut self, entry: &AllocationEntry, call: Call) {
        self.count = self.count.saturating_sub(1);
        self.kinds[entry.kind.index()].subtract(entry.bytes);
        if entry.kind.takes_device_memory() {
            self.live.subtract(entry.bytes);
            self.bounds.subtract(call, entry.bytes);
            for window in &mut self.windows {
                window.bounds.subtract(call, entry.bytes);
            }
            self.device(entry.device()).subtract(call, entry.bytes);
        }
    }

    /// Corrects a free: memory seen to end in a call entered at `until` had ended in one entered at
    /// `from`.
    pub(crate) fn ended_earlier(
        &mut self,
        device: Option<DeviceId>,
        from: Timestamp,
        until: Timestamp,
        bytes: u64,
    ) {
        if bytes > 0 {
            self.bounds.correct_end(from, until, bytes);
            for window in &mut self.windows {
                window.bounds.correct_end(from, until, bytes);
            }
            self.device(device).bounds.correct_end(from, until, bytes);
        }
    }

    /// Moves a live allocation to its device when that becomes known, at `at`. The device has had
    /// the memory since the allocation.
    pub(crate) fn set_device(&mut self, entry: &AllocationEntry, device: DeviceId, at: Timestamp) {
        if entry.kind.takes_device_memory() {
            self.device(entry.device()).subtract((at, at), entry.bytes);
            self.device(Some(device)).add((entry.returned_at, at), entry.bytes);
        }
    }

    /// Lower and upper bound of the peak, if they differ.
    pub(crate) fn peak_bounds(&self) -> Option<(Bytes, Bytes)> {
        self.bounds.bounds()
    }

    /// Called when all device memory of the process is known to have been on this device: its peak
    /// is that of the process, if no other device had any and none is unplaced.
    pub(crate) fn attribute_peak_to(&mut self, device: DeviceId) {
        let is_only = |on: &DeviceTotal| on.device.is_none() || on.device == Some(device);
        let is_placed = self.unplaced() == ByteSum::default();
        if is_placed && !self.devices.is_empty() && self.devices.iter().all(is_only) {
            let (peak, bounds) = (self.peak, self.bounds.clone());
            let on = self.device(Some(device));
            (on.peak, on.bounds) = (peak, bounds);
        }
    }

    /// Device memory whose device is unknown.
    pub(crate) fn unplaced(&self) -> ByteSum {
        let unknown = self.devices.last().filter(|on| on.device.is_none());
        unknown.map_or_else(ByteSum::default, |on| on.live)
    }

    /// Updates the size of a live allocation that is not device memory when it becomes known.
    pub(crate) fn resize(&mut self, entry: &AllocationEntry, bytes: u64) {
        let kind = &mut self.kinds[entry.kind.index()];
        kind.subtract(entry.bytes);
        kind.add(bytes);
    }

    /// All devices with memory so far, in order; the unknown one last.
    pub(crate) fn devices(&self) -> &[DeviceTotal] {
        &self.devices
    }

    /// Bytes of one kind.
    pub(crate) fn of(&self, kind: MemoryKind) -> ByteSum {
        self.kinds[kind.index()].bytes
    }

    /// All kinds with allocations.
    pub(crate) fn kinds(&self) -> Vec<KindView> {
        let live =
            MemoryKind::ALL.into_iter().zip(&self.kinds).filter(|(_, total)| total.count > 0);
        live.map(|(kind, total)| total.view(kind)).collect()
    }

    fn position(&self, device: Option<DeviceId>) -> Result<usize, usize> {
        let rank = |device: Option<DeviceId>| (device.is_none(), device);
        self.devices.binary_search_by_key(&rank(device), |on| rank(on.device))
    }

    fn device(&mut self, device: Option<DeviceId>) -> &mut DeviceTotal {
        let at = self.position(device).unwrap_or_else(|at| {
            self.devices.insert(at, DeviceTotal { device, ..DeviceTotal::default() });
            at
        });
        &mut self.devices[at]
    }
}

impl DeviceTotal {
    fn add(&mut self, call: Call, bytes: u64) {
        self.live.add(bytes);
        self.peak = self.peak.max(self.live);
        self.bounds.add(call, bytes);
    }

    fn subtract(&mut self, call: Call, bytes: u64) {
        self.live.subtract(bytes);
        self.bounds.subtract(call, bytes);
    }

    /// The least and the most that the peak can have been, where they differ.
    pub(crate) fn peak_bounds(&self) -> Option<(Bytes, Bytes)> {
        self.bounds.bounds()
    }
}

#[cfg(test)]
mod tests {
    use super::super::allocation::NewAllocation;
    use super::*;
    use crate::model::ids::AllocationKey;

    const CALL: Call = (Timestamp(1), Timestamp(1));

    fn entry(kind: MemoryKind, bytes: u64, at: u64, device: Option<u16>) -> AllocationEntry {
        let device = device.map(DeviceId);
        AllocationEntry::new(
            &NewAllocation {
                device,
                ..NewAllocation::plain(AllocationKey::address(1), kind, bytes)
            },
            Timestamp(at),
            0,
        )
    }

    #[test]
    fn peak_time_is_when_it_was_first_reached() {
        let mut totals = Totals::new(Timestamp(1));
        let big = entry(MemoryKind::Device, 10, 5, Some(0));
        totals.add(&big, CALL);
        totals.subtract(&big, CALL);
        totals.add(&entry(MemoryKind::Device, 10, 7, Some(0)), CALL);
        assert_eq!((totals.peak.bytes(), totals.peak_at), (Bytes(10), Timestamp(5)));
    }

    #[test]
    fn layers_that_take_no_device_memory_are_counted_by_kind_only() {
        let mut totals = Totals::new(Timestamp(1));
        totals.add(&entry(MemoryKind::Managed, 10, 5, Some(0)), CALL);
        totals.add(&entry(MemoryKind::Pinned, 10, 5, Some(0)), CALL);
        assert_eq!((totals.live.bytes(), totals.count), (Bytes(0), 2));
        assert!(totals.devices().is_empty());
        assert_eq!(totals.kinds().len(), 2);
    }

    #[test]
    fn huge_sizes_saturate_and_cancel_out() {
        let mut totals = Totals::new(Timestamp(1));
        let huge = entry(MemoryKind::Device, u64::MAX, 5, Some(0));
        totals.add(&huge, CALL);
        totals.add(&huge, CALL);
        assert_eq!(totals.live.bytes(), Bytes(u64::MAX));
        totals.subtract(&huge, CALL);
        totals.subtract(&huge, CALL);
        assert_eq!(totals.live.bytes(), Bytes(0));
    }

    #[test]
    fn devices_are_in_order_and_the_unknown_one_is_last() {
        let mut totals = Totals::new(Timestamp(1));
        for device in [None, Some(3), Some(1)] {
            totals.add(&entry(MemoryKind::Device, 1, 1, device), CALL);
        }
        let devices: Vec<_> = totals.devices().iter().map(|view| view.device).collect();
        assert_eq!(devices, [Some(DeviceId(1)), Some(DeviceId(3)), None]);
    }
}
