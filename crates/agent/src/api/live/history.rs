//! Memory of the last hour in bands, in fixed memory.
//!
//! Rows of the last two minutes are as published; older ones are thinned to one per ten seconds, the
//! one with the highest total. Each grouping has a fixed number of bands: those with the highest
//! peaks. The rest of a row is its total minus its bands. A band that a larger one replaces becomes
//! part of the rest, also in older rows.

use std::cmp::Reverse;
use std::collections::VecDeque;

use engine::model::{Mark, MemoryKind, ProcessKey, SiteName};
use engine::snapshot::{ProcessView, SiteView, Snapshot};
use engine::view::{GpuRow, View};
use formats::report::view::page;
use formats::sanitize::sanitize_up_to;

/// Bands per grouping.
pub(super) const BANDS: usize = 24;

/// Age up to which rows are kept as published.
const RECENT: u64 = 120_000_000_000;

/// Width of the windows that older rows are thinned to.
const WINDOW: u64 = 10_000_000_000;

/// Age up to which rows are kept.
const MAX_AGE: u64 = 3_600_000_000_000;

/// A row that follows another one within this time replaces it: an out-of-memory error publishes a
/// snapshot at once.
const MIN_DISTANCE: u64 = 500_000_000;

/// Maximum number of rows: two per second, then one per window.
const MAX_ROWS: usize = (RECENT / MIN_DISTANCE + MAX_AGE / WINDOW) as usize;

/// Maximum number of marks, the newest.
const MAX_MARKS: usize = 200;

/// Maximum length of the name of a band.
const MAX_NAME_CHARS: usize = 96;

/// What bands are grouped by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Grouping {
    Gpu,
    Process,
    Kind,
    Site,
}

impl Grouping {
    pub(super) const ALL: [Self; 4] = [Self::Gpu, Self::Process, Self::Kind, Self::Site];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Process => "process",
            Self::Kind => "kind",
            Self::Site => "site",
        }
    }
}

/// Identity of a band.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BandKey {
    Gpu(Option<u16>),
    Process(ProcessKey),
    Kind(MemoryKind),
    Site(SiteName),
}

impl BandKey {
    /// What the page opens when the band is selected.
    pub(super) fn target(self) -> String {
        match self {
            Self::Gpu(Some(gpu)) => format!("gpu={gpu}"),
            Self::Process(key) => format!("pid={}", key.pid),
            Self::Site(site @ SiteName::Resolved(_)) => format!("site={site}"),
            Self::Gpu(None) | Self::Kind(_) | Self::Site(_) => String::new(),
        }
    }
}

/// A band.
#[derive(Clone, Debug)]
pub(super) struct Band {
    pub(super) key: BandKey,
    pub(super) name: String,
    /// Snapshot since which it is a band, or has this name.
    pub(super) since: u64,
    /// Its highest value in the rows.
    peak: u64,
}

/// Values of one snapshot.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Monotonic time in nanoseconds.
    pub(super) at: u64,
    /// Live device memory.
    pub(super) total: u64,
    /// Memory that all GPUs use, as the driver reports it.
    pub(super) used: Option<u64>,
    pub(super) values: [[u64; BANDS]; 4],
}

/// A value of a snapshot, with its index in the list that it is from.
type Value = (BandKey, u64, usize);

/// The rows and bands.
pub(super) struct History {
    pub(super) rows: VecDeque<Row>,
    /// Number of rows that were thinned, from the oldest.
    thinned: usize,
    pub(super) bands: [Vec<Band>; 4],
    /// Number of values that are not bands, in the newest row.
    pub(super) others: [u64; 4],
    /// Marks of the last hour.
    pub(super) marks: VecDeque<Mark>,
}

impl History {
    /// Maximum memory of all rows and bands.
    pub(super) const MAX_BYTES: usize = MAX_MARKS * (size_of::<Mark>() + Mark::MAX_LABEL_BYTES)
        + MAX_ROWS * size_of::<Row>()
        + 4 * BANDS * (size_of::<Band>() + 4 * MAX_NAME_CHARS);

    pub(super) fn new() -> Self {
        Self {
            rows: VecDeque::with_capacity(MAX_ROWS),
            thinned: 0,
            bands: [const { Vec::new() }; 4],
            others: [0; 4],
            marks: VecDeque::new(),
        }
    }

    /// Adds a snapshot.
    pub(super) fn record(&mut self, sequence: u64, view: &View<'_>, snapshot: &Snapshot) {
        self.marks.extend(snapshot.marks.iter().cloned());
        let excess = self.marks.len().saturating_sub(MAX_MARKS);
        self.marks.drain(..excess);
        let is_old = |mark: &Mark| mark.at.0.saturating_add(MAX_AGE) < snapshot.at.0;
        self.marks.retain(|mark| !is_old(mark));
        let used = view.gpus.iter().filter_map(|gpu| gpu.used).map(|used| used.0);
        let mut row = Row {
            at: snapshot.at.0,
            total: snapshot.live_bytes.0,
            used: used.reduce(u64::saturating_add),
            values: [[0; BANDS]; 4],
        };
        for grouping in Grouping::ALL {
            let values = values(grouping, view, snapshot);
            let mut all = values.len() as u64;
            if grouping == Grouping::Site {
                // Only the largest are listed.
                all = all.max(snapshot.sites_total);
            }
            let name = |index| name(grouping, index, view, snapshot);
            let placed = self.place(grouping, values, &mut row, sequence, name);
            if let Some(others) = self.others.get_mut(grouping as usize) {
                *others = all.saturating_sub(placed);
            }
        }
        self.push(row);
        self.update_peaks();
    }

    /// Puts values into their bands, the largest ones into new bands. Returns how many have one.
    fn place(
        &mut self,
        grouping: Grouping,
        mut values: Vec<Value>,
        row: &mut Row,
        sequence: u64,
        name: impl Fn(usize) -> String,
    ) -> u64 {
        let Some(bands) = self.bands.get_mut(grouping as usize) else { return 0 };
        let Some(cells) = row.values.get_mut(grouping as usize) else { return 0 };
        let mut placed = 0;
        values.retain(|(key, bytes, index)| {
            let Some(at) = bands.iter().position(|band| band.key == *key) else { return true };
            cells[at] = *bytes;
            placed += 1;
            let name = name(*index);
            if bands[at].name != name {
                (bands[at].name, bands[at].since) = (name, sequence);
            }
            false
        });
        values.sort_by_key(|(_, bytes, index)| (Reverse(*bytes), *index));
        for (key, bytes, index) in values.into_iter().filter(|(_, bytes, _)| *bytes > 0) {
            let band = Band { key, name: name(index), since: sequence, peak: bytes };
            if bands.len() < BANDS {
                bands.push(band);
                cells[bands.len() - 1] = bytes;
                placed += 1;
                continue;
            }
            let smallest = bands.iter().enumerate().min_by_key(|(_, band)| band.peak);
            let Some((at, _)) = smallest.filter(|(_, band)| band.peak < bytes) else { break };
            // The value of the replaced band, if it has one, is part of the rest now.
            placed += u64::from(cells[at] == 0);
            (bands[at], cells[at]) = (band, bytes);
            for row in &mut self.rows {
                row.values[grouping as usize][at] = 0;
            }
        }
        placed
    }

    fn push(&mut self, row: Row) {
        let at = row.at;
        if self.rows.back().is_some_and(|last| at.saturating_sub(last.at) < MIN_DISTANCE)
            && self.rows.len() > self.thinned
        {
            self.rows.pop_back();
        }
        self.rows.push_back(row);
        while self.rows.get(self.thinned).is_some_and(|row| row.at.saturating_add(RECENT) < at) {
            self.thin();
        }
        while self.rows.len() > MAX_ROWS
            || self.rows.front().is_some_and(|row| row.at.saturating_add(MAX_AGE) < at)
        {
            self.rows.pop_front();
            self.thinned = self.thinned.saturating_sub(1);
        }
    }

    /// Merges the oldest row that was not thinned with the one before it, if both are in the same
    /// window.
    fn thin(&mut self) {
        let last = self.thinned.checked_sub(1);
        let pair = last.and_then(|last| Some((self.rows.get(last)?, self.rows.get(self.thinned)?)));
        match pair {
            Some((old, new)) if old.at / WINDOW == new.at / WINDOW => {
                let lower = if new.total > old.total { self.thinned - 1 } else { self.thinned };
                self.rows.remove(lower);
            }
            _ => self.thinned += 1,
        }
    }

    fn update_peaks(&mut self) {
        for (grouping, bands) in self.bands.iter_mut().enumerate() {
            for (at, band) in bands.iter_mut().enumerate() {
                let values = self.rows.iter().map(|row| row.values[grouping][at]);
                band.peak = values.max().unwrap_or(0);
            }
        }
    }
}

/// Returns the values of a snapshot by grouping.
fn values(grouping: Grouping, view: &View<'_>, snapshot: &Snapshot) -> Vec<Value> {
    match grouping {
        Grouping::Gpu => {
            let gpus = view.gpus.iter().enumerate();
            let key = |gpu: &GpuRow<'_>| BandKey::Gpu(gpu.gpu.map(|gpu| gpu.0));
            gpus.map(|(index, gpu)| (key(gpu), gpu.traced.0, index)).collect()
        }
        Grouping::Process => {
            let all = view.processes.iter().enumerate();
            let running = all.filter(|(_, row)| row.process.ended.is_none());
            let value = |process: &ProcessView| (process.key, process.live_bytes.0);
            let values = running.map(|(index, row)| (value(row.process), index));
            values.map(|((key, bytes), index)| (BandKey::Process(key), bytes, index)).collect()
        }
        Grouping::Kind => {
            let running = snapshot.processes.iter().filter(|process| process.ended.is_none());
            let kinds = running.flat_map(|process| &process.kinds);
            let mut sums = [0_u64; MemoryKind::COUNT];
            for one in kinds.filter(|one| one.kind.takes_device_memory()) {
                let sum = &mut sums[one.kind as usize];
                *sum = sum.saturating_add(one.live_bytes.0);
            }
            let all = MemoryKind::ALL.into_iter().enumerate();
            let all = all.map(|(index, kind)| (BandKey::Kind(kind), sums[kind as usize], index));
            all.filter(|(_, bytes, _)| *bytes > 0).collect()
        }
        Grouping::Site => {
            let sites = snapshot.sites.iter().enumerate();
            // It gets another name when its symbols are resolved.
            let named = sites.filter(|(_, site)| !matches!(site.name, SiteName::Pending(_)));
            let value = |site: &SiteView| (BandKey::Site(site.name), site.live_bytes.0);
            named.map(|(index, site)| (value(site).0, value(site).1, index)).collect()
        }
    }
}

/// Returns the name of a value, by its index.
fn name(grouping: Grouping, index: usize, view: &View<'_>, snapshot: &Snapshot) -> String {
    let name = match grouping {
        Grouping::Gpu => view.gpus.get(index).map(page::gpu_name),
        Grouping::Process => view.processes.get(index).map(|row| {
            let pid = row.process.key.pid;
            format!("{pid} {}", row.program)
        }),
        Grouping::Kind => MemoryKind::ALL.get(index).map(|kind| kind.name().to_owned()),
        Grouping::Site => snapshot.sites.get(index).map(page::site_location),
    };
    sanitize_up_to(&name.unwrap_or_default(), MAX_NAME_CHARS).into_owned()
}

#[cfg(test)]
mod tests {
    use engine::model::{Bytes, Pid, Timestamp};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn process(pid: u32, bytes: u64) -> ProcessView {
        ProcessView {
            key: ProcessKey { pid: Pid(pid), start: 1 },
            name: "train".into(),
            live_bytes: Bytes(bytes),
            ..ProcessView::default()
        }
    }

    /// Records one snapshot per second; `bytes` returns the memory of each process at a second.
    fn record(
        history: &mut History,
        seconds: std::ops::Range<u64>,
        bytes: impl Fn(u64) -> Vec<u64>,
    ) {
        for second in seconds {
            let sizes = bytes(second);
            let total = sizes.iter().sum();
            let processes = sizes.into_iter().zip(1..).map(|(size, pid)| process(pid, size));
            let snapshot = Snapshot {
                at: Timestamp(second * SECOND),
                live_bytes: Bytes(total),
                processes: processes.collect(),
                ..Snapshot::default()
            };
            history.record(second, &View::of(&snapshot, &[]), &snapshot);
        }
    }

    const PROCESS: usize = Grouping::Process as usize;

    #[test]
    fn an_hour_is_kept_in_fixed_memory() {
        let mut history = History::new();
        // A peak of one second, long before the thinning.
        record(&mut history, 1..9000, |second| vec![if second == 6543 { 900 } else { second % 7 }]);
        assert!(history.rows.len() <= MAX_ROWS && history.rows.capacity() <= MAX_ROWS + 1);
        let times: Vec<u64> = history.rows.iter().map(|row| row.at / SECOND).collect();
        assert!(times.is_sorted() && times[0] >= 8999 - 3600 && times[0] <= 8999 - 3580);
        let recent = times.iter().filter(|second| **second >= 8999 - 120).count();
        assert_eq!(recent, 121, "the last two minutes are complete");
        let peak = history.rows.iter().max_by_key(|row| row.total).unwrap();
        assert_eq!((peak.at / SECOND, peak.total), (6543, 900), "thinning keeps the peak");
        const { assert!(History::MAX_BYTES < 1 << 20) };
    }

    #[test]
    fn larger_values_replace_the_smallest_band() {
        let mut history = History::new();
        let small = |count: u64| (1..=count).map(|size| 100 + size).collect::<Vec<u64>>();
        record(&mut history, 1..3, |_| small(BANDS as u64));
        assert_eq!((history.bands[PROCESS].len(), history.others[PROCESS]), (BANDS, 0));
        // A new process that is smaller than each band is part of the rest.
        record(&mut history, 3..4, |_| [small(BANDS as u64), vec![50]].concat());
        assert_eq!(history.others[PROCESS], 1);
        // One that is larger replaces the smallest band, which was that of process 1.
        record(&mut history, 4..5, |_| [small(BANDS as u64), vec![50, 5000]].concat());
        let bands = &history.bands[PROCESS];
        let new = bands.iter().position(|band| band.name.starts_with("26 ")).unwrap();
        assert_eq!((bands[new].since, history.others[PROCESS]), (4, 2));
        assert!(!bands.iter().any(|band| band.name.starts_with("1 ")));
        let values: Vec<u64> = history.rows.iter().map(|row| row.values[PROCESS][new]).collect();
        assert_eq!(values, [0, 0, 0, 5000], "the past of the replaced band is part of the rest");
    }

    #[test]
    fn values_of_a_row_never_exceed_its_total() {
        let mut history = History::new();
        record(&mut history, 1..400, |second| {
            (0..40).map(|pid| (second * (pid + 3) * 7919) % 1000).collect()
        });
        for row in &history.rows {
            assert!(row.values[PROCESS].iter().sum::<u64>() <= row.total);
        }
    }
}
