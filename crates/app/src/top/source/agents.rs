//! One or several running agents, over their HTTP API.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use formats::import::agent::{AgentState, incidents, sites, snapshot};
use formats::report::tables::incidents::Incident;

use super::{Details, RequestCell, Source};
use crate::commands::agent_query::AgentClient;
use crate::io::output;
use crate::top::frame::{HostFrame, TopFrame};

/// Time between two looks at the incidents of an agent.
const INCIDENTS_INTERVAL: Duration = Duration::from_secs(5);

/// Longest wait for the first answer, and for an answer after the reader has opened a process.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Time between two looks at what has arrived.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Latest state of an agent.
#[derive(Default)]
struct Slot {
    host: Option<HostFrame>,
    /// Details that the state contains.
    details: Details,
    failure: Option<String>,
}

/// Agents, each with its own thread: a slow one does not delay the others.
pub(crate) struct AgentsSource {
    agents: Vec<(String, Arc<Mutex<Slot>>)>,
    pollers: Vec<AgentPoller>,
    next: Instant,
    has_started: bool,
}

impl AgentsSource {
    /// Connects to all agents; fails if one does not answer.
    pub(crate) fn connect(urls: &[String], token_file: Option<&Path>) -> Result<Self> {
        let mut agents = Vec::new();
        let mut pollers = Vec::new();
        for (index, url) in urls.iter().enumerate() {
            let client = AgentClient::new(url, token_file)?;
            let mut poller =
                AgentPoller { client, index, incidents: Vec::new(), incidents_at: None };
            let host = poller.fetch(Details::Nothing)?;
            let slot = Slot { host: Some(host), ..Slot::default() };
            agents.push((poller.client.name().to_owned(), Arc::new(Mutex::new(slot))));
            pollers.push(poller);
        }
        if agents.is_empty() {
            bail!("no agent; --agent URL names one");
        }
        Ok(Self { agents, pollers, next: Instant::now(), has_started: false })
    }

    /// Starts the threads.
    fn start(&mut self, requests: &RequestCell) -> Result<()> {
        self.has_started = true;
        for poller in self.pollers.drain(..) {
            let slot = self.agents.get(poller.index).map(|(_, slot)| Arc::clone(slot));
            let (slot, requests) =
                (slot.context("internal error: lost an agent")?, requests.clone());
            let run = move || poller.run(&slot, &requests);
            std::thread::Builder::new().name("top-agent".into()).spawn(run)?;
        }
        Ok(())
    }

    /// Whether the details that are requested have arrived.
    fn has_details(&self, requests: &RequestCell) -> bool {
        let wanted = requests.get().details;
        let Details::Process(index, _) = wanted else { return true };
        let slot = self.agents.get(index).map(|(_, slot)| lock(slot).details == wanted);
        slot.unwrap_or(true)
    }
}

fn lock(slot: &Mutex<Slot>) -> std::sync::MutexGuard<'_, Slot> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Source for AgentsSource {
    fn name(&self) -> String {
        match &self.agents[..] {
            [(name, _)] => format!("agent {name}"),
            agents => format!("{} agents", agents.len()),
        }
    }

    fn next(&mut self, requests: &RequestCell) -> Result<Option<TopFrame>> {
        if !self.has_started {
            self.start(requests)?;
        }
        let known = requests.get();
        let had_details = self.has_details(requests);
        let latest = Instant::now() + MAX_WAIT;
        while !requests.is_stopped() {
            let now = Instant::now();
            // Details are shown as soon as they are there.
            let is_due = now >= self.next || (!had_details && self.has_details(requests));
            if is_due || now >= latest || requests.get().details != known.details {
                break;
            }
            std::thread::sleep(POLL_INTERVAL.min(self.next.saturating_duration_since(now)));
        }
        self.next = (self.next + requests.get().interval).max(Instant::now());
        let mut hosts = Vec::new();
        for (_, slot) in &self.agents {
            let slot = lock(slot);
            let Some(mut host) = slot.host.clone() else { continue };
            if let Some(failure) = &slot.failure {
                host.missing = Some(format!("{failure}; values are those of its last answer"));
            }
            hosts.push(host);
        }
        Ok(Some(TopFrame { hosts, replay: None }))
    }
}

/// Asks one agent.
struct AgentPoller {
    client: AgentClient,
    index: usize,
    incidents: Vec<Incident>,
    incidents_at: Option<Instant>,
}

impl AgentPoller {
    /// Asks the agent until the source is stopped.
    fn run(mut self, slot: &Mutex<Slot>, requests: &RequestCell) {
        let mut last = requests.get();
        let mut next = Instant::now();
        loop {
            let request = requests.wait(&last, next);
            if requests.is_stopped() {
                return;
            }
            // Other changes do not concern agents.
            if request.details == last.details && Instant::now() < next {
                last = request;
                continue;
            }
            last = request;
            next = Instant::now() + request.interval;
            let answer = self.fetch(request.details);
            let mut slot = lock(slot);
            match answer {
                Ok(host) => {
                    slot.host = Some(host);
                    slot.failure = None;
                }
                Err(error) => slot.failure = Some(error.to_string()),
            }
            slot.details = request.details;
        }
    }

    /// Asks for the state of the host, and for the sites of the process that is looked at.
    fn fetch(&mut self, details: Details) -> Result<HostFrame> {
        let AgentState { mut snapshot, context, events } =
            self.client.get("/api/v1/snapshot", |answer| snapshot(answer, output::clock))?;
        if let Details::Process(host, pid) = details
            && host == self.index
        {
            let found = self.client.get(&format!("/api/v1/sites?pid={pid}"), sites)?;
            let process = snapshot.processes.iter_mut().find(|process| process.key.pid == pid);
            process.into_iter().for_each(|process| process.sites.clone_from(&found));
        }
        let is_due = self.incidents_at.is_none_or(|at| at.elapsed() >= INCIDENTS_INTERVAL);
        if is_due {
            // Without a state directory, an agent has no incidents.
            let read = |answer: &[u8]| incidents(answer, &context.clock);
            self.incidents = self.client.get("/api/v1/incidents", read).unwrap_or_default();
            self.incidents_at = Some(Instant::now());
        }
        let (name, incidents) = (self.client.name().to_owned(), self.incidents.clone());
        Ok(HostFrame { incidents, events, ..HostFrame::new(name, snapshot, context) })
    }
}
