//! Steps that free memory, and their order.

use std::sync::Arc;

use engine::advice::{AdviceAction, AdviceInput, AdviceStep, CommandLanguage, Precision, advise};
use engine::ledger::Ledger;
use engine::model::blocks::{BlockEvent, BlockOp};
use engine::model::container::{Container, ContainerRuntime, Pod};
use engine::model::cuda_object::ObjectKind;
use engine::model::event::{Allocate, Event, EventKind, PoolCall, ProcessInfo};
use engine::model::holder::DeviceFilter;
use engine::model::ids::{AllocationKey, DeviceId, GpuId, Pid, PoolId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::sampling::Sampling;
use engine::model::stack::{CallStack, SiteName};
use engine::model::units::{Bytes, Nanos, Timestamp};
use engine::oom::OomCause;
use engine::snapshot::{ProcessView, Snapshot, SnapshotOptions};
use engine::verdict::{Confidence, Evidence, Resource, SiteVerdict, Verdict};

const MIB: u64 = 1 << 20;

fn apply(ledger: &mut Ledger, pid: u32, kind: EventKind) {
    let at = Timestamp(1000);
    ledger.apply(&Event { pid: Pid(pid), tid: Tid(pid), entry_time: at, time: at, kind });
}

fn holds(ledger: &mut Ledger, pid: u32, device: u16, bytes: u64) {
    let info = ProcessInfo { start: 1, uid: 1000, name: "python".into(), before_trace: false };
    apply(ledger, pid, EventKind::Process(info));
    apply(ledger, pid, EventKind::Gpus([Some(GpuId(0)), Some(GpuId(1))].into()));
    let before = ledger
        .holders(DeviceFilter::AllDevices)
        .iter()
        .map(|one| one.live_allocations)
        .sum::<u64>();
    let key = AllocationKey::address((before + 1) << 40);
    let device = Some(DeviceId(device));
    let (context, pool, stream, site) = (None, None, None, None);
    let new =
        Allocate { key, kind: MemoryKind::Device, bytes, context, device, pool, stream, site };
    apply(ledger, pid, EventKind::Allocate(new));
}

fn snapshot(ledger: &mut Ledger) -> Snapshot {
    ledger.snapshot(Timestamp(2000), &SnapshotOptions::default())
}

const NONE_PROTECTED: &dyn Fn(&ProcessView) -> bool = &|_| false;
const BUSY: &dyn Fn(&ProcessView) -> Option<Nanos> = &|_| None;

fn input(snapshot: &Snapshot) -> AdviceInput<'_> {
    let (protected, idle) = (NONE_PROTECTED, BUSY);
    let gpu = Some(GpuId(0));
    let (gpu_memory, requester, cause) = (Bytes(0), None, None);
    AdviceInput { snapshot, gpu, gpu_memory, only: &[], requester, cause, protected, idle }
}

fn short(steps: &[AdviceStep]) -> Vec<(AdviceAction, u32, u64, Precision)> {
    steps.iter().map(|step| (step.action, step.pid.0, step.bytes.0 / MIB, step.precision)).collect()
}

#[test]
fn each_process_has_its_cheapest_step() {
    let mut ledger = Ledger::new();
    holds(&mut ledger, 1, 0, 300 * MIB);
    holds(&mut ledger, 1, 0, 600 * MIB);
    let op = BlockOp::Allocated {
        address: 1 << 40,
        bytes: 300 * MIB,
        site: None,
        sampling: Sampling::All,
    };
    let (device, allocated, reserved) = (DeviceId(0), 300 * MIB, 900 * MIB);
    apply(&mut ledger, 1, EventKind::Block(BlockEvent::pytorch(op, device, allocated, reserved)));
    holds(&mut ledger, 2, 0, 100 * MIB);
    let pool = PoolId(7);
    apply(&mut ledger, 2, EventKind::Pool(PoolCall::OfDevice { pool, device, current: true }));
    apply(&mut ledger, 2, EventKind::Pool(PoolCall::ReservedReported { pool, bytes: 700 * MIB }));
    holds(&mut ledger, 3, 0, 50 * MIB);
    apply(&mut ledger, 3, EventKind::DriverUsage { gpu: GpuId(0), bytes: 80 * MIB, only: false });
    holds(&mut ledger, 4, 1, 5000 * MIB);
    let snapshot = snapshot(&mut ledger);
    let idle =
        |process: &ProcessView| (process.key.pid == Pid(3)).then_some(Nanos::from_millis(600_000));
    let steps = advise(&AdviceInput { idle: &idle, ..input(&snapshot) });
    let (exact, at_most, estimate) = (Precision::Exact, Precision::UpperBound, Precision::Estimate);
    assert_eq!(
        short(&steps),
        [
            (AdviceAction::TrimPool, 2, 700, at_most),
            (AdviceAction::EmptyCache, 1, 600, exact),
            (AdviceAction::StopIdle, 3, 80, exact),
        ]
    );
    assert_eq!(short(&steps[0].alternatives), [(AdviceAction::Stop, 2, 100, estimate)]);
    assert_eq!(short(&steps[1].alternatives), [(AdviceAction::Stop, 1, 900, estimate)]);
    assert!(steps[2].reason.contains("10 minutes"), "{}", steps[2].reason);
    assert_eq!(steps[2].commands[0].text, "kill -TERM 3");
    assert_eq!(steps[1].commands[0].text, "torch.cuda.empty_cache()");
    assert_eq!(steps[1].commands[0].language, CommandLanguage::Python);
}

fn leak(pid: u32, device: u16, live: u64, growth_per_hour: u64) -> SiteVerdict {
    SiteVerdict {
        pid: Some(Pid(pid)),
        process: "python".into(),
        site: SiteName::Unknown,
        frames: CallStack::default(),
        resource: Resource::Memory(MemoryKind::Device),
        device: Some(DeviceId(device)),
        thread: None,
        verdict: Verdict::Leak,
        confidence: Confidence::Likely,
        evidence: Evidence { live, growth_per_hour, ..Evidence::default() },
    }
}

#[test]
fn leaking_process_is_restarted_and_not_stopped() {
    let mut ledger = Ledger::new();
    holds(&mut ledger, 1, 0, 900 * MIB);
    let mut snapshot = snapshot(&mut ledger);
    let suspect = |device, bytes| leak(1, device, bytes, MIB);
    let pinned =
        SiteVerdict { resource: Resource::Memory(MemoryKind::Pinned), ..suspect(0, 999 * MIB) };
    snapshot.suspects =
        vec![suspect(0, 400 * MIB), suspect(0, 100 * MIB), suspect(1, 77 * MIB), pinned];
    let steps = advise(&input(&snapshot));
    assert_eq!(short(&steps), [(AdviceAction::RestartLeaking, 1, 900, Precision::Estimate)]);
    assert!(steps[0].reason.starts_with("500.00 MiB of it is"), "{}", steps[0].reason);
    assert!(steps[0].alternatives.is_empty());
}

#[test]
fn other_leaks_of_a_process_are_named() {
    let mut ledger = Ledger::new();
    holds(&mut ledger, 1, 0, 900 * MIB);
    let mut snapshot = snapshot(&mut ledger);
    let of = |resource| SiteVerdict { resource, ..leak(1, 0, 700, 7) };
    let event = Resource::Objects(ObjectKind::Event);
    snapshot.suspects = vec![of(event), of(event), of(Resource::Memory(MemoryKind::Pinned))];
    let steps = advise(&input(&snapshot));
    assert_eq!(short(&steps), [(AdviceAction::Stop, 1, 900, Precision::Estimate)]);
    assert_eq!(steps[0].reason, "holds 900.00 MiB; it leaks event objects, host memory");
}

#[test]
fn leaks_come_first_and_small_steps_last() {
    let mut ledger = Ledger::new();
    for (pid, bytes) in [(1, 900), (2, 5), (3, 2000), (4, 9)] {
        holds(&mut ledger, pid, 0, bytes * MIB);
    }
    let mut snapshot = snapshot(&mut ledger);
    snapshot.suspects =
        vec![leak(1, 0, 400 * MIB, 3 * MIB), leak(2, 0, 4 * MIB, 70 * MIB), leak(4, 0, MIB, MIB)];
    let gpu_memory = Bytes(1000 * MIB);
    let steps = advise(&AdviceInput { gpu_memory, ..input(&snapshot) });
    let order: Vec<_> = steps.iter().map(|step| (step.pid.0, step.action)).collect();
    let (restart, stop) = (AdviceAction::RestartLeaking, AdviceAction::Stop);
    assert_eq!(order, [(2, restart), (1, restart), (3, stop), (4, restart)]);
}

#[test]
fn services_and_protected_processes_are_never_stopped() {
    let mut ledger = Ledger::new();
    holds(&mut ledger, 1, 0, 900 * MIB);
    holds(&mut ledger, 2, 0, 900 * MIB);
    let mut snapshot = snapshot(&mut ledger);
    let server = snapshot.processes.iter_mut().find(|one| one.key.pid == Pid(2)).unwrap();
    server.name = "nvidia-cuda-mps-server".into();
    let protected = |process: &ProcessView| process.key.pid == Pid(1);
    assert!(advise(&AdviceInput { protected: &protected, ..input(&snapshot) }).is_empty());
}

#[test]
fn requester_is_advised_to_reduce_use_not_to_stop() {
    let mut ledger = Ledger::new();
    holds(&mut ledger, 1, 0, 900 * MIB);
    let snapshot = snapshot(&mut ledger);
    let requester = Some(Pid(1));
    let steps = advise(&AdviceInput {
        requester,
        cause: Some(OomCause::CacheFragmentation),
        ..input(&snapshot)
    });
    let actions: Vec<_> = steps.iter().map(|step| step.action).collect();
    assert_eq!(actions, [AdviceAction::UseExpandableSegments]);
    assert_eq!(steps[0].alternatives[0].action, AdviceAction::ReduceMemoryUse);
    let text = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
    assert_eq!(steps[0].commands[0].text, text);
}

#[test]
fn unsafe_container_names_are_not_put_in_commands() {
    let mut ledger = Ledger::new();
    holds(&mut ledger, 1, 0, 900 * MIB);
    let mut snapshot = snapshot(&mut ledger);
    let pod = |name: &str| Pod {
        uid: "u".into(),
        name: Some(name.into()),
        namespace: Some("ml".into()),
        container: None,
    };
    for (id, runtime, pod, command) in [
        ("abc", ContainerRuntime::Docker, None, "docker stop abc"),
        ("abc", ContainerRuntime::Podman, None, "podman stop abc"),
        ("abc", ContainerRuntime::Containerd, None, "crictl stop abc"),
        (
            "abc",
            ContainerRuntime::Docker,
            Some(pod("train-0")),
            "kubectl delete pod --namespace ml train-0",
        ),
        ("a;rm -rf /", ContainerRuntime::Docker, None, "kill -TERM 1"),
        ("-f", ContainerRuntime::Docker, None, "kill -TERM 1"),
        ("$(x)", ContainerRuntime::Podman, Some(pod("`x`")), "kill -TERM 1"),
        ("abc", ContainerRuntime::Unknown, None, "kill -TERM 1"),
    ] {
        let container = Container { id: id.into(), runtime, pod, container_pid: None };
        snapshot.processes[0].container = Some(Arc::new(container));
        assert_eq!(advise(&input(&snapshot))[0].commands[0].text, command);
    }
}

#[test]
fn advice_is_limited_to_selected_processes() {
    let mut ledger = Ledger::new();
    (1..4).for_each(|pid| holds(&mut ledger, pid, 0, u64::from(pid) * MIB));
    let snapshot = snapshot(&mut ledger);
    let steps = advise(&AdviceInput { only: &[Pid(2)], ..input(&snapshot) });
    assert_eq!(short(&steps), [(AdviceAction::Stop, 2, 2, Precision::Estimate)]);
    let everywhere = advise(&AdviceInput { gpu: None, ..input(&snapshot) });
    assert_eq!(everywhere.len(), 3);
    assert_eq!(everywhere[0].bytes, Bytes(3 * MIB));
}

#[test]
fn advice_matches_the_cause() {
    let mut ledger = Ledger::new();
    for pid in [1, 2] {
        holds(&mut ledger, pid, 0, 900 * MIB);
        let (pool, device) = (PoolId(7), DeviceId(0));
        apply(
            &mut ledger,
            pid,
            EventKind::Pool(PoolCall::OfDevice { pool, device, current: true }),
        );
        apply(
            &mut ledger,
            pid,
            EventKind::Pool(PoolCall::ReservedReported { pool, bytes: 70 * MIB }),
        );
    }
    let snapshot = snapshot(&mut ledger);
    let less = (AdviceAction::ReduceMemoryUse, 1);
    for (cause, expected, says) in [
        (OomCause::RequestExceedsDevice, vec![less], "the whole device"),
        (OomCause::HostMemoryExhausted, vec![less], "ulimit -l"),
        (OomCause::AddressSpaceExhausted, vec![less], "ulimit -v"),
        // Memory that the process holds itself counts against its limit.
        (OomCause::Quota, vec![(AdviceAction::TrimPool, 1), less], "raise its share"),
        (
            OomCause::DeviceExhausted,
            vec![
                (AdviceAction::TrimPool, 1),
                less,
                (AdviceAction::TrimPool, 2),
                (AdviceAction::Stop, 2),
            ],
            "a smaller batch",
        ),
    ] {
        let requester = Some(Pid(1));
        let steps = advise(&AdviceInput { requester, cause: Some(cause), ..input(&snapshot) });
        let all = || steps.iter().flat_map(|step| std::iter::once(step).chain(&step.alternatives));
        let found: Vec<_> = all().map(|step| (step.action, step.pid.0)).collect();
        assert_eq!(found, expected, "{cause:?}");
        let reason =
            &all().find(|step| step.action == AdviceAction::ReduceMemoryUse).unwrap().reason;
        assert!(reason.contains(says), "{cause:?}: {reason}");
    }
}
