//! A ledger and a metrics collector that tests feed with events.

use engine::ledger::Ledger;
use engine::metrics::{
    AgentStats, CollectorInput, GpuInfo, MetricSet, MetricsCollector, SampleValue, SeriesLimits,
};
use engine::model::event::{
    Allocate, Event, EventKind, FailedCall, Free, FreeFunction, ProcessInfo, SiteFrames,
};
use engine::model::ids::{AllocationKey, DeviceId, FunctionId, GpuId, Pid, SiteId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::Frame;
use engine::model::units::{Bytes, Timestamp};
use engine::snapshot::{Snapshot, SnapshotOptions};

pub(crate) struct MetricsFixture {
    pub(crate) ledger: Ledger,
    pub(crate) collector: MetricsCollector,
    pub(crate) agent: AgentStats,
    at: u64,
}

/// Returns two GPUs of 1000 bytes.
pub(crate) fn gpus() -> Vec<GpuInfo> {
    let gpu = |id: u16| GpuInfo {
        id: GpuId(id),
        uuid: format!("GPU-{id}").into(),
        name: "A GPU".into(),
        total: Bytes(1000),
    };
    vec![gpu(0), gpu(1)]
}

impl MetricsFixture {
    pub(crate) fn new(limits: SeriesLimits) -> Self {
        let ledger = Ledger::new().with_activity();
        Self {
            ledger,
            collector: MetricsCollector::new(limits),
            agent: AgentStats::default(),
            at: 0,
        }
    }

    pub(crate) fn apply(&mut self, pid: u32, kind: EventKind) {
        self.at += 1_000_000;
        let at = Timestamp(self.at);
        self.ledger.apply(&Event { pid: Pid(pid), tid: Tid(pid), entry_time: at, time: at, kind });
    }

    /// Starts a process whose device 0 is GPU 0 and so on.
    pub(crate) fn begin(&mut self, pid: u32, start: u64, name: &str) {
        let info = ProcessInfo { start, uid: 0, name: name.into(), before_trace: false };
        self.apply(pid, EventKind::Process(info));
        self.apply(pid, EventKind::Gpus([Some(GpuId(0)), Some(GpuId(1))].into()));
    }

    pub(crate) fn allocate(&mut self, pid: u32, address: u64, bytes: u64) {
        self.allocate_at(pid, address, bytes, 0, None);
    }

    pub(crate) fn allocate_at(
        &mut self,
        pid: u32,
        address: u64,
        bytes: u64,
        device: u16,
        site: Option<u32>,
    ) {
        let allocate = Allocate {
            key: AllocationKey::address(address),
            kind: MemoryKind::Device,
            bytes,
            context: None,
            device: Some(DeviceId(device)),
            pool: None,
            stream: None,
            site: site.map(SiteId),
        };
        self.apply(pid, EventKind::Allocate(allocate));
    }

    pub(crate) fn free(&mut self, pid: u32, address: u64) {
        let free =
            Free { key: AllocationKey::address(address), by: FreeFunction::Free, stream: None };
        self.apply(pid, EventKind::Free(free));
    }

    pub(crate) fn fail_allocation(&mut self, pid: u32, device: Option<u16>) {
        let failed = FailedCall {
            function: FunctionId(0),
            code: 2,
            requested: Some((MemoryKind::Device, 900)),
            freed: None,
            device: device.map(DeviceId),
            context: None,
            site: None,
        };
        self.apply(pid, EventKind::Failed(failed));
    }

    pub(crate) fn name_site(&mut self, site: u32, function: &str) {
        let file = Some("/srv/ann/train.py".into());
        let frame = Frame { function: function.into(), file, line: 7, ..Frame::default() };
        let site = SiteFrames { site: SiteId(site), frames: [frame].into() };
        self.apply(0, EventKind::Site(site));
    }

    pub(crate) fn snapshot(&mut self) -> Snapshot {
        self.at += 1_000_000_000;
        self.ledger.snapshot(
            Timestamp(self.at),
            &SnapshotOptions { top_sites: 200, ..SnapshotOptions::DEFAULT },
        )
    }

    pub(crate) fn observe(&mut self, snapshot: &Snapshot) -> MetricSet {
        self.collector.observe(&CollectorInput {
            snapshot,
            gpus: &gpus(),
            agent: &self.agent,
            location: |_, frames| {
                frames.first().map(|frame| frame.function.to_string()).unwrap_or_default()
            },
        })
    }

    pub(crate) fn metrics(&mut self) -> MetricSet {
        let snapshot = self.snapshot();
        self.observe(&snapshot)
    }
}

/// Returns the value of the only sample with all of these labels.
pub(crate) fn find(metrics: &MetricSet, name: &str, labels: &[&str]) -> Option<SampleValue> {
    let has = |value: &&str, all: &[Box<str>]| all.iter().any(|one| &**one == *value);
    let mut found = metrics
        .samples(name)
        .iter()
        .filter(|sample| labels.iter().all(|label| has(label, &sample.labels)));
    let first = found.next().map(|sample| sample.value);
    assert!(found.next().is_none(), "{name} {labels:?} matches more than one sample");
    first
}

pub(crate) fn whole(metrics: &MetricSet, name: &str, labels: &[&str]) -> u64 {
    match find(metrics, name, labels) {
        Some(SampleValue::Whole(whole)) => whole,
        other => panic!("{name} {labels:?} is {other:?}"),
    }
}
