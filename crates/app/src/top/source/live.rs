//! Live probes, or in-process tracing: the same pipeline as `trace`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use capture::hooks::function_name;
use capture::session::parent_of;
use engine::ledger::Ledger;
use engine::model::ids::Pid;
use engine::snapshot::Snapshot;
use formats::WallClock;
use formats::export::ReportContext;
use formats::recording::FunctionTable;

use super::{Details, RequestCell, Source};
use crate::io::output;
use crate::live::pipeline::{LiveTrace, PipelineMessage};
use crate::live::report_loop::{gpu_names, log_notice};
use crate::top::frame::{HostFrame, TopFrame};

/// Longest time without a look at the request.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Limit of ancestors that are looked up.
const MAX_ANCESTORS: usize = 64;

/// A trace of this host.
pub(crate) struct LiveSource {
    live: LiveTrace,
    ledger: Ledger,
    context: ReportContext,
    next: Instant,
    /// Details of the last frame.
    details: Details,
}

impl LiveSource {
    pub(crate) fn new(live: LiveTrace) -> Self {
        let ledger = Ledger::new();
        let context = ReportContext {
            clock: output::clock(WallClock::now(capture::monotonic())),
            function: function_name,
            recorded: FunctionTable::default(),
            gpus: gpu_names(&live.gpus),
            source: Some(live.source),
        };
        let ledger = if live.counts_activity { ledger.with_activity() } else { ledger };
        Self { live, ledger, context, next: Instant::now(), details: Details::Nothing }
    }

    fn apply(&mut self, message: PipelineMessage) -> Result<()> {
        match message {
            PipelineMessage::Events(events) => {
                events.iter().for_each(|event| self.ledger.apply(event));
            }
            PipelineMessage::Gpus(gpus) => self.context.gpus = gpu_names(&gpus),
            PipelineMessage::Notice(notice) if notice.is_warning() => log_notice(&notice),
            // Only in-process tracing has requests.
            PipelineMessage::Notice(_) | PipelineMessage::Request(_) => {}
            PipelineMessage::Failed(error) => return Err(error),
        }
        Ok(())
    }
}

impl Source for LiveSource {
    fn name(&self) -> String {
        match self.live.plan {
            Some(_) => "live".to_owned(),
            None => "in-process".to_owned(),
        }
    }

    fn next(&mut self, requests: &RequestCell) -> Result<Option<TopFrame>> {
        loop {
            let now = Instant::now();
            let request = requests.get();
            if now >= self.next || request.details != self.details || requests.is_stopped() {
                break;
            }
            if let Some(message) = self.live.next(self.next.min(now + POLL_INTERVAL)) {
                self.apply(message)?;
            }
        }
        let request = requests.get();
        if std::mem::replace(&mut self.details, request.details) == request.details {
            self.next = (self.next + request.interval).max(Instant::now());
        }
        let at = capture::monotonic();
        let snapshot = self.ledger.snapshot(at, &request.details.snapshot_options(0));
        let host = HostFrame {
            name: formats::hostname::name(),
            parents: parents(&snapshot),
            snapshot,
            context: self.context.clone(),
            incidents: Vec::new(),
            events: Vec::new(),
            missing: None,
            is_local: true,
        };
        Ok(Some(TopFrame { hosts: vec![host], replay: None }))
    }
}

/// Returns the ancestors of all running processes of a snapshot of this host.
pub(super) fn parents(snapshot: &Snapshot) -> BTreeMap<Pid, Pid> {
    let mut parents = BTreeMap::new();
    for process in snapshot.processes.iter().filter(|process| process.ended.is_none()) {
        let mut pid = process.key.pid;
        for _ in 0..MAX_ANCESTORS {
            if parents.contains_key(&pid) {
                break;
            }
            let Some(parent) = parent_of(pid) else { break };
            parents.insert(pid, parent);
            pid = parent;
        }
    }
    parents
}
