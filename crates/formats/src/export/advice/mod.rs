//! Advice for people and programs. The document is what the agent tells, what folders of incidents
//! keep, and what `advise --format json` prints: fields are added, never renamed.

mod text;

pub use text::write;

use std::collections::BTreeMap;

use engine::advice::Step;
use engine::ids::GpuId;
use engine::snapshot::Snapshot;
use engine::units::Bytes;
use serde::{Deserialize, Serialize};

use super::Names;
use crate::plain::{plain, plain_up_to};

/// The longest sentence.
pub(super) const SENTENCE: usize = 1000;

/// What would give memory back, GPU by GPU.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Advice {
    /// When, RFC 3339.
    pub time: String,
    /// Each GPU.
    pub gpus: Vec<GpuAdvice>,
    /// What the reader should know: what is not followed, or from before the trace.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// What would give back memory of one GPU.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuAdvice {
    /// Its index; absent where GPUs are not told apart.
    pub gpu: Option<u16>,
    /// `GPU-…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// What the vendor calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// All of its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
    /// What is free of it, by the driver's account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// The cheapest first.
    pub steps: Vec<StepObject>,
    /// Whether what was needed can be had, where that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub need: Option<Need>,
}

/// Something that would help.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StepObject {
    /// What to do.
    pub action: String,
    /// With which process.
    pub pid: u32,
    /// Its name.
    pub process: String,
    /// Its owner.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Memory that it frees.
    pub freed_bytes: u64,
    /// How precise that is: `exact`, `upper_bound` or `estimate`.
    pub precision: String,
    /// Nobody's work is lost.
    pub safe: bool,
    /// Why it helps.
    pub reason: String,
    /// What it costs.
    pub cost: String,
    /// What to copy and paste.
    pub commands: Vec<CommandObject>,
}

/// Something to copy and paste.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CommandObject {
    /// Where it goes: `shell`, `python`, `c` or `environment`.
    pub language: String,
    /// What it is.
    pub text: String,
}

/// Whether what is needed can be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Need {
    /// How much.
    pub bytes: u64,
    /// What is free now and what safe steps give back make it so.
    pub without_data_loss: bool,
    /// How many steps of the list, from the first, make it so; absent where all of them do not.
    pub steps: Option<usize>,
}

impl GpuAdvice {
    /// The advice on one GPU, or on all together.
    #[must_use]
    pub fn new(gpu: Option<GpuId>, snapshot: &Snapshot, names: &Names, steps: &[Step]) -> Self {
        let known = gpu.and_then(|gpu| names.gpu(gpu));
        let told = snapshot.gpus.iter().find(|view| Some(view.gpu) == gpu);
        Self {
            gpu: gpu.map(|gpu| gpu.0),
            uuid: known.map(|gpu| plain(&gpu.uuid).into_owned()),
            name: known.map(|gpu| plain(&gpu.name).into_owned()),
            total_bytes: known.map(|gpu| gpu.total_bytes).filter(|bytes| *bytes > 0),
            free_bytes: told.map(|view| view.free_bytes.0),
            steps: steps.iter().map(StepObject::new).collect(),
            need: None,
        }
    }

    /// Says whether so much can be had.
    pub fn judge(&mut self, need: Bytes) {
        let without_data_loss = self.had(self.steps.iter().filter(|step| step.safe)) >= need.0;
        let enough = |count: &usize| self.had(self.steps.iter().take(*count)) >= need.0;
        let steps = (0..=self.steps.len()).find(enough);
        self.need = Some(Need { bytes: need.0, without_data_loss, steps });
    }
}

impl GpuAdvice {
    /// What is free after these steps. One process gives its memory back once: what a cache or a pool
    /// gives back is a part of what the end of its process does, and nobody ends twice.
    fn had<'a>(&self, steps: impl Iterator<Item = &'a StepObject>) -> u64 {
        let mut by_process: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for step in steps {
            let (safe, ended) = by_process.entry(step.pid).or_default();
            if step.safe {
                *safe = safe.saturating_add(step.freed_bytes);
            } else {
                *ended = step.freed_bytes.max(*ended);
            }
        }
        let given = by_process.values().map(|(safe, ended)| *safe.max(ended));
        let sum = given.fold(self.free_bytes.unwrap_or(0), u64::saturating_add);
        self.total_bytes.map_or(sum, |total| sum.min(total))
    }
}

impl StepObject {
    fn new(step: &Step) -> Self {
        Self {
            action: step.action.name().to_owned(),
            pid: step.pid.0,
            process: plain(&step.process).into_owned(),
            uid: step.uid,
            freed_bytes: step.bytes.0,
            precision: step.known.name().to_owned(),
            safe: step.action.is_safe(),
            reason: plain_up_to(&step.why, SENTENCE).into_owned(),
            cost: step.action.price().to_owned(),
            commands: step
                .commands
                .iter()
                .map(|command| CommandObject {
                    language: command.tongue.name().to_owned(),
                    text: plain_up_to(&command.text, SENTENCE).into_owned(),
                })
                .collect(),
        }
    }
}
