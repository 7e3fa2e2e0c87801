//! `[trace]`: tracing options, and the budget of the agent.

use std::path::PathBuf;

use engine::model::{AllocatorMode, StackMode};

use super::section::section;
use super::{ByteSize, Choice};

section! {
    /// What is traced, and what the agent may cost. Beyond a budget it drops call stacks, never
    /// memory accounting.
    TraceConfig {
        /// CUDA driver libraries to probe, in addition to those found; same as `--driver`.
        drivers: Vec<PathBuf> = Vec::new(), default "[]";
        /// How call stacks are collected: `off`, `fp` (frame pointers) or `full` (unwind tables and
        /// Python frames); same as `--stacks`.
        stacks: Choice<StackMode> = Choice(StackMode::Full), default "\"full\"";
        /// Track streams, events, graphs, modules and other CUDA objects.
        objects: bool = true, default "true";
        /// Count launches and copies.
        kernels: bool = true, default "true";
        /// Track blocks of allocators in processes, such as PyTorch tensors: `auto` (by call site; those
        /// of PyTorch while the memory of a process grows), `sampled` (always), `full` (always, with all call
        /// stacks), `totals` or `off`; same as `--allocators`.
        allocators: Choice<AllocatorMode> = Choice(AllocatorMode::WhileGrowing), default "\"auto\"";
        /// CPU budget in percent of one core, more than 0; same as `--max-cpu`.
        max_cpu: Option<f64> = None, example "5.0";
        /// Memory budget; same as `--max-memory`. Less than about 100 MiB cannot be met.
        max_memory: Option<ByteSize> = None, example "\"512M\"";
    }
}

impl TraceConfig {
    /// Adds the errors of this section.
    pub(super) fn check(&self, errors: &mut Vec<String>) {
        if self.max_cpu.is_some_and(|percent| !percent.is_finite() || percent <= 0.0) {
            errors.push("max_cpu is percent of one core: more than 0, such as 5".into());
        }
    }
}
