//! Commands to copy and paste.

use crate::container::Runtime;
use crate::snapshot::ProcessView;

use super::Action;

/// Where a command goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tongue {
    /// Into a shell.
    Shell,
    /// Into the program, in Python.
    Python,
    /// Into the program, in C.
    C,
    /// Into the environment of the program, before it starts.
    Environment,
}

impl Tongue {
    /// The word for it in JSON.
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

/// Something to copy and paste.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// Where it goes.
    pub tongue: Tongue,
    /// What it is: never a text of a traced program, except for names that mean nothing to a shell.
    pub text: String,
}

impl Command {
    fn new(tongue: Tongue, text: impl Into<String>) -> Self {
        Self { tongue, text: text.into() }
    }
}

/// The commands of a step.
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

/// Ends a process, or what it runs in where that is known.
fn end(process: &ProcessView, again: bool) -> Command {
    let in_container = process.container.as_deref().and_then(|container| {
        if let Some(pod) = &container.pod {
            let (name, namespace) = (safe(pod.name.as_deref()?)?, safe(pod.namespace.as_deref()?)?);
            return Some(format!("kubectl delete pod --namespace {namespace} {name}"));
        }
        let id = safe(&container.id)?;
        let what = if again { "restart" } else { "stop" };
        match container.runtime {
            Runtime::Docker => Some(format!("docker {what} {id}")),
            Runtime::Podman => Some(format!("podman {what} {id}")),
            Runtime::Containerd | Runtime::CriO => Some(format!("crictl stop {id}")),
            Runtime::Unknown => None,
        }
    });
    let text = in_container.unwrap_or_else(|| format!("kill -TERM {}", process.key.pid));
    Command::new(Tongue::Shell, text)
}

/// A name that means nothing to a shell, and is no option.
fn safe(name: &str) -> Option<&str> {
    let harmless = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let fits = !name.is_empty() && name.len() <= 253 && !name.starts_with('-');
    (fits && name.chars().all(harmless)).then_some(name)
}
