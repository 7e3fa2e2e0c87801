//! What is thought of a place in a program whose memory, tensors or objects are live: live is not
//! leaked. Made by [`crate::analysis::leak`], the same way for a running trace and for files.

use std::sync::Arc;

use crate::ids::{DeviceId, Key, Pid, Tid};
use crate::kind::Kind;
use crate::object::ObjectKind;
use crate::stack::{Frame, SiteName};
use crate::units::{Bytes, Moment, Nanos};

/// How what is live of a place behaves over time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// It grows without an end in sight, and what was allocated long ago is still there.
    Leak,
    /// It grew and stands still.
    Plateau,
    /// What is live is renewed all the time and bounded: a cache, or buffers that are used again.
    Cache,
    /// It grows, but more and more slowly, or the program has just begun.
    RampUp,
    /// It grew in one go, and is going or gone.
    Burst,
    /// It comes and goes, and goes back to the same level.
    Periodic,
    /// Too short, or too little happened.
    NotEnoughData,
}

impl Verdict {
    /// Every verdict.
    pub const ALL: [Self; 7] = [
        Self::Leak,
        Self::Plateau,
        Self::Cache,
        Self::RampUp,
        Self::Burst,
        Self::Periodic,
        Self::NotEnoughData,
    ];

    /// The word for it in reports, JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leak => "leak",
            Self::Plateau => "plateau",
            Self::Cache => "cache",
            Self::RampUp => "ramp_up",
            Self::Burst => "burst",
            Self::Periodic => "periodic",
            Self::NotEnoughData => "not_enough_data",
        }
    }
}

/// How sure a verdict is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Sureness {
    /// The evidence is thin, and points this way.
    Possible,
    /// Most of it points this way.
    Likely,
    /// All of it does, and there is much of it.
    Certain,
}

impl Sureness {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Possible => "possible",
            Self::Likely => "likely",
            Self::Certain => "certain",
        }
    }
}

/// What is judged. Each is judged by itself; none is added to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Subject {
    /// Memory of the driver, of one kind.
    Memory(Kind),
    /// Blocks that a framework's cache gave out.
    Tensors,
    /// Objects of the driver: quantities are counts, not bytes.
    Objects(ObjectKind),
}

impl Subject {
    /// Whether quantities are bytes.
    #[must_use]
    pub const fn is_bytes(self) -> bool {
        !matches!(self, Self::Objects(_))
    }
}

/// What a verdict rests on. Quantities are bytes, or numbers of objects.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Evidence {
    /// What is live now.
    pub live: u64,
    /// How many allocations or objects that is.
    pub live_count: u64,
    /// How long each window is.
    pub window: Nanos,
    /// The least that was live in each window since the place was first seen, the oldest first.
    pub lows: Vec<u64>,
    /// The most that was ever live.
    pub peak: u64,
    /// The least and the most that was live since half of that time.
    pub level: (u64, u64),
    /// How often it rose and came back to its lowest level.
    pub returns: u32,
    /// Steps from window to window.
    pub steps: u32,
    /// Of those: in which it grew, and in which it shrank.
    pub growing_steps: u32,
    /// See `growing_steps`.
    pub shrinking_steps: u32,
    /// How fast it grows now, per hour.
    pub per_hour: u64,
    /// All that began.
    pub begun: u64,
    /// Of those: ended by the program.
    pub ended: u64,
    /// How long the place has been watched.
    pub watched: Nanos,
    /// At least half of what is live is as old as this. Ages are known to within a window.
    pub median_age: Option<Nanos>,
    /// Nothing that is live is older than this.
    pub oldest: Option<Nanos>,
    /// The mean age of what is live.
    pub mean_age: Nanos,
    /// The mean life of what was freed.
    pub mean_life: Option<Nanos>,
    /// At least half of what was freed lived no longer than this. Known to within a factor of two.
    pub median_life: Option<Nanos>,
    /// The longest life of what was freed.
    pub longest_life: Option<Nanos>,
    /// Live and older than 99 of 100 that were freed; where fewer than 20 were, older than all of them.
    pub overdue: u64,
    /// When the device will be full if it goes on like this, where its free memory is known.
    pub full_in: Option<Nanos>,
    /// Of memory that PyTorch's cache took and that grows: what its tensors did, where they are known.
    pub tensors: Option<CacheTensors>,
}

/// What the tensors of PyTorch's cache on one device did. Quantities are bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheTensors {
    /// What the live ones hold, as PyTorch counts.
    pub live: u64,
    /// The most that they held at one time since the trace began.
    pub peak: u64,
    /// What the cache holds of the device.
    pub cache: u64,
    /// How fast the tensor sites grow that leak, per hour.
    pub per_hour: u64,
    /// How fast the cache grows by itself, per hour.
    pub cache_per_hour: u64,
    /// All tensors together are bounded: see [`crate::analysis::leak`].
    pub bounded: bool,
}

impl CacheTensors {
    /// Whether tensor sites that leak make up at least half of the growth of the cache.
    #[must_use]
    pub const fn explain_growth(&self) -> bool {
        self.per_hour > 0 && self.per_hour >= self.cache_per_hour / 2
    }

    /// Whether the cache is no more than twice what its tensors, which do not grow, once held.
    #[must_use]
    pub const fn explain_size(&self) -> bool {
        self.bounded && self.peak >= self.cache / 2
    }

    /// Whether the cache holds what it does because of its tensors. Else it is judged as any memory.
    #[must_use]
    pub const fn account_for_cache(&self) -> bool {
        self.explain_growth() || self.explain_size()
    }
}

/// What is thought of one place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Judgement {
    /// The process; `None` for many that ended long ago.
    pub pid: Option<Pid>,
    /// Its name (hostile text).
    pub process: Box<str>,
    /// The place.
    pub site: SiteName,
    /// Its frames, innermost first, where they are known.
    pub frames: Arc<[Frame]>,
    /// What was judged.
    pub subject: Subject,
    /// The device that holds most of it, where known.
    pub device: Option<DeviceId>,
    /// The thread that allocated all of it, where it was one.
    pub thread: Option<(Tid, Box<str>)>,
    /// The verdict.
    pub verdict: Verdict,
    /// How sure it is.
    pub sureness: Sureness,
    /// What it rests on.
    pub evidence: Evidence,
}

/// Something far outside of what is usual for its site or its process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Anomaly {
    /// When.
    pub at: Moment,
    /// Who.
    pub pid: Pid,
    /// The process's name (hostile text).
    pub process: Box<str>,
    /// On which thread, for an allocation.
    pub tid: Option<Tid>,
    /// The thread's name (hostile text).
    pub thread: Box<str>,
    /// Where in the program.
    pub site: SiteName,
    /// Its frames, innermost first, where they are known.
    pub frames: Arc<[Frame]>,
    /// Of which device.
    pub device: Option<DeviceId>,
    /// What kind of memory.
    pub kind: Kind,
    /// What it is.
    pub what: Unusual,
}

/// What is unusual, with the figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unusual {
    /// An allocation much bigger than others.
    Size {
        /// The driver's name for it.
        key: Key,
        /// How much.
        bytes: Bytes,
        /// What is usual: nine of ten were at most this big.
        usual: Bytes,
        /// Of how many allocations.
        of: u64,
        /// Usual for the site; else for the process.
        of_site: bool,
        /// Whether it is still live.
        live: bool,
    },
    /// A growth in a short time much greater than in others of the same length.
    Growth {
        /// How much more was live.
        bytes: Bytes,
        /// In how long.
        within: Nanos,
        /// What is usual in such a time: nine of ten grew at most this much.
        usual: Bytes,
    },
}
