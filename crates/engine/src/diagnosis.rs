//! Why there was no memory: told apart by what is known of the device, its holders, caches and the
//! host. What is not known makes an answer less sure, never wrong by itself.

mod figures;
mod holder;

pub use figures::Figures;

use crate::ids::{DeviceId, GpuId, Pid};
use crate::kind::{Kind, Layer};
use crate::snapshot::Snapshot;
use crate::units::Bytes;
use crate::verdict::Sureness;

/// What a refused call asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// Memory.
    Memory(Kind, Bytes),
    /// Addresses without memory; how many is not told.
    Addresses,
    /// Something that needs memory by itself: a context, a module, a graph.
    Other,
}

impl Asked {
    /// How much, where that is told.
    #[must_use]
    pub const fn bytes(self) -> Option<Bytes> {
        match self {
            Self::Memory(_, bytes) => Some(bytes),
            Self::Addresses | Self::Other => None,
        }
    }
}

/// What is known at the moment when a call was refused.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// Who asked; 0 where nobody did.
    pub pid: Pid,
    /// For what.
    pub asked: Asked,
    /// Of which device, as the process counts them.
    pub device: Option<DeviceId>,
    /// Which GPU of the host that is.
    pub gpu: Option<GpuId>,
    /// Device memory of the processes on it at that moment, as it was traced.
    pub holders: &'a [(Pid, Bytes)],
    /// A snapshot from soon after it: accounts of the driver, caches and pools.
    pub snapshot: &'a Snapshot,
    /// All of the GPU's memory.
    pub total: Option<Bytes>,
    /// What PyTorch's cache of the one who asked held unused at that moment, where it is followed: by
    /// the time of the snapshot it may have given it back.
    pub cached: Option<Bytes>,
    /// What the host has.
    pub host: Host,
    /// Signs of something that divides the GPU.
    pub hints: &'a [Hint],
}

/// What is known of the host's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Host {
    /// Memory that programs can still get.
    pub available: Option<Bytes>,
    /// What the process may lock in memory; `None` where there is no limit or it is not known.
    pub locked_limit: Option<Bytes>,
    /// What the process may have of addresses; likewise.
    pub address_limit: Option<Bytes>,
}

/// A sign of something that divides the GPU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Hint {
    /// A server of MPS runs, which can limit what its clients get.
    Mps,
    /// The process has a library between itself and the driver that limits memory.
    Divider,
}

impl Hint {
    /// The word for it in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mps => "mps_server",
            Self::Divider => "gpu_sharing_library",
        }
    }

    /// What it is, as the subject of a sentence.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Mps => {
                "an MPS server is running (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT can limit its clients)"
            }
            Self::Divider => "the process has loaded a GPU sharing library (libvgpu.so)",
        }
    }
}

/// Why there was no memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Cause {
    /// The device is full, or has too little left.
    DeviceExhausted,
    /// A framework's cache holds enough of the device, but not in one piece, or not yet given back.
    CacheFragmented,
    /// A pool of the driver holds enough, and does not use it for this.
    PoolFragmented,
    /// More than the whole device was asked for at once.
    LargerThanDevice,
    /// The device has plenty: something else limits the process.
    Quota,
    /// There are no addresses left.
    AddressSpace,
    /// Host memory, or what may be locked of it, is exhausted.
    HostMemory,
    /// The figures do not tell.
    Unknown,
}

impl Cause {
    /// Whether memory that others give back of the device would help.
    #[must_use]
    pub const fn is_of_device(self) -> bool {
        match self {
            Self::DeviceExhausted
            | Self::CacheFragmented
            | Self::PoolFragmented
            | Self::Unknown => true,
            Self::LargerThanDevice | Self::Quota | Self::AddressSpace | Self::HostMemory => false,
        }
    }

    /// Every cause.
    pub const ALL: [Self; 8] = [
        Self::DeviceExhausted,
        Self::CacheFragmented,
        Self::PoolFragmented,
        Self::LargerThanDevice,
        Self::Quota,
        Self::AddressSpace,
        Self::HostMemory,
        Self::Unknown,
    ];

    /// The word for it in JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DeviceExhausted => "device_exhausted",
            Self::CacheFragmented => "cache_fragmentation",
            Self::PoolFragmented => "pool_fragmentation",
            Self::LargerThanDevice => "request_exceeds_device",
            Self::Quota => "quota",
            Self::AddressSpace => "address_space_exhausted",
            Self::HostMemory => "host_memory_exhausted",
            Self::Unknown => "unknown",
        }
    }
}

/// Why there was no memory, and what that rests on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnosis {
    /// The cause.
    pub cause: Cause,
    /// How sure that is.
    pub sureness: Sureness,
    /// The cause in a sentence; names of processes in it are hostile text.
    pub sentence: String,
    /// The figures.
    pub figures: Figures,
    /// Signs of something that divides the GPU.
    pub hints: Vec<Hint>,
}

/// What a device needs besides what is asked for: pages, tables of pages.
const SLACK: u64 = 64 << 20;

/// Memory is given out in pages of this size.
const PAGE: u64 = 2 << 20;

/// A device is full when no more than this part of it is free.
const NEARLY: u64 = 20;

/// Finds the cause.
#[must_use]
pub fn diagnose(scene: &Scene<'_>) -> Diagnosis {
    let figures = Figures::of(scene);
    let (cause, sureness, sentence) = match scene.asked {
        Asked::Addresses => addresses(scene),
        Asked::Memory(kind, bytes) => match kind.layer() {
            Layer::Host => host(scene, "page-locked host memory", bytes),
            Layer::Managed => managed(scene, bytes),
            _ => device(scene, &figures, Some(bytes)),
        },
        Asked::Other => device(scene, &figures, None),
    };
    Diagnosis { cause, sureness, sentence, figures, hints: scene.hints.to_vec() }
}

/// What was free of the GPU at that moment, about.
#[must_use]
pub fn free(scene: &Scene<'_>) -> Option<Bytes> {
    Figures::of(scene).free
}

type Answer = (Cause, Sureness, String);

fn addresses(scene: &Scene<'_>) -> Answer {
    let limit = scene.host.address_limit;
    let told = limit.map_or_else(
        || "no address space limit is known for the process".to_owned(),
        |limit| format!("the process is limited to {limit} (ulimit -v)"),
    );
    let sureness = if limit.is_some() { Sureness::Likely } else { Sureness::Possible };
    let sentence = format!("virtual address space exhausted: {told}");
    (Cause::AddressSpace, sureness, sentence)
}

fn host(scene: &Scene<'_>, what: &str, asked: Bytes) -> Answer {
    let Host { available, locked_limit, .. } = scene.host;
    let (sureness, why) = match (available, locked_limit) {
        (Some(available), _) if available < asked => {
            (Sureness::Certain, format!("the host has {available} available"))
        }
        (_, Some(limit)) if limit < asked => {
            (Sureness::Likely, format!("the process may lock {limit} (ulimit -l)"))
        }
        (Some(available), Some(limit)) => (
            Sureness::Possible,
            format!(
                "the host has {available} available and the process may lock {limit}; a cgroup \
                 limit, or memory that it has already locked, may be the reason"
            ),
        ),
        (Some(available), None) => (
            Sureness::Possible,
            format!("the host has {available} available; a cgroup limit may be the reason"),
        ),
        (None, _) => (Sureness::Possible, "available host memory is unknown".to_owned()),
    };
    (Cause::HostMemory, sureness, format!("{asked} of {what} requested; {why}"))
}

/// Managed memory may be more than the device has: it lives on the host, too.
fn managed(scene: &Scene<'_>, asked: Bytes) -> Answer {
    host(scene, "managed memory, which also uses host memory,", asked)
}

fn device(scene: &Scene<'_>, figures: &Figures, asked: Option<Bytes>) -> Answer {
    let words =
        asked.map_or_else(|| "memory for the call itself".to_owned(), |asked| format!("{asked}"));
    if let (Some(asked), Some(total)) = (asked, figures.total)
        && asked > total
    {
        let sentence = format!("{asked} requested; the device has {total} in total");
        return (Cause::LargerThanDevice, Sureness::Certain, sentence);
    }
    let need = asked.map_or(0, |asked| asked.0.div_ceil(PAGE).saturating_mul(PAGE));
    let enough = need.saturating_add(SLACK).saturating_add(need / 32);
    match figures.free {
        // Too little by what is sure, and maybe too much only because contexts are bigger.
        Some(free) if free.0 >= enough && free.0 - enough < figures.unsure.0 => {
            let (cause, sureness, sentence) = full(scene, figures, asked, &words, Some(free));
            (cause, sureness.min(Sureness::Likely), sentence)
        }
        Some(free) if free.0 >= enough => quota(scene, figures, &words, free),
        Some(free) => full(scene, figures, asked, &words, Some(free)),
        None => unasked(scene, figures, asked, &words),
    }
}

/// The device has enough and the driver says no.
fn quota(scene: &Scene<'_>, figures: &Figures, words: &str, free: Bytes) -> Answer {
    let held = figures.asker;
    let signs: Vec<&str> = scene.hints.iter().map(|hint| hint.words()).collect();
    let (sureness, why) = if signs.is_empty() {
        (
            Sureness::Possible,
            "a quota limits this process (MPS, container or vGPU); which one is not visible from \
             outside"
                .to_owned(),
        )
    } else {
        (Sureness::Likely, format!("a quota limits this process: {}", signs.join("; ")))
    };
    let sentence = format!(
        "about {free} was free, but a request for {words} failed: {why}; the process held {held}"
    );
    (Cause::Quota, sureness, sentence)
}

/// The device has too little: is it a cache's fault?
fn full(
    scene: &Scene<'_>,
    figures: &Figures,
    asked: Option<Bytes>,
    words: &str,
    free: Option<Bytes>,
) -> Answer {
    let enough = |held: Bytes| asked.is_some_and(|asked| held >= asked && asked.0 > 0);
    let state = state(figures, free);
    if let Some((unused, exact)) = figures.cache_unused.filter(|(unused, _)| enough(*unused)) {
        let sureness = if exact { Sureness::Certain } else { Sureness::Likely };
        let sentence = format!(
            "{state}, but PyTorch's cache in the same process had {unused} unused, and {words} was \
             requested: the cache is fragmented, or had not released it"
        );
        return (Cause::CacheFragmented, sureness, sentence);
    }
    if let Some(unused) = figures.pool_unused.filter(|unused| enough(*unused)) {
        let sentence = format!(
            "{state}, but memory pools of the same process had {unused} reserved and unused, and \
             {words} was requested"
        );
        return (Cause::PoolFragmented, Sureness::Likely, sentence);
    }
    let left = free.map_or_else(String::new, |free| format!(", about {free} free"));
    let sentence =
        format!("{state}: {words} requested{left}; {}", holder::sentence(scene, figures, free));
    let sureness = if free.is_some() { Sureness::Certain } else { Sureness::Likely };
    (Cause::DeviceExhausted, sureness, sentence)
}

/// How a device is called that has too little: full only where nearly nothing of it is free. Nobody may
/// have told that; then nothing more than what was traced is known to be used.
fn state(figures: &Figures, free: Option<Bytes>) -> String {
    let Some(total) = figures.total else { return "the device was full".to_owned() };
    let free = free.map_or(total.0.saturating_sub(figures.traced.0), |free| free.0);
    if free <= total.0 / NEARLY {
        format!("the {total} device was full")
    } else {
        format!("the {total} device had too little free memory")
    }
}

/// Nobody told what is free.
fn unasked(scene: &Scene<'_>, figures: &Figures, asked: Option<Bytes>, words: &str) -> Answer {
    let held = figures.traced;
    let more = held.0.saturating_add(asked.unwrap_or_default().0).saturating_add(SLACK);
    match figures.total {
        Some(total) if more >= total.0 => full(scene, figures, asked, words, None),
        Some(total) => {
            let sentence = format!(
                "{words} requested on a {total} device; {held} traced; free memory is unknown (the \
                 driver could not be queried), so a full device and a quota look the same"
            );
            (Cause::Unknown, Sureness::Possible, sentence)
        }
        None => {
            let sentence = format!(
                "{words} requested; total and free memory are unknown (the driver could not be \
                 queried); {held} traced"
            );
            (Cause::Unknown, Sureness::Possible, sentence)
        }
    }
}
