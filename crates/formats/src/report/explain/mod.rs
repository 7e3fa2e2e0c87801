//! Where the driver-reported memory of processes goes, as text and JSON. The JSON object is the same
//! in the agent's API and in the output of `explain --format json`. Fields are added, never renamed.

mod text;

pub use text::write;

use std::collections::BTreeMap;

use engine::model::units::Timestamp;
use engine::snapshot::{ObjectCostView, ProcessView, Snapshot};
use engine::view::{ExplainedPart, Explanation, PartCause};
use serde::{Deserialize, Serialize};

use super::view::stack_location;
use crate::export::ReportContext;
use crate::sanitize::{sanitize, sanitize_up_to};

/// Maximum number of characters of a text.
const MAX_TEXT_CHARS: usize = 1000;

/// Explanations of processes, those with most memory first.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ExplainReport {
    /// One entry per process.
    pub processes: Vec<ExplainedProcess>,
}

/// Memory of one process; its parts add up to `driver_bytes`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ExplainedProcess {
    /// Process id.
    pub pid: u32,
    /// Script, module or executable.
    pub program: String,
    /// Owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Time of the values, RFC 3339.
    pub time: String,
    /// Whether it exited since; then the values are those of its highest use.
    pub exited: bool,
    /// Whether no call changed memory around or since the driver's report.
    pub settled: bool,
    /// Whether it ran before the trace.
    pub before_trace: bool,
    /// Memory that the driver reports for it, on all GPUs.
    pub driver_bytes: u64,
    /// Traced live memory.
    pub traced_bytes: u64,
    /// Sum of the parts that were measured or counted.
    pub measured_bytes: u64,
    /// Sum of the parts that are bounded.
    pub bounded_bytes: u64,
    /// Sum of the parts that are estimated.
    pub estimated_bytes: u64,
    /// Absolute value of the part `rest`.
    pub unexplained_bytes: u64,
    /// Parts, largest first; `rest` is the last.
    pub parts: Vec<PartJson>,
    /// Cost of objects by kind and site, most expensive first.
    pub objects: Vec<ObjectCostJson>,
}

/// A part of the memory of a process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PartJson {
    /// What it is: `library`, `context`, `modules`, …, `rest`.
    pub part: String,
    /// Library, for the part `library`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub library: Option<String>,
    /// Description.
    pub description: String,
    /// Size; only `rest` can be negative: traced memory that the driver does not report yet.
    pub bytes: i64,
    /// Lower bound.
    pub min_bytes: u64,
    /// Upper bound.
    pub max_bytes: u64,
    /// `measured`, `bounded` or `estimated`.
    pub precision: String,
    /// Number of allocations, objects or kernels; absent where that does not apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// What can be done about it.
    pub advice: String,
}

/// Device memory of the objects of one kind from one site.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ObjectCostJson {
    /// Kind.
    pub kind: String,
    /// Site, as in `sites` of a trace.
    pub site: String,
    /// Line and function.
    pub location: String,
    /// Live objects.
    pub live: u64,
    /// Objects whose creation was measured.
    pub measured: u64,
    /// Memory of all live objects.
    pub bytes: u64,
    /// Mean of one object.
    pub bytes_each: u64,
    /// Lower bound of the mean.
    pub min_bytes_each: u64,
    /// Upper bound of the mean.
    pub max_bytes_each: u64,
}

impl ExplainReport {
    /// Explains the running processes of a snapshot for which the driver reports memory.
    #[must_use]
    pub fn of(
        snapshot: &Snapshot,
        context: &ReportContext,
        is_wanted: impl Fn(&ProcessView) -> bool,
    ) -> Self {
        let time = context.clock.precise(snapshot.at);
        let explained = explained(snapshot, is_wanted);
        let mut processes: Vec<_> =
            explained.map(|process| ExplainedProcess { time: time.clone(), ..process }).collect();
        processes.sort_by_key(|process| (std::cmp::Reverse(process.driver_bytes), process.pid));
        Self { processes }
    }
}

/// Returns the running processes for which the driver reports memory; without a time.
fn explained(
    snapshot: &Snapshot,
    is_wanted: impl Fn(&ProcessView) -> bool,
) -> impl Iterator<Item = ExplainedProcess> {
    let running = snapshot.processes.iter().filter(|process| process.ended.is_none());
    let wanted = running.filter(move |process| is_wanted(process));
    wanted.filter_map(Explanation::of).map(|explanation| ExplainedProcess::new(&explanation))
}

impl ExplainedProcess {
    fn new(explanation: &Explanation<'_>) -> Self {
        let process = explanation.process;
        let identity = &process.identity;
        let program = identity.program.as_deref().unwrap_or(&process.name);
        let sums = explanation.sums();
        Self {
            pid: process.key.pid.0,
            program: sanitize(program).into_owned(),
            user: identity.user.as_deref().map(|user| sanitize(user).into_owned()),
            time: String::new(),
            exited: false,
            settled: process.overhead.is_settled,
            before_trace: process.before_trace,
            driver_bytes: explanation.driver_bytes.0,
            traced_bytes: process.live_bytes.0,
            measured_bytes: sums.measured,
            bounded_bytes: sums.bounded,
            estimated_bytes: sums.estimated,
            unexplained_bytes: sums.unexplained,
            parts: explanation.parts.iter().map(PartJson::new).collect(),
            objects: explanation.objects.iter().map(ObjectCostJson::new).collect(),
        }
    }
}

impl PartJson {
    pub(crate) fn new(part: &ExplainedPart<'_>) -> Self {
        let library = match &part.cause {
            PartCause::Library(view) => Some(sanitize(&view.library).into_owned()),
            PartCause::Overhead(_) | PartCause::Rest => None,
        };
        Self {
            part: part.cause.name().to_owned(),
            library,
            description: sanitize_up_to(&part.cause.title(part.count), MAX_TEXT_CHARS).into_owned(),
            bytes: part.bytes,
            min_bytes: part.min,
            max_bytes: part.max,
            precision: part.precision.name().to_owned(),
            count: Some(part.count).filter(|count| *count > 0),
            advice: part.cause.advice().to_owned(),
        }
    }
}

impl ObjectCostJson {
    fn new(cost: &ObjectCostView) -> Self {
        Self {
            kind: cost.kind.name().to_owned(),
            site: cost.site.to_string(),
            location: sanitize_up_to(&stack_location(&cost.frames), MAX_TEXT_CHARS).into_owned(),
            live: cost.live,
            measured: cost.measured,
            bytes: cost.total().0,
            bytes_each: cost.bytes.0,
            min_bytes_each: cost.min.0,
            max_bytes_each: cost.max.0,
        }
    }
}

/// Explanations over time: of running processes the newest, of exited ones that of their highest
/// use, because an exited process has no memory.
#[derive(Clone, Debug, Default)]
pub struct ExplainHistory {
    newest: BTreeMap<u32, (Timestamp, ExplainedProcess)>,
    highest: BTreeMap<u32, (Timestamp, ExplainedProcess)>,
}

/// Maximum number of exited processes.
const MAX_EXITED: usize = 1000;

impl ExplainHistory {
    /// Adds the running processes of a snapshot.
    pub fn observe(&mut self, snapshot: &Snapshot) {
        self.newest.clear();
        for process in explained(snapshot, |_| true) {
            // Calls around the driver's report would be assigned to the wrong parts.
            let rank = |process: &ExplainedProcess| (process.settled, process.driver_bytes);
            let known = self.highest.get(&process.pid).map(|(_, process)| rank(process));
            if known.is_none_or(|known| rank(&process) >= known)
                && (known.is_some() || self.highest.len() < MAX_EXITED)
            {
                self.highest.insert(process.pid, (snapshot.at, process.clone()));
            }
            self.newest.insert(process.pid, (snapshot.at, process));
        }
    }

    /// Returns all processes, those with most memory first.
    #[must_use]
    pub fn report(self, context: &ReportContext) -> ExplainReport {
        let Self { newest, highest } = self;
        let exited = highest.into_iter().filter(|(pid, _)| !newest.contains_key(pid));
        let exited =
            exited.map(|(_, (at, process))| (at, ExplainedProcess { exited: true, ..process }));
        let all: Vec<_> = exited.chain(newest.clone().into_values()).collect();
        let timed = |(at, process)| ExplainedProcess { time: context.clock.precise(at), ..process };
        let mut processes: Vec<_> = all.into_iter().map(timed).collect();
        processes.sort_by_key(|process| (std::cmp::Reverse(process.driver_bytes), process.pid));
        ExplainReport { processes }
    }
}
