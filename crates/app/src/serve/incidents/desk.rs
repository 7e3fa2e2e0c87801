//! The engine thread's part of incidents: detects them and collects their data.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use engine::event::{Event, Failed, OUT_OF_MEMORY, Place, SiteFacts, VmmCall, What};
use engine::holding::{Holding, Where};
use engine::ids::{DeviceId, GpuId, Pid, SiteId};
use engine::kind::Kind;
use engine::ledger::Ledger;
use engine::object::ObjectCall;
use engine::stack::SiteName;
use engine::tensor::TensorTurn;
use engine::units::{Bytes, Moment};
use formats::export::incident::{Trigger, Who};
use formats::plain::plain;

use super::folder::{self, MAX_OVERSIZED, NoLock};
use super::gate::Gate;
use super::job::{Call, Job, Order, Update};
use super::limits::{Crossed, Limits};
use super::recent::{Excerpt, Recent};
use super::writer;
use crate::output;
use crate::serve::{Part, Published, Shared, rights};

/// Delay of the snapshot after an out-of-memory error, and maximum time to wait for symbols.
const SETTLE: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_millis(400);

/// Maximum number of queued commands: enough for a burst of incidents and their updates.
const ORDERS: usize = 256;

/// Maximum number of sites per holder.
const SITES: usize = 50;

/// How often suppressed errors are logged.
const TELL: Duration = Duration::from_secs(60);

/// Keeps recent events, detects out-of-memory errors, and hands incidents to the writer thread.
pub(crate) struct Desk {
    shared: Arc<Shared>,
    ring: Recent,
    rate_limit: Gate,
    /// For requests larger than the GPU.
    oversized_rate_limit: Gate,
    /// Total memory of each GPU.
    gpu_bytes: Vec<(GpuId, u64)>,
    thresholds: Limits,
    /// Errors whose incidents are not queued yet.
    pending: Vec<Pending>,
    /// Incidents that further errors belong to.
    open: Vec<Open>,
    manual: Arc<AtomicBool>,
    due: Option<Instant>,
    commands: SyncSender<Order>,
    number: u64,
    last_logged: Option<Instant>,
    unlogged: u64,
    /// The agent is shutting down.
    is_shutting_down: bool,
    /// Lock on the state directory, held while this is open.
    _state: Option<File>,
}

struct Pending {
    number: u64,
    at: Moment,
    requester: Who,
    failed: Failed,
    device: Option<DeviceId>,
    gpu: Option<GpuId>,
    holders: Vec<Holding>,
    cached: Option<Bytes>,
    seen_at: Instant,
    skipped: u64,
}

struct Open {
    number: u64,
    pid: Pid,
    device: Option<DeviceId>,
    requested: Option<(Kind, u64)>,
    since: Instant,
    errors: u64,
    recovered: bool,
}

impl Desk {
    /// Starts the writer thread.
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<(Self, Part)> {
        let config = &shared.config.incidents;
        let manual = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&manual))
            .context("cannot watch for SIGUSR1")?;
        let state = if config.enabled { lock_state(&shared.config.state_dir)? } else { None };
        let (commands, received) = sync_channel(ORDERS);
        // Actions on processes of other users run on the same thread.
        let kept = rights::to_signal(!shared.config.actions.allow.is_empty());
        let write = move |shared: &Arc<Shared>| writer::run(shared, &received);
        let worker = Part::spawn_with(kept, "incidents", shared, write)?;
        let process_above = config.process_live_above.map(|size| size.0);
        let collector = Self {
            shared: Arc::clone(shared),
            ring: Recent::new(config.recent_events, config.recent_events_size.0.0),
            rate_limit: Gate::new(config.cooldown.0, config.max_per_hour),
            oversized_rate_limit: Gate::new(config.cooldown.0, MAX_OVERSIZED),
            gpu_bytes: Vec::new(),
            thresholds: Limits::new(config.gpu_used_above, process_above),
            pending: Vec::new(),
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
        match &event.what {
            What::Failed(failed) if failed.code == OUT_OF_MEMORY => {
                self.on_oom(event, failed, ledger);
            }
            What::Allocate(allocate) if !self.open.is_empty() => {
                let device = ledger.device_of(event.pid, allocate);
                self.on_allocation(event.pid, device, (allocate.kind, allocate.bytes));
            }
            What::Vmm(VmmCall::Create { bytes, place: location, .. }) if !self.open.is_empty() => {
                let (device, kind) = match location {
                    Place::Device(device) => (Some(*device), Kind::Physical),
                    Place::Host => (None, Kind::HostPhysical),
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

    fn on_oom(&mut self, event: &Event, failed: &Failed, ledger: &Ledger) {
        if !self.shared.config.incidents.enabled {
            return;
        }
        let now = Instant::now();
        let (device, gpu, name) = ledger.asked_of(event.pid, failed);
        let same = |open: &&mut Open| open.pid == event.pid && open.device == device;
        if let Some(open) = self.open.iter_mut().find(same) {
            open.errors += 1;
            return;
        }
        let rate_limit = match self.is_oversized(failed, gpu) {
            true => &mut self.oversized_rate_limit,
            false => &mut self.rate_limit,
        };
        let Ok(skipped) = rate_limit.admit(Some(ledger.key_of(event.pid)), now) else {
            self.skip(Trigger::OutOfMemory, event.pid, now);
            return;
        };
        self.number += 1;
        let number = self.number;
        let filter = device.map_or(Where::Anywhere, |device| Where::Device(device, gpu));
        let holders = ledger.holdings(filter);
        let requester = Who { pid: event.pid, tid: Some(event.tid), name };
        self.pending.push(Pending {
            number,
            at: event.at,
            requester,
            failed: *failed,
            device,
            gpu,
            holders,
            cached: device.and_then(|device| ledger.cached(event.pid, device)),
            seen_at: now,
            skipped,
        });
        self.open.push(Open {
            number,
            pid: event.pid,
            device,
            requested: failed.asked,
            since: now,
            errors: 1,
            recovered: false,
        });
        self.due = Some(self.due.map_or(now + SETTLE, |due| due.min(now + SETTLE)));
    }

    /// Whether a request could never succeed, regardless of what else the GPU holds.
    fn is_oversized(&self, failed: &Failed, gpu: Option<GpuId>) -> bool {
        let all = self.gpu_bytes.iter().filter(|(id, _)| gpu.is_none_or(|gpu| gpu == *id));
        let largest = all.map(|(_, bytes)| *bytes).max();
        let requested = failed.asked.filter(|(kind, _)| kind.takes_device_memory());
        matches!((requested, largest), (Some((_, bytes)), Some(largest)) if bytes > largest)
    }

    /// Counts a suppressed incident, and logs that from time to time.
    fn skip(&mut self, trigger: Trigger, pid: Pid, now: Instant) {
        self.shared.incidents.count(trigger.name(), "suppressed");
        self.unlogged += 1;
        if self.last_logged.is_none_or(|logged| now.duration_since(logged) >= TELL) {
            let count = std::mem::take(&mut self.unlogged);
            self.last_logged = Some(now);
            let errors = match count {
                1 => "1 out-of-memory error".to_owned(),
                more => format!("{more} out-of-memory errors"),
            };
            output::complain(&format!(
                "{errors} suppressed (last: pid {pid}); see [incidents] cooldown and max_per_hour"
            ));
        }
    }

    /// Marks incidents as recovered if the process got the memory after all.
    fn on_allocation(&mut self, pid: Pid, device: Option<DeviceId>, got: (Kind, u64)) {
        let same = |open: &&mut Open| open.pid == pid && open.device == device;
        for open in self.open.iter_mut().filter(same) {
            open.recovered |= open.requested.is_some_and(|requested| is_enough(requested, got));
        }
    }

    /// Stops waiting for symbols. Returns whether incidents are pending. Errors that may still
    /// recover stay open, and no action is taken for them.
    pub(crate) fn hurry(&mut self) -> bool {
        self.is_shutting_down = true;
        !self.pending.is_empty()
    }

    /// Observes a published snapshot.
    pub(crate) fn published(&mut self, published: &Arc<Published>, ledger: &Ledger) {
        self.due = None;
        self.gpu_bytes = published.names.gpus.iter().map(|gpu| (gpu.id, gpu.total_bytes)).collect();
        let now = Instant::now();
        for one in std::mem::take(&mut self.pending) {
            let (site, frames) = ledger.site(one.failed.site);
            let is_waiting = matches!(site, SiteName::Pending(_))
                && one.seen_at.elapsed() < PATIENCE
                && !self.is_shutting_down;
            if is_waiting {
                self.due = Some(now + SETTLE);
                self.pending.push(one);
                continue;
            }
            let call = Call { failed: one.failed, site, frames };
            let job = Job {
                at: one.at,
                requester: Some(one.requester),
                call: Some(call),
                device: one.device,
                gpu: one.gpu,
                skipped: one.skipped,
                cached: one.cached,
                ..self.job(one.number, Trigger::OutOfMemory, one.holders, published, ledger)
            };
            self.send(Order::Write(Box::new(job)), Trigger::OutOfMemory);
        }
        for crossed in self.thresholds.look(&published.snapshot, &published.names) {
            self.on_threshold(crossed, published, ledger);
        }
        if self.manual.swap(false, Ordering::Relaxed) && self.shared.config.incidents.enabled {
            self.number += 1;
            let holders = ledger.holdings(Where::Anywhere);
            let job = self.job(self.number, Trigger::Asked, holders, published, ledger);
            self.send(Order::Write(Box::new(job)), Trigger::Asked);
        }
        self.close_old(now);
    }

    fn on_threshold(&mut self, crossed: Crossed, published: &Arc<Published>, ledger: &Ledger) {
        if !self.shared.config.incidents.enabled {
            return;
        }
        let Crossed { gpu, process, text } = crossed;
        // A threshold is crossed once until usage drops below it; this must not suppress an
        // out-of-memory error right after.
        if self.rate_limit.admit(None, Instant::now()).is_err() {
            self.shared.incidents.count(Trigger::Limit.name(), "suppressed");
            return;
        }
        self.number += 1;
        let holders = ledger.holdings(gpu.map_or(Where::Anywhere, Where::Gpu));
        let job = Job {
            requester: process,
            limit: Some(text),
            gpu,
            ..self.job(self.number, Trigger::Limit, holders, published, ledger)
        };
        self.send(Order::Write(Box::new(job)), Trigger::Limit);
    }

    fn job(
        &self,
        number: u64,
        trigger: Trigger,
        mut holders: Vec<Holding>,
        published: &Arc<Published>,
        ledger: &Ledger,
    ) -> Job {
        ledger.name_holdings(&mut holders, SITES);
        let window = self.ring.window();
        let sites = sites(&window, ledger);
        Job {
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

    fn send(&self, command: Order, trigger: Trigger) {
        let is_incident = matches!(command, Order::Write(_));
        if self.commands.try_send(command).is_err() && is_incident {
            self.shared.incidents.count(trigger.name(), "suppressed");
            output::complain("incident dropped: queue full");
        }
    }

    /// Closes incidents that no further error belongs to, and sends what became known of them.
    fn close_old(&mut self, now: Instant) {
        let duration = self.shared.config.incidents.group_window.0;
        // An incident that is not queued yet cannot be updated.
        let is_queued = |number: u64| self.pending.iter().all(|one| one.number != number);
        let (closed, open): (Vec<_>, Vec<_>) = std::mem::take(&mut self.open)
            .into_iter()
            .partition(|one| now.duration_since(one.since) >= duration && is_queued(one.number));
        self.open = open;
        // Automatic actions wait for this update.
        let may_act = !self.shared.config.actions.allow.is_empty();
        for Open { number, errors, recovered, .. } in closed {
            if errors > 1 || recovered || may_act {
                let update = Update { number, errors, recovered };
                self.send(Order::Update(update), Trigger::OutOfMemory);
            }
        }
    }
}

/// Locks the state directory. A directory that cannot be written is reported now, not when it is
/// needed.
fn lock_state(state: &Path) -> Result<Option<File>> {
    let name = plain(&state.to_string_lossy()).into_owned();
    match folder::lock(state) {
        Ok(file) => Ok(Some(file)),
        Err(NoLock::Taken) => {
            bail!("state directory {name} is in use by another agent; stop it or set --state-dir")
        }
        Err(NoLock::Failed(error)) => {
            output::complain(&format!(
                "cannot write incidents to {name}: {error}; set another --state-dir"
            ));
            Ok(None)
        }
    }
}

/// Whether an allocation satisfies the failed request: the same kind of memory, and at least its
/// size.
const fn is_enough((requested, bytes): (Kind, u64), (kind, granted): (Kind, u64)) -> bool {
    let both = requested.takes_device_memory() && kind.takes_device_memory();
    granted >= bytes && bytes > 0 && (both || requested.layer() as u8 == kind.layer() as u8)
}

/// Returns the frames of the sites of the events, as far as they are resolved.
fn sites(window: &Excerpt, ledger: &Ledger) -> Vec<SiteFacts> {
    let named: BTreeSet<SiteId> = window.events().filter_map(|event| site(&event.what)).collect();
    let facts = named.into_iter().map(|site| {
        let (_, frames) = ledger.site(Some(site));
        SiteFacts { site, frames: frames.to_vec().into() }
    });
    facts.filter(|facts| !facts.frames.is_empty()).collect()
}

/// Returns the site of an event.
const fn site(what: &What) -> Option<SiteId> {
    match what {
        What::Allocate(allocate) => allocate.site,
        What::Failed(failed) => failed.site,
        What::Vmm(VmmCall::Create { site, .. }) => *site,
        What::Object(ObjectCall::Created { site, .. }) => *site,
        What::Tensor(call) => match call.what {
            TensorTurn::Began { site, .. } | TensorTurn::Refused { site, .. } => site,
            TensorTurn::Ended { .. } => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_requires_same_kind_and_size() {
        let requested = (Kind::Device, 100);
        for (got, expected) in [
            ((Kind::Device, 100), true),
            ((Kind::Async, 200), true),
            ((Kind::Physical, 100), true),
            ((Kind::Device, 99), false),
            ((Kind::Pinned, 100), false),
            ((Kind::Managed, 100), false),
        ] {
            assert_eq!(is_enough(requested, got), expected, "{got:?}");
        }
        assert!(is_enough((Kind::Pinned, 5), (Kind::Pinned, 5)));
        assert!(
            !is_enough((Kind::Device, 0), (Kind::Device, 5)),
            "the requested size is unknown"
        );
    }
}
