//! A sink that collects everything and checks the invariants of the interface.

use std::collections::BTreeMap;
use std::path::PathBuf;

use engine::cache::{CacheLevels, CacheSettings, PoolSums, Segment};
use engine::change::{Change, Turn};
use engine::ids::{DeviceId, Key, Pid};
use engine::kind::Kind;
use engine::stack::Stacks;
use engine::units::Moment;
use formats::import::{Sink, Warning};

/// Keys are unique on their device.
pub(crate) type Name = (Kind, Option<DeviceId>, Key);

/// Output of a reader.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) stacks: Stacks,
    pub(crate) live: BTreeMap<Name, Change>,
    pub(crate) began: u64,
    pub(crate) ended: u64,
    pub(crate) peaks: BTreeMap<(Kind, Option<DeviceId>), u64>,
    pub(crate) sums: BTreeMap<(Kind, Option<DeviceId>), u64>,
    pub(crate) segments: Vec<Segment>,
    pub(crate) settings: Option<CacheSettings>,
    pub(crate) levels: Vec<CacheLevels>,
    pub(crate) warnings: Vec<Warning>,
    pub(crate) clock: Option<(Moment, i64)>,
    now: Moment,
}

impl Kept {
    pub(crate) fn live_bytes(&self, kind: Kind) -> u64 {
        let of_kind = self.live.iter().filter(|((its, ..), _)| *its == kind);
        of_kind.map(|(_, change)| change.bytes).sum()
    }

    pub(crate) fn exact(&self) -> bool {
        self.warnings.iter().all(|warning| !warning.inexact)
    }

    pub(crate) fn warning(&self, part: &str) -> Option<&Warning> {
        self.warnings.iter().find(|warning| warning.text.contains(part))
    }
}

impl Sink for Kept {
    fn stacks(&mut self) -> &mut Stacks {
        &mut self.stacks
    }

    fn change(&mut self, change: &Change) {
        assert!(change.at >= self.now, "time went backwards");
        self.now = change.at;
        let key = (change.kind, change.device, change.key);
        let counts = u64::from(change.kind != Kind::Pool);
        let sum = self.sums.entry((change.kind, change.device)).or_default();
        match change.what {
            Turn::Began => {
                self.began += counts;
                *sum += change.bytes;
                let peak = self.peaks.entry((change.kind, change.device)).or_default();
                *peak = (*peak).max(*sum);
                assert_eq!(self.live.insert(key, *change), None, "the key is live already");
            }
            Turn::Ended { began, .. } => {
                self.ended += counts;
                *sum -= change.bytes;
                let older = self.live.remove(&key).expect("an end without an allocation");
                assert_eq!((older.at, older.bytes), (began, change.bytes));
                assert_eq!((older.site, older.stream), (change.site, change.stream));
            }
            Turn::Learned { .. } => panic!("a snapshot has no late updates"),
        }
    }

    fn process(&mut self, _: Pid, _: &str) {}

    fn device(&mut self, _: DeviceId, _: &str, _: Option<u64>) {}

    fn clock(&mut self, moment: Moment, utc_nanos: i64) {
        assert_eq!(self.clock.replace((moment, utc_nanos)), None, "the clock is reported twice");
    }

    fn segment(&mut self, segment: Segment) {
        self.segments.push(segment);
    }

    fn pool(&mut self, _: &PoolSums) {}

    fn cache_settings(&mut self, settings: &CacheSettings) {
        assert_eq!(self.settings.replace(settings.clone()), None, "settings are reported twice");
    }

    fn cache_levels(&mut self, levels: &CacheLevels) {
        self.levels.push(*levels);
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
