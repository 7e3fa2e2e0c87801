//! Steps that free memory, and their order.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use std::sync::Arc;

use engine::advice::{Action, Known, Situation, Step, Tongue, advise};
use engine::container::{Container, Pod, Runtime};
use engine::diagnosis::Cause;
use engine::event::{Allocate, Event, PoolCall, ProcessFacts, What};
use engine::holding::Where;
use engine::ids::{DeviceId, GpuId, Key, Pid, PoolId, Tid};
use engine::kind::Kind;
use engine::ledger::Ledger;
use engine::snapshot::{ProcessView, Snapshot, View};
use engine::stack::SiteName;
use engine::tensor::{TensorCall, TensorTurn};
use engine::units::{Bytes, Moment, Nanos};
use engine::verdict::{Evidence, Judgement, Subject, Sureness, Verdict};

const MIB: u64 = 1 << 20;

fn apply(ledger: &mut Ledger, pid: u32, what: What) {
    let at = Moment(1000);
    ledger.apply(&Event { pid: Pid(pid), tid: Tid(pid), entered: at, at, what });
}

fn holds(ledger: &mut Ledger, pid: u32, device: u16, bytes: u64) {
    let facts = ProcessFacts { start: 1, uid: 1000, name: "python".into(), before_trace: false };
    apply(ledger, pid, What::Process(facts));
    apply(ledger, pid, What::Gpus([Some(GpuId(0)), Some(GpuId(1))].into()));
    let before =
        ledger.holdings(Where::Anywhere).iter().map(|one| one.live_allocations).sum::<u64>();
    let key = Key::address((before + 1) << 40);
    let device = Some(DeviceId(device));
    let (context, pool, stream, site) = (None, None, None, None);
    let new = Allocate { key, kind: Kind::Device, bytes, context, device, pool, stream, site };
    apply(ledger, pid, What::Allocate(new));
}

fn snapshot(ledger: &mut Ledger) -> Snapshot {
    ledger.snapshot(Moment(2000), &View::default())
}

const NONE_PROTECTED: &dyn Fn(&ProcessView) -> bool = &|_| false;
const BUSY: &dyn Fn(&ProcessView) -> Option<Nanos> = &|_| None;

fn situation(snapshot: &Snapshot) -> Situation<'_> {
    let (protected, idle) = (NONE_PROTECTED, BUSY);
    let gpu = Some(GpuId(0));
    Situation { snapshot, gpu, only: &[], asker: None, cause: None, protected, idle }
}

fn short(steps: &[Step]) -> Vec<(Action, u32, u64, Known)> {
    steps.iter().map(|step| (step.action, step.pid.0, step.bytes.0 / MIB, step.known)).collect()
}

#[test]
fn steps_are_ordered_by_cost() {
    let mut ledger = Ledger::new();
    holds(&mut ledger, 1, 0, 300 * MIB);
    holds(&mut ledger, 1, 0, 600 * MIB);
    let what = TensorTurn::Began { address: 1 << 40, bytes: 300 * MIB, site: None };
    let (device, allocated, reserved) = (DeviceId(0), 300 * MIB, 900 * MIB);
    apply(&mut ledger, 1, What::Tensor(TensorCall { what, device, allocated, reserved }));
    holds(&mut ledger, 2, 0, 100 * MIB);
    let pool = PoolId(7);
    apply(&mut ledger, 2, What::Pool(PoolCall::OfDevice { pool, device, current: true }));
    apply(&mut ledger, 2, What::Pool(PoolCall::ToldReserved { pool, bytes: 700 * MIB }));
    holds(&mut ledger, 3, 0, 50 * MIB);
    apply(&mut ledger, 3, What::DriverAccount { gpu: GpuId(0), bytes: 80 * MIB, only: false });
    holds(&mut ledger, 4, 1, 5000 * MIB);
    let snapshot = snapshot(&mut ledger);
    let idle =
        |process: &ProcessView| (process.key.pid == Pid(3)).then_some(Nanos::from_millis(600_000));
    let steps = advise(&Situation { idle: &idle, ..situation(&snapshot) });
    let (exact, at_most, estimate) = (Known::Exact, Known::AtMost, Known::Estimate);
    assert_eq!(
        short(&steps),
        [
            (Action::TrimPool, 2, 700, at_most),
            (Action::EmptyCache, 1, 600, exact),
            (Action::StopIdle, 3, 80, exact),
            (Action::Stop, 1, 900, estimate),
            (Action::Stop, 2, 100, estimate),
        ]
    );
    assert!(steps[2].why.contains("10 minutes"), "{}", steps[2].why);
    assert_eq!(steps[2].commands[0].text, "kill -TERM 3");
    assert_eq!(steps[1].commands[0].text, "torch.cuda.empty_cache()");
    assert_eq!(steps[1].commands[0].tongue, Tongue::Python);
}

#[test]
fn restart_of_leaking_process_frees_leaked_bytes() {
    let mut ledger = Ledger::new();
    holds(&mut ledger, 1, 0, 900 * MIB);
    let mut snapshot = snapshot(&mut ledger);
    let suspect = |device, bytes| Judgement {
        pid: Some(Pid(1)),
        process: "python".into(),
        site: SiteName::Unknown,
        frames: Arc::default(),
        subject: Subject::Memory(Kind::Device),
        device: Some(DeviceId(device)),
        thread: None,
        verdict: Verdict::Leak,
        sureness: Sureness::Likely,
        evidence: Evidence { live: bytes, ..Evidence::default() },
    };
    let pinned = Judgement { subject: Subject::Memory(Kind::Pinned), ..suspect(0, 999 * MIB) };
    snapshot.suspects =
        vec![suspect(0, 400 * MIB), suspect(0, 100 * MIB), suspect(1, 77 * MIB), pinned];
    let steps = advise(&situation(&snapshot));
    let expected = [
        (Action::RestartLeaking, 1, 500, Known::Estimate),
        (Action::Stop, 1, 900, Known::Estimate),
    ];
    assert_eq!(short(&steps), expected);
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
    assert!(advise(&Situation { protected: &protected, ..situation(&snapshot) }).is_empty());
}

#[test]
fn requester_is_advised_to_reduce_use_not_to_stop() {
    let mut ledger = Ledger::new();
    holds(&mut ledger, 1, 0, 900 * MIB);
    let snapshot = snapshot(&mut ledger);
    let asker = Some(Pid(1));
    let steps =
        advise(&Situation { asker, cause: Some(Cause::CacheFragmented), ..situation(&snapshot) });
    let actions: Vec<_> = steps.iter().map(|step| step.action).collect();
    assert_eq!(actions, [Action::ExpandSegments, Action::AskForLess]);
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
        ("abc", Runtime::Docker, None, "docker stop abc"),
        ("abc", Runtime::Podman, None, "podman stop abc"),
        ("abc", Runtime::Containerd, None, "crictl stop abc"),
        ("abc", Runtime::Docker, Some(pod("train-0")), "kubectl delete pod --namespace ml train-0"),
        ("a;rm -rf /", Runtime::Docker, None, "kill -TERM 1"),
        ("-f", Runtime::Docker, None, "kill -TERM 1"),
        ("$(x)", Runtime::Podman, Some(pod("`x`")), "kill -TERM 1"),
        ("abc", Runtime::Unknown, None, "kill -TERM 1"),
    ] {
        let container = Container { id: id.into(), runtime, pod, pid_inside: None };
        snapshot.processes[0].container = Some(Arc::new(container));
        assert_eq!(advise(&situation(&snapshot))[0].commands[0].text, command);
    }
}

#[test]
fn advice_is_limited_to_selected_processes() {
    let mut ledger = Ledger::new();
    (1..4).for_each(|pid| holds(&mut ledger, pid, 0, u64::from(pid) * MIB));
    let snapshot = snapshot(&mut ledger);
    let steps = advise(&Situation { only: &[Pid(2)], ..situation(&snapshot) });
    assert_eq!(short(&steps), [(Action::Stop, 2, 2, Known::Estimate)]);
    let everywhere = advise(&Situation { gpu: None, ..situation(&snapshot) });
    assert_eq!(everywhere.len(), 3);
    assert_eq!(everywhere[0].bytes, Bytes(3 * MIB));
}

#[test]
fn advice_matches_the_cause() {
    let mut ledger = Ledger::new();
    for pid in [1, 2] {
        holds(&mut ledger, pid, 0, 900 * MIB);
        let (pool, device) = (PoolId(7), DeviceId(0));
        apply(&mut ledger, pid, What::Pool(PoolCall::OfDevice { pool, device, current: true }));
        apply(&mut ledger, pid, What::Pool(PoolCall::ToldReserved { pool, bytes: 70 * MIB }));
    }
    let snapshot = snapshot(&mut ledger);
    let less = (Action::AskForLess, 1);
    for (cause, expected, says) in [
        (Cause::LargerThanDevice, vec![less], "the whole device"),
        (Cause::HostMemory, vec![less], "ulimit -l"),
        (Cause::AddressSpace, vec![less], "ulimit -v"),
        // Memory that the process holds itself counts against its limit.
        (Cause::Quota, vec![(Action::TrimPool, 1), less], "raise its share"),
        (
            Cause::DeviceExhausted,
            vec![(Action::TrimPool, 1), (Action::TrimPool, 2), less, (Action::Stop, 2)],
            "a smaller batch",
        ),
    ] {
        let asker = Some(Pid(1));
        let steps = advise(&Situation { asker, cause: Some(cause), ..situation(&snapshot) });
        let found: Vec<_> = steps.iter().map(|step| (step.action, step.pid.0)).collect();
        assert_eq!(found, expected, "{cause:?}");
        let why = &steps.iter().find(|step| step.action == Action::AskForLess).unwrap().why;
        assert!(why.contains(says), "{cause:?}: {why}");
    }
}
