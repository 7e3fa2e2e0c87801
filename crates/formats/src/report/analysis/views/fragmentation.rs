//! Fragmentation of caches and pools: reserved memory that cannot be used.

use engine::model::ids::{DeviceId, Pid, StreamId};
use engine::model::units::Bytes;

use super::super::device;
use super::super::document::{Cell, Document, Line, Section, Table};
use super::leaks::device_number;

/// Result of the fragmentation analysis for reports.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FragmentationView {
    /// One entry per pool, stream and device.
    pub pools: Vec<PoolRow>,
    /// Advice to reduce fragmentation.
    pub advice: Vec<AdviceRow>,
    /// Whether requests of some sizes would fit, if any were given.
    pub would_fit: Vec<WouldFit>,
}

/// Fragmentation of one pool.
#[derive(Clone, PartialEq, Debug)]
pub struct PoolRow {
    /// The device.
    pub device: Option<DeviceId>,
    /// Process, for pools of the driver.
    pub pid: Option<Pid>,
    /// Name of the pool.
    pub pool: String,
    /// The stream.
    pub stream: Option<StreamId>,
    /// Memory reserved from the device, if the file has it.
    pub reserved_bytes: Option<u64>,
    /// Memory in use, rounded as the cache does.
    pub active_bytes: u64,
    /// Memory requested by the program, if the file has it.
    pub requested_bytes: Option<u64>,
    /// Largest free block, if the file lists blocks.
    pub largest_free_bytes: Option<u64>,
    /// Share of `active_bytes` lost to rounding, from 0 to 1.
    pub internal: Option<f64>,
    /// Share of the free bytes outside of the largest free block, from 0 to 1.
    pub external: Option<f64>,
    /// Completely free segments: cache, not fragmentation.
    pub releasable_bytes: Option<u64>,
    /// Free blocks in partly used segments.
    pub stuck_bytes: Option<u64>,
}

/// One piece of advice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdviceRow {
    /// Action: a setting, a call, or nothing.
    pub action: String,
    /// Reason, with the values behind it.
    pub reason: String,
}

/// Whether a request of a given size would fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WouldFit {
    /// The device.
    pub device: Option<DeviceId>,
    /// Requested size.
    pub bytes: u64,
    /// Short answer: `free_block`, `after_empty_cache`, `after_defragmentation` or `needs_more`.
    pub answer: &'static str,
    /// The answer as a sentence.
    pub text: String,
}

pub(in crate::report::analysis) fn document(view: &FragmentationView) -> Document {
    let sum = |of: fn(&PoolRow) -> Option<u64>| {
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
    let columns = [
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
    ];
    let section = Section::list("Pools", &columns, view.pools.iter().map(row), view.pools.len());
    Document { headline, lines, sections: vec![section], ..Document::default() }
}

fn bytes(bytes: Option<u64>) -> Cell {
    bytes.map_or(Cell::Empty, Cell::Bytes)
}

fn share(share: Option<f64>) -> Cell {
    share.map_or(Cell::Empty, Cell::Share)
}

fn stream(pool: &PoolRow) -> Cell {
    pool.stream.map_or(Cell::Empty, |stream| Cell::Address(stream.0))
}

fn row(pool: &PoolRow) -> Vec<Cell> {
    vec![
        device(pool.device),
        Cell::pid(pool.pid),
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

/// Returns every pool as a table.
pub(in crate::report::analysis) fn table(view: &FragmentationView) -> Table {
    let row = |pool: &PoolRow| {
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
            Cell::pid(pool.pid),
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
    Table { columns, rows: view.pools.iter().map(row).collect() }
}
