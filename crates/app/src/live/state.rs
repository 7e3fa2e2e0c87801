//! The ledger of a live trace, and the names that its reports need.

use anyhow::Result;
use capture::gpus::GpuInfo;
use capture::hooks::function_name;
use engine::ledger::Ledger;
use formats::WallClock;
use formats::export::{CaptureSource, GpuLabel, ReportContext};
use formats::recording::FunctionTable;

use super::notice::log_notice;
use super::pipeline::{LiveTrace, PipelineMessage};
use super::requests::PendingAnswers;
use crate::io::output;

/// A ledger that follows a trace.
pub(crate) struct LiveState {
    pub(crate) ledger: Ledger,
    pub(crate) context: ReportContext,
    /// Requests of programs that wait for the names of functions.
    pending: PendingAnswers,
}

impl LiveState {
    pub(crate) fn new(live: &LiveTrace) -> Self {
        let ledger = Ledger::new();
        Self {
            ledger: if live.counts_activity { ledger.with_activity() } else { ledger },
            context: context(&live.gpus, Some(live.source)),
            pending: PendingAnswers::default(),
        }
    }

    /// Answers requests of programs; to be called several times a second.
    pub(crate) fn tick(&mut self) {
        self.pending.send_complete(&self.ledger);
    }

    /// Applies a message. Only warnings are logged.
    pub(crate) fn apply(&mut self, message: PipelineMessage) -> Result<()> {
        match message {
            PipelineMessage::Events(events) => {
                events.iter().for_each(|event| self.ledger.apply(event));
            }
            PipelineMessage::Gpus(gpus) => self.context.gpus = gpu_names(&gpus),
            PipelineMessage::Notice(notice) if notice.is_warning() => log_notice(&notice),
            PipelineMessage::Notice(_) => {}
            PipelineMessage::Request(request) => {
                request.execute(&mut self.ledger, &mut self.pending);
            }
            PipelineMessage::Failed(error) => return Err(error),
        }
        Ok(())
    }
}

/// Returns the names and the clock of reports on this host.
pub(crate) fn context(gpus: &[GpuInfo], source: Option<CaptureSource>) -> ReportContext {
    ReportContext {
        clock: output::clock(WallClock::now(capture::monotonic())),
        function: function_name,
        recorded: FunctionTable::default(),
        gpus: gpu_names(gpus),
        source,
    }
}

/// Returns the names of GPUs.
pub(crate) fn gpu_names(gpus: &[GpuInfo]) -> Vec<GpuLabel> {
    let label = |gpu: &GpuInfo| GpuLabel {
        id: gpu.id,
        uuid: gpu.uuid.clone(),
        name: gpu.name.clone(),
        total_bytes: gpu.total_bytes,
    };
    gpus.iter().map(label).collect()
}
