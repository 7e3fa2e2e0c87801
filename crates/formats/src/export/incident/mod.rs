//! What is written down when memory ran out: a page of text and an object for programs, of the same
//! facts. `docs/operations/incidents.md` describes them; fields are added, never renamed.

mod json;
mod text;

pub use json::{
    CauseObject, FigureObject, GpuObject, GrowthObject, HolderObject, IncidentObject, SiteObject,
    VERSION, WhoObject, read,
};
pub use text::{write as write_text, write_without_folders};

use std::sync::Arc;

use engine::diagnosis::{Asked, Diagnosis};
use engine::holding::Holding;
use engine::ids::{DeviceId, GpuId, Pid, Tid};
use engine::snapshot::Snapshot;
use engine::stack::{Frame, SiteName};
use engine::units::{Bytes, Moment, Nanos};

use super::Names;
use super::advice::GpuAdvice;

/// The files of a folder.
pub const SUMMARY: &str = "summary.txt";
/// See [`SUMMARY`].
pub const OBJECT: &str = "incident.json";
/// See [`SUMMARY`].
pub const SNAPSHOT: &str = "snapshot.json";
/// See [`SUMMARY`].
pub const RECORDING: &str = "recent.arrows";
/// See [`SUMMARY`].
pub const PAGE: &str = "report.html";

/// What an object says of its page until it is known how that came out.
pub const FOLLOWS: &str = "pending";

/// What made a folder necessary.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Trigger {
    /// A call was refused for lack of memory.
    OutOfMemory,
    /// A limit of the settings was crossed.
    Limit,
    /// Somebody asked for it.
    Asked,
}

impl Trigger {
    /// Every trigger.
    pub const ALL: [Self; 3] = [Self::OutOfMemory, Self::Limit, Self::Asked];

    /// The word for it in JSON and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OutOfMemory => "out_of_memory",
            Self::Limit => "threshold",
            Self::Asked => "manual",
        }
    }

    /// The word for it in names of folders.
    #[must_use]
    pub const fn short(self) -> &'static str {
        match self {
            Self::OutOfMemory => "oom",
            Self::Limit => "threshold",
            Self::Asked => "manual",
        }
    }
}

/// Who was refused memory, or crossed a limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Who {
    /// The process.
    pub pid: Pid,
    /// The thread that made the call.
    pub tid: Option<Tid>,
    /// Its name (hostile text).
    pub name: Box<str>,
}

/// The call that was refused.
#[derive(Clone, PartialEq, Debug)]
pub struct Refused {
    /// What was asked for.
    pub asked: Asked,
    /// The driver function.
    pub function: Box<str>,
    /// What the site is called.
    pub site: SiteName,
    /// Its frames, innermost first, where they are known.
    pub frames: Arc<[Frame]>,
    /// Why.
    pub diagnosis: Diagnosis,
}

/// How much more somebody holds than some time ago.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grown {
    /// Who.
    pub pid: Pid,
    /// Its name (hostile text).
    pub name: Box<str>,
    /// How much more; negative where it is less.
    pub bytes: i64,
    /// Within which time.
    pub within: Nanos,
}

/// Everything that is told.
#[derive(Clone, Copy, Debug)]
pub struct Story<'a> {
    /// The name of the folder.
    pub id: &'a str,
    /// What made it necessary.
    pub trigger: Trigger,
    /// When.
    pub at: Moment,
    /// The host's name (hostile text).
    pub host: &'a str,
    /// Who.
    pub who: Option<&'a Who>,
    /// The limit that was crossed, in a sentence.
    pub limit: Option<&'a str>,
    /// The call that was refused.
    pub refused: Option<&'a Refused>,
    /// The device, as the process counts them.
    pub device: Option<DeviceId>,
    /// The GPU of the host; none where it is about all of them.
    pub gpu: Option<GpuId>,
    /// What was free of it at that moment, about; see [`engine::diagnosis::Figures::free`].
    pub free_then: Option<Bytes>,
    /// Who held what there at that moment, the most first.
    pub holders: &'a [Holding],
    /// Who grew most in the last minutes.
    pub grown: &'a [Grown],
    /// What would help.
    pub advice: &'a [GpuAdvice],
    /// A snapshot from soon after.
    pub snapshot: &'a Snapshot,
    /// Names of things.
    pub names: &'a Names,
    /// Refusals of the same process and device that are told together.
    pub errors: u64,
    /// The same request was granted afterwards.
    pub recovered: bool,
    /// Incidents of the same process that were passed over before, to spare the disk.
    pub skipped: u64,
    /// Events in the recording.
    pub events: u64,
    /// How the page came out.
    pub page: &'a str,
    /// From the error to the folder.
    pub took: Nanos,
}

impl Story<'_> {
    /// All of the GPU's memory.
    #[must_use]
    pub fn total(&self) -> Option<Bytes> {
        let gpu = self.gpu.and_then(|gpu| self.names.gpu(gpu));
        gpu.map(|gpu| Bytes(gpu.total_bytes)).filter(|total| total.0 > 0)
    }

    /// What was free of it by the driver's account.
    #[must_use]
    pub fn free(&self) -> Option<Bytes> {
        let view = self.snapshot.gpus.iter().find(|view| Some(view.gpu) == self.gpu);
        view.map(|view| view.free_bytes)
    }

    /// What the driver's account says that a process holds there, and what of that was not traced.
    pub(super) fn account(&self, pid: Pid) -> (Option<Bytes>, Option<Bytes>) {
        let process = self.snapshot.processes.iter().find(|process| process.key.pid == pid);
        let views = process.into_iter().flat_map(|process| &process.devices);
        let here = views.filter(|view| self.gpu.is_none() || view.gpu == self.gpu);
        let add = |sum: Option<Bytes>, more: Option<Bytes>| match (sum, more) {
            (Some(sum), Some(more)) => Some(Bytes(sum.0.saturating_add(more.0))),
            (known, None) | (None, known) => known,
        };
        here.fold((None, None), |(driver, untracked), view| {
            (add(driver, view.driver_bytes), add(untracked, view.untracked()))
        })
    }
}
