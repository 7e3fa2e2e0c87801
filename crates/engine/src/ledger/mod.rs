//! The ledger: the only writer of allocation state.
//!
//! ```text
//! Ledger ─ Process ┬ Allocations   slab of entries + index by the driver's name   allocation.rs
//!                  ├ Threads       who allocated; order by age and by size        thread.rs sizes.rs
//!                  ├ Contexts      device, lifetime, users of primary contexts    context.rs lifetime.rs
//!                  ├ ContextEnds   what the end of a context leaves in doubt      context_ends.rs
//!                  ├ Physical      references, mappings, reserved addresses       physical.rs
//!                  ├ Pools         what stream-ordered memory comes from          pool.rs
//!                  ├ Graphs        captures, memory nodes, what launches change   graph.rs
//!                  ├ Objects       streams, events, modules …: no memory             objects.rs
//!                  ├ Totals        sums and peaks                                 totals.rs
//!                  ├ Sites         the same by where it came from                 sites.rs
//!                  ├ Devices       which GPUs they are, what the driver says      device.rs
//!                  ├ Torch         blocks of PyTorch's cache, never added to the rest     torch.rs segments.rs
//!                  ├ Superseded    frees that are under way                       reuse.rs
//!                  ├ Peak          what overlapping calls leave open of it        peak.rs
//!                  ├ Freed         what was freed last                            freed.rs
//!                  ├ Unusuals      what was far outside of the usual                unusual.rs
//!                  ├ Losses        what lost records leave open                   loss.rs
//!                  └ Observer      tells what begins and ends, where asked for      observer.rs
//!          Ended   until the next snapshot                                        ended.rs
//!          OutOfMemory  refused calls until the next snapshot                 ran_out.rs
//!          PastSites  where the memory of the ended came from                    past_sites.rs
//!          view.rs, site_views.rs, judgements.rs  what a snapshot shows
//! ```
//!
//! An event costs a few hash lookups, and a descent in a tree of the thread's *distinct* sizes when
//! an allocation is the first or the oldest of its size. Only rare events look at all allocations of
//! their process: the end of a context, and learning the device of a context or pool late. A snapshot
//! costs what it shows: processes, threads, devices, pools, sites and the top of each list; and, after a
//! loss, a look at all nodes of graphs.

mod allocation;
mod context;
mod context_ends;
mod device;
mod ended;
mod freed;
mod graph;
mod holdings;
mod judgements;
mod kernel_rows;
mod lifetime;
mod loss;
mod objects;
mod observer;
mod past_sites;
mod peak;
mod physical;
mod places;
mod pool;
mod process;
mod ran_out;
mod reuse;
mod segments;
mod site_views;
mod sites;
mod sizes;
mod thread;
mod torch;
mod totals;
mod unusual;
mod view;
mod work;

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::change::Change;
use crate::container::Container;
use crate::event::{Event, Lost, OUT_OF_MEMORY, ProcessFacts, What};
use crate::ids::{GpuId, Pid};
use crate::snapshot::{Certainty, End, GpuView, Loss, OutOfMemory, Snapshot, View};
use crate::stack::Sites;
use crate::units::{Bytes, Moment};
use crate::verdict::{Anomaly, Judgement};

use ended::Ended;
use graph::Full;
use judgements::Judged;
use observer::Told;
use past_sites::PastSites;
use process::Process;
use site_views::About;
use sites::SiteTable;
use totals::Sum;

/// Suspects that a snapshot lists.
const SUSPECTS: usize = 32;

/// Verdicts on other sites of a process that are kept when it ends, and those of ended ones altogether.
const PAST_JUDGED: usize = 512;
const PAST_KEPT: usize = 4096;

/// The pid of losses that could not be attributed to a process.
const NOBODY: Pid = Pid(0);

/// Who holds which GPU memory, by the events so far.
///
/// Time enters only with events and with [`Ledger::snapshot`], so the same events always give the
/// same snapshots.
#[derive(Debug, Default)]
pub struct Ledger {
    running: HashMap<Pid, Process>,
    ended: Ended,
    out_of_memory: Vec<OutOfMemory>,
    /// All of them since the last snapshot, by GPU.
    ran_out: BTreeMap<Option<GpuId>, u64>,
    /// All losses ever.
    lost: Loss,
    /// Those of no known process.
    unattributed: Loss,
    /// What began and ended, in a ledger that is observed.
    told: Option<Told>,
    /// Launches and copies are counted.
    follows_work: bool,
    /// What sites look like.
    sites: Sites,
    past_sites: PastSites,
    /// What was thought of processes that ended, for the last report.
    past_judged: Judged,
    /// What was unusual in them.
    past_unusual: Vec<Anomaly>,
    /// What is free of GPUs, as it was told last.
    free: HashMap<GpuId, Bytes>,
    /// When the first event was.
    began: Option<Moment>,
    /// Sites are not told apart any more.
    sites_together: bool,
    /// No report will ever tell of the ended again.
    forgets_ended: bool,
}

impl Ledger {
    /// A ledger that knows nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A ledger for a trace without an end: what ended is in one snapshot, and then forgotten.
    /// [`View::ended_sites`] must not be asked for.
    #[must_use]
    pub fn forgetting_ended(mut self) -> Self {
        self.forgets_ended = true;
        self
    }

    /// Gives up telling sites apart, for good: each process has one for each kind. Every other figure
    /// stays what it was.
    pub fn put_sites_together(&mut self) {
        self.sites_together = true;
        self.running.values_mut().for_each(|process| process.sites.put_together());
    }

    /// A ledger that also tells what begins and ends: see [`Ledger::take_changes`]. It keeps that
    /// until it is taken.
    #[must_use]
    pub fn observed() -> Self {
        Self { told: Some(Told::default()), ..Self::default() }
    }

    /// A ledger that also takes note of launches and copies.
    #[must_use]
    pub fn following_work(mut self) -> Self {
        self.follows_work = true;
        self
    }

    /// Adds every allocation that began, ended or became better known since the last call, of
    /// every kind, in the order of events; nothing when the ledger is not observed.
    ///
    /// Applied one after the other to an empty set, changes give the live set at any time. Their
    /// moments never go backwards: a call whose event comes after that of a later one is told at
    /// the later moment. What a process held when it ended or replaced its program ended as
    /// [`Exited`](crate::change::How::Exited).
    pub fn take_changes(&mut self, into: &mut Vec<Change>) {
        if let Some(told) = &mut self.told {
            told.take(into);
        }
    }

    /// Takes note of one event.
    ///
    /// Events come in the order in which they were seen. A [`What::Lost`] covers what was lost up
    /// to its own moment, and should come after the events before that moment and before the next
    /// snapshot; see [`crate::event::Lost`].
    pub fn apply(&mut self, event: &Event) {
        if !matches!(event.what, What::Site(_)) {
            self.began.get_or_insert(event.at);
        }
        self.note(event);
        if self.follows_work
            && let Some(process) = self.running.get_mut(&event.pid)
        {
            process.work.get_or_insert_default().place(event);
        }
        if let Some(told) = &mut self.told
            && let Some(process) = self.running.get_mut(&event.pid)
        {
            told.collect(process);
        }
    }

    fn note(&mut self, event: &Event) {
        match &event.what {
            What::Process(facts) => self.announce(event, facts),
            What::Container(container) => {
                if let Some(process) = self.running.get_mut(&event.pid) {
                    process.container = Some(Arc::new(Container::clone(container)));
                }
            }
            What::Exec => self.replace(event),
            What::Exit => {
                if let Some(process) = self.running.remove(&event.pid) {
                    self.end(process, End::Exited, event.at);
                }
            }
            What::ThreadExit => {
                if let Some(process) = self.running.get_mut(&event.pid) {
                    process.end_thread(event.tid);
                }
            }
            What::ThreadName(name) => self.process(event).name_thread(event.tid, name),
            What::Allocate(allocate) => {
                let noted = self.process(event).allocate(event, allocate);
                self.lose_node(event, noted);
            }
            What::Free(free) => {
                let noted = self.process(event).free(event, free);
                self.lose_node(event, noted);
            }
            What::Vmm(call) => self.process(event).vmm(event, *call),
            What::Pool(call) => self.process(event).pool(event, *call),
            What::Graph(call) => {
                let noted = self.process(event).graph(event, *call);
                self.lose_node(event, noted);
            }
            What::Failed(failed) => {
                self.process(event).fail(failed);
                if failed.code == OUT_OF_MEMORY {
                    self.run_out(event, failed);
                }
            }
            What::Context(change) => {
                let objects = self.process(event).change(event, *change);
                if objects > 0 {
                    self.lose(event, &Lost { objects, ..Lost::default() });
                }
            }
            What::Gpus(gpus) => {
                if let Some(process) = self.running.get_mut(&event.pid) {
                    process.set_gpus(gpus);
                }
            }
            What::DriverAccount { gpu, bytes, only } => {
                if let Some(process) = self.running.get_mut(&event.pid) {
                    process.account(event, *gpu, Bytes(*bytes), *only);
                }
            }
            What::GpuFree { gpu, bytes } => drop(self.free.insert(*gpu, Bytes(*bytes))),
            What::DriverAccountLost => {
                self.free.clear();
                self.running.values_mut().for_each(|process| process.devices.forget_accounts());
            }
            What::Lost(lost) => self.lose(event, lost),
            What::Work(work) => self.process(event).work(work),
            What::Object(call) => self.process(event).object(event, *call),
            What::Tensor(call) => self.process(event).tensor(event, call),
            What::Torch(watch) => {
                if let Some(process) = self.running.get_mut(&event.pid) {
                    process.torch.get_or_insert_default().watch(*watch);
                }
            }
            What::Site(facts) => self.sites.tell(facts.site, &facts.frames),
        }
    }

    /// What is known at that moment. Processes that ended and out-of-memory errors are in one
    /// snapshot only: the next one after they happened.
    pub fn snapshot(&mut self, at: Moment, view: &View) -> Snapshot {
        let mut ended = self.ended.take();
        let running = self.running.values_mut().filter(|process| !process.silent);
        for process in running.chain(&mut ended) {
            process.show_work(at, view.top);
        }
        let shown_sites = self.show_sites(at, view, &ended);
        let judged = self.judge(at, view, &ended);
        let mut shown: Vec<_> = self.shown().chain(&ended).collect();
        shown.sort_by_cached_key(|process| {
            let oldest = view::oldest(process);
            let totals = &process.totals;
            let rank = view::rank(view.sort, totals.live.bytes(), totals.count, oldest);
            (process.ended.is_some(), rank, process.key)
        });
        let unattributed = &self.unattributed;
        let one = |p: &Process| view::process(p, at, view, unattributed, &self.sites);
        let processes = shown.into_iter().map(one).collect();
        let snapshot = Snapshot {
            at,
            live_bytes: self.live().bytes(),
            live_allocations: self.shown().map(|process| process.totals.count).sum(),
            certainty: self.certainty(),
            processes,
            out_of_memory: self.take_out_of_memory(),
            ran_out: std::mem::take(&mut self.ran_out).into_iter().collect(),
            anomalies: self.show_unusual(view, &ended),
            suspects: judged.suspects,
            suspects_total: judged.suspects_total,
            judgements: judged.others,
            gpus: self.gpus(),
            ..shown_sites
        };
        self.pass_sites(ended);
        snapshot
    }

    /// The part of a snapshot that is about the sites of all processes.
    fn show_sites(&mut self, at: Moment, view: &View, ended: &[Process]) -> Snapshot {
        let Self { running, past_sites, sites, .. } = self;
        let running = running.values().filter(|process| !process.silent);
        let ended = ended.iter().filter(|_| view.ended_sites);
        let mut tables: Vec<_> =
            running.chain(ended).map(|process| (Some(process.key.pid), &process.sites)).collect();
        if view.ended_sites {
            tables.extend(past_sites.tables());
        }
        let (allocations_total, without_stack) = site_views::coverage(&tables);
        let (tensor_sites, tensor_sites_total) =
            site_views::list(&tables, About::Tensors, at, view, sites);
        let (sites, sites_total) = site_views::list(&tables, About::Memory, at, view, sites);
        Snapshot {
            sites,
            sites_total,
            allocations_total,
            without_stack,
            tensor_sites,
            tensor_sites_total,
            ..Snapshot::default()
        }
    }

    /// What is thought of places; the last report also has those of processes that ended, as they
    /// were then.
    fn judge(&mut self, at: Moment, view: &View, ended: &[Process]) -> Judged {
        for process in ended.iter().filter(|_| !self.forgets_ended) {
            self.past_judged.append(judgements::of(process, at, PAST_JUDGED, &self.sites));
        }
        self.past_judged = std::mem::take(&mut self.past_judged).ranked(PAST_KEPT, PAST_KEPT);
        let judged = self.judged(at, view.top_sites, view.ended_sites);
        judged.ranked(SUSPECTS, view.top_sites)
    }

    /// Verdicts on processes that run, `others` of each besides its suspects; with `past` also those on
    /// processes that snapshots had as ended.
    fn judged(&mut self, at: Moment, others: usize, past: bool) -> Judged {
        let mut judged = Judged::default();
        for process in self.running.values().filter(|process| !process.silent) {
            let mut own = judgements::of(process, at, others, &self.sites);
            own.project(process, &self.free);
            judged.append(own);
        }
        if past {
            self.past_judged.name_again(&self.sites);
            judged.append(self.past_judged.clone());
        }
        judged
    }

    /// Every verdict that the last report of a trace chooses from: suspects, then the others. To be
    /// called after the last snapshot, at the same moment.
    pub fn verdicts(&mut self, at: Moment) -> (Vec<Judgement>, Vec<Judgement>) {
        let judged = self.judged(at, PAST_JUDGED, true).ranked(usize::MAX, usize::MAX);
        (judged.suspects, judged.others)
    }

    /// What was unusual since the last snapshot; in the last report all that is remembered.
    fn show_unusual(&mut self, view: &View, ended: &[Process]) -> Vec<Anomaly> {
        let all = view.ended_sites;
        let shown = self.shown().chain(ended);
        let mut anomalies: Vec<_> =
            shown.flat_map(|process| unusual::views(process, all, &self.sites)).collect();
        if all {
            unusual::name_again(&mut self.past_unusual, &self.sites);
            anomalies.extend(self.past_unusual.iter().cloned());
        }
        for process in ended.iter().filter(|_| !self.forgets_ended) {
            self.past_unusual.extend(unusual::views(process, true, &self.sites));
        }
        self.past_unusual.truncate(PAST_KEPT);
        anomalies.sort_by_key(|one| (one.at, one.pid));
        anomalies
    }

    /// A snapshot was made: growth counts from it, and the sites of the ended stay.
    fn pass_sites(&mut self, ended: Vec<Process>) {
        for process in self.running.values_mut() {
            process.sites.mark_shown();
            process.unusual.mark_shown();
        }
        for process in ended.into_iter().filter(|_| !self.forgets_ended) {
            self.past_sites.push(process.key.pid, process.sites);
        }
    }

    fn gpus(&self) -> Vec<GpuView> {
        let view = |(gpu, free): (&GpuId, &Bytes)| GpuView { gpu: *gpu, free_bytes: *free };
        let mut gpus: Vec<_> = self.free.iter().map(view).collect();
        gpus.sort_unstable_by_key(|view| view.gpu);
        gpus
    }

    /// Device memory of all processes that run. Costs a step per process.
    #[must_use]
    pub fn live_bytes(&self) -> Bytes {
        self.live().bytes()
    }

    /// How many processes run that called the driver. Costs a step per process.
    #[must_use]
    pub fn process_count(&self) -> usize {
        self.shown().count()
    }

    /// How many ended processes were in no snapshot, ever, because more than 10,000 ended between
    /// two of them. Those that held nothing are left out first.
    #[must_use]
    pub fn unlisted_ends(&self) -> u64 {
        self.ended.dropped
    }

    fn shown(&self) -> impl Iterator<Item = &Process> {
        self.running.values().filter(|process| !process.silent)
    }

    fn live(&self) -> Sum {
        self.shown().fold(Sum::default(), |sum, process| sum.plus(process.totals.live))
    }

    /// The sites of a process that begins.
    fn table(&self, at: Moment) -> SiteTable {
        SiteTable::new(self.began.unwrap_or(at), self.sites_together)
    }

    /// The process that made a call.
    fn process(&mut self, event: &Event) -> &mut Process {
        let Event { pid, at, .. } = *event;
        let observer = self.told.is_some();
        let (began, together) = (self.began.unwrap_or(at), self.sites_together);
        let process = self.running.entry(pid).or_insert_with(|| {
            let new = Process::anonymous(pid, at).with_sites(SiteTable::new(began, together));
            if observer { new.observed() } else { new }
        });
        process.silent = false;
        process.call = (event.entered, event.at);
        loss::receive(&mut process.counts.received, &event.what);
        process
    }

    fn announce(&mut self, event: &Event, facts: &ProcessFacts) {
        let Event { pid, at, .. } = *event;
        if let Some(process) = self.running.get_mut(&pid)
            && process.is(facts)
        {
            process.silent = false;
            process.refresh(facts);
            return;
        }
        let new = Process::new(pid, facts, at).with_sites(self.table(at));
        let new = if self.told.is_some() { new.observed() } else { new };
        if let Some(old) = self.running.insert(pid, new) {
            self.end(old, End::Exited, at);
        }
    }

    fn replace(&mut self, event: &Event) {
        let table = self.table(event.at);
        if let Some(process) = self.running.get_mut(&event.pid) {
            let next = process.replaced(event.at).with_sites(table);
            let next = if self.told.is_some() { next.observed() } else { next };
            let old = std::mem::replace(process, next);
            self.end(old, End::Replaced, event.at);
        }
    }

    fn end(&mut self, mut process: Process, end: End, at: Moment) {
        if !process.silent {
            process.finish(end, at);
            if let Some(told) = &mut self.told {
                told.collect(&mut process);
            }
            self.ended.push(process);
        }
    }

    /// What could not be kept for lack of room is as good as lost.
    fn lose_node(&mut self, event: &Event, noted: Result<(), Full>) {
        if let Err(Full { bytes }) = noted {
            self.lose(event, &Lost { other: 1, allocated_bytes: bytes, ..Lost::default() });
        }
    }

    /// Losses of a process that is there are its own; also of one that ended since the last
    /// snapshot (a successor with the same pid of which nothing at all was seen is not thought of).
    /// All others may be anybody's.
    fn lose(&mut self, event: &Event, lost: &Lost) {
        let Event { pid, at, .. } = *event;
        // A process that is listed was not lost, although it was never announced.
        let is_listed = self.running.get(&pid).is_some_and(|process| !process.silent);
        let processes = if is_listed { 0 } else { lost.processes };
        let lost = &Lost { processes, ..*lost };
        loss::add(&mut self.lost, lost, at);
        let owner = match self.running.get_mut(&pid) {
            Some(process) => Some(process),
            // The end of a process of which nothing is known is not that of one that ended before.
            None if lost.processes > 0 => None,
            None => self.ended.latest(|process| process.key.pid == pid),
        };
        if let Some(process) = owner.filter(|_| pid != NOBODY) {
            process.lose(lost, false, at);
            return;
        }
        loss::add(&mut self.unattributed, lost, at);
        for process in self.running.values_mut() {
            process.lose(lost, true, at);
        }
    }

    /// The bounds over all processes that run; see [`loss`] for why the truth is inside.
    fn certainty(&self) -> Certainty {
        let mut ended = Sum::default();
        let mut ended_by_anyone = Sum::default();
        let mut mapped_only = Sum::default();
        let mut ends = 0;
        let mut unlisted = Sum::from(self.unattributed.allocated_bytes);
        for process in self.running.values() {
            let losses = &process.losses;
            unlisted = unlisted.plus(process.unlisted());
            ended = ended.plus(losses.ended_with_context());
            ended = ended.plus(process.context_ends.doubtful_bytes());
            ended = ended.plus(view::freed_unseen(process, &[&losses.own, &losses.ambiguous]));
            let Loss { allocations, frees, .. } = losses.shared;
            if process.ends_among(allocations, frees) > 0 {
                ended_by_anyone = ended_by_anyone.plus(losses.before_lost_frees());
                mapped_only = mapped_only.plus(process.physical.mapped_only());
                let Loss { allocations, frees, .. } = self.unattributed;
                ends = ends.max(process.ends_among(allocations, frees));
            }
        }
        if ended_by_anyone > Sum::default() {
            let walks = || self.shown().flat_map(view::walks).collect();
            let bound = loss::ended_by(ends, mapped_only, walks);
            ended = ended.plus(ended_by_anyone.min(bound));
        }
        Certainty {
            lost: self.lost,
            live_at_least: self.live().minus(ended).bytes(),
            live_at_most: self.live().plus(unlisted).bytes(),
            unseen_frees: self.shown().map(|process| process.superseded.count).sum(),
            before_trace: self.shown().any(|process| process.before_trace),
            capture_ended: None,
            unknown_context: self.shown().map(|process| process.context_ends.doubtful()).sum(),
            ambiguous_calls: self.shown().map(|process| process.graphs.ambiguous_calls()).sum(),
        }
    }
}
