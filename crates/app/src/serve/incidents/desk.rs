//! The side of the engine thread.

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

/// How soon after a refusal a snapshot is made, and how long names of frames may take.
const SETTLE: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_millis(400);

/// Orders that may wait: as many as there can be folders in a storm, and what becomes known of them.
const ORDERS: usize = 256;

/// Sites of each holder that folders tell.
const SITES: usize = 50;

/// How often it is told that refusals are passed over.
const TELL: Duration = Duration::from_secs(60);

/// Remembers recent events, notices that memory ran out, and hands what is to be written to a part of
/// its own.
pub(crate) struct Desk {
    shared: Arc<Shared>,
    recent: Recent,
    gate: Gate,
    /// For requests larger than the GPU.
    oversized_gate: Gate,
    /// Total memory of each GPU.
    gpu_bytes: Vec<(GpuId, u64)>,
    limits: Limits,
    /// Refusals whose folders are not ordered yet.
    pending: Vec<Pending>,
    /// Incidents that further refusals belong to.
    open: Vec<Open>,
    asked: Arc<AtomicBool>,
    due: Option<Instant>,
    orders: SyncSender<Order>,
    number: u64,
    told: Option<Instant>,
    untold: u64,
    /// The agent ends.
    hurries: bool,
    /// The agent's folder is its own while this is open.
    _state: Option<File>,
}

struct Pending {
    number: u64,
    at: Moment,
    who: Who,
    failed: Failed,
    device: Option<DeviceId>,
    gpu: Option<GpuId>,
    holders: Vec<Holding>,
    cached: Option<Bytes>,
    noticed: Instant,
    skipped: u64,
}

struct Open {
    number: u64,
    pid: Pid,
    device: Option<DeviceId>,
    asked: Option<(Kind, u64)>,
    since: Instant,
    errors: u64,
    recovered: bool,
}

impl Desk {
    /// Starts the part that writes folders.
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<(Self, Part)> {
        let config = &shared.config.incidents;
        let asked = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&asked))
            .context("cannot watch for SIGUSR1")?;
        let state = if config.enabled { own_state(&shared.config.state_dir)? } else { None };
        let (orders, received) = sync_channel(ORDERS);
        // What may be done to processes of other users is done by the same thread.
        let kept = rights::to_signal(!shared.config.actions.allow.is_empty());
        let write = move |shared: &Arc<Shared>| writer::run(shared, &received);
        let part = Part::spawn_with(kept, "incidents", shared, write)?;
        let process_above = config.process_live_above.map(|size| size.0);
        let desk = Self {
            shared: Arc::clone(shared),
            recent: Recent::new(config.recent_events, config.recent_events_size.0.0),
            gate: Gate::new(config.cooldown.0, config.max_per_hour),
            oversized_gate: Gate::new(config.cooldown.0, MAX_OVERSIZED),
            gpu_bytes: Vec::new(),
            limits: Limits::new(config.gpu_used_above, process_above),
            pending: Vec::new(),
            open: Vec::new(),
            asked,
            due: None,
            orders,
            number: 0,
            told: None,
            untold: 0,
            hurries: false,
            _state: state,
        };
        Ok((desk, part))
    }

    /// To be called with every event, after the ledger applied it.
    pub(crate) fn event(&mut self, event: &Event, ledger: &Ledger) {
        self.recent.push(event);
        match &event.what {
            What::Failed(failed) if failed.code == OUT_OF_MEMORY => {
                self.refused(event, failed, ledger);
            }
            What::Allocate(allocate) if !self.open.is_empty() => {
                let device = ledger.device_of(event.pid, allocate);
                self.granted(event.pid, device, (allocate.kind, allocate.bytes));
            }
            What::Vmm(VmmCall::Create { bytes, place, .. }) if !self.open.is_empty() => {
                let (device, kind) = match place {
                    Place::Device(device) => (Some(*device), Kind::Physical),
                    Place::Host => (None, Kind::HostPhysical),
                };
                self.granted(event.pid, device, (kind, *bytes));
            }
            _ => {}
        }
    }

    /// When a snapshot is to be published without waiting for the next second: soon after memory ran
    /// out, so that names of frames can come in.
    pub(crate) const fn due(&self) -> Option<Instant> {
        self.due
    }

    fn refused(&mut self, event: &Event, failed: &Failed, ledger: &Ledger) {
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
        let gate = match self.is_oversized(failed, gpu) {
            true => &mut self.oversized_gate,
            false => &mut self.gate,
        };
        let Ok(skipped) = gate.admit(Some(ledger.key_of(event.pid)), now) else {
            self.skip(Trigger::OutOfMemory, event.pid, now);
            return;
        };
        self.number += 1;
        let number = self.number;
        let place = device.map_or(Where::Anywhere, |device| Where::Device(device, gpu));
        let holders = ledger.holdings(place);
        let who = Who { pid: event.pid, tid: Some(event.tid), name };
        self.pending.push(Pending {
            number,
            at: event.at,
            who,
            failed: *failed,
            device,
            gpu,
            holders,
            cached: device.and_then(|device| ledger.cached(event.pid, device)),
            noticed: now,
            skipped,
        });
        self.open.push(Open {
            number,
            pid: event.pid,
            device,
            asked: failed.asked,
            since: now,
            errors: 1,
            recovered: false,
        });
        self.due = Some(self.due.map_or(now + SETTLE, |due| due.min(now + SETTLE)));
    }

    /// Whether a request could never succeed, whatever else the GPU holds.
    fn is_oversized(&self, failed: &Failed, gpu: Option<GpuId>) -> bool {
        let all = self.gpu_bytes.iter().filter(|(id, _)| gpu.is_none_or(|gpu| gpu == *id));
        let largest = all.map(|(_, bytes)| *bytes).max();
        let asked = failed.asked.filter(|(kind, _)| kind.takes_device_memory());
        matches!((asked, largest), (Some((_, bytes)), Some(largest)) if bytes > largest)
    }

    /// Counts what becomes no folder, and says so now and then.
    fn skip(&mut self, trigger: Trigger, pid: Pid, now: Instant) {
        self.shared.incidents.count(trigger.name(), "suppressed");
        self.untold += 1;
        if self.told.is_none_or(|told| now.duration_since(told) >= TELL) {
            let count = std::mem::take(&mut self.untold);
            self.told = Some(now);
            let refusals = match count {
                1 => "1 out-of-memory error".to_owned(),
                more => format!("{more} out-of-memory errors"),
            };
            output::complain(&format!(
                "{refusals} suppressed (last: pid {pid}); see [incidents] cooldown and max_per_hour"
            ));
        }
    }

    /// The process got memory after it was refused some.
    fn granted(&mut self, pid: Pid, device: Option<DeviceId>, got: (Kind, u64)) {
        let same = |open: &&mut Open| open.pid == pid && open.device == device;
        for open in self.open.iter_mut().filter(same) {
            open.recovered |= open.asked.is_some_and(|asked| is_enough(asked, got));
        }
    }

    /// Names of frames are not waited for any more; whether there is something to be handed over. What
    /// came of a refusal whose time is not over stays open, and nothing is done about it.
    pub(crate) fn hurry(&mut self) -> bool {
        self.hurries = true;
        !self.pending.is_empty()
    }

    /// To be called with everything that is published.
    pub(crate) fn published(&mut self, published: &Arc<Published>, ledger: &Ledger) {
        self.due = None;
        self.gpu_bytes = published.names.gpus.iter().map(|gpu| (gpu.id, gpu.total_bytes)).collect();
        let now = Instant::now();
        for one in std::mem::take(&mut self.pending) {
            let (site, frames) = ledger.site(one.failed.site);
            let waits = matches!(site, SiteName::Pending(_))
                && one.noticed.elapsed() < PATIENCE
                && !self.hurries;
            if waits {
                self.due = Some(now + SETTLE);
                self.pending.push(one);
                continue;
            }
            let call = Call { failed: one.failed, site, frames };
            let job = Job {
                at: one.at,
                who: Some(one.who),
                call: Some(call),
                device: one.device,
                gpu: one.gpu,
                skipped: one.skipped,
                cached: one.cached,
                ..self.job(one.number, Trigger::OutOfMemory, one.holders, published, ledger)
            };
            self.order(Order::Write(Box::new(job)), Trigger::OutOfMemory);
        }
        for crossed in self.limits.look(&published.snapshot, &published.names) {
            self.crossed(crossed, published, ledger);
        }
        if self.asked.swap(false, Ordering::Relaxed) && self.shared.config.incidents.enabled {
            self.number += 1;
            let holders = ledger.holdings(Where::Anywhere);
            let job = self.job(self.number, Trigger::Asked, holders, published, ledger);
            self.order(Order::Write(Box::new(job)), Trigger::Asked);
        }
        self.close_old(now);
    }

    fn crossed(&mut self, crossed: Crossed, published: &Arc<Published>, ledger: &Ledger) {
        if !self.shared.config.incidents.enabled {
            return;
        }
        let Crossed { gpu, who, text } = crossed;
        // Crossed once until it falls below: the process may still be refused memory a moment later.
        if self.gate.admit(None, Instant::now()).is_err() {
            self.shared.incidents.count(Trigger::Limit.name(), "suppressed");
            return;
        }
        self.number += 1;
        let holders = ledger.holdings(gpu.map_or(Where::Anywhere, Where::Gpu));
        let job = Job {
            who,
            limit: Some(text),
            gpu,
            ..self.job(self.number, Trigger::Limit, holders, published, ledger)
        };
        self.order(Order::Write(Box::new(job)), Trigger::Limit);
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
        let excerpt = self.recent.excerpt();
        let sites = sites(&excerpt, ledger);
        Job {
            number,
            trigger,
            at: published.snapshot.at,
            who: None,
            limit: None,
            call: None,
            device: None,
            gpu: None,
            holders,
            cached: None,
            published: Arc::clone(published),
            published_at: Instant::now(),
            excerpt,
            sites,
            skipped: 0,
        }
    }

    fn order(&self, order: Order, trigger: Trigger) {
        let is_folder = matches!(order, Order::Write(_));
        if self.orders.try_send(order).is_err() && is_folder {
            self.shared.incidents.count(trigger.name(), "suppressed");
            output::complain("incident dropped: queue full");
        }
    }

    /// Incidents that no further refusal belongs to: what became known of them is told.
    fn close_old(&mut self, now: Instant) {
        let together = self.shared.config.incidents.group_window.0;
        // Of an incident whose folder is not ordered yet nobody knows.
        let is_ordered = |number: u64| self.pending.iter().all(|one| one.number != number);
        let (over, open): (Vec<_>, Vec<_>) = std::mem::take(&mut self.open)
            .into_iter()
            .partition(|one| now.duration_since(one.since) >= together && is_ordered(one.number));
        self.open = open;
        // What may be done without asking waits for this.
        let may_act = !self.shared.config.actions.allow.is_empty();
        for Open { number, errors, recovered, .. } in over {
            if errors > 1 || recovered || may_act {
                let update = Update { number, errors, recovered };
                self.order(Order::Update(update), Trigger::OutOfMemory);
            }
        }
    }
}

/// Makes the agent's folder its own. One that cannot be written to is told now, not when it is needed.
fn own_state(state: &Path) -> Result<Option<File>> {
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

/// Whether what was granted is what was asked for: memory of the same sort, and no less.
const fn is_enough((asked, bytes): (Kind, u64), (kind, granted): (Kind, u64)) -> bool {
    let both = asked.takes_device_memory() && kind.takes_device_memory();
    granted >= bytes && bytes > 0 && (both || asked.layer() as u8 == kind.layer() as u8)
}

/// What the sites of events look like, as far as it was told.
fn sites(excerpt: &Excerpt, ledger: &Ledger) -> Vec<SiteFacts> {
    let named: BTreeSet<SiteId> = excerpt.events().filter_map(|event| site(&event.what)).collect();
    let facts = named.into_iter().map(|site| {
        let (_, frames) = ledger.site(Some(site));
        SiteFacts { site, frames: frames.to_vec().into() }
    });
    facts.filter(|facts| !facts.frames.is_empty()).collect()
}

/// The site that an event names.
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
    fn only_memory_of_the_same_sort_and_no_less_is_what_was_asked_for() {
        let asked = (Kind::Device, 100);
        for (got, expected) in [
            ((Kind::Device, 100), true),
            ((Kind::Async, 200), true),
            ((Kind::Physical, 100), true),
            ((Kind::Device, 99), false),
            ((Kind::Pinned, 100), false),
            ((Kind::Managed, 100), false),
        ] {
            assert_eq!(is_enough(asked, got), expected, "{got:?}");
        }
        assert!(is_enough((Kind::Pinned, 5), (Kind::Pinned, 5)));
        assert!(
            !is_enough((Kind::Device, 0), (Kind::Device, 5)),
            "it is not known what was asked for"
        );
    }
}
