//! Commands that a user can copy and paste.

use crate::model::ContainerRuntime;
use crate::model::named::named_enum;
use crate::snapshot::ProcessView;

use super::AdviceAction;

named_enum! {
    /// Where a command is entered.
    pub enum CommandLanguage {
        /// A shell.
        Shell => "shell",
        /// The program, as Python code.
        Python => "python",
        /// The program, as C code.
        C => "c",
        /// The environment of the program, set before it starts.
        Environment => "environment",
    }
}

/// A command to copy and paste.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SuggestedCommand {
    /// Where to enter it.
    pub language: CommandLanguage,
    /// Text of the command. Contains no text of a traced program except names without shell
    /// metacharacters.
    pub text: String,
}

impl SuggestedCommand {
    fn new(language: CommandLanguage, text: impl Into<String>) -> Self {
        Self { language, text: text.into() }
    }
}

/// Returns the commands that carry out a step.
pub(super) fn commands_for(action: AdviceAction, process: &ProcessView) -> Vec<SuggestedCommand> {
    match action {
        AdviceAction::EmptyCache => {
            vec![SuggestedCommand::new(CommandLanguage::Python, "torch.cuda.empty_cache()")]
        }
        AdviceAction::TrimPool => {
            vec![SuggestedCommand::new(CommandLanguage::C, "cuMemPoolTrimTo(pool, 0);")]
        }
        AdviceAction::TrimGraphs => {
            vec![SuggestedCommand::new(CommandLanguage::C, "cuDeviceGraphMemTrim(device);")]
        }
        AdviceAction::UseExpandableSegments => vec![SuggestedCommand::new(
            CommandLanguage::Environment,
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        )],
        AdviceAction::ReduceMemoryUse => Vec::new(),
        AdviceAction::StopIdle | AdviceAction::Stop => vec![stop_command(process, false)],
        AdviceAction::RestartLeaking => vec![stop_command(process, true)],
    }
}

/// Returns the command that stops a process, or its container or pod if known.
fn stop_command(process: &ProcessView, restart: bool) -> SuggestedCommand {
    let in_container = process.container.as_deref().and_then(|container| {
        if let Some(pod) = &container.pod {
            let (name, namespace) = (safe(pod.name.as_deref()?)?, safe(pod.namespace.as_deref()?)?);
            return Some(format!("kubectl delete pod --namespace {namespace} {name}"));
        }
        let id = safe(&container.id)?;
        let verb = if restart { "restart" } else { "stop" };
        match container.runtime {
            ContainerRuntime::Docker => Some(format!("docker {verb} {id}")),
            ContainerRuntime::Podman => Some(format!("podman {verb} {id}")),
            ContainerRuntime::Containerd | ContainerRuntime::CriO => {
                Some(format!("crictl stop {id}"))
            }
            ContainerRuntime::Unknown => None,
        }
    });
    let text = in_container.unwrap_or_else(|| format!("kill -TERM {}", process.key.pid));
    SuggestedCommand::new(CommandLanguage::Shell, text)
}

/// Returns the name if it has no shell metacharacters and cannot be taken for an option.
fn safe(name: &str) -> Option<&str> {
    let harmless = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let valid = !name.is_empty() && name.len() <= 253 && !name.starts_with('-');
    (valid && name.chars().all(harmless)).then_some(name)
}
