//! A running trace: attaches the probes and turns records into events. Owned by one thread;
//! dropping it, or the exit of the process, detaches everything.

mod account;
mod attach;
mod binding;
mod canary;
mod captures;
mod counters;
mod drivers;
mod learning;
mod log;
mod names;
mod object;
mod options;
mod ring;
#[cfg(test)]
mod room;
mod sums;
mod torch;
mod tried;
mod work;

pub use crate::stacks::Stacks;
pub use crate::tensors::Tensors;
pub use counters::Counters;
pub use drivers::Notice;
pub use log::last_messages;
pub(crate) use log::said;
pub use object::Work;
pub use options::{Options, Target};

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use engine::event::{Event, Lost, VmmCall, What};
use engine::ids::{Pid, Tid};
use engine::object::ObjectCall;
use engine::units::Moment;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};

use crate::clock;
use crate::containers::Containers;
use crate::decode::{Decoded, NamedKernel, Program};
use crate::error::Error;
use crate::gpus::Gpu;
use crate::host::Host;
use crate::life::Living;
use crate::plan::{self, Plan, Tier};
use crate::stacks::{Desk, Maps};
use account::Accounts;
use binding::Bindings;
use captures::LeftCaptures;
use counters::{Losses, LostNews, Unannounced};
use drivers::Drivers;
use object::{Changing, Filter, Knobs, Loaded, map_error};
use ring::Ring;
use torch::Torch;
use work::{Ended, News, WorkSums};

/// How often processes are scanned for new copies of the driver, in addition to mmap events.
const RESCAN: Duration = Duration::from_secs(5);

/// Gathers facts about this host and tries each attach mode, for `doctor`.
#[must_use]
pub fn examine() -> Host {
    let mut host = Host::read();
    if plan::preconditions(&host).is_ok() {
        host.tiers = Tier::ALL.iter().map(|tier| (*tier, canary::try_tier(&host, *tier))).collect();
    }
    host
}

/// Finds the best attach mode that works, trying no more than needed.
fn choose(only: Option<Tier>) -> Result<Plan, Error> {
    let mut host = Host::read();
    plan::preconditions(&host)?;
    let candidates = only.map_or(Tier::ALL.to_vec(), |tier| vec![tier]);
    for tier in candidates {
        let outcome = canary::try_tier(&host, tier);
        let works = outcome.is_ok();
        host.tiers.push((tier, outcome));
        if works {
            break;
        }
    }
    Ok(plan::plan(&host)?)
}

/// Activity and losses that were read and are not events yet.
struct Pending {
    work: News,
    lost: LostNews,
}

impl Pending {
    /// Removes and returns those of an exited process, or of exec generations before `now_runs`.
    fn take(
        &mut self,
        pid: Pid,
        start: u64,
        now_runs: Option<Program>,
        now: Moment,
    ) -> impl Iterator<Item = Event> + use<> {
        let (work, lost) = match now_runs {
            None => {
                let known = Some(start).filter(|start| *start > 0);
                (self.work.of(pid, known), self.lost.of(pid, start))
            }
            Some(program) => {
                (self.work.before(pid, start, program), self.lost.before(pid, start, program))
            }
        };
        work.into_iter().chain(lost_event(pid, lost, now))
    }
}

/// A running trace.
pub struct Session {
    plan: Plan,
    drivers: Drivers,
    ring: Ring,
    losses: Losses,
    living: Living,
    accounts: Accounts,
    containers: Containers,
    bindings: Bindings,
    left_captures: LeftCaptures,
    work: Option<WorkSums>,
    torch: Option<Torch>,
    desk: Option<Desk>,
    target: Target,
    counters: MapHandle,
    last_scan: Instant,
    now: Changing,
    _life: Vec<Link>,
    loaded: Loaded,
}

impl Session {
    /// Loads the probes and attaches them to every driver that is found.
    pub fn start(options: &Options) -> Result<Self, Error> {
        let plan = choose(options.tier)?;
        let filter = match &options.target {
            Target::Everybody => Filter::Everybody,
            Target::Processes { follow: false, .. } => Filter::Targets,
            Target::Processes { follow: true, .. } => Filter::TargetsAndChildren,
        };
        let loaded = Loaded::new(Knobs {
            tier: plan.tier,
            task_storage: plan.task_storage && options.thread_entries.is_none(),
            stack_windows: plan.stack_windows,
            filter,
            ring_bytes: options.ring_bytes,
            table_entries: options.table_entries,
            thread_entries: options.thread_entries,
            work: options.work,
            objects: options.objects,
            stacks: options.stacks,
            tensors: options.tensors,
            loops: plan.loops,
            stack_ring_bytes: options.stack_ring_bytes,
            empty_probes: options.empty_probes,
        })?;
        let targets = loaded.map("targets")?;
        if let Target::Processes { pids, .. } = &options.target {
            for pid in pids {
                require(*pid)?;
                add_target(&targets, *pid)?;
            }
        }
        let life = loaded.attach_lifecycle()?;
        let ring = Ring::new(&loaded)?;
        let mut drivers = Drivers::new(options, &plan);
        drivers.attach_all(&loaded)?;
        let mut torch = options.tensors.are_told().then(|| Torch::new(options, &plan));
        if let Some(torch) = &mut torch {
            torch.look(&loaded, &[], true);
        }
        let now = Changing { attached_at: clock::boot(), ..Changing::default() };
        loaded.set(now)?;
        let mut sites = options.stacks.are_taken().then(|| site_resolver(&loaded)).transpose()?;
        if let Some(sites) = &mut sites {
            // Their stacks are readable from the first call on.
            for pid in drivers.users() {
                sites.began(pid, None);
            }
        }
        Ok(Self {
            losses: Losses::new(&loaded)?,
            counters: loaded.map("counters")?,
            living: Living::default(),
            accounts: Accounts::open(),
            containers: Containers::new(&options.logs),
            bindings: Bindings::default(),
            left_captures: LeftCaptures::new(&loaded)?,
            work: options.work.map(|_| WorkSums::new(&loaded)).transpose()?,
            torch,
            desk: sites,
            target: options.target.clone(),
            now,
            last_scan: Instant::now(),
            plan,
            drivers,
            ring,
            _life: life,
            loaded,
        })
    }

    /// Returns how the probes are attached.
    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the GPUs of this host; empty if neither NVML nor nvidia-smi is available.
    #[must_use]
    pub fn gpus(&self) -> &[Gpu] {
        self.accounts.gpus()
    }

    /// Waits for records, at most this long, and returns the events in order.
    pub fn poll(&mut self, timeout: Duration) -> Result<Vec<Event>, Error> {
        self.ring.wait(timeout);
        self.collect(false)
    }

    /// Returns the events up to now, with the final values of all counters.
    pub fn finish(&mut self) -> Result<Vec<Event>, Error> {
        let mut events = Vec::new();
        // A bounded number of batches: processes may keep writing into the ring.
        for _ in 0..self.ring.batches() {
            events.extend(self.collect(false)?);
            if self.ring.is_drained() {
                break;
            }
        }
        events.extend(self.collect(true)?);
        Ok(events)
    }

    fn collect(&mut self, last: bool) -> Result<Vec<Event>, Error> {
        self.scan_libraries()?;
        let mapped = self.drivers.take_mapped();
        self.containers.expect(self.drivers.take_newcomers());
        let written = self.ring.written();
        if let Some(work) = &mut self.work {
            work.read(last, written)?;
        }
        let records = self.ring.take();
        let stacks = self.ring.take_stacks();
        let now = clock::monotonic();
        let counters = self.counters()?;
        let lost = self.losses.take(counters.lost, last)?;
        self.left_captures.delete(counters.graphs)?;
        let may_have_missed_deaths = lost.may_hide_exits();
        let work = self.take_work(&records, &lost, last, now)?;
        let mut pending = Pending { work, lost };
        let mut events = Vec::with_capacity(records.len());
        if let Some(sites) = &mut self.desk {
            mapped.into_iter().for_each(|code| sites.mapped(code));
            stacks.into_iter().for_each(|stack| sites.take(stack));
        }
        for record in records {
            self.take(record, now, &mut pending, &mut events);
        }
        // A process that mapped the driver after it was probed is announced with its first call.
        let (target, drivers) = (&self.target, &self.drivers);
        let wanted = |pid, start| match target {
            _ if !drivers.was_there_before(pid, start) => false,
            Target::Everybody => true,
            Target::Processes { pids, .. } => pids.contains(&pid),
        };
        let account = self.accounts.take(now, &mut self.living, wanted);
        events.extend(self.containers.beside(account, now));
        events.extend(self.containers.news(now));
        // A record that cannot be decoded is lost, and its process is unknown.
        let other = self.ring.take_unreadable();
        events.extend(lost_event(Pid(0), Lost { other, ..Lost::default() }, now));
        self.take_losses(now, &mut pending, &mut events);
        // Records that are still in the ring may belong to processes that have exited.
        let is_drained = self.ring.is_drained();
        let dead = if is_drained { self.living.take_dead(now) } else { Vec::new() };
        // Read the counters of these processes a last time before they are dropped.
        if let Some(work) = &mut self.work {
            let ended = |event: &Event| {
                let start = self.living.start(event.pid);
                Ended { pid: event.pid, start, now_runs: None }
            };
            let ended: Vec<_> = dead.iter().map(ended).collect();
            work.take_ended(&ended, now, &mut pending.work)?;
        }
        for event in dead {
            self.take(Decoded::Event(event), now, &mut pending, &mut events);
        }
        let started = |pid| self.living.start(pid).filter(|_| !last);
        events.extend(pending.work.rest(started));
        if let Some(work) = &mut self.work {
            work.defer(std::mem::take(&mut pending.work));
        }
        if let Some(torch) = &mut self.torch {
            events.extend(torch.told(now, &self.living));
        }
        if let Some(sites) = &mut self.desk {
            let event = |facts| {
                let what = What::Site(facts);
                Event { pid: Pid(0), tid: Tid(0), entered: now, at: now, what }
            };
            events.extend(sites.named(last).into_iter().map(event));
        }
        if is_drained && (may_have_missed_deaths || self.living.is_due(now)) {
            self.living.sweep(now);
        }
        Ok(events)
    }

    /// Returns the notices since the last call.
    pub fn notices(&mut self) -> Vec<Notice> {
        let mut notices = self.drivers.take_notices();
        notices.extend(self.torch.as_mut().map(Torch::take_notices).unwrap_or_default());
        let unsupported = self.desk.as_mut().map(Desk::refusals).unwrap_or_default();
        let unsupported = unsupported.into_iter();
        notices.extend(unsupported.map(|(pid, reason)| Notice::NoPython { pid, reason }));
        let no_names = self.desk.as_mut().and_then(Desk::no_names);
        notices.extend(no_names.map(|reason| Notice::NoNames { reason }));
        notices.extend(self.accounts.take_failure().map(|reason| Notice::NoAccount { reason }));
        notices
    }

    /// Limits the stack mode: captures cheaper stacks than configured, or none, from now on. Calls
    /// are still recorded.
    pub fn limit_stacks(&mut self, max: Stacks) -> Result<(), Error> {
        let configured = self.loaded.config.stacks.wire();
        self.now.stacks_less = configured.saturating_sub(max.wire());
        self.loaded.set(self.now)
    }

    /// Returns the counters of the probes.
    pub fn counters(&self) -> Result<Counters, Error> {
        Counters::from_map(&self.counters)
    }

    /// Reads the activity counters: periodically, and when a process exits or calls exec.
    fn take_work(
        &mut self,
        records: &[Decoded],
        lost: &LostNews,
        last: bool,
        now: Moment,
    ) -> Result<News, Error> {
        let mut ended: Vec<_> = lost.ended().collect();
        ended.extend(self.ended(records));
        let mut news = News::default();
        if let Some(work) = &mut self.work {
            news = work.take_deferred();
            work.note(records);
            work.take_ended(&ended, now, &mut news)?;
            work.take(now, &mut news, |position| last || self.ring.has_read(position));
        }
        Ok(news)
    }

    /// Program images whose end is among the records.
    fn ended(&self, records: &[Decoded]) -> Vec<Ended> {
        let mut began = HashMap::new();
        let mut ended = Vec::new();
        for record in records {
            let (pid, now_runs) = match record {
                Decoded::Began(Event { pid, what: What::Process(facts), .. }, _) => {
                    began.insert(*pid, facts.start);
                    continue;
                }
                Decoded::Event(Event { pid, what: What::Exit, .. }) => (*pid, None),
                Decoded::Exec(event, program) => (event.pid, Some(*program)),
                _ => continue,
            };
            let start = began.get(&pid).copied().or_else(|| self.living.start(pid));
            ended.push(Ended { pid, start, now_runs });
        }
        ended
    }

    /// Turns a record into events, or keeps its content for later events.
    fn take(
        &mut self,
        record: Decoded,
        now: Moment,
        pending: &mut Pending,
        events: &mut Vec<Event>,
    ) {
        match record {
            Decoded::Event(mut event) => {
                if matches!(event.what, What::Exit) {
                    let start = self.living.start(event.pid).unwrap_or(0);
                    events.extend(pending.take(event.pid, start, None, now));
                }
                events.extend(self.bindings.ended_with(&event));
                self.bindings.resolve(&mut event);
                let more = self.follow(&mut event, None, now);
                events.push(event);
                events.extend(more);
            }
            Decoded::Called(mut event, taken) => {
                let site = self.desk.as_mut().and_then(|sites| sites.site(event.pid, taken));
                match &mut event.what {
                    What::Allocate(allocate) => allocate.site = site,
                    What::Vmm(VmmCall::Create { site: target, .. }) => *target = site,
                    What::Failed(failed) => failed.site = site,
                    What::Tensor(call) => call.set_site(site),
                    _ => {}
                }
                self.bindings.resolve(&mut event);
                let more = self.follow(&mut event, None, now);
                events.push(event);
                events.extend(more);
            }
            Decoded::Object(mut event, made) => {
                if let What::Object(ObjectCall::Created { handle, site, .. }) = &mut event.what {
                    let pid = event.pid;
                    let keeps = |stream| self.bindings.keeps_graph(pid, stream, *handle);
                    if made.captured_on.is_some_and(keeps) {
                        return;
                    }
                    let sites = self.desk.as_mut().zip(made.taken);
                    *site = sites.and_then(|(sites, taken)| sites.site(pid, taken));
                }
                self.bindings.resolve(&mut event);
                events.push(event);
            }
            Decoded::Began(mut event, program) => {
                events.extend(self.reused(&event, program, &mut pending.lost));
                if let Some(sites) = &mut self.desk {
                    sites.began(event.pid, Some(program));
                }
                let more = self.follow(&mut event, None, now);
                events.push(event);
                events.extend(more);
            }
            Decoded::Exec(mut event, program) => {
                let start = self.living.start(event.pid).unwrap_or(0);
                events.extend(pending.take(event.pid, start, Some(program), now));
                let more = self.follow(&mut event, Some(program), now);
                events.push(event);
                events.extend(more);
            }
            Decoded::Bound(bound) => {
                let pid = bound.pid;
                let event = |what| Event { pid, tid: Tid(pid.0), entered: now, at: now, what };
                events.extend(self.bindings.note(&bound).map(event));
            }
            Decoded::Named(named) => {
                let NamedKernel { pid, at, .. } = named;
                let work = self.work.as_mut().map(|work| work.name(named)).unwrap_or_default();
                let event = |work| {
                    let what = What::Work(work);
                    Event { pid, tid: Tid(pid.0), entered: at, at, what }
                };
                events.extend(work.into_iter().map(event));
            }
            Decoded::DeviceUuid(uuid) if self.living.knows(uuid.pid) => {
                events.extend(self.accounts.told(&uuid, now));
            }
            Decoded::DeviceUuid(_) => {}
        }
    }

    /// Updates the state of processes; returns further events if a process began. `program`: the
    /// exec generation after an exec.
    fn follow(
        &mut self,
        event: &mut Event,
        program: Option<Program>,
        now: Moment,
    ) -> impl Iterator<Item = Event> + use<> {
        let [mut container, mut gpus] = [None, None];
        match &mut event.what {
            What::Process(facts) => {
                facts.before_trace = self.drivers.was_there_before(event.pid, facts.start);
                self.living.began(event.pid, facts.start);
                container = self.containers.began(event.pid, now);
                gpus = self.accounts.began(event.pid, now);
            }
            What::Allocate(allocate) if allocate.context.is_none() && allocate.device.is_none() => {
                self.drivers.want_context(event.pid);
            }
            What::Exit | What::Exec => {
                let start = self.living.start(event.pid).unwrap_or(0);
                self.losses.forget(event.pid, start, program);
                self.drop_process(event.pid, start, program);
            }
            _ => {}
        }
        container.into_iter().chain(gpus)
    }

    /// Returns the exit of the previous process with this pid if it was not seen. The new process
    /// starts without any state of the old one.
    fn reused(&mut self, event: &Event, program: Program, lost: &mut LostNews) -> Vec<Event> {
        let What::Process(facts) = &event.what else { return Vec::new() };
        let Event { pid, at, .. } = *event;
        let older = self.living.start(pid).filter(|_| self.living.is_reused(pid, facts.start));
        let Some(start) = older else { return Vec::new() };
        let lost = lost_event(pid, lost.of(pid, start), at);
        self.losses.forget(pid, start, None);
        self.drop_process(pid, start, Some(program));
        lost.into_iter().chain([Event { what: What::Exit, ..event.clone() }]).collect()
    }

    /// Adds the losses of running processes and of those that ended without being announced.
    fn take_losses(&mut self, now: Moment, pending: &mut Pending, events: &mut Vec<Event>) {
        for Unannounced { pid, start, replaced, next, lost } in pending.lost.unannounced() {
            self.losses.forget(pid, start, Some(next));
            // The known process with this pid is another process, or another exec generation.
            if self.living.knows(pid) {
                events.extend(lost_event(Pid(0), lost, now));
                continue;
            }
            events.extend(pending.work.before(pid, start, next));
            events.extend(lost_event(pid, lost, now));
            self.drop_process(pid, start, Some(next));
            let (tid, what) = (Tid(pid.0), if replaced { What::Exec } else { What::Exit });
            events.push(Event { pid, tid, entered: now, at: now, what });
        }
        let rest = std::mem::take(&mut pending.lost).rest();
        events.extend(rest.filter_map(|(pid, lost)| lost_event(pid, lost, now)));
    }

    /// Drops the state of a process that exited, or that runs another exec generation now.
    fn drop_process(&mut self, pid: Pid, start: u64, program: Option<Program>) {
        self.drivers.forget(pid, start);
        self.living.ended(pid);
        self.bindings.process_exited(pid);
        if let Some(sites) = &mut self.desk {
            sites.forget(pid);
        }
        if let Some(work) = &mut self.work {
            work.forget(pid, start, program);
        }
        self.accounts.ended(pid);
        // An exec stays in its container.
        if program.is_none() {
            self.containers.ended(pid);
        }
        if let Some(torch) = &mut self.torch {
            torch.forget(pid);
        }
    }

    fn scan_libraries(&mut self) -> Result<(), Error> {
        let rescan = self.last_scan.elapsed() >= RESCAN;
        if rescan {
            self.last_scan = Instant::now();
        }
        if self.drivers.look(&self.loaded, rescan)? {
            self.now.attached_at = clock::boot();
            self.loaded.set(self.now)?;
        }
        let (mapped, all) = self.drivers.take_torch();
        if let Some(torch) = &mut self.torch {
            torch.look(&self.loaded, &mapped, rescan || all);
        }
        Ok(())
    }
}

/// Returns an event for lost records, if there are any.
fn lost_event(pid: Pid, lost: Lost, now: Moment) -> Option<Event> {
    let event = Event { pid, tid: Tid(pid.0), entered: now, at: now, what: What::Lost(lost) };
    (lost != Lost::default()).then_some(event)
}

fn site_resolver(loaded: &Loaded) -> Result<Desk, Error> {
    let maps = Maps {
        known: loaded.map("known_stacks")?,
        sent: loaded.map("sent_frames")?,
        pythons: loaded.map("pythons")?,
    };
    Desk::new(maps, loaded.config.loops).map_err(Error::Names)
}

fn require(pid: Pid) -> Result<(), Error> {
    if std::fs::metadata(format!("/proc/{pid}")).is_ok() {
        Ok(())
    } else {
        Err(Error::NoProcess(pid))
    }
}

fn add_target(targets: &MapHandle, pid: Pid) -> Result<(), Error> {
    targets.update(&pid.0.to_ne_bytes(), &[1], MapFlags::ANY).map_err(map_error("targets"))
}

/// Removes duplicate pids.
fn unique(pids: impl IntoIterator<Item = Pid>) -> HashSet<Pid> {
    pids.into_iter().collect()
}
