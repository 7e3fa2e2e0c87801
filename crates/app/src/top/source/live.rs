//! Live probes, or in-process tracing: the same pipeline as `trace`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use engine::snapshot::SnapshotOptions;

use super::{Details, RequestCell, Source};
use crate::commands::trace::TracedCommand;
use crate::io::output;
use crate::live::keeper_search::KeeperSearch;
use crate::live::pipeline::LiveTrace;
use crate::live::state::LiveState;
use crate::top::frame::{HostFrame, TopFrame};

/// Longest time without a look at the request.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Longest time between two frames after the end of the command.
const LONG: Duration = Duration::from_hours(1);

/// A trace of this host.
pub(crate) struct LiveSource {
    /// None after the command has exited.
    live: Option<LiveTrace>,
    name: &'static str,
    state: LiveState,
    next: Instant,
    /// Details of the last frame.
    details: Details,
    /// The only command that is traced.
    command: Option<Arc<Mutex<TracedCommand>>>,
    /// Search for Python references, if requested.
    keepers: Option<KeeperSearch>,
    /// The last frame, after the command has exited.
    last: TopFrame,
}

impl LiveSource {
    pub(crate) fn new(live: LiveTrace) -> Self {
        Self {
            name: if live.plan.is_some() { "live" } else { "in-process" },
            state: LiveState::new(&live),
            live: Some(live),
            next: Instant::now(),
            details: Details::Nothing,
            command: None,
            keepers: None,
            last: TopFrame::default(),
        }
    }

    /// Shows a command until it exits, and then its last state.
    pub(crate) fn of_command(
        live: LiveTrace,
        command: Arc<Mutex<TracedCommand>>,
        why: bool,
    ) -> Self {
        let keepers = why.then(KeeperSearch::default);
        Self { command: Some(command), keepers, ..Self::new(live) }
    }

    /// Returns the state at this time.
    fn frame(&mut self, options: &SnapshotOptions) -> TopFrame {
        let at = capture::monotonic();
        let snapshot = self.state.ledger.snapshot(at, options);
        if let Some(search) = &mut self.keepers {
            search.search(&snapshot.suspects);
        }
        let host = HostFrame::local(snapshot, self.state.context.clone());
        TopFrame { hosts: vec![host], replay: None }
    }

    /// Returns the last frame if the command has exited.
    fn end(&mut self) -> Result<Option<TopFrame>> {
        let Some(command) = &self.command else { return Ok(None) };
        let status = {
            let mut command = command.lock().unwrap_or_else(PoisonError::into_inner);
            command.has_exited()?;
            command.status
        };
        let Some(status) = status else { return Ok(None) };
        let remaining = self.live.take().map(|live| live.finish().0);
        remaining.into_iter().flatten().try_for_each(|message| self.state.apply(message))?;
        self.keepers = None;
        // As in the final report, leaks of processes that exited remain.
        let options = SnapshotOptions { ended_sites: true, ..self.details.snapshot_options(0) };
        self.last = self.frame(&options);
        output::log(&format!("the command ended ({status}); q closes the view"));
        Ok(Some(self.last.clone()))
    }
}

impl Source for LiveSource {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn next(&mut self, requests: &RequestCell) -> Result<Option<TopFrame>> {
        while let Some(live) = &self.live {
            let now = Instant::now();
            let request = requests.get();
            if now >= self.next || request.details != self.details || requests.is_stopped() {
                break;
            }
            if let Some(message) = live.next(self.next.min(now + POLL_INTERVAL)) {
                self.state.apply(message)?;
            }
            self.state.tick();
            if let Some(last) = self.end()? {
                return Ok(Some(last));
            }
        }
        let request = requests.get();
        if self.live.is_none() {
            requests.wait(&request, Instant::now() + LONG);
            return Ok(Some(self.last.clone()));
        }
        if std::mem::replace(&mut self.details, request.details) == request.details {
            self.next = (self.next + request.interval).max(Instant::now());
        }
        Ok(Some(self.frame(&request.details.snapshot_options(0))))
    }
}
