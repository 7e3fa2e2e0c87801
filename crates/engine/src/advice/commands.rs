//! Commands that a user can copy and paste.

use crate::container::Runtime;
use crate::snapshot::ProcessView;

use super::Action;

/// Where a command is entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tongue {
    /// A shell.
    Shell,
    /// The program, as Python code.
    Python,
    /// The program, as C code.
    C,
    /// The environment of the program, set before it starts.
    Environment,
}

impl Tongue {
    /// Name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shell => "shell",
            Self::Python => "python",
            Self::C => "c",
            Self::Environment => "environment",
        }
    }
}

/// A command to copy and paste.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// Where to enter it.
    pub tongue: Tongue,
    /// Text of the command. Contains no text of a traced program except names without shell
    /// metacharacters.
    pub text: String,
}

impl Command {
    fn new(language: Tongue, text: impl Into<String>) -> Self {
        Self { tongue: language, text: text.into() }
    }
}

/// Returns the commands that carry out a step.
pub(super) fn of(action: Action, process: &ProcessView) -> Vec<Command> {
    match action {
        Action::EmptyCache => vec![Command::new(Tongue::Python, "torch.cuda.empty_cache()")],
        Action::TrimPool => vec![Command::new(Tongue::C, "cuMemPoolTrimTo(pool, 0);")],
        Action::TrimGraphs => vec![Command::new(Tongue::C, "cuDeviceGraphMemTrim(device);")],
        Action::ExpandSegments => vec![Command::new(
            Tongue::Environment,
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        )],
        Action::AskForLess => Vec::new(),
        Action::StopIdle | Action::Stop => vec![end(process, false)],
        Action::RestartLeaking => vec![end(process, true)],
    }
}

/// Returns the command that stops a process, or its container or pod if known.
fn end(process: &ProcessView, restart: bool) -> Command {
    let in_container = process.container.as_deref().and_then(|container| {
        if let Some(pod) = &container.pod {
            let (name, namespace) = (safe(pod.name.as_deref()?)?, safe(pod.namespace.as_deref()?)?);
            return Some(format!("kubectl delete pod --namespace {namespace} {name}"));
        }
        let id = safe(&container.id)?;
        let verb = if restart { "restart" } else { "stop" };
        match container.runtime {
            Runtime::Docker => Some(format!("docker {verb} {id}")),
            Runtime::Podman => Some(format!("podman {verb} {id}")),
            Runtime::Containerd | Runtime::CriO => Some(format!("crictl stop {id}")),
            Runtime::Unknown => None,
        }
    });
    let text = in_container.unwrap_or_else(|| format!("kill -TERM {}", process.key.pid));
    Command::new(Tongue::Shell, text)
}

/// Returns the name if it has no shell metacharacters and cannot be taken for an option.
fn safe(name: &str) -> Option<&str> {
    let harmless = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let valid = !name.is_empty() && name.len() <= 253 && !name.starts_with('-');
    (valid && name.chars().all(harmless)).then_some(name)
}
