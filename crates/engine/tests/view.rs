//! The view model: grouping, order, forecasts and notes.

use engine::ledger::Ledger;
use engine::model::blocks::Allocator;
use engine::model::cuda_object::ObjectKind;
use engine::model::event::{Allocate, Event, EventKind, ProcessInfo, SiteFrames};
use engine::model::ids::{AllocationKey, DeviceId, GpuId, Pid, ProcessKey, SiteId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::program::{ProcessGroup, ProcessIdentity};
use engine::model::stack::{Frame, Language, SiteName};
use engine::model::units::{Bytes, Nanos, Timestamp};
use engine::snapshot::{
    DeviceView, GpuView, LibraryView, ProcessEnd, ProcessView, SiteHistory, SiteView, Snapshot,
    SnapshotOptions, Undecided,
};
use engine::verdict::{Confidence, Evidence, Resource, SiteVerdict, Verdict};
use engine::view::{
    GpuFacts, GroupBy, GroupRow, GroupTotals, Grouping, LeakResource, Note, ProcessOrder,
    ProcessState, UsageHistory, View, functions, group_label, tree,
};

const GIB: u64 = 1 << 30;
const SECOND: u64 = 1_000_000_000;
const MEMORY: Resource = Resource::Memory(MemoryKind::Device);

fn python(function: &str, line: u32) -> Frame {
    Frame {
        function: function.into(),
        file: Some("/job/train.py".into()),
        line,
        language: Language::Python,
        ..Frame::default()
    }
}

/// A suspect in `function` that grows by `gib` GiB per hour.
fn suspect(pid: u32, function: &str, line: u32, resource: Resource, gib: u64) -> SiteVerdict {
    SiteVerdict {
        pid: Some(Pid(pid)),
        process: "python3".into(),
        site: SiteName::Resolved(u64::from(line)),
        frames: [python(function, line), python("<module>", 1)].into(),
        resource,
        device: Some(DeviceId(0)),
        thread: None,
        verdict: Verdict::Leak,
        confidence: Confidence::Likely,
        evidence: Evidence {
            live: gib * GIB,
            live_count: gib,
            growth_per_hour: gib * GIB,
            ..Evidence::default()
        },
    }
}

/// A running process on a GPU.
fn process(pid: u32, gpu: u16, program: &str) -> ProcessView {
    let device = DeviceView {
        device: Some(DeviceId(0)),
        live_bytes: Bytes(GIB),
        peak_bytes: Bytes(GIB),
        peak_bounds: None,
        gpu: Some(GpuId(gpu)),
        driver_bytes: Some(Bytes(3 * GIB)),
        driver_traced: Some(Bytes(GIB)),
        driver_unplaced: Bytes(0),
        graph_reserved: None,
    };
    ProcessView {
        key: ProcessKey { pid: Pid(pid), start: 1 },
        name: "python3".into(),
        identity: ProcessIdentity {
            program: Some(program.into()),
            user: Some("ann".into()),
            ..ProcessIdentity::default()
        },
        live_bytes: Bytes(GIB),
        live_allocations: 1,
        devices: vec![device],
        ..ProcessView::default()
    }
}

fn gpu(id: u16, free_gib: u64, growth_gib: Option<i64>) -> GpuView {
    let growth_per_hour = growth_gib.map(|gib| gib * GIB as i64);
    GpuView { gpu: GpuId(id), free_bytes: Bytes(free_gib * GIB), growth_per_hour }
}

fn facts(ids: &[u16]) -> Vec<GpuFacts<'static>> {
    let one = |id: &u16| GpuFacts { id: GpuId(*id), name: "H200", total: Bytes(140 * GIB) };
    ids.iter().map(one).collect()
}

fn snapshot(processes: Vec<ProcessView>, suspects: Vec<SiteVerdict>) -> Snapshot {
    Snapshot {
        observed: Nanos(60 * SECOND),
        is_live: true,
        processes,
        suspects_total: suspects.len() as u64,
        suspects,
        gpus: vec![gpu(0, 100, None)],
        ..Snapshot::default()
    }
}

#[test]
fn lines_of_one_function_are_one_leak() {
    let suspects = vec![
        suspect(1, "evaluate", 8, Resource::Blocks(Allocator::PyTorch), 2),
        suspect(1, "evaluate", 9, Resource::Blocks(Allocator::PyTorch), 5),
        suspect(1, "train", 20, Resource::Blocks(Allocator::PyTorch), 1),
        suspect(1, "evaluate", 8, Resource::Objects(ObjectKind::Event), 1),
    ];
    let snapshot = snapshot(vec![process(1, 0, "train.py")], suspects);
    let view = View::of(&snapshot, &facts(&[0]));
    let found: Vec<_> = view
        .leaks
        .iter()
        .map(|leak| {
            (
                &*leak.stack.responsible().unwrap().function,
                &leak.lines[..],
                leak.growth_per_hour / GIB,
            )
        })
        .collect();
    assert_eq!(found, [("evaluate", &[9, 8][..], 7), ("train", &[20], 1)]);
    let also: Vec<_> = view.leaks[0].also.iter().map(|part| part.resource).collect();
    assert_eq!(also, [LeakResource::Objects(ObjectKind::Event)]);
    assert_eq!((view.leaks[0].sites.len(), view.leaks[0].live_count), (3, 7));
    assert_eq!((&*view.leaks[0].program, view.leaks[0].user), ("train.py", Some("ann")));
    assert_eq!(view.processes[0].leaks, [0, 1]);
    assert_eq!(view.processes[0].state, ProcessState::Leaks(Confidence::Likely));
}

#[test]
fn processes_of_one_program_share_a_leak() {
    let suspects = vec![
        suspect(1, "step", 3, MEMORY, 2),
        suspect(2, "step", 3, MEMORY, 6),
        suspect(3, "step", 3, MEMORY, 1),
    ];
    let processes =
        vec![process(1, 0, "train.py"), process(2, 0, "train.py"), process(3, 0, "serve.py")];
    let snapshot = snapshot(processes, suspects);
    let view = View::of(&snapshot, &facts(&[0]));
    let pids: Vec<Vec<u32>> = view
        .leaks
        .iter()
        .map(|leak| leak.processes.iter().map(|process| process.pid.unwrap().0).collect())
        .collect();
    assert_eq!(pids, [vec![2, 1], vec![3]]);
    assert_eq!(view.leaking_processes(), 3);
}

#[test]
fn leaks_are_ordered_by_what_fills_a_gpu_first() {
    let certain =
        SiteVerdict { confidence: Confidence::Certain, ..suspect(1, "slow", 1, MEMORY, 1) };
    let suspects = vec![
        suspect(1, "objects", 4, Resource::Objects(ObjectKind::Event), 900),
        suspect(1, "pinned", 3, Resource::Memory(MemoryKind::Pinned), 500),
        certain,
        suspect(1, "fast", 2, MEMORY, 50),
        // Grows less than the one before, on a GPU with less free memory.
        suspect(2, "nearly_full", 5, MEMORY, 10),
    ];
    let mut snapshot = snapshot(vec![process(1, 0, "a.py"), process(2, 1, "b.py")], suspects);
    snapshot.gpus = vec![gpu(0, 100, None), gpu(1, 1, None)];
    let view = View::of(&snapshot, &facts(&[0, 1]));
    let order: Vec<&str> =
        view.leaks.iter().map(|leak| &*leak.stack.responsible().unwrap().function).collect();
    assert_eq!(order, ["nearly_full", "fast", "slow", "pinned", "objects"]);
    assert_eq!(view.leaks[0].time_until_full, Some(Nanos(360 * SECOND)));
    assert_eq!(view.leaks[3].time_until_full, None);
    let pids: Vec<u32> = view.processes.iter().map(|row| row.process.key.pid.0).collect();
    assert_eq!(pids, [2, 1]);
}

#[test]
fn gpu_is_full_by_the_growth_that_the_driver_reports() {
    let mut snapshot = snapshot(
        vec![process(1, 0, "a.py"), process(2, 0, "b.py")],
        vec![suspect(1, "step", 1, MEMORY, 100)],
    );
    snapshot.gpus = vec![gpu(0, 120, Some(600))];
    let view = View::of(&snapshot, &facts(&[0]));
    let [row] = &view.gpus[..] else { panic!("{:?}", view.gpus) };
    assert_eq!(row.time_until_full, Some(Nanos(720 * SECOND)));
    assert_eq!((row.used, row.total), (Some(Bytes(20 * GIB)), Some(Bytes(140 * GIB))));
    assert_eq!((row.traced, row.untracked), (Bytes(2 * GIB), Bytes(4 * GIB)));
    assert_eq!(view.first_full().unwrap().gpu, Some(GpuId(0)));
    // A cache absorbs the leak: the driver reports no growth.
    snapshot.gpus = vec![gpu(0, 100, Some(0))];
    let view = View::of(&snapshot, &facts(&[0]));
    assert_eq!(view.gpus[0].time_until_full, Some(Nanos(3600 * SECOND)));
}

#[test]
fn memory_on_an_unknown_device_is_on_the_only_gpu() {
    let unplaced = SiteVerdict { device: None, ..suspect(1, "step", 1, MEMORY, 50) };
    let snapshot = snapshot(vec![process(1, 0, "a.py")], vec![unplaced]);
    let view = View::of(&snapshot, &facts(&[0]));
    assert_eq!(view.leaks[0].gpu, Some(GpuId(0)));
    assert_eq!(view.leaks[0].time_until_full, Some(Nanos(7200 * SECOND)));
    let view = View::of(&snapshot, &facts(&[0, 1]));
    assert_eq!((view.leaks[0].gpu, view.leaks[0].time_until_full), (None, None));
}

#[test]
fn short_traces_wait_for_a_verdict() {
    let growing = ProcessView {
        undecided: Some(Undecided { sites: 2, wait: Nanos(9 * SECOND) }),
        ..process(1, 0, "a.py")
    };
    let mut snapshot = snapshot(vec![growing, process(2, 0, "b.py")], Vec::new());
    let state = |snapshot: &Snapshot| {
        let view = View::of(snapshot, &facts(&[0]));
        (view.wait.map(|wait| wait.0 / SECOND), view.undecided_sites())
    };
    assert_eq!(state(&snapshot), (Some(9), 2));
    snapshot.observed = Nanos(10 * SECOND);
    assert_eq!(state(&snapshot), (Some(9), 2), "as the line of the process");
    let mut quiet = snapshot.clone();
    quiet.processes[0].undecided = None;
    assert_eq!(state(&quiet), (Some(20), 0), "nothing grows: the shortest observation");
    let view = View::of(&snapshot, &[]);
    assert_eq!(view.processes[0].state, ProcessState::TooEarly(Nanos(9 * SECOND)));
    assert_eq!(view.processes[1].state, ProcessState::TooEarly(Nanos(20 * SECOND)));
    snapshot.observed = Nanos(30 * SECOND);
    assert_eq!(View::of(&snapshot, &[]).processes[1].state, ProcessState::Steady);
    snapshot.observed = Nanos(10 * SECOND);
    snapshot.is_live = false;
    assert_eq!(state(&snapshot).0, None);
    snapshot.is_live = true;
    for process in &mut snapshot.processes {
        (process.ended, process.undecided) = (Some(ProcessEnd::Exited), None);
    }
    assert_eq!(state(&snapshot), (None, 0));
}

#[test]
fn memory_of_caching_allocators_is_not_counted_as_not_freed() {
    let mut ledger = Ledger::new();
    let at = Timestamp(5);
    let mut apply = |pid: u32, kind: EventKind| {
        ledger.apply(&Event { pid: Pid(pid), tid: Tid(pid), entry_time: at, time: at, kind });
    };
    let allocate = |address: u64, site: u32, kind: MemoryKind| {
        EventKind::Allocate(Allocate {
            key: AllocationKey::address(address),
            kind,
            bytes: 10,
            context: None,
            device: None,
            pool: None,
            stream: None,
            site: Some(SiteId(site)),
        })
    };
    let info = ProcessInfo { start: 1, uid: 0, name: "python3".into(), before_trace: false };
    apply(1, EventKind::Process(info));
    apply(1, allocate(1, 1, MemoryKind::Device));
    apply(1, allocate(2, 2, MemoryKind::Device));
    apply(1, allocate(3, 2, MemoryKind::Pinned));
    apply(1, allocate(4, 2, MemoryKind::Static));
    apply(1, EventKind::Exit);
    // Frames may arrive after the exit.
    let cache = Frame { module: Some("/lib/libc10_cuda.so".into()), ..Frame::default() };
    let frames = |site: u32, frames: [Frame; 2]| {
        EventKind::Site(SiteFrames { site: SiteId(site), frames: frames.into() })
    };
    apply(0, frames(1, [cache, python("step", 3)]));
    apply(0, frames(2, [python("upload", 9), python("<module>", 1)]));
    let options = SnapshotOptions { ended_sites: true, ..SnapshotOptions::default() };
    let snapshot = ledger.snapshot(Timestamp(9), &options);
    let [process] = &snapshot.not_freed[..] else { panic!("{:?}", snapshot.not_freed) };
    assert_eq!((process.cached, process.bytes, process.allocations), (Bytes(10), Bytes(20), 2));
    let view = View::of(&snapshot, &[]);
    let rows: Vec<_> =
        view.not_freed.iter().map(|row| (row.resource.name(), row.bytes.0)).collect();
    assert_eq!(rows, [("device_memory", 10), ("host_memory", 10)]);
    assert_eq!(view.not_freed[0].stack.unwrap().responsible().unwrap().line, 9);
    assert_eq!((view.not_freed_bytes(), view.not_freed[0].program), (Bytes(20), "train.py"));
    assert_eq!(view.notes, [Note::CachedAtExit { bytes: Bytes(10) }]);
}

#[test]
fn missing_driver_values_and_earlier_memory_are_noted() {
    let before = ProcessView { before_trace: true, ..process(1, 0, "a.py") };
    let mut snapshot = snapshot(vec![before, process(2, 0, "b.py")], Vec::new());
    let noted = |snapshot: &Snapshot| View::of(snapshot, &facts(&[0])).notes;
    assert_eq!(noted(&snapshot), [Note::BeforeTrace { processes: 1 }]);
    snapshot.gpus.clear();
    assert_eq!(noted(&snapshot), [Note::BeforeTrace { processes: 1 }, Note::NoDriverUsage]);
}

#[test]
fn gpus_without_reported_memory_are_noted() {
    let mut snapshot = snapshot(vec![process(1, 0, "a.py")], Vec::new());
    snapshot.gpus.clear();
    let shared = GpuFacts { id: GpuId(0), name: "GB10", total: Bytes(0) };
    let view = View::of(&snapshot, &[shared]);
    assert_eq!(view.notes, [Note::NoDeviceMemory { gpus: vec![GpuId(0)] }]);
    assert!(view.gpus[0].is_memory_unreported());
    assert_eq!((view.gpus[0].total, view.gpus[0].used), (None, None));
}

#[test]
fn processes_have_gpus_ages_and_times_until_full() {
    let mut one = process(1, 0, "a");
    one.growth_per_hour = Some(10 * GIB as i64);
    let snapshot = Snapshot {
        at: Timestamp(61 * SECOND),
        processes: vec![one, process(2, 1, "b")],
        gpus: vec![gpu(0, 20, None), gpu(1, 20, None)],
        ..Snapshot::default()
    };
    let view = View::of(&snapshot, &[]);
    let row = |pid: u32| view.processes.iter().find(|row| row.process.key.pid == Pid(pid)).unwrap();
    assert_eq!(row(1).gpus, [GpuId(0)]);
    assert_eq!(row(1).time_until_full, Some(Nanos(2 * 3600 * SECOND)));
    assert_eq!(row(2).time_until_full, None);
    assert_eq!(row(1).age, Some(Nanos(61 * SECOND - 1)));
}

#[test]
fn processes_are_ordered_as_chosen() {
    let with = |pid: u32, bytes: u64, growth: Option<i64>, count: u64, start: u64| {
        let mut one = process(pid, 0, "a");
        one.devices[0].driver_bytes = Some(Bytes(bytes));
        (one.growth_per_hour, one.live_allocations, one.key.start) = (growth, count, start);
        one
    };
    let snapshot = Snapshot {
        at: Timestamp(100),
        processes: vec![
            with(1, 5, None, 1, 10),
            with(2, 7, Some(3 * GIB as i64), 9, 90),
            with(3, 6, Some(8 * GIB as i64), 4, 0),
        ],
        gpus: vec![gpu(0, 20, None)],
        ..Snapshot::default()
    };
    let view = View::of(&snapshot, &[]);
    let pids = |order: ProcessOrder| {
        let rows = view.ordered(order).into_iter().map(|index| &view.processes[index]);
        rows.map(|row| row.process.key.pid.0).collect::<Vec<_>>()
    };
    assert_eq!(pids(ProcessOrder::Used), [2, 3, 1]);
    assert_eq!(pids(ProcessOrder::Growth), [3, 2, 1]);
    assert_eq!(pids(ProcessOrder::TimeUntilFull), [3, 2, 1]);
    assert_eq!(pids(ProcessOrder::Age), [1, 2, 3]);
    assert_eq!(pids(ProcessOrder::Count), [2, 3, 1]);
    assert_eq!(pids(ProcessOrder::Urgency), [2, 3, 1]);
}

#[test]
fn trees_skip_ancestors_that_are_not_listed() {
    let pids = [5, 2, 9, 3, 8].map(Pid);
    // 2 has the children 3 and, through 4, 5; 8 and 9 are each other's parents.
    let parents = [(5, 4), (4, 2), (3, 2), (2, 1), (8, 9), (9, 8)];
    let parents = parents.into_iter().map(|(pid, parent)| (Pid(pid), Pid(parent))).collect();
    let order: Vec<_> =
        tree(&pids, &parents).into_iter().map(|(index, depth)| (pids[index].0, depth)).collect();
    assert_eq!(order, [(2, 0), (5, 1), (3, 1), (9, 0), (8, 0)]);
}

#[test]
fn groups_have_labels_and_sums() {
    let snapshot = Snapshot {
        processes: vec![process(1, 0, "a"), process(2, 1, "b")],
        suspects: vec![suspect(2, "step", 8, MEMORY, 5)],
        ..Snapshot::default()
    };
    let view = View::of(&snapshot, &[]);
    let mut totals = GroupTotals::default();
    for row in &view.processes {
        assert_eq!(group_label(row, GroupBy::User).as_deref(), Some("ann"));
        assert_eq!(group_label(row, GroupBy::Container), None);
        totals.add(row);
    }
    let label = group_label(&view.processes[0], GroupBy::Gpu);
    assert_eq!(label.as_deref(), Some("GPU 1"));
    assert_eq!((totals.processes, totals.leaking, totals.used), (2, 1, Bytes(6 * GIB)));
}

#[test]
fn history_has_charts_of_earlier_views_and_of_what_exited() {
    let mut history = UsageHistory::default();
    for number in 0..200 {
        let mut one = process(1, 0, "a");
        one.devices[0].driver_bytes = Some(Bytes(number));
        let mut processes = vec![one];
        processes.extend((number < 5).then(|| process(2, 0, "b")));
        let snapshot = Snapshot { processes, ..Snapshot::default() };
        history.push(&View::of(&snapshot, &[]), number);
    }
    let key = |pid: u32| ProcessKey { pid: Pid(pid), start: 1 };
    assert_eq!(history.process(key(1), u64::MAX), (80..200).collect::<Vec<_>>());
    assert_eq!(history.process(key(1), 2), [0, 1, 2]);
    assert_eq!(history.process(key(2), 3).len(), 4);
    assert_eq!(history.gpu(Some(GpuId(0)), 80).len(), 81);
    // After the longest time that a view can go back to.
    let empty = Snapshot::default();
    (200..1000).for_each(|number| history.push(&View::of(&empty, &[]), number));
    assert_eq!(history.process(key(2), u64::MAX), []);
}

#[test]
fn functions_have_own_and_total_memory() {
    let site = |function: &str, line: u32, bytes: u64| SiteView {
        frames: [python(function, line), python("epoch", 9), python("epoch", 9)].into(),
        live_bytes: Bytes(bytes),
        live_allocations: 2,
        name: SiteName::Resolved(u64::from(line)),
        grown: 0,
        bytes_total: Bytes(0),
        allocations_total: 0,
        freed_total: 0,
        sampling: None,
        peak_bytes: Bytes(0),
        peak_at: None,
        seen: (Timestamp(0), Timestamp(0)),
        lifetimes: Vec::new(),
        longest_lifetime: None,
        growth: SiteHistory::default(),
        kinds: Vec::new(),
        objects: Vec::new(),
        processes: Vec::new(),
    };
    let sites =
        [site("batch", 1, 10), site("batch", 2, 20), site("epoch", 3, 5), site("nothing", 4, 0)];
    let rows = functions(sites.iter(), true);
    let values = |name: &str| {
        let row = rows.iter().find(|row| &*row.frame.function == name)?;
        Some((row.total, row.own, row.allocations))
    };
    assert_eq!(values("epoch"), Some((35, 5, 6)));
    assert_eq!(values("batch"), Some((30, 30, 4)));
    assert_eq!(values("nothing"), None);
    assert_eq!(&*rows[0].frame.function, "epoch");
}

#[test]
fn processes_are_grouped_by_user_job_and_tree() {
    let member = |pid: u32, job: Option<&str>, root: u32| {
        let mut process = process(pid, 0, "train.py");
        process.identity.group = ProcessGroup {
            release: None,
            job: job.map(Into::into),
            rank: Some(pid),
            tree: Some((Pid(root), "torchrun".into())),
        };
        process.libraries = vec![LibraryView { live_bytes: Bytes(GIB), ..LibraryView::default() }];
        process
    };
    let processes =
        vec![member(1, Some("slurm 7.0"), 9), member(2, Some("slurm 7.0"), 9), member(3, None, 3)];
    let snapshot = snapshot(processes, Vec::new());
    let view = View::of(&snapshot, &facts(&[0]));
    let rows = |by: Grouping| -> Vec<(String, u64, u64, usize)> {
        let row = |row: GroupRow<'_>| {
            let name = row.name.unwrap_or_default().into_owned();
            (name, row.used.0 / GIB, row.traced.live_bytes.0 / GIB, row.pids.len())
        };
        view.groups(by).into_iter().map(row).collect()
    };
    assert_eq!(rows(Grouping::User), [("ann".into(), 9, 3, 3)]);
    assert_eq!(rows(Grouping::Job), [("slurm 7.0".into(), 6, 2, 2), ("no job".into(), 3, 1, 1)]);
    let trees = [("torchrun (9)".into(), 6, 2, 2), ("torchrun (3)".into(), 3, 1, 1)];
    assert_eq!(rows(Grouping::Tree), trees);
    // The last row is what the driver reports beyond traced memory.
    assert_eq!(rows(Grouping::Library), [(String::new(), 3, 3, 3), (String::new(), 6, 0, 3)]);
}
