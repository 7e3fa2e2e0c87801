//! The engine thread's part of incidents: detects them and collects their data.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use engine::ledger::Ledger;
use engine::model::{
    BlockEvent, BlockOp, Bytes, DeviceFilter, DeviceId, Event, EventKind, FailedCall, FunctionId,
    GpuId, Holder, MemoryKind, MemoryLocation, OUT_OF_MEMORY, ObjectCall, Pid, SiteFrames, SiteId,
    SiteName, Timestamp, VmmCall,
};
use formats::report::incident::{Requester, Trigger};
use formats::sanitize::sanitize;

use super::super::job::{FailedAllocation, IncidentJob, IncidentUpdate, WriterCommand};
use super::super::write::directory::{self, MAX_OVERSIZED};
use super::super::write::writer;
use super::event_ring::{EventRing, EventWindow};
use super::rate_limit::IncidentRateLimiter;
use super::thresholds::{ThresholdCrossing, ThresholdMonitor};
use crate::source::WriteHtml;
use crate::{AgentState, PublishedSnapshot, Worker};

/// Delay of the snapshot after an out-of-memory error, and maximum time to wait for symbols.
const SNAPSHOT_DELAY: Duration = Duration::from_millis(100);
const SYMBOLIZE_TIMEOUT: Duration = Duration::from_millis(800);

/// Maximum number of queued commands: enough for a burst of incidents and their updates.
const QUEUE_COMMANDS: usize = 256;

/// Maximum number of sites per holder.
const MAX_SITES_PER_HOLDER: usize = 50;

/// How often suppressed errors are logged.
const SUPPRESSED_LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Keeps recent events, detects out-of-memory errors, and hands incidents to the writer thread.
pub(crate) struct IncidentCollector {
    shared: Arc<AgentState>,
    ring: EventRing,
    rate_limit: IncidentRateLimiter,
    /// For requests larger than the GPU.
    oversized_rate_limit: IncidentRateLimiter,
    /// Total memory of each GPU.
    gpu_bytes: Vec<(GpuId, u64)>,
    thresholds: ThresholdMonitor,
    /// Out-of-memory errors that further ones belong to.
    open: Vec<OpenIncident>,
    manual: Arc<AtomicBool>,
    due: Option<Instant>,
    commands: SyncSender<WriterCommand>,
    number: u64,
    last_logged: Option<Instant>,
    unlogged: u64,
    /// The agent is shutting down.
    is_shutting_down: bool,
    /// Lock on the state directory, held while this is open.
    _state: Option<File>,
}

/// An out-of-memory error.
struct OpenIncident {
    number: u64,
    at: Timestamp,
    requester: Requester,
    failed: FailedCall,
    device: Option<DeviceId>,
    gpu: Option<GpuId>,
    /// None after the incident was queued.
    holders: Option<Vec<Holder>>,
    cached: Option<Bytes>,
    since: Instant,
    skipped: u64,
    errors: u64,
    recovered: bool,
}

impl OpenIncident {
    fn is_of(&self, pid: Pid, device: Option<DeviceId>) -> bool {
        self.requester.pid == pid && self.device == device
    }
}

impl IncidentCollector {
    /// Starts the writer thread.
    pub(crate) fn start(shared: &Arc<AgentState>, write_html: WriteHtml) -> Result<(Self, Worker)> {
        let config = &shared.config.incidents;
        let manual = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&manual))
            .context("cannot watch for SIGUSR1")?;
        let state = if config.enabled { lock_state(&shared.config.state_dir)? } else { None };
        let (commands, received) = sync_channel(QUEUE_COMMANDS);
        let write = move |shared: &Arc<AgentState>| writer::run(shared, &received, write_html);
        let worker = Worker::of_agent("incidents", shared, write)?;
        let process_above = config.process_live_above.map(|size| size.0);
        let collector = Self {
            shared: Arc::clone(shared),
            ring: EventRing::new(config.recent_events, config.recent_events_size.0.0),
            rate_limit: IncidentRateLimiter::new(config.cooldown.0, config.max_per_hour),
            oversized_rate_limit: IncidentRateLimiter::new(config.cooldown.0, MAX_OVERSIZED),
            gpu_bytes: Vec::new(),
            thresholds: ThresholdMonitor::new(
                config.gpu_used_above.map(|ratio| ratio.0),
                process_above,
            ),
            open: Vec::new(),
            manual,
            due: None,
            commands,
            number: 0,
            last_logged: None,
            unlogged: 0,
            is_shutting_down: false,
            _state: state,
        };
        Ok((collector, worker))
    }

    /// Observes an event, after the ledger applied it.
    pub(crate) fn event(&mut self, event: &Event, ledger: &Ledger) {
        self.ring.push(event);
        match &event.kind {
            EventKind::Failed(failed) if failed.code == OUT_OF_MEMORY => {
                self.on_oom(event, failed, ledger);
            }
            // PyTorch gives up after the driver's errors, or at a limit of its own.
            EventKind::Block(BlockEvent {
                op: BlockOp::OutOfMemory { bytes, site },
                device,
                ..
            }) => {
                let failed = FailedCall {
                    function: FunctionId::FRAMEWORK,
                    code: OUT_OF_MEMORY,
                    requested: Some((MemoryKind::Device, *bytes)),
                    freed: None,
                    device: *device,
                    context: None,
                    site: *site,
                };
                self.on_oom(event, &failed, ledger);
            }
            EventKind::Allocate(allocate) if !self.open.is_empty() => {
                let device = ledger.device_of(event.pid, allocate);
                self.on_allocation(event.pid, device, (allocate.kind, allocate.bytes));
            }
            EventKind::Vmm(VmmCall::Create { bytes, location, .. }) if !self.open.is_empty() => {
                let (device, kind) = match location {
                    MemoryLocation::Device(device) => (Some(*device), MemoryKind::Physical),
                    MemoryLocation::Host => (None, MemoryKind::HostPhysical),
                };
                self.on_allocation(event.pid, device, (kind, *bytes));
            }
            _ => {}
        }
    }

    /// Time at which a snapshot must be published without waiting for the next second: soon after
    /// an out-of-memory error, when symbols had time to arrive.
    pub(crate) const fn due(&self) -> Option<Instant> {
        self.due
    }

    fn on_oom(&mut self, event: &Event, failed: &FailedCall, ledger: &Ledger) {
        if !self.shared.config.incidents.enabled {
            return;
        }
        let now = Instant::now();
        let (device, gpu, name) = ledger.requested_device(event.pid, failed);
        if let Some(open) = self.open.iter_mut().find(|open| open.is_of(event.pid, device)) {
            open.errors += 1;
            return;
        }
        let rate_limit = match self.is_oversized(failed, gpu) {
            true => &mut self.oversized_rate_limit,
            false => &mut self.rate_limit,
        };
        let Ok(skipped) = rate_limit.allow(Some(ledger.key_of(event.pid)), now) else {
            self.skip(Trigger::OutOfMemory, event.pid, now);
            return;
        };
        self.number += 1;
        let filter =
            device.map_or(DeviceFilter::AllDevices, |device| DeviceFilter::Device(device, gpu));
        self.open.push(OpenIncident {
            number: self.number,
            at: event.time,
            requester: Requester { pid: event.pid, tid: Some(event.tid), name },
            failed: *failed,
            device,
            gpu,
            holders: Some(ledger.holders(filter)),
            cached: device.and_then(|device| ledger.cached(event.pid, device)),
            since: now,
            skipped,
            errors: 1,
            recovered: false,
        });
        self.due = Some(self.due.map_or(now + SNAPSHOT_DELAY, |due| due.min(now + SNAPSHOT_DELAY)));
    }

    /// Whether a request could never succeed, regardless of what else the GPU holds.
    fn is_oversized(&self, failed: &FailedCall, gpu: Option<GpuId>) -> bool {
        let all = self.gpu_bytes.iter().filter(|(id, _)| gpu.is_none_or(|gpu| gpu == *id));
        let largest = all.map(|(_, bytes)| *bytes).max();
        let requested = failed.requested.filter(|(kind, _)| kind.takes_device_memory());
        matches!((requested, largest), (Some((_, bytes)), Some(largest)) if bytes > largest)
    }

    /// Counts a suppressed incident, and logs that from time to time.
    fn skip(&mut self, trigger: Trigger, pid: Pid, now: Instant) {
        self.shared.incidents.count(trigger.name(), "suppressed");
        self.unlogged += 1;
        if self
            .last_logged
            .is_none_or(|logged| now.duration_since(logged) >= SUPPRESSED_LOG_INTERVAL)
        {
            let count = std::mem::take(&mut self.unlogged);
            self.last_logged = Some(now);
            let errors = match count {
                1 => "1 out-of-memory error".to_owned(),
                more => format!("{more} out-of-memory errors"),
            };
            tracing::warn!(
                "{errors} suppressed (last: pid {pid}); see [incidents] cooldown and max_per_hour"
            );
        }
    }

    /// Marks incidents as recovered if the process got the memory after all.
    fn on_allocation(&mut self, pid: Pid, device: Option<DeviceId>, allocated: (MemoryKind, u64)) {
        for open in self.open.iter_mut().filter(|open| open.is_of(pid, device)) {
            let requested = open.failed.requested;
            open.recovered |= requested.is_some_and(|requested| is_enough(requested, allocated));
        }
    }

    /// Stops waiting for symbols: the next snapshot has all pending incidents. Errors that may
    /// still recover stay open.
    pub(crate) const fn flush(&mut self) {
        self.is_shutting_down = true;
    }

    /// Observes a published snapshot.
    pub(crate) fn on_snapshot(&mut self, published: &Arc<PublishedSnapshot>, ledger: &Ledger) {
        self.due = None;
        self.gpu_bytes =
            published.context.gpus.iter().map(|gpu| (gpu.id, gpu.total_bytes)).collect();
        let now = Instant::now();
        let mut open = std::mem::take(&mut self.open);
        for one in &mut open {
            let (site, frames) = ledger.site(one.failed.site);
            let is_waiting = matches!(site, SiteName::Pending(_))
                && one.since.elapsed() < SYMBOLIZE_TIMEOUT
                && !self.is_shutting_down;
            if is_waiting && one.holders.is_some() {
                self.due = Some(now + SNAPSHOT_DELAY);
                continue;
            }
            let Some(holders) = one.holders.take() else { continue };
            let job = IncidentJob {
                at: one.at,
                requester: Some(one.requester.clone()),
                call: Some(FailedAllocation { failed: one.failed, site, frames }),
                device: one.device,
                gpu: one.gpu,
                skipped: one.skipped,
                cached: one.cached,
                ..self.job(one.number, Trigger::OutOfMemory, holders, published, ledger)
            };
            self.send(WriterCommand::Write(Box::new(job)), Trigger::OutOfMemory);
        }
        self.open = open;
        for crossed in self.thresholds.check(&published.snapshot, &published.context) {
            self.on_threshold(crossed, published, ledger);
        }
        if self.manual.swap(false, Ordering::Relaxed) && self.shared.config.incidents.enabled {
            self.number += 1;
            let holders = ledger.holders(DeviceFilter::AllDevices);
            let job = self.job(self.number, Trigger::Manual, holders, published, ledger);
            self.send(WriterCommand::Write(Box::new(job)), Trigger::Manual);
        }
        self.close_old(now);
    }

    fn on_threshold(
        &mut self,
        crossed: ThresholdCrossing,
        published: &Arc<PublishedSnapshot>,
        ledger: &Ledger,
    ) {
        if !self.shared.config.incidents.enabled {
            return;
        }
        let ThresholdCrossing { gpu, process, text } = crossed;
        // A threshold is crossed once until usage drops below it; this must not suppress an
        // out-of-memory error right after.
        if self.rate_limit.allow(None, Instant::now()).is_err() {
            self.shared.incidents.count(Trigger::Threshold.name(), "suppressed");
            return;
        }
        self.number += 1;
        let holders = ledger.holders(gpu.map_or(DeviceFilter::AllDevices, DeviceFilter::Gpu));
        let job = IncidentJob {
            requester: process,
            limit: Some(text),
            gpu,
            ..self.job(self.number, Trigger::Threshold, holders, published, ledger)
        };
        self.send(WriterCommand::Write(Box::new(job)), Trigger::Threshold);
    }

    fn job(
        &self,
        number: u64,
        trigger: Trigger,
        mut holders: Vec<Holder>,
        published: &Arc<PublishedSnapshot>,
        ledger: &Ledger,
    ) -> IncidentJob {
        ledger.resolve_holder_names(&mut holders, MAX_SITES_PER_HOLDER);
        let window = self.ring.window();
        let sites = sites(&window, ledger);
        IncidentJob {
            number,
            trigger,
            at: published.snapshot.at,
            requester: None,
            limit: None,
            call: None,
            device: None,
            gpu: None,
            holders,
            cached: None,
            published: Arc::clone(published),
            published_at: Instant::now(),
            window,
            sites,
            skipped: 0,
        }
    }

    fn send(&self, command: WriterCommand, trigger: Trigger) {
        let is_incident = matches!(command, WriterCommand::Write(_));
        if self.commands.try_send(command).is_err() && is_incident {
            self.shared.incidents.count(trigger.name(), "suppressed");
            tracing::warn!("incident dropped: queue full");
        }
    }

    /// Closes incidents that no further error belongs to, and sends what became known of them.
    fn close_old(&mut self, now: Instant) {
        let duration = self.shared.config.incidents.group_window.0;
        // An incident that is not queued yet cannot be updated.
        let is_old = |one: &mut OpenIncident| {
            now.duration_since(one.since) >= duration && one.holders.is_none()
        };
        let closed: Vec<_> = self.open.extract_if(.., is_old).collect();
        for OpenIncident { number, errors, recovered, .. } in closed {
            let update = IncidentUpdate { number, errors, recovered };
            self.send(WriterCommand::Update(update), Trigger::OutOfMemory);
        }
    }
}

/// Locks the state directory. A directory that cannot be written is reported now, not when it is
/// needed.
fn lock_state(state: &Path) -> Result<Option<File>> {
    let name = sanitize(&state.to_string_lossy()).into_owned();
    match directory::lock(state) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            bail!("state directory {name} is in use by another agent; stop it or set --state-dir")
        }
        Err(error) => {
            tracing::warn!("cannot write incidents to {name}: {error}; set another --state-dir");
            Ok(None)
        }
    }
}

/// Whether an allocation satisfies the failed request: the same kind of memory, and at least its
/// size.
const fn is_enough(
    (requested, bytes): (MemoryKind, u64),
    (kind, granted): (MemoryKind, u64),
) -> bool {
    let both = requested.takes_device_memory() && kind.takes_device_memory();
    granted >= bytes && bytes > 0 && (both || requested.layer() as u8 == kind.layer() as u8)
}

/// Returns the frames of the sites of the events, as far as they are resolved.
fn sites(window: &EventWindow, ledger: &Ledger) -> Vec<SiteFrames> {
    let named: BTreeSet<SiteId> = window.events().filter_map(|event| site(&event.kind)).collect();
    let sites = named.into_iter().map(|site| {
        let (_, frames) = ledger.site(Some(site));
        SiteFrames { site, frames: frames.to_vec().into() }
    });
    sites.filter(|site| !site.frames.is_empty()).collect()
}

/// Returns the site of an event.
const fn site(kind: &EventKind) -> Option<SiteId> {
    match kind {
        EventKind::Allocate(allocate) => allocate.site,
        EventKind::Failed(failed) => failed.site,
        EventKind::Vmm(VmmCall::Create { site, .. }) => *site,
        EventKind::Object(ObjectCall::Created { site, .. }) => *site,
        EventKind::Block(call) => match call.op {
            BlockOp::Allocated { site, .. } | BlockOp::OutOfMemory { site, .. } => site,
            BlockOp::Freed { .. } => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_requires_same_kind_and_size() {
        let requested = (MemoryKind::Device, 100);
        for (allocated, expected) in [
            ((MemoryKind::Device, 100), true),
            ((MemoryKind::Async, 200), true),
            ((MemoryKind::Physical, 100), true),
            ((MemoryKind::Device, 99), false),
            ((MemoryKind::Pinned, 100), false),
            ((MemoryKind::Managed, 100), false),
        ] {
            assert_eq!(is_enough(requested, allocated), expected, "{allocated:?}");
        }
        assert!(is_enough((MemoryKind::Pinned, 5), (MemoryKind::Pinned, 5)));
        assert!(
            !is_enough((MemoryKind::Device, 0), (MemoryKind::Device, 5)),
            "the requested size is unknown"
        );
    }
}
