//! Processes.

use engine::model::Bytes;
use engine::view::{GroupTotals, ProcessRow, View};

use super::{ColumnSpec, percent, sparkline};
use crate::report::live::text::format_age;
use crate::report::view::units::{compact_count, compact_size, signed_size};
use crate::report::view::{growth, leak_location, place_in, text};
use crate::sanitize::sanitize;

/// Width of the chart of a process.
const CHART_WIDTH: usize = 8;

/// Declares the columns once: the variants and their specifications.
macro_rules! process_columns {
    ($($(#[$meta:meta])* $column:ident: $kind:ident($($spec:expr),*),)*) => {
        /// A column of the table of processes.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum ProcessColumn { $($(#[$meta])* $column,)* }

        impl ProcessColumn {
            /// All columns, in their order.
            pub const ALL: [Self; [$(stringify!($column)),*].len()] = [$(Self::$column),*];

            /// Title, width and rank.
            pub const fn spec(self) -> ColumnSpec {
                match self { $(Self::$column => ColumnSpec::$kind($($spec),*),)* }
            }
        }
    };
}

process_columns! {
    /// Host, if there are several.
    HostName: flexible("HOST", 6, 5),
    /// Process id.
    Pid: right("PID", 0),
    /// User.
    User: flexible("USER", 4, 4),
    /// Program.
    Program: flexible("PROGRAM", 8, 0),
    /// GPUs.
    Gpu: left("GPU", 7),
    /// Container or pod.
    Container: flexible("CONTAINER", 8, 8),
    /// Used memory.
    Used: right("USED", 0),
    /// Share of its GPUs.
    Share: right("OF GPU", 7),
    /// Of that: traced.
    Traced: right("TRACED", 9),
    /// Driver-reported memory that was not traced.
    Untracked: right("UNTRACKED", 10),
    /// Peak of the traced memory.
    Peak: right("PEAK", 9),
    /// Resident host memory, of processes of this host.
    Resident: right("HOST MEM", 9),
    /// Growth per hour.
    Growth: right("GROWTH/H", 1),
    /// Chart of the used memory.
    History: left("HISTORY", 6),
    /// Time until a GPU is full.
    Full: right("FULL IN", 3),
    /// Time since its start.
    Age: right("AGE", 8),
    /// Live allocations.
    Count: right("ALLOCS", 8),
    /// Verdict.
    Verdict: left("VERDICT", 2),
    /// Line that leaks.
    At: place("AT", 6, 4),
}

impl ProcessColumn {
    /// Columns that are shown unless others are chosen.
    pub const DEFAULT: [Self; 10] = [
        Self::HostName,
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

    /// Name in options: the title in lower case, without a unit.
    pub fn name(self) -> String {
        let title = self.spec().title.to_ascii_lowercase().replace(' ', "-");
        title.trim_end_matches("/h").to_owned()
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
    /// Resident host memory, if known.
    pub resident: Option<Bytes>,
}

/// Returns a cell.
pub fn cell(column: ProcessColumn, row: &ProcessRow<'_>, of: &ProcessCells<'_>) -> String {
    let process = row.process;
    let leak = row.leaks.first().and_then(|index| of.view.leaks.get(*index));
    match column {
        ProcessColumn::HostName => sanitize(of.host).into_owned(),
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
        ProcessColumn::Share => percent(row.used.0, total_of(row, of.view)),
        ProcessColumn::Traced => compact_size(process.live_bytes.0),
        ProcessColumn::Untracked => {
            process.untracked().map_or_else(String::new, |bytes| compact_size(bytes.0))
        }
        ProcessColumn::Peak => compact_size(process.peak_bytes.0),
        ProcessColumn::Resident => {
            of.resident.map_or_else(String::new, |bytes| compact_size(bytes.0))
        }
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
            let place = place_in(row.program, &place);
            let more = row.leaks.len() - 1;
            let at = if more > 0 { format!("{place} +{more}") } else { place.to_owned() };
            sanitize(&at).into_owned()
        }),
    }
}

/// Returns the total memory of the GPUs that a process uses.
fn total_of(row: &ProcessRow<'_>, view: &View<'_>) -> u64 {
    let used = view.gpus.iter().filter(|gpu| gpu.gpu.is_some_and(|id| row.gpus.contains(&id)));
    used.filter_map(|gpu| gpu.total).fold(0, |sum, total| sum.saturating_add(total.0))
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

/// Formats what was added since the baseline.
pub(super) fn added(now: Bytes, before: Bytes) -> String {
    let change = i128::from(now.0) - i128::from(before.0);
    match i64::try_from(change).unwrap_or(i64::MAX) {
        0 => "·".to_owned(),
        change => signed_size(change),
    }
}
