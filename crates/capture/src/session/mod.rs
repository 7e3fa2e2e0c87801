//! A running trace: probes attached, records flowing. Owned by one thread; dropping it (or dying)
//! leaves nothing attached.

mod attach;
mod canary;
mod counters;
mod drivers;
mod log;
mod object;
mod ring;

pub use counters::Counters;
pub use drivers::Notice;
pub use log::last_messages;

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use engine::event::{Event, What};
use engine::ids::Pid;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};

use crate::clock;
use crate::error::Error;
use crate::host::Host;
use crate::life::Living;
use crate::plan::{self, Plan, Tier};
use counters::Losses;
use drivers::Drivers;
use object::{Filter, Knobs, Loaded};
use ring::Ring;

/// Which processes to trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// Every process, also those that start later.
    Everybody,
    /// These processes; with `follow` also the children they make from now on.
    Processes {
        /// The processes.
        pids: Vec<Pid>,
        /// Children too.
        follow: bool,
    },
}

/// How to trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Whom.
    pub target: Target,
    /// Driver libraries named by hand, besides those that are found.
    pub drivers: Vec<PathBuf>,
    /// Bytes of the kernel ring, a power of two and a multiple of the page size.
    pub ring_bytes: u32,
    /// Use this way to attach and no other.
    pub tier: Option<Tier>,
}

impl Options {
    /// The ring's size unless told otherwise: 130,000 calls, against a reader that comes by every
    /// few milliseconds.
    pub const RING_BYTES: u32 = 16 * 1024 * 1024;
}

/// How often processes are looked at for new copies of the driver, besides being told of them.
const RESCAN: Duration = Duration::from_secs(5);

/// The facts about this host with each tier tried, for `doctor`.
#[must_use]
pub fn examine() -> Host {
    let mut host = Host::read();
    if plan::preconditions(&host).is_ok() {
        host.tiers = Tier::ALL.iter().map(|tier| (*tier, canary::try_tier(&host, *tier))).collect();
    }
    host
}

/// Finds the best way to attach that works, trying no more than needed.
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

/// A running trace.
pub struct Session {
    plan: Plan,
    drivers: Drivers,
    ring: Ring,
    losses: Losses,
    living: Living,
    targets: MapHandle,
    counters: MapHandle,
    last_scan: Instant,
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
            task_storage: plan.task_storage,
            filter,
            ring_bytes: options.ring_bytes,
        })?;
        let targets = loaded.map("targets")?;
        if let Target::Processes { pids, .. } = &options.target {
            for pid in pids {
                require(*pid)?;
                add_target(&targets, *pid)?;
            }
        }
        let life = loaded
            .life()
            .map(|program| program?.attach().map_err(|source| Error::Load { source }))
            .collect::<Result<Vec<_>, _>>()?;
        let ring = Ring::new(&loaded)?;
        let mut drivers = Drivers::new(options, &plan);
        drivers.attach_all(&loaded)?;
        loaded.set_attached_at(clock::boot())?;
        Ok(Self {
            losses: Losses::new(&loaded)?,
            counters: loaded.map("counters")?,
            living: Living::default(),
            last_scan: Instant::now(),
            plan,
            drivers,
            ring,
            targets,
            _life: life,
            loaded,
        })
    }

    /// How it is attached.
    #[must_use]
    pub const fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Adds a process to those that are traced.
    pub fn add_target(&self, pid: Pid) -> Result<(), Error> {
        add_target(&self.targets, pid)
    }

    /// Waits for records at most this long, and hands over what happened, in order.
    pub fn poll(&mut self, timeout: Duration) -> Result<Vec<Event>, Error> {
        self.ring.wait(timeout);
        self.collect()
    }

    /// What happened up to now.
    pub fn collect(&mut self) -> Result<Vec<Event>, Error> {
        self.look_for_drivers()?;
        let mut events = self.ring.take();
        let now = clock::monotonic();
        let mut lost = self.losses.take(now)?;
        let may_have_missed_deaths =
            lost.iter().any(|event| matches!(&event.what, What::Lost(lost) if lost.other > 0));
        for event in &mut events {
            self.follow(event);
        }
        events.append(&mut lost);
        if may_have_missed_deaths || self.living.is_due(now) {
            events.extend(self.living.sweep(now));
        }
        Ok(events)
    }

    /// What the user should know, since the last call.
    pub fn notices(&mut self) -> Vec<Notice> {
        self.drivers.take_notices()
    }

    /// The probes' own counters.
    pub fn counters(&self) -> Result<Counters, Error> {
        Counters::from_map(&self.counters)
    }

    /// Records of the wire that this version could not read; anything but zero is a bug.
    #[must_use]
    pub fn unreadable(&self) -> u64 {
        self.ring.unreadable()
    }

    fn follow(&mut self, event: &mut Event) {
        match &mut event.what {
            What::Process(facts) => {
                facts.before_trace = self.drivers.was_there_before(event.pid);
                self.living.began(event.pid, facts.start);
            }
            What::Exit | What::Exec => {
                self.drivers.forget(event.pid);
                self.living.ended(event.pid);
                self.losses.forget(event.pid);
            }
            _ => {}
        }
    }

    fn look_for_drivers(&mut self) -> Result<(), Error> {
        let rescan = self.last_scan.elapsed() >= RESCAN;
        if rescan {
            self.last_scan = Instant::now();
        }
        if self.drivers.look(&self.loaded, rescan)? {
            self.loaded.set_attached_at(clock::boot())?;
        }
        Ok(())
    }
}

fn require(pid: Pid) -> Result<(), Error> {
    if std::fs::metadata(format!("/proc/{pid}")).is_ok() {
        Ok(())
    } else {
        Err(Error::NoProcess(pid))
    }
}

fn add_target(targets: &MapHandle, pid: Pid) -> Result<(), Error> {
    targets
        .update(&pid.0.to_ne_bytes(), &[1], MapFlags::ANY)
        .map_err(|source| Error::Load { source })
}

/// Pids, each once.
fn unique(pids: impl IntoIterator<Item = Pid>) -> HashSet<Pid> {
    pids.into_iter().collect()
}
