//! The same for programs.

use std::io;
use std::path::Path;

use engine::diagnosis::Asked;
use engine::holding::Holding;
use engine::stack::{Frame, SiteName};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{PAGE, RECORDING, SNAPSHOT, SUMMARY, Story, text};
use crate::export::advice::GpuAdvice;
use crate::export::analysis::json::frame;
use crate::plain::{plain, plain_up_to};

/// The version of the object: it changes when a reader of the old one would misunderstand the new
/// one.
pub const VERSION: u32 = 1;

/// The longest file that is read.
const LONGEST: u64 = 64 << 20;

/// What is written down of an incident.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IncidentObject {
    /// The version of this object.
    pub version: u32,
    /// The name of the folder.
    pub id: String,
    /// `out_of_memory`, `threshold` or `manual`.
    pub trigger: String,
    /// When, RFC 3339.
    pub time: String,
    /// The host.
    pub host: String,
    /// What happened, in a line.
    pub title: String,
    /// Whether every figure is exact.
    pub exact: bool,
    /// Refusals of the same process and device that are told together.
    pub oom_count: u64,
    /// The same request was granted afterwards.
    pub recovered: bool,
    /// Incidents of the same process that were passed over before.
    pub suppressed_before: u64,
    /// Who was refused memory, or crossed a limit.
    pub requester: Option<WhoObject>,
    /// What was asked for; absent where it is not told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_bytes: Option<u64>,
    /// The kind of memory that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_kind: Option<String>,
    /// The driver function that was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The threshold that was exceeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<String>,
    /// The device, as the process counts them.
    pub device: Option<u16>,
    /// The GPU; absent where it is about all, or not known.
    pub gpu: Option<GpuObject>,
    /// Where in the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteObject>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<CauseObject>,
    /// Who held what there at that moment, traced or by the driver's account, the most first.
    pub holders: Vec<HolderObject>,
    /// Who grew in the last minutes, the most first.
    pub growth: Vec<GrowthObject>,
    /// What would help.
    pub advice: Vec<GpuAdvice>,
    /// Events in the recording.
    pub recorded_events: u64,
    /// From the error to the snapshot, and to the folder, in milliseconds.
    pub snapshot_after_ms: u64,
    /// See `snapshot_after_ms`.
    pub written_after_ms: u64,
    /// `pending`, `written`, `disabled`, or why it is missing.
    pub html_report: String,
    /// The names of the files.
    pub files: Vec<String>,
}

/// A process.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WhoObject {
    /// Its pid.
    pub pid: u32,
    /// The thread that made the call.
    pub tid: Option<u32>,
    /// Its name.
    pub name: String,
}

/// A GPU.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuObject {
    /// Its index.
    pub index: u16,
    /// `GPU-…`.
    pub uuid: Option<String>,
    /// What the vendor calls it.
    pub name: Option<String>,
    /// All of its memory.
    pub total_bytes: Option<u64>,
    /// What was free, as the driver told last.
    pub free_bytes: Option<u64>,
}

/// Why there was no memory.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CauseObject {
    /// The word for it.
    pub name: String,
    /// `possible`, `likely` or `certain`.
    pub confidence: String,
    /// The cause in a sentence.
    pub summary: String,
    /// The memory values that it is based on.
    pub breakdown: Vec<FigureObject>,
    /// Signs of something that divides the GPU.
    pub hints: Vec<String>,
}

/// A figure.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FigureObject {
    /// What it is.
    pub name: String,
    /// How much.
    pub bytes: u64,
}

/// What a process held.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HolderObject {
    /// Its pid.
    pub pid: u32,
    /// Its name.
    pub process: String,
    /// Its owner.
    pub uid: Option<u32>,
    /// What traced allocations held.
    pub live_bytes: u64,
    /// How many these were.
    pub live_allocations: u64,
    /// What the driver's account says that it holds there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_bytes: Option<u64>,
    /// What of that was not traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub untracked_bytes: Option<u64>,
    /// It may hold memory from before the trace.
    pub before_trace: bool,
    /// By site, the most first.
    pub sites: Vec<SiteObject>,
}

/// A site, and what was held of it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SiteObject {
    /// Its name, as in `trace --format json`.
    pub id: String,
    /// What was held.
    pub live_bytes: u64,
    /// How many allocations that was.
    pub live_allocations: u64,
    /// Its frames, innermost first, as in `trace --format json`.
    pub frames: Vec<Value>,
}

/// How much more somebody holds.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GrowthObject {
    /// Its pid.
    pub pid: u32,
    /// Its name.
    pub process: String,
    /// How much more; negative where it is less.
    pub bytes: i64,
    /// The length of the window, in milliseconds.
    pub window_ms: u64,
}

impl IncidentObject {
    /// The object for a story.
    #[must_use]
    pub fn new(story: &Story<'_>) -> Self {
        let refused = story.refused;
        let asked = refused.map(|refused| refused.asked);
        Self {
            version: VERSION,
            id: story.id.to_owned(),
            trigger: story.trigger.name().to_owned(),
            time: story.names.clock.precise(story.at),
            host: plain(story.host).into_owned(),
            title: text::headline(story),
            exact: story.snapshot.certainty.exact(),
            oom_count: story.errors,
            recovered: story.recovered,
            suppressed_before: story.skipped,
            requester: story.who.map(|who| WhoObject {
                pid: who.pid.0,
                tid: who.tid.map(|tid| tid.0),
                name: plain(&who.name).into_owned(),
            }),
            requested_bytes: asked.and_then(Asked::bytes).map(|bytes| bytes.0),
            requested_kind: asked.map(|asked| match asked {
                Asked::Memory(kind, _) => kind.name().to_owned(),
                Asked::Addresses => "addresses".to_owned(),
                Asked::Other => "other".to_owned(),
            }),
            function: refused.map(|refused| plain(&refused.function).into_owned()),
            threshold: story.limit.map(|limit| plain_up_to(limit, 1000).into_owned()),
            device: story.device.map(|device| device.0),
            gpu: gpu(story),
            site: refused.map(|refused| site(refused.site, (0, 0), &refused.frames)),
            cause: cause(story),
            holders: story.holders.iter().map(|one| holder(story, one)).collect(),
            growth: story.grown.iter().map(growth).collect(),
            advice: story.advice.to_vec(),
            recorded_events: story.events,
            snapshot_after_ms: (story.snapshot.at - story.at).millis(),
            written_after_ms: story.took.millis(),
            html_report: plain_up_to(story.page, 1000).into_owned(),
            files: [SUMMARY, super::OBJECT, SNAPSHOT, RECORDING, PAGE].map(str::to_owned).to_vec(),
        }
    }
}

/// Reads the object of a folder. Fields that another version did not write are empty.
pub fn read(path: &Path) -> io::Result<IncidentObject> {
    let length = std::fs::metadata(path)?.len();
    if length > LONGEST {
        return Err(io::Error::other(format!("file too large ({length} bytes)")));
    }
    let text = std::fs::read(path)?;
    let object: IncidentObject = serde_json::from_slice(&text)?;
    if object.version == 0 {
        return Err(io::Error::other("no version field: not an incident.json"));
    }
    Ok(object)
}

fn gpu(story: &Story<'_>) -> Option<GpuObject> {
    let id = story.gpu?;
    let known = story.names.gpu(id);
    Some(GpuObject {
        index: id.0,
        uuid: known.map(|gpu| plain(&gpu.uuid).into_owned()),
        name: known.map(|gpu| plain(&gpu.name).into_owned()),
        total_bytes: story.total().map(|bytes| bytes.0),
        free_bytes: story.free().map(|bytes| bytes.0),
    })
}

fn cause(story: &Story<'_>) -> Option<CauseObject> {
    let diagnosis = &story.refused?.diagnosis;
    let figures = &diagnosis.figures;
    let cached = figures.cache_unused.map(|(bytes, _)| bytes);
    let all = [
        ("requested", figures.asked),
        ("total", figures.total),
        ("free_reported", figures.free_told),
        ("free_estimated", figures.free),
        ("traced", Some(figures.traced)),
        ("requester", Some(figures.asker)),
        ("untracked", figures.untracked),
        ("cache_unused", cached),
        ("pool_unused", figures.pool_unused),
        ("others_unused", Some(figures.others_unused)),
    ];
    let figure = |(name, bytes): (&str, Option<engine::units::Bytes>)| {
        bytes.map(|bytes| FigureObject { name: name.to_owned(), bytes: bytes.0 })
    };
    Some(CauseObject {
        name: diagnosis.cause.name().to_owned(),
        confidence: diagnosis.sureness.name().to_owned(),
        summary: plain_up_to(&diagnosis.sentence, 1000).into_owned(),
        breakdown: all.into_iter().filter_map(figure).collect(),
        hints: diagnosis.hints.iter().map(|hint| hint.name().to_owned()).collect(),
    })
}

fn holder(story: &Story<'_>, one: &Holding) -> HolderObject {
    let (driver, untracked) = story.account(one.key.pid);
    HolderObject {
        pid: one.key.pid.0,
        process: plain(&one.name).into_owned(),
        uid: one.uid,
        live_bytes: one.live_bytes.0,
        live_allocations: one.live_allocations,
        driver_bytes: driver.map(|bytes| bytes.0),
        untracked_bytes: untracked.map(|bytes| bytes.0),
        before_trace: one.before_trace,
        sites: one
            .sites
            .iter()
            .map(|held| site(held.name, (held.live_bytes.0, held.live_allocations), &held.frames))
            .collect(),
    }
}

fn growth(one: &super::Grown) -> GrowthObject {
    GrowthObject {
        pid: one.pid.0,
        process: plain(&one.name).into_owned(),
        bytes: one.bytes,
        window_ms: one.within.millis(),
    }
}

fn site(
    name: SiteName,
    (live_bytes, live_allocations): (u64, u64),
    frames: &[Frame],
) -> SiteObject {
    let object = |one: &Frame| serde_json::to_value(frame(one)).unwrap_or_default();
    SiteObject {
        id: name.to_string(),
        live_bytes,
        live_allocations,
        frames: frames.iter().map(object).collect(),
    }
}
