//! A small notation for traces, one event a line:
//!
//! ```text
//! 7 process 100 uid=1000 name=python before     # pid 7, started at 100, ran before the trace
//! 7.8 name loader                               # thread 8 of process 7
//! 7.8 alloc 0x10 8M device C1 gpu0 site3        # key, size, kind; the rest is optional
//! 7.9 free 0x10
//! 7.9 fail f5 2 device 1G C1 gpu0               # function, code; what was asked
//! 7.8 ctx create C1 gpu0                        # destroy C1, retain C1 gpu0, release gpu0, …
//! 7.8 exit                                      # the thread; `7 exit`, `7 exec`: the process
//! 7 lost allocations=1 bytes=8M frees=2 failures=1 other=1
//! ```
//!
//! Keys are addresses; `h0x10` is a handle, `a0x10` an array, `p0x10` a pool, `e0x10` external
//! memory. Line n happens at 10·n, entered 5 earlier; `@50-60` at the end of a line says otherwise.

use engine::event::{Allocate, ContextChange, Event, Failed, Free, Lost, ProcessFacts, What};
use engine::ids::{ContextId, DeviceId, FunctionId, Key, Pid, SiteId, Space, Tid};
use engine::kind::Kind;
use engine::ledger::Ledger;
use engine::units::Moment;

/// The ledger after a trace.
pub(crate) fn ledger(trace: &str) -> Ledger {
    let mut ledger = Ledger::new();
    for event in events(trace) {
        ledger.apply(&event);
    }
    ledger
}

/// The events of a trace.
pub(crate) fn events(trace: &str) -> Vec<Event> {
    let text = |line: &str| line.split('#').next().unwrap_or("").trim().to_owned();
    let lines = trace.lines().map(text).filter(|line| !line.is_empty());
    lines.zip(1..).map(|(line, number)| event(&line, number)).collect()
}

fn event(line: &str, number: u64) -> Event {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    let (mut entered, mut at) = (number * 10 - 5, number * 10);
    if let Some(times) = words.last().and_then(|word| word.strip_prefix('@')) {
        let (from, to) = times.split_once('-').unwrap_or((times, times));
        (entered, at) = (decimal(from), decimal(to));
        words.pop();
    }
    let (pid, tid) = words[0].split_once('.').unwrap_or((words[0], words[0]));
    let of_thread = words[0].contains('.');
    Event {
        pid: Pid(decimal(pid) as u32),
        tid: Tid(decimal(tid) as u32),
        entered: Moment(entered),
        at: Moment(at),
        what: what(&words[1..], of_thread),
    }
}

fn what(words: &[&str], of_thread: bool) -> What {
    let rest = &words[1..];
    match words[0] {
        "process" => What::Process(ProcessFacts {
            start: decimal(rest[0]),
            uid: value(rest, "uid").map_or(0, |uid| decimal(uid) as u32),
            name: value(rest, "name").unwrap_or("").into(),
            before_trace: rest.contains(&"before"),
        }),
        "name" => What::ThreadName(rest[0].into()),
        "exec" => What::Exec,
        "exit" if of_thread => What::ThreadExit,
        "exit" => What::Exit,
        "alloc" => What::Allocate(Allocate {
            key: key(rest[0]),
            bytes: size(rest[1]),
            kind: kind(rest[2]),
            context: find(rest, "C").map(ContextId),
            device: find(rest, "gpu").map(|number| DeviceId(number as u16)),
            site: find(rest, "site").map(|number| SiteId(number as u32)),
        }),
        "free" => What::Free(Free { key: key(rest[0]) }),
        "fail" => What::Failed(Failed {
            function: FunctionId(find(rest, "f").unwrap() as u16),
            code: rest[1].parse().unwrap(),
            asked: kinds().find_map(|kind| {
                let position = rest.iter().position(|word| *word == kind.name())?;
                Some((kind, size(rest[position + 1])))
            }),
            context: find(rest, "C").map(ContextId),
            device: find(rest, "gpu").map(|number| DeviceId(number as u16)),
        }),
        "ctx" => What::Context(change(rest)),
        "lost" => What::Lost(Lost {
            allocations: value(rest, "allocations").map_or(0, decimal),
            allocated_bytes: value(rest, "bytes").map_or(0, size),
            frees: value(rest, "frees").map_or(0, decimal),
            failures: value(rest, "failures").map_or(0, decimal),
            other: value(rest, "other").map_or(0, decimal),
        }),
        other => panic!("no such event: {other}"),
    }
}

fn change(words: &[&str]) -> ContextChange {
    let context = || ContextId(find(words, "C").unwrap());
    let device = || DeviceId(find(words, "gpu").unwrap() as u16);
    match words[0] {
        "create" => ContextChange::Created { context: context(), device: device() },
        "destroy" => ContextChange::Destroyed { context: context() },
        "retain" => ContextChange::PrimaryRetained { context: context(), device: device() },
        "release" => ContextChange::PrimaryReleased { device: device() },
        "reset" => ContextChange::PrimaryReset { device: device() },
        "learn" => ContextChange::Learned { context: context(), device: device() },
        other => panic!("no such change: {other}"),
    }
}

fn kinds() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter()
}

fn kind(word: &str) -> Kind {
    kinds().find(|kind| kind.name() == word).unwrap()
}

fn key(word: &str) -> Key {
    let (space, number) = word.split_once("0x").unwrap();
    let space = match space {
        "" => Space::Address,
        "h" => Space::Handle,
        "a" => Space::Array,
        "p" => Space::Pool,
        "e" => Space::External,
        other => panic!("no such space: {other}"),
    };
    Key { space, value: u64::from_str_radix(number, 16).unwrap() }
}

/// The number of the word that is `prefix` and digits.
fn find(words: &[&str], prefix: &str) -> Option<u64> {
    words.iter().find_map(|word| word.strip_prefix(prefix)?.parse().ok())
}

/// The text after `name=`.
fn value<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

fn size(word: &str) -> u64 {
    let units = [("K", 10), ("M", 20), ("G", 30)];
    let scaled = units
        .iter()
        .find_map(|(unit, shift)| word.strip_suffix(unit).map(|number| decimal(number) << shift));
    scaled.unwrap_or_else(|| decimal(word))
}

fn decimal(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("not a number: {word}"))
}
