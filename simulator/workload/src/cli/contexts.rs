//! Options of programs that test contexts and captures.

use clap::Args;

/// Options of `context-stack`.
#[derive(Args)]
pub(crate) struct ContextStack {
    /// Contexts pushed on top of the two that are created
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) depth: u32,
}

/// Options of `capture-end`.
#[derive(Args)]
pub(crate) struct CaptureEnd {
    /// How the capture ends
    #[arg(long, value_enum, default_value = "call")]
    pub(crate) how: CaptureEndBy,
}

/// How a capture ends.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum CaptureEndBy {
    /// By a call, which may fail (`SIM_INJECT_FAILURES`)
    Call,
    /// By a call that does not request the graph
    Null,
    /// By a call after one that cannot be captured
    Invalid,
    /// By a call on another thread
    Thread,
    /// By destroying the stream
    Stream,
    /// By destroying the context of the stream
    Context,
}

/// Options of `open-captures`.
#[derive(Args)]
pub(crate) struct OpenCaptures {
    /// The step after the captures have begun; each prints `ready` and waits
    #[arg(long, value_enum, default_value = "wait")]
    pub(crate) then: OpenCapturesThen,
    /// Time until the end; a program run with `exec` waits 2 minutes
    #[arg(long, default_value_t = 120_000)]
    pub(crate) wait_ms: u64,
}

/// The step after the captures of `open-captures` have begun.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OpenCapturesThen {
    /// Wait for a signal
    Wait,
    /// Run another program in this process
    Exec,
    /// Destroy the context of the streams
    Destroy,
}
