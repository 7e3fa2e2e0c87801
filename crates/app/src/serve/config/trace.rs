//! `[trace]`: what is traced, and what that may cost.

use std::path::PathBuf;

use serde::Deserialize;

use super::Size;

/// See the module.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Trace {
    /// Driver libraries besides those that are found.
    pub(crate) drivers: Vec<PathBuf>,
    /// How call stacks are taken.
    pub(crate) stacks: Stacks,
    /// Streams, events and other objects are counted, too.
    pub(crate) objects: bool,
    /// Launches and copies are counted, too.
    pub(crate) kernels: bool,
    /// Tensors of PyTorch are followed, too.
    pub(crate) torch: Torch,
    /// The most processor time that the agent may take, in percent of one core.
    pub(crate) max_cpu: Option<f64>,
    /// The most memory that the agent may take.
    pub(crate) max_memory: Option<Size>,
}

/// How call stacks are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Stacks {
    Off,
    Fp,
    Full,
}

/// How tensors are followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Torch {
    Off,
    Totals,
    Full,
}

impl Trace {
    /// What is wrong with it.
    pub(super) fn check(&self, wrong: &mut Vec<String>) {
        if self.max_cpu.is_some_and(|percent| !percent.is_finite() || percent <= 0.0) {
            wrong.push("max_cpu is percent of one core: more than 0, such as 5".into());
        }
    }
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            drivers: Vec::new(),
            stacks: Stacks::Full,
            objects: true,
            kernels: true,
            torch: Torch::Off,
            max_cpu: None,
            max_memory: None,
        }
    }
}
