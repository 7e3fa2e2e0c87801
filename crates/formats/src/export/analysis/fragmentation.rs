//! What caches and pools hold of a device and cannot use.

use engine::ids::{DeviceId, Pid, StreamId};
use engine::units::Bytes;

use super::device;
use super::leakage::device_number;
use super::model::{Cell, Line, Page, Section, Table};

/// The answer of the analysis, as reports show it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Fragmentation {
    /// Each pool of each stream and device.
    pub pools: Vec<Pool>,
    /// What could be done.
    pub advice: Vec<Advice>,
    /// Whether a request of some size would fit, where that was asked.
    pub would_fit: Vec<WouldFit>,
}

/// A pool.
#[derive(Clone, PartialEq, Debug)]
pub struct Pool {
    /// The device.
    pub device: Option<DeviceId>,
    /// The process, of the driver's pools.
    pub pid: Option<Pid>,
    /// What it is called.
    pub pool: String,
    /// The stream.
    pub stream: Option<StreamId>,
    /// What it holds of the device, where that was told.
    pub reserved_bytes: Option<u64>,
    /// What is in use, rounded as the cache does.
    pub active_bytes: u64,
    /// What the program asked for, where that was told.
    pub requested_bytes: Option<u64>,
    /// The biggest free block, where blocks were told.
    pub largest_free_bytes: Option<u64>,
    /// The part of `active_bytes` that is rounding, from 0 to 1.
    pub internal: Option<f64>,
    /// The part of the free bytes that the biggest free block is not, from 0 to 1.
    pub external: Option<f64>,
    /// Segments that are wholly free: a cache, and no fragments.
    pub releasable_bytes: Option<u64>,
    /// Gaps in segments that are partly used.
    pub stuck_bytes: Option<u64>,
}

/// Something that could be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Advice {
    /// What to do: a setting, a call, or nothing.
    pub what: String,
    /// Why, with the figures behind it.
    pub why: String,
}

/// Whether a request would fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WouldFit {
    /// The device.
    pub device: Option<DeviceId>,
    /// How much is asked for.
    pub bytes: u64,
    /// In short: `free_block`, `after_empty_cache`, `after_defragmentation` or `needs_more`.
    pub answer: &'static str,
    /// The same in a sentence.
    pub text: String,
}

pub(super) fn page(answer: &Fragmentation) -> Page {
    let sum = |of: fn(&Pool) -> Option<u64>| {
        answer.pools.iter().filter_map(of).fold(0, u64::saturating_add)
    };
    let (stuck, reserved) = (sum(|pool| pool.stuck_bytes), sum(|pool| pool.reserved_bytes));
    let headline = if answer.pools.is_empty() {
        "No caches or pools in this file".to_owned()
    } else if answer.pools.iter().all(|pool| pool.stuck_bytes.is_none()) {
        let used = Bytes(sum(|pool| Some(pool.active_bytes)));
        format!("{used} in use; the file has only pool totals, so fragmentation is unknown")
    } else {
        format!("{} of {} reserved is fragmented", Bytes(stuck), Bytes(reserved))
    };
    let mut lines: Vec<_> =
        answer.would_fit.iter().map(|one| Line::Plain(one.text.clone())).collect();
    lines.extend(answer.advice.iter().map(|one| Line::Plain(format!("{}: {}", one.what, one.why))));
    let section = Section {
        title: "Pools".to_owned(),
        table: Table {
            columns: vec![
                "device",
                "pid",
                "pool",
                "stream",
                "reserved",
                "active",
                "largest free",
                "internal",
                "external",
                "releasable",
                "fragmented",
            ],
            rows: answer.pools.iter().map(row).collect(),
        },
        ..Section::default()
    };
    Page { headline, lines, sections: vec![section], ..Page::default() }
}

fn bytes(bytes: Option<u64>) -> Cell {
    bytes.map_or(Cell::Empty, Cell::Bytes)
}

fn share(share: Option<f64>) -> Cell {
    share.map_or(Cell::Empty, Cell::Share)
}

fn stream(pool: &Pool) -> Cell {
    pool.stream.map_or(Cell::Empty, |stream| Cell::Address(stream.0))
}

fn process(pool: &Pool) -> Cell {
    pool.pid.map_or(Cell::Empty, |pid| Cell::Text(pid.to_string()))
}

fn row(pool: &Pool) -> Vec<Cell> {
    vec![
        device(pool.device),
        process(pool),
        Cell::Text(pool.pool.clone()),
        stream(pool),
        bytes(pool.reserved_bytes),
        Cell::Bytes(pool.active_bytes),
        bytes(pool.largest_free_bytes),
        share(pool.internal),
        share(pool.external),
        bytes(pool.releasable_bytes),
        bytes(pool.stuck_bytes),
    ]
}

/// Every pool.
pub(super) fn table(answer: &Fragmentation) -> Table {
    let row = |pool: &Pool| {
        vec![
            device_number(pool.device),
            Cell::Text(pool.pool.clone()),
            stream(pool),
            bytes(pool.reserved_bytes),
            Cell::Bytes(pool.active_bytes),
            bytes(pool.requested_bytes),
            bytes(pool.largest_free_bytes),
            share(pool.internal),
            share(pool.external),
            bytes(pool.releasable_bytes),
            bytes(pool.stuck_bytes),
            process(pool),
        ]
    };
    let columns = vec![
        "device",
        "pool",
        "stream",
        "reserved_bytes",
        "active_bytes",
        "requested_bytes",
        "largest_free_bytes",
        "internal_ratio",
        "external_ratio",
        "releasable_bytes",
        "fragmented_bytes",
        "pid",
    ];
    Table { columns, rows: answer.pools.iter().map(row).collect() }
}
