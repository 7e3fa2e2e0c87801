//! Every statement that reports print about a site holds for its history: random histories go
//! through the ledger, and its text and numbers are compared with the history itself.

use engine::ledger::Ledger;
use engine::model::event::{Allocate, Event, EventKind, Free, FreeFunction, ProcessInfo};
use engine::model::ids::{AllocationKey, DeviceId, Pid, SiteId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::{Bytes, Timestamp};
use engine::snapshot::{Snapshot, SnapshotOptions};
use engine::verdict::{AnomalyKind, Evidence, SiteVerdict, Verdict};
use formats::report::verdict;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use crate::random;

const MILLI: u64 = 1_000_000;
const START: u64 = 77;

/// The behavior of a site for some time.
#[derive(Clone, Debug)]
struct Phase {
    act: Act,
    steps: u64,
    step_ms: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Keep,
    Churn,
    KeepAndChurn,
    FreeOldest,
    FreeAll,
    Idle,
    Huge,
}

fn phase() -> impl Strategy<Value = Phase> {
    let act = prop_oneof![
        4 => Just(Act::Keep),
        2 => Just(Act::Churn),
        3 => Just(Act::KeepAndChurn),
        2 => Just(Act::FreeOldest),
        1 => Just(Act::FreeAll),
        1 => Just(Act::Idle),
        1 => Just(Act::Huge),
    ];
    (act, 1..120_u64, 1..400_u64, 1..(1_u64 << 22)).prop_map(|(act, steps, step_ms, bytes)| Phase {
        act,
        steps,
        step_ms,
        bytes,
    })
}

/// One allocation: start and end, relative to the start of the trace.
#[derive(Clone, Copy, Debug)]
struct TestAllocation {
    start: u64,
    ended: Option<u64>,
    bytes: u64,
}

/// The complete history of a site.
#[derive(Default)]
struct History {
    allocations: Vec<TestAllocation>,
    /// Times and values of all level changes.
    levels: Vec<(u64, u64)>,
    now: u64,
}

impl History {
    fn of(phases: &[Phase]) -> Self {
        let mut history = Self { now: MILLI, ..Self::default() };
        history.begin(1);
        for Phase { act, steps, step_ms, bytes } in phases {
            for _ in 0..*steps {
                history.step(*act, *bytes);
                history.now += step_ms * MILLI;
            }
        }
        history
    }

    fn step(&mut self, act: Act, bytes: u64) {
        match act {
            Act::Keep => self.begin(bytes),
            Act::Churn => self.churn(bytes),
            Act::KeepAndChurn => {
                self.begin(bytes);
                self.churn(2 * bytes);
            }
            Act::FreeOldest => self.end_oldest(),
            Act::FreeAll => {
                while self.live().next().is_some() {
                    self.end_oldest();
                }
            }
            Act::Idle => {}
            Act::Huge => self.churn(bytes << 12),
        }
    }

    fn churn(&mut self, bytes: u64) {
        self.begin(bytes);
        self.now += MILLI / 2;
        let last = self.allocations.len() - 1;
        self.end(last);
    }

    fn begin(&mut self, bytes: u64) {
        self.now += 1;
        self.allocations.push(TestAllocation { start: self.now, ended: None, bytes });
        self.record(|level| level + bytes);
    }

    fn end_oldest(&mut self) {
        let oldest = self.allocations.iter().position(|allocation| allocation.ended.is_none());
        oldest.into_iter().for_each(|oldest| self.end(oldest));
    }

    fn end(&mut self, which: usize) {
        self.now += 1;
        self.allocations[which].ended = Some(self.now);
        let bytes = self.allocations[which].bytes;
        self.record(|level| level - bytes);
    }

    fn record(&mut self, change: impl Fn(u64) -> u64) {
        let level = change(self.levels.last().map_or(0, |(_, level)| *level));
        self.levels.push((self.now, level));
    }

    fn live(&self) -> impl Iterator<Item = &TestAllocation> {
        self.allocations.iter().filter(|allocation| allocation.ended.is_none())
    }

    /// Returns the lifetimes of freed allocations, shortest first.
    fn lifetimes(&self) -> Vec<u64> {
        let ended = self
            .allocations
            .iter()
            .filter_map(|allocation| Some(allocation.ended? - allocation.start));
        let mut lifetimes: Vec<_> = ended.collect();
        lifetimes.sort_unstable();
        lifetimes
    }

    /// Returns the levels of a period: the level before it, and every change.
    fn levels(&self, from: u64, to: u64) -> Vec<u64> {
        let before = self.levels.iter().rev().find(|(at, _)| *at < from).map_or(0, |(_, l)| *l);
        let inside = self.levels.iter().filter(|(at, _)| (from..to).contains(at));
        std::iter::once(before).chain(inside.map(|(_, level)| *level)).collect()
    }

    fn events(&self, exits: bool) -> Vec<Event> {
        let event = |at: u64, kind| {
            let at = Timestamp(START + at);
            Event { pid: Pid(7), tid: Tid(8), entry_time: at, time: at, kind }
        };
        let info = ProcessInfo { start: 1, uid: 0, name: "train".into(), before_trace: false };
        let mut events = vec![event(0, EventKind::Process(info))];
        for (number, allocation) in (0x1000..).zip(&self.allocations) {
            let key = AllocationKey::address(number);
            events.push(event(
                allocation.start,
                EventKind::Allocate(Allocate {
                    key,
                    kind: MemoryKind::Device,
                    bytes: allocation.bytes,
                    context: None,
                    device: Some(DeviceId(0)),
                    pool: None,
                    stream: None,
                    site: Some(SiteId(1)),
                }),
            ));
            let free = EventKind::Free(Free { key, by: FreeFunction::Free, stream: None });
            events.extend(allocation.ended.map(|ended| event(ended, free)));
        }
        events.sort_by_key(|event| event.time);
        events.extend(exits.then(|| event(self.now, EventKind::Exit)));
        events
    }

    fn snapshot(&self, exits: bool) -> Snapshot {
        let mut ledger = Ledger::new();
        self.events(exits).iter().for_each(|event| ledger.apply(event));
        let view = SnapshotOptions { ended_sites: true, ..SnapshotOptions::default() };
        ledger.snapshot(Timestamp(START + self.now), &view)
    }

    /// Returns the start and end of the windows that the evidence covers.
    fn windows(&self, evidence: &Evidence) -> Vec<(u64, u64)> {
        let (length, count) = (evidence.window.0, evidence.window_min.len() as u64);
        let first = self.allocations[0].start / length;
        let bounds = |n: u64| {
            let to = if n + 1 == count { u64::MAX } else { (first + n + 1) * length };
            ((first + n) * length, to)
        };
        (0..count).map(bounds).collect()
    }
}

/// Checks that the numbers of the evidence agree with the history.
fn check_numbers(history: &History, of: &Evidence) {
    // These numbers are from before the final frees.
    if of.freed_at_end > 0 {
        return;
    }
    let live: Vec<_> = history.live().collect();
    assert_eq!(of.live, live.iter().map(|allocation| allocation.bytes).sum::<u64>());
    assert_eq!((of.live_count, of.created), (live.len() as u64, history.allocations.len() as u64));
    let lifetimes = history.lifetimes();
    assert_eq!(of.freed, lifetimes.len() as u64);
    let windows = history.windows(of);
    let levels = || windows.iter().map(|(from, to)| history.levels(*from, *to));
    let lows: Vec<_> = levels().map(|levels| levels.into_iter().min().unwrap()).collect();
    assert_eq!(of.window_min, lows);
    assert_eq!(of.peak, levels().flatten().max().unwrap());
    let late = || levels().skip(windows.len() / 2).flatten();
    assert_eq!(of.level, (late().min().unwrap(), late().max().unwrap()));
    // Half were freed within the median, all within the maximum.
    if let (Some(half), Some(all)) = (of.median_life, of.longest_life) {
        let within = lifetimes.iter().filter(|lifetime| **lifetime <= half.0).count();
        assert!(within * 2 >= lifetimes.len(), "{within} of {} within {half:?}", lifetimes.len());
        assert_eq!(lifetimes.last(), Some(&all.0));
    }
    let ages: Vec<_> =
        live.iter().map(|allocation| (history.now - allocation.start, allocation.bytes)).collect();
    if let (Some(half), Some(oldest)) = (of.median_age, of.oldest) {
        let older = ages.iter().filter(|(age, _)| *age >= half.0).count();
        assert!(older * 2 >= ages.len(), "{older} of {} older than {half:?}", ages.len());
        assert!(ages.iter().all(|(age, _)| *age <= oldest.0), "{ages:?} {oldest:?}");
    }
    // At least that much is older than nearly all freed allocations became.
    let due = match lifetimes.len() {
        0 => None,
        1..20 => lifetimes.last(),
        count => lifetimes.get((count * 99).div_ceil(100) - 1),
    };
    let overdue = due.map_or(0, |due| {
        ages.iter().filter(|(age, _)| age >= due).map(|(_, bytes)| bytes).sum::<u64>()
    });
    assert!(of.overdue <= overdue, "{} > {overdue}", of.overdue);
}

/// Checks that the text of a verdict agrees with its evidence.
fn check_words(site: &SiteVerdict) {
    let of = &site.evidence;
    let text = verdict::summary(site.resource, site.verdict, of);
    let contains = |phrase: &str| text.contains(phrase);
    let count = if of.live_count == 1 { "allocation" } else { "allocations" };
    let held = format!("{} live in {} {count}", Bytes(of.live), of.live_count);
    assert!(text.starts_with(&held), "{text}");
    let half = of.window_min[of.window_min.len() / 2];
    let late = of.window_min.iter().rev().take(of.window_min.len() / 4 + 1);
    if contains("growing") {
        assert!(of.growth_per_hour > 0 && late.max() > Some(&half), "{text}: {of:?}");
    }
    if contains("grew from") {
        assert!(of.window_min.last() > Some(&half), "{text}: {of:?}");
        assert!(contains(&format!(
            "grew from {} to {}",
            Bytes(half),
            Bytes(*of.window_min.last().unwrap())
        )));
    }
    if contains("second half") && site.verdict != Verdict::RampUp {
        let [low, high] = [of.level.0, of.level.1].map(Bytes);
        let between = format!("{low} to {high} in the second half");
        let level = format!("stable at {low} in the second half");
        assert!(contains(&between) || contains(&level), "{text}: {of:?}");
    }
    if contains("down from") {
        assert!(contains(&format!("a peak of {}", Bytes(of.peak))) && of.live <= of.peak / 2);
    }
    if contains("rose and fell") {
        assert!(contains(&format!("at least {} times", of.returns)) && of.returns >= 3);
    }
    let all: Vec<_> = [text].into_iter().chain(verdict::evidence(site)).collect();
    for line in all.iter().filter(|line| line.contains("freed")) {
        let freed = format!("{} of {} allocations freed", of.freed, of.created);
        let at_end =
            ["at exit", "being freed", "since it grew"].iter().any(|text| line.contains(text));
        let at_exit = of.freed_at_end > 0 && at_end;
        let explained = at_exit || line.contains("older than 99 %");
        assert!(line.contains(&freed) || explained, "{line}: {of:?}");
    }
    let advice = engine::leak::advise([(site.resource, of, &[][..])], 1).text;
    let never = of.freed == 0 && of.freed_at_end == 0;
    assert_eq!(advice.starts_with("never freed"), never, "{advice}");
}

/// Returns how often the level rose and fell back, by the thresholds of the rule.
fn returns(history: &History, of: &Evidence) -> u32 {
    let windows = history.windows(of);
    let rest = windows.iter().skip(1).flat_map(|(from, to)| history.levels(*from, *to));
    let rest: Vec<_> = rest.collect();
    let (lowest, peak) = (rest.iter().min().unwrap(), rest.iter().max().unwrap());
    let quarter = (peak - lowest) / 4;
    let (mut count, mut is_up) = (0, false);
    for level in &rest {
        is_up |= *level >= lowest + 2 * quarter.max(1);
        if is_up && *level <= lowest + quarter {
            (count, is_up) = (count + 1, false);
        }
    }
    count
}

fn check_anomalies(history: &History, snapshot: &Snapshot) {
    for anomaly in &snapshot.anomalies {
        let text = verdict::anomaly_summary(anomaly);
        let before =
            |at: u64| history.allocations.iter().filter(move |allocation| allocation.start < at);
        match anomaly.details {
            AnomalyKind::Size { bytes, baseline, of, of_site, live, .. } => {
                let at = anomaly.at.0 - START;
                let own =
                    history.allocations.iter().find(|allocation| allocation.start == at).unwrap();
                assert_eq!((own.bytes, of), (bytes.0, before(at).count() as u64), "{text}");
                assert_eq!(live, own.ended.is_none());
                assert_eq!(text.contains("no longer live"), !live, "{text}");
                let within =
                    before(at).filter(|allocation| allocation.bytes <= baseline.0).count() as u64;
                assert!(within * 10 >= of * 9 && (!of_site || within == of), "{text}: {within}");
                assert_eq!(text.contains("(maximum of"), of_site, "{text}");
            }
            AnomalyKind::Growth { bytes, within, .. } => {
                let to = anomaly.at.0 - START;
                let from = to.saturating_sub(within.0);
                let allocated = history
                    .allocations
                    .iter()
                    .filter(|allocation| (from..to).contains(&allocation.start));
                assert!(
                    allocated.map(|allocation| allocation.bytes).sum::<u64>() >= bytes.0,
                    "{text}"
                );
            }
        }
    }
}

proptest! {
    // The first free of a site that grew, at the end of the trace.
    #![proptest_config(random::config_after(
        random::CASES,
        &["cc 003cad4638c820f820fa7ba11f9811a54d3fe8b4be34e9a2e885fb3bcebd1b7b"]
    ))]

    #[test]
    fn printed_claims_hold_for_random_histories(phases in vec(phase(), 1..8), exits in any::<bool>()) {
        let history = History::of(&phases);
        let snapshot = history.snapshot(exits);
        let site = snapshot.suspects.iter().chain(&snapshot.other_verdicts);
        let site: Vec<_> = site.collect();
        let [site] = &site[..] else { panic!("{site:?}") };
        check_numbers(&history, &site.evidence);
        check_words(site);
        if site.verdict == Verdict::Periodic {
            prop_assert!(returns(&history, &site.evidence) >= site.evidence.returns);
        }
        check_anomalies(&history, &snapshot);
    }
}

/// Every verdict occurs, so that the text of each is checked.
#[test]
fn random_histories_reach_every_verdict() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    let config = ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() };
    let mut runner = TestRunner::new(config);
    let mut missing = Verdict::ALL.to_vec();
    for _ in 0..2000 {
        let phases = vec(phase(), 1..8).new_tree(&mut runner).unwrap().current();
        let history = History::of(&phases);
        let snapshot = history.snapshot(true);
        let site = snapshot.suspects.first().or(snapshot.other_verdicts.first()).unwrap();
        missing.retain(|verdict| *verdict != site.verdict);
        if missing.is_empty() {
            return;
        }
    }
    panic!("never seen: {missing:?}");
}
