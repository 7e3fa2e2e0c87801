//! Advice as text and JSON. The JSON object is the same in the agent's API, in incident directories
//! and in the output of `advise --format json`. Fields are added, never renamed.

mod from_snapshot;
mod text;

pub use from_snapshot::{
    AdviceRequest, advice_report, device_holder_sentence, gpu_advice, is_protected,
};
pub use text::write;

use std::collections::BTreeMap;

use engine::advice::{AdviceStep, SuggestedCommand};
use engine::model::{Bytes, GpuId};
use engine::snapshot::Snapshot;
use serde::{Deserialize, Serialize};

use crate::export::ReportContext;
use crate::report::json_objects::json_objects;
use crate::sanitize::{sanitize_up_to, sanitized};

/// Maximum number of characters of a sentence.
pub(crate) const MAX_SENTENCE_CHARS: usize = 1000;

/// Steps that would free memory, by GPU.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AdviceReport {
    /// Time of the advice, RFC 3339.
    pub time: String,
    /// One entry per GPU.
    pub gpus: Vec<GpuAdvice>,
    /// Notes for the reader: memory that is not traced, or from before the trace.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Steps that would free memory of one GPU.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuAdvice {
    /// Index; absent if GPUs cannot be distinguished.
    pub gpu: Option<u16>,
    /// `GPU-…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Vendor's name of the GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Total memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// Free memory as reported by the driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// One step per process: leaks first, then the cheapest; those with little effect come last.
    pub steps: Vec<StepJson>,
    /// Whether the requested amount can be freed, if one was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub need: Option<NeedResult>,
}

json_objects! {
    @fields(pub)
    /// One step that would free memory.
    #[derive(Clone, PartialEq, Debug)]
    pub struct StepJson(step: &AdviceStep): Deserialize
    let {
        let text = |text: &Option<Box<str>>| {
            text.as_deref().map(sanitized).unwrap_or_default()
        };
    }
    {
        /// Action to take.
        action: String = step.action.name().to_owned(),
        /// Process that the action applies to.
        pid: u32 = step.pid.0,
        /// Name of the process.
        process: String = sanitized(&step.process),
        /// Its script, module or executable.
        #[serde(skip_serializing_if = "String::is_empty")]
        program: String = text(&step.identity.program),
        /// Name of its owner.
        #[serde(skip_serializing_if = "String::is_empty")]
        user: String = text(&step.identity.user),
        /// User id of its owner.
        #[serde(default)]
        uid: Option<u32> = step.uid,
        /// Memory that the step frees.
        freed_bytes: u64 = step.bytes.0,
        /// Precision of `freed_bytes`: `exact`, `upper_bound` or `estimate`.
        precision: String = step.precision.name().to_owned(),
        /// Growth of leaks that the step ends.
        growth_bytes_per_hour?: Option<u64> =
            Some(step.growth_per_hour.0).filter(|growth| *growth > 0),
        /// Whether the step loses no work.
        safe: bool = step.action.is_safe(),
        /// Why the step helps.
        reason: String = sanitize_up_to(&step.reason, MAX_SENTENCE_CHARS).into_owned(),
        /// What the step costs.
        cost: String = step.action.cost().to_owned(),
        /// Commands to copy and paste.
        commands: Vec<CommandJson> = step.commands.iter().map(CommandJson::new).collect(),
        /// Other steps for the same process.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        alternatives: Vec<StepJson> = step.alternatives.iter().map(StepJson::new).collect(),
    }

    /// A command to copy and paste.
    #[derive(Clone, PartialEq, Debug)]
    pub struct CommandJson(command: &SuggestedCommand): Deserialize {
        /// Language of the command: `shell`, `python`, `c` or `environment`.
        language: String = command.language.name().to_owned(),
        /// The command.
        text: String = sanitize_up_to(&command.text, MAX_SENTENCE_CHARS).into_owned(),
    }
}

/// Whether the requested amount can be freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NeedResult {
    /// Requested amount.
    pub bytes: u64,
    /// Whether free memory and safe steps are enough.
    pub without_data_loss: bool,
    /// Number of steps, from the first, that are enough; absent if all of them are not.
    pub steps: Option<usize>,
}

impl GpuAdvice {
    /// Creates the advice for one GPU, or for all GPUs together.
    pub fn new(
        gpu: Option<GpuId>,
        snapshot: &Snapshot,
        context: &ReportContext,
        steps: &[AdviceStep],
    ) -> Self {
        let known = gpu.and_then(|gpu| context.gpu(gpu));
        let view = snapshot.gpus.iter().find(|view| Some(view.gpu) == gpu);
        Self {
            gpu: gpu.map(|gpu| gpu.0),
            uuid: known.map(|gpu| sanitized(&gpu.uuid)),
            name: known.map(|gpu| sanitized(&gpu.name)),
            total_bytes: known.map(|gpu| gpu.total_bytes).filter(|bytes| *bytes > 0),
            free_bytes: view.map(|view| view.free_bytes.0),
            steps: steps.iter().map(StepJson::new).collect(),
            need: None,
        }
    }

    /// Whether a step has little effect, see [`engine::advice::advise`].
    fn is_small(&self, step: &StepJson) -> bool {
        let effect = step.freed_bytes.max(step.growth_bytes_per_hour.unwrap_or(0));
        effect > 0 && effect < self.total_bytes.unwrap_or(0) / 100
    }

    /// Evaluates whether `need` bytes can be freed.
    pub fn evaluate_need(&mut self, need: Bytes) {
        let all = |count| self.steps.iter().take(count).flat_map(StepJson::options);
        let safe = all(usize::MAX).filter(|step| step.safe);
        let without_data_loss = self.freed_by(safe) >= need.0;
        let steps = (0..=self.steps.len()).find(|count| self.freed_by(all(*count)) >= need.0);
        self.need = Some(NeedResult { bytes: need.0, without_data_loss, steps });
    }

    /// Returns the free memory after these steps. The memory of a process counts once: the memory
    /// freed by its cache or pool is part of the memory freed by its end.
    fn freed_by<'a>(&self, steps: impl Iterator<Item = &'a StepJson>) -> u64 {
        let mut by_process: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for step in steps {
            let (safe, ended) = by_process.entry(step.pid).or_default();
            if step.safe {
                *safe = safe.saturating_add(step.freed_bytes);
            } else {
                *ended = step.freed_bytes.max(*ended);
            }
        }
        let freed = by_process.values().map(|(safe, ended)| *safe.max(ended));
        let sum = freed.fold(self.free_bytes.unwrap_or(0), u64::saturating_add);
        self.total_bytes.map_or(sum, |total| sum.min(total))
    }
}

impl StepJson {
    /// Returns the step and its alternatives.
    fn options(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.alternatives)
    }
}
