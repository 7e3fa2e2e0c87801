//! Common parts of text and XML reports: a leak with its stack, and totals.

use std::sync::Arc;

use engine::model::{
    AddressType, AllocationChange, AllocationKey, ChangeKind, EndReason, Frame, FrameId, Language,
    MemoryKind, Pid, Tid, Timestamp, UnknownReason,
};
use hashbrown::HashSet;

use crate::import::{ImportSink, Warning};

/// Maximum number of frames of a stack.
const MAX_FRAMES: usize = 512;

/// One leak of a report.
#[derive(Debug, Default)]
pub(super) struct ReportedLeak {
    /// Size.
    pub(super) bytes: u64,
    /// Pointer, or handle of an array.
    pub(super) address: u64,
    /// Kind of memory.
    pub(super) kind: LeakKind,
    /// Stack, innermost frame first.
    pub(super) frames: Vec<ReportFrame>,
}

impl ReportedLeak {
    /// Adds the next outer frame.
    pub(super) fn push(&mut self, frame: ReportFrame) {
        if self.frames.len() < MAX_FRAMES {
            self.frames.push(frame);
        }
    }
}

/// Kind of memory, as far as the report has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum LeakKind {
    /// Device or host memory: only the stack shows which.
    #[default]
    Plain,
    /// An array, or a mipmap level of one.
    Array,
    /// Memory from `malloc` in a kernel, on the device heap.
    Heap,
}

/// A frame of the report.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ReportFrame {
    /// Function; empty if unknown.
    pub(super) function: String,
    /// Source file.
    pub(super) file: Option<String>,
    /// Line; 0 if unknown.
    pub(super) line: u32,
    /// Library or program.
    pub(super) module: Option<String>,
}

impl ReportFrame {
    /// Returns whether the function has a real name: the static runtime has only generated names
    /// for internal functions.
    fn is_named(&self) -> bool {
        !self.function.is_empty() && !self.function.starts_with("libcudart_static_")
    }

    /// Returns whether the frame is inside of the driver or the runtime.
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
            unknown: (!named).then_some(UnknownReason::NotRecorded),
        }
    }
}

/// Passes the leaks of a report to a sink.
pub(super) struct LeakCollector<'a> {
    sink: &'a mut dyn ImportSink,
    keys: HashSet<AllocationKey>,
    leaks: Vec<AllocationChange>,
    bytes: u64,
    /// Leaks of the context itself.
    context: u64,
    /// Errors that are not leaks.
    pub(super) api_errors: u64,
    /// Records that are neither leaks nor API errors.
    pub(super) others: u64,
    /// Lines or records that look like a leak but cannot be parsed.
    pub(super) unclear: u64,
    /// Totals of the report's summary: bytes and allocations.
    pub(super) summary: Option<(u64, u64)>,
    /// Whether the summary is missing.
    pub(super) without_summary: bool,
    /// Records that the report omitted, as it says.
    pub(super) left_out: u64,
    /// Whether the report is truncated.
    pub(super) truncated: bool,
}

impl<'a> LeakCollector<'a> {
    pub(super) fn new(sink: &'a mut dyn ImportSink) -> Self {
        Self {
            sink,
            keys: HashSet::new(),
            leaks: Vec::new(),
            bytes: 0,
            context: 0,
            api_errors: 0,
            others: 0,
            unclear: 0,
            summary: None,
            without_summary: false,
            left_out: 0,
            truncated: false,
        }
    }

    /// Reports one leak.
    pub(super) fn report(&mut self, leak: ReportedLeak) {
        self.bytes = self.bytes.saturating_add(leak.bytes);
        let at_free = leak.frames.iter().any(|frame| frame.function == "cudaFree");
        self.context += u64::from(leak.bytes == 4096 && at_free);
        let kind = kind(&leak);
        let key = self.key(&leak);
        let frames = self.frames(leak.frames, leak.kind);
        let site = (!frames.is_empty()).then(|| self.sink.stacks().site(&frames));
        let change = AllocationChange {
            at: Timestamp(0),
            action: ChangeKind::Allocated,
            pid: Pid(0),
            tid: Tid(0),
            device: None,
            kind,
            key,
            bytes: leak.bytes,
            pool: None,
            stream: None,
            site,
        };
        self.sink.change(&change);
        self.leaks.push(change);
    }

    fn frames(&mut self, report_frames: Vec<ReportFrame>, kind: LeakKind) -> Vec<FrameId> {
        let inside = report_frames.iter().take_while(|frame| frame.is_inside()).count();
        // The call that the program made is kept, whether of the runtime or of the driver.
        let call = report_frames.get(inside);
        let runtime = call.is_some_and(|frame| frame.function.starts_with("cuda"));
        let skip = if runtime { inside } else { 0 };
        let synthetic = (kind == LeakKind::Heap).then(|| Frame {
            function: "device heap (malloc in a kernel)".into(),
            language: Language::Synthetic,
            ..Frame::default()
        });
        let frames = report_frames.into_iter().skip(skip).map(ReportFrame::frame);
        let frames = synthetic.into_iter().chain(frames);
        let stacks = self.sink.stacks();
        frames.map(|frame| stacks.frame(frame)).collect()
    }

    /// Returns a unique key. Reports can contain an address more than once.
    fn key(&mut self, leak: &ReportedLeak) -> AllocationKey {
        let space =
            if leak.kind == LeakKind::Array { AddressType::Array } else { AddressType::Pointer };
        let mut key = AllocationKey { space, value: leak.address };
        if !self.keys.insert(key) {
            key.space = AddressType::External;
            while !self.keys.insert(key) {
                key.value = key.value.wrapping_add(1);
            }
        }
        key
    }

    /// Ends the process, which had not freed any of the memory, and reports the warnings about the
    /// whole report; returns the number of leaks.
    pub(super) fn finish(self) -> u64 {
        let Self { sink, leaks, bytes, .. } = self;
        let count = leaks.len() as u64;
        let action =
            ChangeKind::Ended { allocated_at: Timestamp(0), reason: EndReason::ProcessExited };
        leaks.into_iter().for_each(|leak| sink.change(&AllocationChange { action, ..leak }));
        let mut warn = |text: &str, count: u64, inexact: bool| {
            if count > 0 {
                sink.warn(Warning { text: text.into(), count, inexact });
            }
        };
        warn("calls of the CUDA API failed", self.api_errors, false);
        warn("errors of other sorts are in the report", self.others, false);
        warn("lines that look like a leak cannot be parsed", self.unclear, true);
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
        warn("the report ends in the middle", u64::from(self.truncated), true);
        warn(
            "the report has no LEAK SUMMARY: it is truncated, or made without --leak-check full",
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

/// Returns the kind, if a function of the stack determines it.
fn kind(leak: &ReportedLeak) -> MemoryKind {
    if leak.kind == LeakKind::Array {
        return MemoryKind::Array;
    }
    let known = leak.frames.iter().find_map(|frame| {
        let name = frame.function.trim_end_matches("_ptsz").trim_end_matches("_v2");
        match name {
            "cudaHostAlloc" | "cudaMallocHost" | "cuMemHostAlloc" | "cuMemAllocHost" => {
                Some(MemoryKind::Pinned)
            }
            "cudaMallocManaged" | "cuMemAllocManaged" => Some(MemoryKind::Managed),
            "cudaMallocAsync"
            | "cudaMallocFromPoolAsync"
            | "cuMemAllocAsync"
            | "cuMemAllocFromPoolAsync" => Some(MemoryKind::Async),
            _ => None,
        }
    });
    known.unwrap_or(MemoryKind::Device)
}
