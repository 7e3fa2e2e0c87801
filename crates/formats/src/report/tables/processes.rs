//! Processes.

use engine::model::Bytes;
use engine::view::{GroupTotals, ProcessRow, View};

use super::{ColumnSpec, sparkline};
use crate::report::live::text::format_age;
use crate::report::view::units::{compact_count, compact_size, signed_size};
use crate::report::view::{growth, leak_location, text};
use crate::sanitize::sanitize;

/// Width of the chart of a process.
const CHART_WIDTH: usize = 8;

/// A column of the table of processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessColumn {
    /// Host, if there are several.
    Host,
    /// Process id.
    Pid,
    /// User.
    User,
    /// Program.
    Program,
    /// GPUs.
    Gpu,
    /// Container or pod.
    Container,
    /// Used memory.
    Used,
    /// Of that: traced.
    Traced,
    /// Driver-reported memory that was not traced.
    Untracked,
    /// Peak of the traced memory.
    Peak,
    /// Growth per hour.
    Growth,
    /// Chart of the used memory.
    History,
    /// Time until a GPU is full.
    Full,
    /// Time since its start.
    Age,
    /// Live allocations.
    Count,
    /// Verdict.
    Verdict,
    /// Line that leaks.
    At,
}

impl ProcessColumn {
    /// All columns, in their order.
    pub const ALL: [Self; 17] = [
        Self::Host,
        Self::Pid,
        Self::User,
        Self::Program,
        Self::Gpu,
        Self::Container,
        Self::Used,
        Self::Traced,
        Self::Untracked,
        Self::Peak,
        Self::Growth,
        Self::History,
        Self::Full,
        Self::Age,
        Self::Count,
        Self::Verdict,
        Self::At,
    ];

    /// Columns that are shown unless others are chosen.
    pub const DEFAULT: [Self; 10] = [
        Self::Host,
        Self::Pid,
        Self::User,
        Self::Program,
        Self::Used,
        Self::Growth,
        Self::History,
        Self::Full,
        Self::Verdict,
        Self::At,
    ];

    /// Title, width and rank.
    pub const fn spec(self) -> ColumnSpec {
        match self {
            Self::Host => ColumnSpec::flexible("HOST", 6, 5),
            Self::Pid => ColumnSpec::right("PID", 0),
            Self::User => ColumnSpec::flexible("USER", 4, 4),
            Self::Program => ColumnSpec::flexible("PROGRAM", 8, 0),
            Self::Gpu => ColumnSpec::left("GPU", 7),
            Self::Container => ColumnSpec::flexible("CONTAINER", 8, 8),
            Self::Used => ColumnSpec::right("USED", 0),
            Self::Traced => ColumnSpec::right("TRACED", 9),
            Self::Untracked => ColumnSpec::right("UNTRACKED", 10),
            Self::Peak => ColumnSpec::right("PEAK", 9),
            Self::Growth => ColumnSpec::right("GROWTH/H", 1),
            Self::History => ColumnSpec::left("HISTORY", 6),
            Self::Full => ColumnSpec::right("FULL IN", 3),
            Self::Age => ColumnSpec::right("AGE", 8),
            Self::Count => ColumnSpec::right("ALLOCS", 8),
            Self::Verdict => ColumnSpec::left("VERDICT", 2),
            Self::At => ColumnSpec::flexible("AT", 6, 4),
        }
    }
}

/// What cells need besides the row.
#[derive(Clone, Copy)]
pub struct ProcessCells<'a> {
    /// The view of the row.
    pub view: &'a View<'a>,
    /// Name of the host.
    pub host: &'a str,
    /// Used memory in the last views.
    pub history: &'a [u64],
    /// Used memory at the baseline, if there is one: then only what was added is shown.
    pub baseline: Option<Bytes>,
}

/// Returns a cell.
pub fn cell(column: ProcessColumn, row: &ProcessRow<'_>, of: &ProcessCells<'_>) -> String {
    let process = row.process;
    let leak = row.leaks.first().and_then(|index| of.view.leaks.get(*index));
    match column {
        ProcessColumn::Host => sanitize(of.host).into_owned(),
        ProcessColumn::Pid => process.key.pid.to_string(),
        ProcessColumn::User => sanitize(&row.user).into_owned(),
        ProcessColumn::Program => match row.process.mig.as_deref() {
            Some(mig) => format!("{} (MIG {})", sanitize(row.program), sanitize(&mig.profile)),
            None => sanitize(row.program).into_owned(),
        },
        ProcessColumn::Gpu => {
            let gpus: Vec<String> = row.gpus.iter().map(|gpu| gpu.0.to_string()).collect();
            gpus.join(",")
        }
        ProcessColumn::Container => {
            let label = engine::view::group_label(row, engine::view::GroupBy::Container);
            label.map_or_else(String::new, |label| sanitize(&label).into_owned())
        }
        ProcessColumn::Used => match of.baseline {
            // The driver has freed it.
            _ if process.ended.is_some() => "·".to_owned(),
            Some(before) => added(row.used, before),
            None => compact_size(row.used.0),
        },
        ProcessColumn::Traced => compact_size(process.live_bytes.0),
        ProcessColumn::Untracked => {
            process.untracked().map_or_else(String::new, |bytes| compact_size(bytes.0))
        }
        ProcessColumn::Peak => compact_size(process.peak_bytes.0),
        ProcessColumn::Growth => match (leak, row.growth_per_hour) {
            (Some(leak), _) if !leak.resource.is_device() => growth(leak).replace("/h", ""),
            (_, Some(0)) => "·".to_owned(),
            (_, Some(growth)) => signed_size(growth),
            (Some(leak), None) => format!("+{}", compact_size(leak.growth_per_hour)),
            (None, None) => String::new(),
        },
        ProcessColumn::History => sparkline(of.history, CHART_WIDTH),
        ProcessColumn::Full => row.time_until_full.map_or_else(String::new, format_age),
        ProcessColumn::Age => row.age.map_or_else(String::new, format_age),
        ProcessColumn::Count => compact_count(process.live_allocations),
        ProcessColumn::Verdict => text::state(row.state),
        ProcessColumn::At => leak.map_or_else(String::new, |leak| {
            let place = leak_location(leak);
            let place = place.strip_prefix(row.program).map_or(place.clone(), ToOwned::to_owned);
            let more = row.leaks.len() - 1;
            let at = if more > 0 { format!("{place} +{more}") } else { place };
            sanitize(&at).into_owned()
        }),
    }
}

/// Returns a cell of the line of a group.
pub fn group_cell(column: ProcessColumn, label: &str, totals: &GroupTotals) -> String {
    match column {
        ProcessColumn::Program => sanitize(label).into_owned(),
        ProcessColumn::Used => compact_size(totals.used.0),
        ProcessColumn::Growth => match totals.growth_per_hour {
            None => String::new(),
            Some(0) => "·".to_owned(),
            Some(growth) => signed_size(growth),
        },
        ProcessColumn::Full => totals.time_until_full.map_or_else(String::new, format_age),
        ProcessColumn::Count => compact_count(totals.live_allocations),
        ProcessColumn::Verdict => match (totals.leaking, totals.processes) {
            (0, 1) => "1 process".to_owned(),
            (0, all) => format!("{all} processes"),
            (leaking, all) => format!("{leaking} of {all} leak"),
        },
        _ => String::new(),
    }
}

/// Whether a process contains a text in any of its cells. Upper and lower case are the same.
pub fn matches(row: &ProcessRow<'_>, of: &ProcessCells<'_>, needle: &str) -> bool {
    let needle = needle.to_lowercase();
    let columns = ProcessColumn::ALL.iter().filter(|column| {
        !matches!(column, ProcessColumn::History | ProcessColumn::Full | ProcessColumn::Age)
    });
    needle.is_empty()
        || sanitize(&row.process.name).to_lowercase().contains(&needle)
        || columns.into_iter().any(|column| cell(*column, row, of).to_lowercase().contains(&needle))
}

/// Formats what was added since the baseline.
pub(super) fn added(now: Bytes, before: Bytes) -> String {
    let change = i128::from(now.0) - i128::from(before.0);
    match i64::try_from(change).unwrap_or(i64::MAX) {
        0 => "·".to_owned(),
        change => signed_size(change),
    }
}
