//! `[trace]`: tracing options, and the budget of the agent.

use std::path::PathBuf;

use serde::Deserialize;

use super::ByteSize;

/// `[trace]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TraceConfig {
    /// Driver libraries to probe in addition to those found.
    pub(crate) drivers: Vec<PathBuf>,
    /// How call stacks are collected.
    pub(crate) stacks: StackModeConfig,
    /// Also track CUDA objects: streams, events and others.
    pub(crate) objects: bool,
    /// Also count launches and copies.
    pub(crate) kernels: bool,
    /// Also track PyTorch tensors.
    pub(crate) torch: TensorModeConfig,
    /// CPU budget of the agent, in percent of one core.
    pub(crate) max_cpu: Option<f64>,
    /// Memory budget of the agent.
    pub(crate) max_memory: Option<ByteSize>,
}

/// How call stacks are collected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StackModeConfig {
    Off,
    Fp,
    Full,
}

/// How tensors are tracked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TensorModeConfig {
    Off,
    Totals,
    Full,
}

impl TraceConfig {
    /// Adds the errors of this section.
    pub(super) fn check(&self, errors: &mut Vec<String>) {
        if self.max_cpu.is_some_and(|percent| !percent.is_finite() || percent <= 0.0) {
            errors.push("max_cpu is percent of one core: more than 0, such as 5".into());
        }
    }
}

impl Default for TraceConfig {
    fn default() -> Self {
        Self {
            drivers: Vec::new(),
            stacks: StackModeConfig::Full,
            objects: true,
            kernels: true,
            torch: TensorModeConfig::Off,
            max_cpu: None,
            max_memory: None,
        }
    }
}
