//! What text and XML have in common: a leak with its stack, and sums over all of them.

use std::sync::Arc;

use engine::change::{Change, Turn};
use engine::ids::{Key, Pid, Space, Tid};
use engine::kind::Kind;
use engine::stack::{Frame, FrameId, Language, Unknown};
use engine::units::Moment;
use hashbrown::HashSet;

use crate::import::{Sink, Warning};

/// Frames of one stack that are kept.
const DEEPEST: usize = 512;

/// One leak of a report.
#[derive(Debug, Default)]
pub(super) struct Leak {
    /// How much.
    pub(super) bytes: u64,
    /// The pointer, or the handle of an array.
    pub(super) address: u64,
    /// What is told of the sort of memory.
    pub(super) sort: Sort,
    /// The stack, innermost frame first.
    pub(super) frames: Vec<Place>,
}

impl Leak {
    /// One more frame, further out.
    pub(super) fn push(&mut self, place: Place) {
        if self.frames.len() < DEEPEST {
            self.frames.push(place);
        }
    }
}

/// The sort of memory, as far as the report tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Sort {
    /// Device memory, or host memory: only the stack can tell.
    #[default]
    Plain,
    /// An array, or a level of one.
    Array,
    /// What `malloc` in a kernel gave out of the device heap.
    Heap,
}

/// A frame as the report has it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Place {
    /// The function; empty when it is not told.
    pub(super) function: String,
    /// The source file.
    pub(super) file: Option<String>,
    /// The line in it; 0 when it is not told.
    pub(super) line: u32,
    /// The library or program.
    pub(super) module: Option<String>,
}

impl Place {
    /// The static runtime has only made-up names for its insides.
    fn is_named(&self) -> bool {
        !self.function.is_empty() && !self.function.starts_with("libcudart_static_")
    }

    /// Inside the driver or the runtime.
    fn is_inside(&self) -> bool {
        let file = self.module.as_deref().and_then(|module| module.rsplit('/').next());
        !self.is_named() || file.is_some_and(|file| file.starts_with("libcuda.so"))
    }

    fn frame(self) -> Frame {
        let named = self.is_named();
        Frame {
            function: if named { Arc::from(self.function) } else { Arc::from("") },
            file: self.file.map(Arc::from),
            line: self.line,
            module: self.module.map(Arc::from),
            language: Language::Native,
            unknown: (!named).then_some(Unknown::NotTold),
        }
    }
}

/// The leaks of a report, on their way to a sink.
pub(super) struct Leaks<'a> {
    sink: &'a mut dyn Sink,
    names: HashSet<Key>,
    count: u64,
    bytes: u64,
    /// Leaks of the context itself.
    context: u64,
    /// Errors that are no leaks.
    pub(super) api_errors: u64,
    /// Records that are neither leaks nor API errors.
    pub(super) others: u64,
    /// Lines or records that look like a leak and cannot be understood.
    pub(super) unclear: u64,
    /// What the report's own sums say: bytes and allocations.
    pub(super) summary: Option<(u64, u64)>,
    /// There should be sums, and are none.
    pub(super) without_summary: bool,
    /// Records that the report says it left out.
    pub(super) left_out: u64,
    /// The report ends in the middle.
    pub(super) cut: bool,
}

impl<'a> Leaks<'a> {
    pub(super) fn new(sink: &'a mut dyn Sink) -> Self {
        Self {
            sink,
            names: HashSet::new(),
            count: 0,
            bytes: 0,
            context: 0,
            api_errors: 0,
            others: 0,
            unclear: 0,
            summary: None,
            without_summary: false,
            left_out: 0,
            cut: false,
        }
    }

    /// Tells one leak.
    pub(super) fn tell(&mut self, leak: Leak) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(leak.bytes);
        let at_free = leak.frames.iter().any(|place| place.function == "cudaFree");
        self.context += u64::from(leak.bytes == 4096 && at_free);
        let kind = kind(&leak);
        let key = self.key(&leak);
        let frames = self.frames(leak.frames, leak.sort);
        let site = (!frames.is_empty()).then(|| self.sink.stacks().site(&frames));
        self.sink.change(&Change {
            at: Moment(0),
            what: Turn::Began,
            pid: Pid(0),
            tid: Tid(0),
            device: None,
            kind,
            key,
            bytes: leak.bytes,
            pool: None,
            stream: None,
            site,
        });
    }

    fn frames(&mut self, places: Vec<Place>, sort: Sort) -> Vec<FrameId> {
        let inside = places.iter().take_while(|place| place.is_inside()).count();
        // The call that the program made is kept, be it of the runtime or of the driver.
        let runtime = places.get(inside).is_some_and(|place| place.function.starts_with("cuda"));
        let skip = if runtime { inside } else { 0 };
        let remark = (sort == Sort::Heap).then(|| Frame {
            function: "device heap (malloc in a kernel)".into(),
            language: Language::Remark,
            ..Frame::default()
        });
        let frames = remark.into_iter().chain(places.into_iter().skip(skip).map(Place::frame));
        let stacks = self.sink.stacks();
        frames.map(|frame| stacks.frame(frame)).collect()
    }

    /// Reports can name one address more than once; keys are unique.
    fn key(&mut self, leak: &Leak) -> Key {
        let space = if leak.sort == Sort::Array { Space::Array } else { Space::Address };
        let mut key = Key { space, value: leak.address };
        if !self.names.insert(key) {
            key.space = Space::External;
            while !self.names.insert(key) {
                key.value = key.value.wrapping_add(1);
            }
        }
        key
    }

    /// Tells what there is to know of the whole report; how many leaks there were.
    pub(super) fn finish(self) -> u64 {
        let Self { sink, count, bytes, .. } = self;
        let mut warn = |text: &str, count: u64, inexact: bool| {
            if count > 0 {
                sink.warn(Warning { text: text.into(), count, inexact });
            }
        };
        warn("calls of the CUDA API failed", self.api_errors, false);
        warn("errors of other sorts are in the report", self.others, false);
        warn("lines of the report that look like a leak cannot be understood", self.unclear, true);
        warn(
            "leaks of 4096 bytes at cudaFree are the context's own: each program with __managed__ \
             data has them",
            self.context,
            false,
        );
        warn(
            "errors were not printed or were skipped: raise --print-limit of compute-sanitizer",
            self.left_out,
            true,
        );
        warn("the report ends in the middle", u64::from(self.cut), true);
        warn(
            "the report has no LEAK SUMMARY: it is cut, or made without --leak-check full",
            u64::from(self.without_summary),
            true,
        );
        if let Some((all_bytes, all)) = self.summary {
            warn("leaks are in the summary and not in the report", all.saturating_sub(count), true);
            warn("leaks are in the report and not in the summary", count.saturating_sub(all), true);
            let text = "bytes differ between the summary and the leaks that are in the report";
            warn(text, all_bytes.abs_diff(bytes), true);
        }
        count
    }
}

/// The kind, where a function of the stack leaves no doubt.
fn kind(leak: &Leak) -> Kind {
    if leak.sort == Sort::Array {
        return Kind::Array;
    }
    let known = leak.frames.iter().find_map(|place| {
        let name = place.function.trim_end_matches("_ptsz").trim_end_matches("_v2");
        match name {
            "cudaHostAlloc" | "cudaMallocHost" | "cuMemHostAlloc" | "cuMemAllocHost" => {
                Some(Kind::Pinned)
            }
            "cudaMallocManaged" | "cuMemAllocManaged" => Some(Kind::Managed),
            "cudaMallocAsync"
            | "cudaMallocFromPoolAsync"
            | "cuMemAllocAsync"
            | "cuMemAllocFromPoolAsync" => Some(Kind::Async),
            _ => None,
        }
    });
    known.unwrap_or(Kind::Device)
}
