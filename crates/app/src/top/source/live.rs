//! Live probes, or in-process tracing: the same pipeline as `trace`.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Details, RequestCell, Source};
use crate::live::pipeline::LiveTrace;
use crate::live::state::LiveState;
use crate::top::frame::{HostFrame, TopFrame};

/// Longest time without a look at the request.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A trace of this host.
pub(crate) struct LiveSource {
    live: LiveTrace,
    state: LiveState,
    next: Instant,
    /// Details of the last frame.
    details: Details,
}

impl LiveSource {
    pub(crate) fn new(live: LiveTrace) -> Self {
        let state = LiveState::new(&live);
        Self { live, state, next: Instant::now(), details: Details::Nothing }
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
                self.state.apply(message)?;
            }
        }
        let request = requests.get();
        if std::mem::replace(&mut self.details, request.details) == request.details {
            self.next = (self.next + request.interval).max(Instant::now());
        }
        let at = capture::monotonic();
        let snapshot = self.state.ledger.snapshot(at, &request.details.snapshot_options(0));
        let host = HostFrame::local(snapshot, self.state.context.clone());
        Ok(Some(TopFrame { hosts: vec![host], replay: None }))
    }
}
