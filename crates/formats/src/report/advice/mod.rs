//! Advice as text and JSON. The JSON object is the same in the agent's API, in incident directories
//! and in the output of `advise --format json`. Fields are added, never renamed.

mod from_snapshot;
mod text;

pub use from_snapshot::{
    AdviceRequest, advice_report, device_holder_sentence, gpu_advice, is_protected,
};
pub use text::write;

use std::collections::BTreeMap;

use engine::advice::AdviceStep;
use engine::model::ids::GpuId;
use engine::model::units::Bytes;
use engine::snapshot::Snapshot;
use serde::{Deserialize, Serialize};

use crate::export::ReportContext;
use crate::sanitize::{sanitize, sanitize_up_to};

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
    /// Steps, cheapest first; those that free less than 1 % of the GPU come last.
    pub steps: Vec<StepJson>,
    /// Whether the requested amount can be freed, if one was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub need: Option<NeedResult>,
}

/// One step that would free memory.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepJson {
    /// Action to take.
    pub action: String,
    /// Process that the action applies to.
    pub pid: u32,
    /// Name of the process.
    pub process: String,
    /// Its script, module or executable.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub program: String,
    /// Name of its owner.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// User id of its owner.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Memory that the step frees.
    pub freed_bytes: u64,
    /// Precision of `freed_bytes`: `exact`, `upper_bound` or `estimate`.
    pub precision: String,
    /// Growth of leaks that the step ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth_bytes_per_hour: Option<u64>,
    /// Whether the step loses no work.
    pub safe: bool,
    /// Why the step helps.
    pub reason: String,
    /// What the step costs.
    pub cost: String,
    /// Commands to copy and paste.
    pub commands: Vec<CommandJson>,
}

/// A command to copy and paste.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CommandJson {
    /// Language of the command: `shell`, `python`, `c` or `environment`.
    pub language: String,
    /// The command.
    pub text: String,
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
    #[must_use]
    pub fn new(
        gpu: Option<GpuId>,
        snapshot: &Snapshot,
        context: &ReportContext,
        steps: &[AdviceStep],
    ) -> Self {
        let known = gpu.and_then(|gpu| context.gpu(gpu));
        let view = snapshot.gpus.iter().find(|view| Some(view.gpu) == gpu);
        let mut advice = Self {
            gpu: gpu.map(|gpu| gpu.0),
            uuid: known.map(|gpu| sanitize(&gpu.uuid).into_owned()),
            name: known.map(|gpu| sanitize(&gpu.name).into_owned()),
            total_bytes: known.map(|gpu| gpu.total_bytes).filter(|bytes| *bytes > 0),
            free_bytes: view.map(|view| view.free_bytes.0),
            steps: Vec::new(),
            need: None,
        };
        let steps = steps.iter().map(StepJson::new);
        let (large, small): (Vec<_>, Vec<_>) = steps.partition(|step| !advice.is_small(step));
        advice.steps = large.into_iter().chain(small).collect();
        advice
    }

    /// Whether a step frees less than 1 % of the GPU. What a change of the program frees is unknown.
    fn is_small(&self, step: &StepJson) -> bool {
        let least = self.total_bytes.unwrap_or(0) / 100;
        step.freed_bytes > 0 && step.freed_bytes < least
    }

    /// Evaluates whether `need` bytes can be freed.
    pub fn evaluate_need(&mut self, need: Bytes) {
        let without_data_loss = self.freed_by(self.steps.iter().filter(|step| step.safe)) >= need.0;
        let enough = |count: &usize| self.freed_by(self.steps.iter().take(*count)) >= need.0;
        let steps = (0..=self.steps.len()).find(enough);
        self.need = Some(NeedResult { bytes: need.0, without_data_loss, steps });
    }
}

impl GpuAdvice {
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
    fn new(step: &AdviceStep) -> Self {
        let text = |text: &Option<Box<str>>| {
            text.as_deref().map(|text| sanitize(text).into_owned()).unwrap_or_default()
        };
        Self {
            action: step.action.name().to_owned(),
            pid: step.pid.0,
            process: sanitize(&step.process).into_owned(),
            program: text(&step.identity.program),
            user: text(&step.identity.user),
            uid: step.uid,
            freed_bytes: step.bytes.0,
            precision: step.precision.name().to_owned(),
            growth_bytes_per_hour: Some(step.growth_per_hour.0).filter(|growth| *growth > 0),
            safe: step.action.is_safe(),
            reason: sanitize_up_to(&step.reason, MAX_SENTENCE_CHARS).into_owned(),
            cost: step.action.cost().to_owned(),
            commands: step
                .commands
                .iter()
                .map(|command| CommandJson {
                    language: command.language.name().to_owned(),
                    text: sanitize_up_to(&command.text, MAX_SENTENCE_CHARS).into_owned(),
                })
                .collect(),
        }
    }
}
