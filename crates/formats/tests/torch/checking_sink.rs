//! A sink that collects everything and checks the invariants of the interface.

use std::collections::BTreeMap;
use std::path::PathBuf;

use engine::model::caching_allocator::{AllocatorSettings, AllocatorStats, PoolTotals, Segment};
use engine::model::change::{AllocationChange, ChangeKind};
use engine::model::ids::{AllocationKey, DeviceId, Pid};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::StackTable;
use engine::model::units::Timestamp;
use formats::import::{ImportSink, Warning};

/// Output of a reader.
#[derive(Default)]
pub(crate) struct CheckingSink {
    pub(crate) stacks: StackTable,
    pub(crate) live: BTreeMap<AllocationKey, AllocationChange>,
    pub(crate) allocated: u64,
    pub(crate) ended: u64,
    pub(crate) peaks: BTreeMap<(MemoryKind, Option<DeviceId>), u64>,
    pub(crate) sums: BTreeMap<(MemoryKind, Option<DeviceId>), u64>,
    pub(crate) segments: Vec<Segment>,
    pub(crate) settings: Option<AllocatorSettings>,
    pub(crate) stats: Vec<AllocatorStats>,
    pub(crate) warnings: Vec<Warning>,
    pub(crate) clock: Option<(Timestamp, i64)>,
    now: Timestamp,
}

impl CheckingSink {
    pub(crate) fn live_bytes(&self, kind: MemoryKind) -> u64 {
        let of_kind = self.live.values().filter(|change| change.kind == kind);
        of_kind.map(|change| change.bytes).sum()
    }

    pub(crate) fn exact(&self) -> bool {
        self.warnings.iter().all(|warning| !warning.inexact)
    }

    pub(crate) fn warning(&self, part: &str) -> Option<&Warning> {
        self.warnings.iter().find(|warning| warning.text.contains(part))
    }
}

impl ImportSink for CheckingSink {
    fn stacks(&mut self) -> &mut StackTable {
        &mut self.stacks
    }

    fn change(&mut self, change: &AllocationChange) {
        assert!(change.at >= self.now, "time went backwards");
        self.now = change.at;
        let key = change.key;
        let counts = u64::from(change.kind != MemoryKind::Pool);
        let sum = self.sums.entry((change.kind, change.device)).or_default();
        match change.action {
            ChangeKind::Allocated => {
                self.allocated += counts;
                *sum += change.bytes;
                let peak = self.peaks.entry((change.kind, change.device)).or_default();
                *peak = (*peak).max(*sum);
                assert_eq!(self.live.insert(key, *change), None, "the key is live already");
            }
            ChangeKind::Ended { allocated_at, .. } => {
                self.ended += counts;
                *sum -= change.bytes;
                let older = self.live.remove(&key).expect("an end without an allocation");
                assert_eq!((older.at, older.bytes), (allocated_at, change.bytes));
                assert_eq!((older.site, older.stream), (change.site, change.stream));
            }
            ChangeKind::Updated { .. } => panic!("a snapshot has no late updates"),
        }
    }

    fn process(&mut self, _: Pid, _: &str) {}

    fn device(&mut self, _: DeviceId, _: &str, _: Option<u64>) {}

    fn clock(&mut self, moment: Timestamp, utc_nanos: i64) {
        assert_eq!(self.clock.replace((moment, utc_nanos)), None, "the clock is reported twice");
    }

    fn segment(&mut self, segment: Segment) {
        self.segments.push(segment);
    }

    fn pool(&mut self, _: &PoolTotals) {}

    fn cache_settings(&mut self, settings: &AllocatorSettings) {
        assert_eq!(self.settings.replace(settings.clone()), None, "settings are reported twice");
    }

    fn cache_stats(&mut self, stats: &AllocatorStats) {
        self.stats.push(*stats);
    }

    fn warn(&mut self, warning: Warning) {
        assert!(warning.count > 0);
        self.warnings.push(warning);
    }

    fn progress(&mut self, done: u64, total: u64) {
        assert!(done <= total);
    }
}

/// Returns the path of a file of this directory.
pub(crate) fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/torch").join(name)
}
