//! A ledger and a metrics collector that tests feed with events.

use engine::event::{Allocate, Event, Failed, Free, FreeBy, ProcessFacts, SiteFacts, What};
use engine::ids::{DeviceId, FunctionId, GpuId, Key, Pid, SiteId, Tid};
use engine::kind::Kind;
use engine::ledger::Ledger;
use engine::metrics::{Board, Figures, Gpu, Input, Limits, Own, Value};
use engine::snapshot::{Snapshot, View};
use engine::stack::Frame;
use engine::units::{Bytes, Moment};

pub(crate) struct Stage {
    pub(crate) ledger: Ledger,
    pub(crate) board: Board,
    pub(crate) own: Own,
    at: u64,
}

/// Returns two GPUs of 1000 bytes.
pub(crate) fn gpus() -> Vec<Gpu> {
    let gpu = |id: u16| Gpu {
        id: GpuId(id),
        uuid: format!("GPU-{id}").into(),
        name: "A GPU".into(),
        total: Bytes(1000),
    };
    vec![gpu(0), gpu(1)]
}

impl Stage {
    pub(crate) fn new(limits: Limits) -> Self {
        let ledger = Ledger::new().following_work();
        Self { ledger, board: Board::new(limits), own: Own::default(), at: 0 }
    }

    pub(crate) fn apply(&mut self, pid: u32, what: What) {
        self.at += 1_000_000;
        let at = Moment(self.at);
        self.ledger.apply(&Event { pid: Pid(pid), tid: Tid(pid), entered: at, at, what });
    }

    /// Starts a process whose device 0 is GPU 0 and so on.
    pub(crate) fn begin(&mut self, pid: u32, start: u64, name: &str) {
        let facts = ProcessFacts { start, uid: 0, name: name.into(), before_trace: false };
        self.apply(pid, What::Process(facts));
        self.apply(pid, What::Gpus([Some(GpuId(0)), Some(GpuId(1))].into()));
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
            key: Key::address(address),
            kind: Kind::Device,
            bytes,
            context: None,
            device: Some(DeviceId(device)),
            pool: None,
            stream: None,
            site: site.map(SiteId),
        };
        self.apply(pid, What::Allocate(allocate));
    }

    pub(crate) fn free(&mut self, pid: u32, address: u64) {
        let free = Free { key: Key::address(address), by: FreeBy::Free, stream: None };
        self.apply(pid, What::Free(free));
    }

    pub(crate) fn run_out(&mut self, pid: u32, device: Option<u16>) {
        let failed = Failed {
            function: FunctionId(0),
            code: 2,
            asked: Some((Kind::Device, 1 << 40)),
            freed: None,
            device: device.map(DeviceId),
            context: None,
            site: None,
        };
        self.apply(pid, What::Failed(failed));
    }

    pub(crate) fn name_site(&mut self, site: u32, function: &str) {
        let file = Some("/srv/ann/train.py".into());
        let frame = Frame { function: function.into(), file, line: 7, ..Frame::default() };
        let facts = SiteFacts { site: SiteId(site), frames: [frame].into() };
        self.apply(0, What::Site(facts));
    }

    pub(crate) fn snapshot(&mut self) -> Snapshot {
        self.at += 1_000_000_000;
        self.ledger.snapshot(Moment(self.at), &View { top_sites: 200, ..View::DEFAULT })
    }

    pub(crate) fn observe(&mut self, snapshot: &Snapshot) -> Figures {
        self.board.observe(&Input {
            snapshot,
            gpus: &gpus(),
            own: &self.own,
            place: |_, frames| {
                frames.first().map(|frame| frame.function.to_string()).unwrap_or_default()
            },
        })
    }

    pub(crate) fn metrics(&mut self) -> Figures {
        let snapshot = self.snapshot();
        self.observe(&snapshot)
    }
}

/// Returns the value of the only sample with all of these labels.
pub(crate) fn find(metrics: &Figures, name: &str, labels: &[&str]) -> Option<Value> {
    let has = |value: &&str, all: &[Box<str>]| all.iter().any(|one| &**one == *value);
    let mut found = metrics
        .of(name)
        .iter()
        .filter(|sample| labels.iter().all(|label| has(label, &sample.labels)));
    let first = found.next().map(|sample| sample.value);
    assert!(found.next().is_none(), "{name} {labels:?} matches more than one sample");
    first
}

pub(crate) fn whole(metrics: &Figures, name: &str, labels: &[&str]) -> u64 {
    match find(metrics, name, labels) {
        Some(Value::Whole(whole)) => whole,
        other => panic!("{name} {labels:?} is {other:?}"),
    }
}
