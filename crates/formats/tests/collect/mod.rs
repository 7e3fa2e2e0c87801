//! A sink that collects everything, and checks the guarantees of every reader.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use engine::model::caching_allocator::{PoolTotals, Segment};
use engine::model::change::{AllocationChange, ChangeKind, EndReason};
use engine::model::ids::{AllocationKey, DeviceId, Pid, SiteId};
use engine::model::stack::{Language, StackTable};
use engine::model::units::Timestamp;
use formats::import::{ImportError, ImportSink, ImportSummary, Warning};

/// Output of a reader.
#[derive(Default)]
pub(crate) struct Collected {
    pub(crate) stacks: StackTable,
    pub(crate) changes: Vec<AllocationChange>,
    pub(crate) processes: Vec<(u32, String)>,
    pub(crate) devices: Vec<(u16, String, Option<u64>)>,
    pub(crate) clock: Option<(u64, i64)>,
    pub(crate) pools: Vec<PoolTotals>,
    pub(crate) warnings: Vec<Warning>,
    live: BTreeMap<(Pid, AllocationKey), AllocationChange>,
}

impl Collected {
    /// Reads a file and checks the reader's guarantees.
    pub(crate) fn read(path: &Path) -> Result<(Self, ImportSummary), ImportError> {
        let mut found = Self::default();
        let imported = formats::import::open(path, &mut found, |_| None)?;
        Ok((found, imported))
    }

    /// Returns live memory at the end, by allocation time.
    pub(crate) fn live(&self) -> Vec<&AllocationChange> {
        let mut live: Vec<_> = self.live.values().collect();
        live.sort_by_key(|change| (change.at, change.bytes));
        live
    }

    /// Formats frames briefly: `= synthetic`, `? module` of an unnamed one, or the function.
    pub(crate) fn frames(&self, site: Option<SiteId>) -> Vec<String> {
        let Some(site) = site else { return Vec::new() };
        let text = |frame: &engine::model::stack::Frame| match (frame.language, frame.unknown) {
            (_, Some(_)) => format!("? {}", frame.module.as_deref().unwrap_or_default()),
            // A marker stands in for frames, and is one of them.
            (Language::Synthetic, _) if !frame.function.starts_with('[') => {
                format!("= {}", frame.function)
            }
            _ => frame.function.to_string(),
        };
        self.stacks.frames(site).map(text).collect()
    }

    /// Returns the count of a warning, or 0.
    pub(crate) fn warned(&self, part: &str) -> u64 {
        self.warnings.iter().filter(|warning| warning.text.contains(part)).map(|w| w.count).sum()
    }

    /// Returns all output as text.
    pub(crate) fn everything(&self) -> String {
        format!(
            "{:?} {:?} {:?} {:?} {:?} {:?}",
            self.stacks, self.changes, self.processes, self.devices, self.pools, self.warnings
        )
    }
}

impl ImportSink for Collected {
    fn stacks(&mut self) -> &mut StackTable {
        &mut self.stacks
    }

    fn change(&mut self, change: &AllocationChange) {
        let last = self.changes.last().map_or(Timestamp(0), |last| last.at);
        assert!(change.at >= last, "time went backwards: {change:?}");
        let name = (change.pid, change.key);
        match change.action {
            ChangeKind::Allocated => {
                assert!(self.live.insert(name, *change).is_none(), "began twice: {change:?}");
            }
            ChangeKind::Ended { allocated_at, reason } => {
                // What is live when its process exits stays in the list.
                let is_exit = reason == EndReason::ProcessExited;
                let live = self.live.get(&name).copied();
                let allocation = live.expect("an end without an allocation");
                assert_eq!(
                    AllocationChange {
                        at: allocation.at,
                        action: ChangeKind::Allocated,
                        ..*change
                    },
                    allocation
                );
                assert_eq!(allocated_at, allocation.at);
                if is_exit {
                    return;
                }
                assert!(matches!(reason, EndReason::Freed | EndReason::Replaced));
                self.live.remove(&name);
            }
            ChangeKind::Updated { .. } => panic!("imports have no late updates: {change:?}"),
        }
        self.changes.push(*change);
    }

    fn process(&mut self, pid: Pid, name: &str) {
        self.processes.push((pid.0, name.into()));
    }

    fn device(&mut self, device: DeviceId, name: &str, total_bytes: Option<u64>) {
        self.devices.push((device.0, name.into(), total_bytes));
    }

    fn clock(&mut self, moment: Timestamp, utc_nanos: i64) {
        assert!(self.clock.is_none(), "reported twice");
        self.clock = Some((moment.0, utc_nanos));
    }

    fn segment(&mut self, _segment: Segment) {}

    fn pool(&mut self, pool: &PoolTotals) {
        self.pools.push(*pool);
    }

    fn warn(&mut self, warning: Warning) {
        assert!(warning.count > 0, "nothing happened: {warning:?}");
        assert!(self.warnings.iter().all(|other| other.text != warning.text), "reported twice");
        self.warnings.push(warning);
    }
}

/// Returns the path of a fixture of this crate.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import").join(name)
}

/// Writes a file that lives as long as `dir`.
pub(crate) fn file(dir: &tempfile::TempDir, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, content).unwrap();
    path
}
