//! The driver's own values: what is known without root and without an agent.

use std::time::{Duration, Instant};

use anyhow::Result;
use capture::session::DriverReports;
use engine::ledger::Ledger;
use formats::export::ReportContext;

use super::{RequestCell, Source};
use crate::io::output;
use crate::live::state::{context, gpu_names};
use crate::top::frame::{HostFrame, TopFrame};

/// Time between two looks at the driver's answers.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Driver-reported usage of this host.
pub(crate) struct DriverSource {
    reports: DriverReports,
    ledger: Ledger,
    context: ReportContext,
    missing: String,
    next: Instant,
}

impl DriverSource {
    /// `missing`: why there is no more, and what to do about it.
    pub(crate) fn new(reports: DriverReports, missing: String) -> Self {
        let context = context(&[], None);
        Self { reports, ledger: Ledger::new(), context, missing, next: Instant::now() }
    }

    fn poll(&mut self) {
        self.reports.poll().iter().for_each(|event| self.ledger.apply(event));
        if let Some(reason) = self.reports.take_failure() {
            output::warn(&format!("driver-reported memory usage is unavailable: {reason}"));
        }
    }
}

impl Source for DriverSource {
    fn name(&self) -> String {
        "driver".to_owned()
    }

    fn next(&mut self, requests: &RequestCell) -> Result<Option<TopFrame>> {
        self.poll();
        while Instant::now() < self.next && !requests.is_stopped() {
            let known = requests.get();
            requests.wait(&known, self.next.min(Instant::now() + POLL_INTERVAL));
            self.poll();
        }
        self.next = (self.next + requests.get().interval).max(Instant::now());
        let at = capture::monotonic();
        let snapshot = self.ledger.snapshot(at, &requests.get().details.snapshot_options(0));
        let gpus = gpu_names(self.reports.gpus());
        let context = ReportContext { gpus, ..self.context.clone() };
        let missing = Some(self.missing.clone());
        let host = HostFrame { missing, ..HostFrame::local(snapshot, context) };
        Ok(Some(TopFrame { hosts: vec![host], replay: None }))
    }
}
