//! Where the driver-reported memory of processes goes, as text and JSON. The JSON object is the same
//! in the agent's API and in the output of `explain --format json`. Fields are added, never renamed.

mod text;

pub use text::write;

use std::collections::BTreeMap;

use engine::model::Timestamp;
use engine::snapshot::{LimitView, ObjectCostView, ProcessView, Snapshot};
use engine::view::{ExplainedPart, Explanation, PartCause};
use serde::{Deserialize, Serialize};

use super::json_objects::json_objects;
use super::view::stack_location;
use crate::export::ReportContext;
use crate::sanitize::{sanitize_up_to, sanitized};

/// Maximum number of characters of a text.
const MAX_TEXT_CHARS: usize = 1000;

/// Explanations of processes, those with most memory first.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ExplainReport {
    /// One entry per process.
    pub processes: Vec<ExplainedProcess>,
}

json_objects! {
    @fields(pub)
    /// Memory of one process; its parts add up to `driver_bytes`.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct ExplainedProcess(explanation: &Explanation<'_>): Deserialize
    let {
        let process = explanation.process;
        let identity = &process.identity;
        let program = identity.program.as_deref().unwrap_or(&process.name);
        let sums = explanation.sums();
    }
    {
        /// Process id.
        pid: u32 = process.key.pid.0,
        /// Script, module or executable.
        program: String = sanitized(program),
        /// Owner.
        user?: Option<String> = identity.user.as_deref().map(sanitized),
        /// Time of the values, RFC 3339.
        time: String = String::new(),
        /// Whether it exited since; then the values are those of its highest use.
        exited: bool = false,
        /// Whether no call changed memory around or since the driver's report.
        settled: bool = process.overhead.is_settled,
        /// Whether it ran before the trace.
        before_trace: bool = process.before_trace,
        /// Memory that the driver reports for it, on all GPUs.
        driver_bytes: u64 = explanation.driver_bytes.0,
        /// Traced live memory.
        traced_bytes: u64 = process.live_bytes.0,
        /// Sum of the parts that were measured or counted.
        measured_bytes: u64 = sums.measured,
        /// Sum of the parts that are bounded.
        bounded_bytes: u64 = sums.bounded,
        /// Sum of the parts that are estimated.
        estimated_bytes: u64 = sums.estimated,
        /// Absolute value of the part `rest`.
        unexplained_bytes: u64 = sums.unexplained,
        /// Parts, largest first; `rest` is the last.
        parts: Vec<PartJson> = explanation.parts.iter().map(PartJson::new).collect(),
        /// Limits that it has set with `cuCtxSetLimit`.
        limits: Vec<LimitJson> = explanation.limits.iter().map(LimitJson::new).collect(),
        /// Cost of objects by kind and site, most expensive first.
        objects: Vec<ObjectCostJson> =
            explanation.objects.iter().map(ObjectCostJson::new).collect(),
    }

    /// A part of the memory of a process.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct PartJson(of: &ExplainedPart<'_>): Deserialize
    let {
        let from = match &of.cause {
            PartCause::Library(view) => Some(sanitized(&view.library)),
            PartCause::Overhead(_) | PartCause::AfterQuery | PartCause::Rest => None,
        };
    }
    {
        /// What it is: `library`, `context`, `modules`, …, `rest`.
        part: String = of.cause.name().to_owned(),
        /// Library, for the part `library`.
        library?: Option<String> = from,
        /// Description.
        description: String =
            sanitize_up_to(&of.cause.title(of.count), MAX_TEXT_CHARS).into_owned(),
        /// Size; only `rest` can be negative: traced memory that the driver does not report yet.
        bytes: i64 = of.bytes,
        /// Lower bound.
        min_bytes: u64 = of.min,
        /// Upper bound.
        max_bytes: u64 = of.max,
        /// `measured`, `bounded` or `estimated`.
        precision: String = of.precision.name().to_owned(),
        /// Number of allocations, objects or kernels; absent where that does not apply.
        count?: Option<u64> = Some(of.count).filter(|count| *count > 0),
        /// What can be done about it.
        advice: String = of.cause.advice().to_owned(),
    }

    /// A limit that a process has set.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct LimitJson(view: &LimitView): Deserialize {
        /// `stack`, `printf_fifo`, `malloc_heap`, `launch_depth` or `pending_launches`.
        limit: String = view.limit.name().to_owned(),
        /// Last value: bytes, or a number of launches.
        value: u64 = view.value,
        /// Number of calls.
        calls: u64 = view.calls,
        /// Change of the driver-reported memory from before to after the calls.
        bytes: i64 = view.bytes,
        /// Lower bound.
        min_bytes: i64 = view.min,
        /// Upper bound.
        max_bytes: i64 = view.max,
        /// `measured`, `bounded` or `estimated`.
        precision: String = view.precision.name().to_owned(),
    }

    /// Device memory of the objects of one kind from one site.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct ObjectCostJson(cost: &ObjectCostView): Deserialize {
        /// Kind.
        kind: String = cost.kind.name().to_owned(),
        /// Site, as in `sites` of a trace.
        site: String = cost.site.to_string(),
        /// Line and function.
        location: String =
            sanitize_up_to(&stack_location(&cost.frames), MAX_TEXT_CHARS).into_owned(),
        /// Live objects.
        live: u64 = cost.live,
        /// Objects whose creation was measured.
        measured: u64 = cost.measured,
        /// Memory of all live objects.
        bytes: u64 = cost.total().0,
        /// Mean of one object.
        bytes_each: u64 = cost.bytes.0,
        /// Lower bound of the mean.
        min_bytes_each: u64 = cost.min.0,
        /// Upper bound of the mean.
        max_bytes_each: u64 = cost.max.0,
        /// Mean size of the images of modules and libraries, if known.
        image_bytes_each?: Option<u64> = cost.image.map(|bytes| bytes.0),
    }
}

impl ExplainReport {
    /// Explains the running processes of a snapshot for which the driver reports memory.
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
    let running = snapshot.running();
    let wanted = running.filter(move |process| is_wanted(process));
    wanted.filter_map(Explanation::of).map(|explanation| ExplainedProcess::new(&explanation))
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
