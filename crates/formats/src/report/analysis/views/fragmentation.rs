//! Fragmentation of caches and pools: reserved memory that cannot be used.

use engine::analysis::fragmentation::{self, FitResult, PoolFragmentation, PoolOwner};
use engine::model::{Bytes, CachePool, DeviceId, Pid, PoolSizeClass};
use engine::snapshot::ProcessView;
use serde::Serialize;

use super::super::device;
use super::super::document::{Cell, Document, Line, Section, Table, table};
use super::leaks::device_number;
use crate::import::collecting_sink::FileInfo;

/// Result of the fragmentation analysis for reports.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FragmentationView {
    /// One entry per pool, stream and device.
    pub pools: Vec<PoolFragmentation>,
    /// Advice to reduce fragmentation.
    pub advice: Vec<AdviceRow>,
    /// Whether requests of some sizes would fit, if any were given.
    pub would_fit: Vec<WouldFit>,
}

/// One piece of advice.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct AdviceRow {
    /// Action: a setting, a call, or nothing.
    pub action: String,
    /// Reason, with the values behind it.
    pub reason: String,
}

/// Whether a request of a given size would fit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct WouldFit {
    /// Ordinal of the device.
    pub device: Option<u16>,
    /// Requested size.
    pub bytes: u64,
    /// Short answer: `free_block`, `after_empty_cache`, `after_defragmentation` or `needs_more`.
    pub answer: &'static str,
    /// The answer as a sentence.
    #[serde(rename = "summary")]
    pub text: String,
}

impl FragmentationView {
    /// Returns the fragmentation of a file. `would_fit`: the size of a request to check.
    pub fn of(info: &FileInfo, would_fit: Option<Bytes>) -> Self {
        let analysis = fragmentation::analyze(&info.segments, &info.pools, &info.settings);
        let devices = analysis.devices.iter().map(|device| device.device);
        let fits = devices.zip(would_fit.into_iter().cycle());
        let fits = fits.map(|(device, size)| fit(device, size, analysis.would_fit(device, size.0)));
        let advice = analysis.advice.iter().map(|advice| AdviceRow {
            action: advice.suggestion.setting().unwrap_or_else(|| "no setting".to_owned()),
            reason: advice.suggestion.reason(),
        });
        let processes = info.state.iter().flat_map(|state| &state.snapshot.processes);
        Self {
            would_fit: fits.collect(),
            advice: advice.collect(),
            pools: analysis.pools.into_iter().chain(processes.flat_map(caches)).collect(),
        }
    }
}

/// Returns the caches of allocators in a recorded process.
fn caches(process: &ProcessView) -> impl Iterator<Item = PoolFragmentation> {
    let pools = process.allocators.iter().flat_map(|view| &view.pools);
    pools.map(|cache| {
        let known = cache.fragmentation.ok();
        PoolFragmentation {
            reserved_bytes: Some(cache.reserved.0),
            active_bytes: cache.allocated.0,
            largest_free_bytes: known.map(|known| known.largest_gap.0),
            releasable_bytes: known.map(|known| known.releasable.0),
            stuck_bytes: known.map(|known| known.fragmented.0),
            ..PoolFragmentation::of(cache.device, PoolOwner::Recorded(process.key.pid))
        }
    })
}

/// Returns the process of a pool, if the pool is of one.
pub(crate) const fn pool_pid(pool: &PoolFragmentation) -> Option<Pid> {
    match pool.owner {
        PoolOwner::Driver(pid, _) | PoolOwner::Recorded(pid) => Some(pid),
        PoolOwner::Cache(_) => None,
    }
}

/// Returns `large`, `small of 2:0`, `driver 0x90`.
pub(crate) fn pool_name(pool: &PoolFragmentation) -> String {
    match pool.owner {
        PoolOwner::Recorded(_) => "PyTorch".to_owned(),
        PoolOwner::Driver(_, 0) => "driver default".to_owned(),
        PoolOwner::Driver(_, handle) => format!("driver {handle:#x}"),
        PoolOwner::Cache(CachePool { id, size_class }) => {
            let part = match size_class {
                PoolSizeClass::Whole => "all",
                PoolSizeClass::Small => "small",
                PoolSizeClass::Large => "large",
            };
            if id == (0, 0) { part.to_owned() } else { format!("{part} of {}:{}", id.0, id.1) }
        }
    }
}

fn fit(device: Option<DeviceId>, requested: Bytes, fit: FitResult) -> WouldFit {
    let (answer, explanation) = match fit {
        FitResult::InFreeBlock { block_bytes } => {
            ("free_block", format!("fits into a free block of {}", Bytes(block_bytes)))
        }
        FitResult::AfterEmptyCache { releasable_bytes } => (
            "after_empty_cache",
            format!("fits after empty_cache(), which frees {}", Bytes(releasable_bytes)),
        ),
        FitResult::OnlyDefragmented { free_bytes, more_bytes } => (
            "after_defragmentation",
            format!(
                "does not fit: {} are free but fragmented; the device must provide {}",
                Bytes(free_bytes),
                Bytes(more_bytes)
            ),
        ),
        FitResult::NeedsMore { more_bytes } => {
            ("needs_more", format!("does not fit: the device must provide {}", Bytes(more_bytes)))
        }
    };
    let name = self::device(device).short();
    let text = format!("{requested} on {name}: {explanation}");
    WouldFit { device: device.map(|device| device.0), bytes: requested.0, answer, text }
}

pub(crate) fn document(view: &FragmentationView) -> Document {
    let sum = |of: fn(&PoolFragmentation) -> Option<u64>| {
        view.pools.iter().filter_map(of).fold(0, u64::saturating_add)
    };
    let (stuck, reserved) = (sum(|pool| pool.stuck_bytes), sum(|pool| pool.reserved_bytes));
    let headline = if view.pools.is_empty() {
        "No caches or pools in this file".to_owned()
    } else if view.pools.iter().all(|pool| pool.stuck_bytes.is_none()) {
        let used = Bytes(sum(|pool| Some(pool.active_bytes)));
        let of = match reserved {
            0 => String::new(),
            reserved => format!(" of {} reserved", Bytes(reserved)),
        };
        format!("{used}{of} in use; the file has only totals, so fragmentation is unknown")
    } else {
        let known = sum(|pool| pool.stuck_bytes.and(pool.reserved_bytes));
        format!("{} of {} reserved is fragmented", Bytes(stuck), Bytes(known))
    };
    let mut lines: Vec<_> =
        view.would_fit.iter().map(|one| Line::Plain(one.text.clone())).collect();
    lines.extend(
        view.advice.iter().map(|one| Line::Plain(format!("{}: {}", one.action, one.reason))),
    );
    let table = table!(view.pools.iter(), |pool| {
        "device": device(pool.device),
        "pid": Cell::pid(pool_pid(pool)),
        "pool": Cell::Text(pool_name(pool)),
        "stream": stream(pool),
        "reserved": bytes(pool.reserved_bytes),
        "active": Cell::Bytes(pool.active_bytes),
        "largest free": bytes(pool.largest_free_bytes),
        "internal": share(pool.internal),
        "external": share(pool.external),
        "releasable": bytes(pool.releasable_bytes),
        "fragmented": bytes(pool.stuck_bytes),
    });
    let section = Section { title: "Pools".to_owned(), table, ..Section::default() };
    Document { headline, lines, sections: vec![section], ..Document::default() }
}

fn bytes(bytes: Option<u64>) -> Cell {
    bytes.map_or(Cell::Empty, Cell::Bytes)
}

fn share(share: Option<f64>) -> Cell {
    share.map_or(Cell::Empty, Cell::Share)
}

fn stream(pool: &PoolFragmentation) -> Cell {
    pool.stream.map_or(Cell::Empty, |stream| Cell::Address(stream.0))
}

/// Returns every pool as a table.
pub(crate) fn table(view: &FragmentationView) -> Table {
    table!(view.pools.iter(), |pool| {
        "device": device_number(pool.device),
        "pool": Cell::Text(pool_name(pool)),
        "stream": stream(pool),
        "reserved_bytes": bytes(pool.reserved_bytes),
        "active_bytes": Cell::Bytes(pool.active_bytes),
        "requested_bytes": bytes(pool.requested_bytes),
        "largest_free_bytes": bytes(pool.largest_free_bytes),
        "internal_ratio": share(pool.internal),
        "external_ratio": share(pool.external),
        "releasable_bytes": bytes(pool.releasable_bytes),
        "fragmented_bytes": bytes(pool.stuck_bytes),
        "pid": Cell::pid(pool_pid(pool)),
    })
}
