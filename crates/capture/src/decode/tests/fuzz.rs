//! Decodes records of every kind, row and length with random bytes, and collects the coverage.

use std::collections::BTreeSet;

use engine::model::event::EventKind;

use crate::decode::{Handles, Record, RecordBody};
use crate::hooks::{CallSemantics, HOOKS, Hook};
use crate::stacks::{StackRecord, read};
use crate::wire::{self, Call, Head};

/// Results of calls: success, ordinary failures, and capture errors.
const RESULTS: [i32; 5] = [0, 1, 2, 900, 908];

/// Random bodies of each kind, row, length and result.
const BODIES: usize = 6;

/// Additional ones for a row that gave no event yet: some need a certain attribute or type.
const MORE_BODIES: usize = 20_000;

/// Names of all results of decoding.
pub(super) const DECODED: [&str; 9] = [
    "call",
    "context device",
    "exec",
    "exit",
    "kernel name",
    "process",
    "tensor",
    "thread exit",
    "thread name",
];

/// Names of all events that records can give.
pub(super) const EVENTS: [&str; 15] = [
    "activity",
    "allocate",
    "context",
    "failed",
    "free",
    "graph",
    "limit",
    "lost",
    "object",
    "pool",
    "share",
    "tensor",
    "thread exit",
    "thread name",
    "vmm",
];

/// Coverage of a run.
#[derive(Default)]
pub(super) struct Coverage {
    /// Kinds and lengths of records.
    pub(super) lengths: BTreeSet<(u16, usize)>,
    /// Handles that all records change.
    handles: Handles,
    /// Rows of calls that succeeded and gave an event.
    pub(super) successes: BTreeSet<usize>,
    /// Rows of calls that failed and gave an event.
    pub(super) failures: BTreeSet<usize>,
    pub(super) decoded: BTreeSet<&'static str>,
    pub(super) events: BTreeSet<&'static str>,
    pub(super) stacks: BTreeSet<&'static str>,
}

/// Reads the record kinds from `wire.h`, so that new ones are covered.
pub(super) fn kinds() -> Vec<u16> {
    let header = include_str!("../../bpf/wire.h");
    let (_, list) = header.split_once("enum vs_record_kind {").unwrap();
    let (list, _) = list.split_once('}').unwrap();
    let values = list.lines().filter_map(|line| line.split_once(" = "));
    values.map(|(_, value)| value.split(',').next().unwrap().parse().unwrap()).collect()
}

/// Returns the size of a record of a kind, without a variable tail.
pub(super) fn size(kind: u16) -> usize {
    crate::fuzz::record_bytes(kind).unwrap()
}

/// Random numbers, many of them small, as handles, attributes and types are.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// Returns a random record with this head.
    fn record(&mut self, kind: u16, row: u16, result: i32, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 4);
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(row.to_ne_bytes());
        bytes.extend(result.to_ne_bytes());
        while bytes.len() < length {
            let (value, shape) = (self.next(), self.next());
            let value = match shape >> 30 {
                0 => 0,
                1 => value % 16,
                2 => u32::MAX - value % 2,
                _ => value,
            };
            bytes.extend(value.to_ne_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}

/// Decodes records of every kind, row and length.
pub(super) fn run(seed: u64) -> Coverage {
    let (mut random, mut coverage) = (Random(seed), Coverage::default());
    let mut kinds = kinds();
    let last = *kinds.iter().max().unwrap();
    kinds.extend([0, last + 1, u16::MAX]);
    for kind in kinds {
        let calls = [wire::VS_CALL, wire::VS_CALL_DESCRIPTOR].contains(&u32::from(kind));
        let known = (1..=last).contains(&kind);
        let complete = if known { size(kind) } else { size_of::<Call>() };
        let head = size_of::<Head>();
        let rows = if calls { HOOKS.len() as u16 } else { 3 };
        for row in (0..rows).chain([HOOKS.len() as u16, wire::VS_SELF_TEST as u16, u16::MAX]) {
            for length in [
                0,
                4,
                head - 1,
                head,
                complete - 1,
                complete,
                complete + 1,
                complete + 8,
                complete + 400,
            ] {
                for result in RESULTS {
                    for _ in 0..BODIES {
                        let bytes = random.record(kind, row, result, length);
                        coverage.record(kind, row.into(), result, &bytes);
                    }
                }
            }
        }
    }
    coverage.retry_missing(&mut random);
    coverage
}

impl Coverage {
    /// Tries rows again that gave no event yet.
    fn retry_missing(&mut self, random: &mut Random) {
        for (row, hook) in HOOKS.iter().enumerate() {
            let mut attempts = if is_handled_by_probes(hook) { 0 } else { MORE_BODIES };
            while attempts > 0 && !self.successes.contains(&row) {
                for kind in [wire::VS_CALL as u16, wire::VS_CALL_DESCRIPTOR as u16] {
                    let bytes = random.record(kind, row as u16, 0, size(kind));
                    self.record(kind, row, 0, &bytes);
                }
                attempts -= 1;
            }
        }
    }

    fn record(&mut self, kind: u16, row: usize, result: i32, bytes: &[u8]) {
        self.lengths.insert((kind, bytes.len()));
        let found = Record::parse(bytes);
        let is_call = [wire::VS_CALL, wire::VS_CALL_DESCRIPTOR].contains(&u32::from(kind));
        let is_valid = bytes.len() >= size_of::<Head>() && (!is_call || row < HOOKS.len());
        assert!(is_valid || found.is_err(), "{bytes:?}");
        if let Ok(record) = found {
            self.decoded.insert(body_name(&record.body));
            let mut events = Vec::new();
            record.events(&mut self.handles, true, &mut |_| None, &mut events);
            let binds = matches!(&record.body, RecordBody::Call(call) if call.has_effect());
            let events: Vec<_> = events.iter().map(|event| event_name(&event.kind)).collect();
            let rows = if result == 0 { &mut self.successes } else { &mut self.failures };
            // Any call whose results cannot be read is a loss.
            if is_call && (binds || events.iter().any(|event| *event != "lost")) {
                rows.insert(row);
            }
            self.events.extend(events);
        }
        self.stacks.extend(read(bytes).map(|stack| match stack {
            StackRecord::Copy { .. } => "copy",
            StackRecord::Addresses { .. } => "addresses",
            StackRecord::Python { .. } => "python",
        }));
    }
}

fn body_name(body: &RecordBody) -> &'static str {
    match body {
        RecordBody::Call(_) => "call",
        RecordBody::Block(_) => "tensor",
        RecordBody::Process(_) => "process",
        RecordBody::ThreadName(_) => "thread name",
        RecordBody::Exec(_) => "exec",
        RecordBody::Exit => "exit",
        RecordBody::ThreadExit => "thread exit",
        RecordBody::ContextDevice(..) => "context device",
        RecordBody::KernelName(_) => "kernel name",
        RecordBody::Lost(_) => "lost",
    }
}

fn event_name(kind: &EventKind) -> &'static str {
    match kind {
        EventKind::Allocate(_) => "allocate",
        EventKind::Context(_) => "context",
        EventKind::Failed(_) => "failed",
        EventKind::Free(_) => "free",
        EventKind::Graph(_) => "graph",
        EventKind::Limit { .. } => "limit",
        EventKind::Lost(_) => "lost",
        EventKind::Object(_) => "object",
        EventKind::Pool(_) => "pool",
        EventKind::Share(_) => "share",
        EventKind::Block(_) => "tensor",
        EventKind::ThreadExit => "thread exit",
        EventKind::ThreadName(_) => "thread name",
        EventKind::Vmm(_) => "vmm",
        EventKind::Activity(_) => "activity",
        other => panic!("no record gives {other:?}"),
    }
}

/// Returns whether a successful call gives no event: the probes track or count it.
pub(super) const fn is_handled_by_probes(hook: &Hook) -> bool {
    // The record only announces the process.
    let announces = matches!(hook.semantics, CallSemantics::Initialize);
    announces
        || matches!(
            hook.to_wire(true).action as u32,
            wire::VS_ACTION_CONTEXT_SET
                | wire::VS_ACTION_CONTEXT_PUSH
                | wire::VS_ACTION_CONTEXT_POP
                | wire::VS_ACTION_CONTEXT_GET
                | wire::VS_ACTION_CONTEXT_DEVICE
                | wire::VS_ACTION_NAME
                | wire::VS_ACTION_GET_NAME
                | wire::VS_ACTION_LAUNCH
                | wire::VS_ACTION_LAUNCH_CONFIG
                | wire::VS_ACTION_LAUNCH_LIST
                | wire::VS_ACTION_LAUNCH_UNSHAPED
                | wire::VS_ACTION_COPY
        )
}
