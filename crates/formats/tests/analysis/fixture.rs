//! Small files written by hand.

use engine::analysis::MemoryScope;
use engine::analysis::fragmentation::{PoolFragmentation, PoolOwner};
use engine::analysis::groups::GroupTable;
use engine::analysis::peak::{Peak, PeakAnalysis};
use engine::analysis::summary::{SummaryAnalysis, SummaryReport};
use engine::analysis::usage::{UsageAnalysis, UsageReport};
use engine::ledger::FileLedger;
use engine::model::caching_allocator::{CachePool, PoolSizeClass};
use engine::model::change::{AllocationChange, ChangeKind, EndReason};
use engine::model::cuda_object::ObjectKind;
use engine::model::ids::{AllocationKey, DeviceId, Pid, SiteId, StreamId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::{CallStack, Frame, Language, SiteName, UnknownReason, site_name};
use engine::model::units::{Nanos, Timestamp};
use engine::verdict::{self, Confidence, Evidence, SiteVerdict, Verdict};
use formats::import::collecting_sink::FileInfo;
use formats::import::{FileState, ImportSummary, SourceFormat, Warning};
use formats::report::analysis::{
    AdviceRow, AnalyzedFile, FragmentationView, OverlaySeries, WouldFit,
};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// Streams that are never destroyed.
pub(crate) fn streams() -> SiteVerdict {
    let library = Frame { function: "ncclInit".into(), ..Frame::default() };
    let open = Frame { function: "open".into(), ..Frame::default() };
    let frames: CallStack = [library, open].into();
    let evidence = Evidence {
        live: 30,
        live_count: 30,
        created: 31,
        freed: 1,
        time_until_full: Some(Nanos(1)),
        ..Evidence::default()
    };
    SiteVerdict {
        pid: Some(Pid(7)),
        process: "train".into(),
        site: SiteName::Resolved(site_name(&frames)),
        frames,
        resource: verdict::Resource::Objects(ObjectKind::Stream),
        device: None,
        thread: Some((Tid(9), "loader".into())),
        verdict: Verdict::Leak,
        confidence: Confidence::Likely,
        evidence: Evidence { growth_per_hour: 1800, ..evidence },
    }
}

/// A file: its changes and its metadata.
pub(crate) struct FileFixture {
    pub(crate) changes: Vec<AllocationChange>,
    pub(crate) info: FileInfo,
    pub(crate) imported: ImportSummary,
    /// Suspects besides those of the changes.
    suspects: Vec<SiteVerdict>,
}

impl Default for FileFixture {
    fn default() -> Self {
        let imported = ImportSummary { source: SourceFormat::Nsys, events: 0, producer: None };
        Self { changes: Vec::new(), info: FileInfo::default(), imported, suspects: Vec::new() }
    }
}

fn native(function: &str, module: &str) -> Frame {
    Frame { function: function.into(), module: Some(module.into()), ..Frame::default() }
}

fn python(function: &str, file: &str, line: u32) -> Frame {
    Frame {
        function: function.into(),
        file: Some(file.into()),
        line,
        language: Language::Python,
        ..Frame::default()
    }
}

impl FileFixture {
    fn site(&mut self, frames: &[Frame]) -> Option<SiteId> {
        let ids: Vec<_> =
            frames.iter().map(|frame| self.info.stacks.frame(frame.clone())).collect();
        Some(self.info.stacks.site(&ids))
    }

    fn begin(
        &mut self,
        at: u64,
        pid: u32,
        address: u64,
        kind: MemoryKind,
        bytes: u64,
    ) -> &mut AllocationChange {
        self.changes.push(AllocationChange {
            at: Timestamp(at),
            action: ChangeKind::Allocated,
            pid: Pid(pid),
            tid: Tid(pid),
            device: Some(DeviceId(0)),
            kind,
            key: AllocationKey::address(address),
            bytes,
            pool: None,
            stream: None,
            site: None,
        });
        self.changes.last_mut().unwrap()
    }

    fn end(&mut self, at: u64, address: u64, reason: EndReason) {
        let allocation = self.changes.iter().rev().find(|change| {
            change.key == AllocationKey::address(address)
                && matches!(change.action, ChangeKind::Allocated)
        });
        let allocation = *allocation.unwrap();
        let action = ChangeKind::Ended { allocated_at: allocation.at, reason };
        self.changes.push(AllocationChange { at: Timestamp(at), action, ..allocation });
    }

    /// Two processes, most kinds, hostile names, inexact.
    pub(crate) fn rich() -> Self {
        let mut fixture = Self::default();
        let step = fixture.site(&[
            native("cudaMalloc", "/usr/lib/libcudart.so.12"),
            native("make_buffer", "/opt/app/train"),
            native("main", "/opt/app/train"),
        ]);
        let model = fixture.site(&[
            native("c10::cuda::CUDACachingAllocator::malloc", "libc10_cuda.so"),
            python("forward<script>", "model.py", 12),
            python("_call_impl", "/usr/lib/python3/site-packages/torch/nn/module.py", 99),
            python("main", "train.py", 40),
        ]);
        let hostile = fixture.site(&[
            native("\x1b[31mmalloc\t\"x\"", "a\nb"),
            Frame {
                unknown: Some(UnknownReason::NoSymbol),
                module: Some("libx.so".into()),
                ..Frame::default()
            },
        ]);
        let synthetic = |text: &str| Frame {
            function: text.into(),
            language: Language::Synthetic,
            ..Frame::default()
        };
        let variable = fixture.site(&[synthetic("table")]);
        let driver = fixture.site(&[synthetic("cuMemAllocAsync")]);
        let s = SECOND;
        fixture.begin(s, 7, 0x10, MemoryKind::Static, 3000).site = variable;
        fixture.begin(s, 7, 0x11, MemoryKind::ManagedStatic, 500).site = variable;
        fixture.begin(2 * s, 7, 0x100, MemoryKind::Device, 8 * MIB).site = step;
        fixture.begin(3 * s, 7, 0x200, MemoryKind::Device, 32 * MIB).site = model;
        fixture.begin(3 * s, 8, 0x300, MemoryKind::Async, 4 * MIB).site = driver;
        fixture.begin(4 * s, 7, 0x400, MemoryKind::Pinned, 4096).device = None;
        fixture.end(5 * s, 0x200, EndReason::Freed);
        fixture.begin(6 * s, 7, 0x500, MemoryKind::Device, 5 * MIB).site = hostile;
        fixture.begin(6 * s, 8, 0x600, MemoryKind::Array, 6 * MIB).device = Some(DeviceId(1));
        fixture.begin(6 * s, 8, 0x700, MemoryKind::Managed, 2 * MIB).site = model;
        fixture.begin(7 * s, 8, 0x800, MemoryKind::Imported, MIB);
        fixture.end(8 * s, 0x600, EndReason::Released);
        fixture.end(9 * s, 0x300, EndReason::ProcessExited);
        let info = &mut fixture.info;
        info.processes.insert(Pid(7), "train\x1b[2J<b>".into());
        info.devices.insert(DeviceId(0), ("NVIDIA H200".into(), Some(140 << 30)));
        info.clock = Some((Timestamp(0), 1_700_000_000_123_000_000));
        info.span = Some((Timestamp(s), Timestamp(9 * s)));
        let warn = |text: &str, count, inexact| Warning { text: text.into(), count, inexact };
        info.warnings.push(warn("frees of addresses never seen", 3, true));
        info.warnings.push(warn("rows were not in order", 1, false));
        fixture.imported.events = 13;
        fixture.imported.producer = Some("nsys 2024.2.3".into());
        fixture
    }

    /// The same program after a change.
    pub(crate) fn later() -> Self {
        let mut fixture = Self::default();
        let new = fixture.site(&[python("cache", "cache.py", 3)]);
        let step = fixture.site(&[
            native("cudaMalloc", "/usr/lib/libcudart.so.12"),
            native("make_buffer", "/opt/app/train"),
            native("main", "/opt/app/train"),
        ]);
        let model = fixture.site(&[
            native("c10::cuda::CUDACachingAllocator::malloc", "libc10_cuda.so"),
            python("forward<script>", "model.py", 15),
            python("_call_impl", "/usr/lib/python3/site-packages/torch/nn/module.py", 99),
            python("main", "train.py", 41),
        ]);
        fixture.begin(1, 70, 0x1, MemoryKind::Device, 2 * MIB).site = new;
        fixture.begin(2, 70, 0x2, MemoryKind::Device, 20 * MIB).site = step;
        fixture.begin(3, 70, 0x3, MemoryKind::Device, 16 * MIB).site = model;
        fixture.end(4, 0x3, EndReason::Freed);
        fixture.info.span = Some((Timestamp(1), Timestamp(4)));
        fixture.imported.events = 4;
        fixture
    }

    /// A loop that keeps a buffer in each of 64 steps.
    pub(crate) fn growing() -> Self {
        let mut fixture = Self::default();
        let site = fixture.site(&[python("step", "train.py", 7), python("main", "train.py", 20)]);
        for step in 0..64 {
            fixture.begin(step * SECOND, 7, 0x1000 + step, MemoryKind::Device, MIB).site = site;
        }
        fixture.info.span = Some((Timestamp(0), Timestamp(63 * SECOND)));
        fixture.imported.events = 64;
        fixture
    }

    /// The same loop with a buffer that is allocated and freed, one unusually large buffer, and one
    /// second with many allocations.
    pub(crate) fn with_verdicts() -> Self {
        let mut fixture = Self::default();
        let site = fixture.site(&[python("step", "train.py", 7), python("main", "train.py", 20)]);
        let scratch =
            fixture.site(&[python("scratch", "train.py", 9), python("main", "train.py", 20)]);
        let load = fixture.site(&[python("load", "data.py", 3), python("main", "train.py", 20)]);
        for step in 0..64 {
            let at = step * SECOND;
            fixture.begin(at, 7, 0x1000 + step, MemoryKind::Device, MIB).site = site;
            fixture.begin(at + 1, 7, 0x1, MemoryKind::Device, 4 * MIB).site = scratch;
            fixture.end(at + SECOND / 2, 0x1, EndReason::Freed);
            if step == 40 {
                fixture.begin(at + SECOND / 2 + 1, 7, 0x2, MemoryKind::Device, 2096 * MIB).site =
                    load;
                fixture.end(at + SECOND / 2 + 2, 0x2, EndReason::Freed);
            }
            if step == 50 {
                for block in 0..500 {
                    let at = at + SECOND / 2 + 3 + block;
                    fixture.begin(at, 7, 0x9000 + block, MemoryKind::Device, MIB).site = load;
                }
            }
        }
        fixture.info.span = Some((Timestamp(0), Timestamp(63 * SECOND)));
        fixture.imported.events = 695;
        fixture.suspects.push(streams());
        fixture
    }

    pub(crate) fn analyzed_file(&self, top: Option<usize>) -> AnalyzedFile<'_> {
        AnalyzedFile {
            path: "run<1>.sqlite",
            imported: &self.imported,
            info: &self.info,
            top,
            utc: true,
        }
    }

    pub(crate) fn groups(&self) -> GroupTable {
        let mut groups = GroupTable::new(MemoryScope::Device);
        self.changes.iter().for_each(|change| groups.observe(change));
        groups
    }

    pub(crate) fn peaks(&self) -> Vec<Peak> {
        let mut watermark = PeakAnalysis::new(MemoryScope::Device);
        self.changes.iter().for_each(|change| watermark.observe(change));
        watermark.finish()
    }

    pub(crate) fn usage(&self) -> UsageReport {
        let mut usage = UsageAnalysis::new(MemoryScope::Device, None);
        self.changes.iter().for_each(|change| usage.observe(change));
        usage.finish()
    }

    pub(crate) fn state(&self) -> FileState {
        let mut suspects = FileLedger::new(self.imported.source.scope());
        self.changes.iter().for_each(|change| suspects.observe(change));
        let mut state = self.info.end_state(suspects).into_owned();
        state.snapshot.suspects.extend(self.suspects.iter().cloned());
        state
    }

    pub(crate) fn summary(&self) -> SummaryReport {
        let mut summary = SummaryAnalysis::new(MemoryScope::Device);
        self.changes.iter().for_each(|change| summary.observe(change));
        summary.finish(10)
    }
}

/// Two pools: one with known blocks, one with totals only.
pub(crate) fn fragmentation() -> FragmentationView {
    let cache = CachePool { id: (0, 0), size_class: PoolSizeClass::Large };
    let empty = |owner| PoolFragmentation {
        reserved_bytes: Some(100 * MIB),
        active_bytes: 60 * MIB,
        ..PoolFragmentation::of(Some(DeviceId(0)), owner)
    };
    let pool = PoolFragmentation {
        stream: Some(StreamId(0)),
        requested_bytes: Some(54 * MIB),
        largest_free_bytes: Some(20 * MIB),
        internal: Some(0.1),
        external: Some(0.5),
        releasable_bytes: Some(10 * MIB),
        stuck_bytes: Some(30 * MIB),
        ..empty(PoolOwner::Cache(cache))
    };
    let sums = empty(PoolOwner::Driver(Pid(7), 0x90));
    let advice = AdviceRow {
        action: "expandable_segments:True".into(),
        reason: "30.00 MiB are stuck in segments that are partly used".into(),
    };
    let would_fit = WouldFit {
        device: Some(0),
        bytes: 25 * MIB,
        answer: "after_empty_cache",
        text: "25.00 MiB fits after empty_cache()".into(),
    };
    FragmentationView { pools: vec![pool, sums], advice: vec![advice], would_fit: vec![would_fit] }
}

/// A possible log of nvidia-smi.
pub(crate) fn overlay() -> OverlaySeries {
    let points = vec![(Timestamp(SECOND), 500 * MIB), (Timestamp(3 * SECOND), 540 * MIB)];
    OverlaySeries { name: "nvidia-smi, GPU 0".into(), device: Some(DeviceId(0)), points }
}
