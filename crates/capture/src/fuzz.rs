//! Fuzz targets of this crate: each reads one input and checks what must hold for any input. The
//! package `fuzz/` calls them; the test here replays inputs that failed before.
#![allow(clippy::panic, clippy::unwrap_used, missing_docs, reason = "test code")]

#[path = "../../../fuzz/src/live_set.rs"]
mod live_set;

use engine::model::blocks::Allocator;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use engine::ledger::Ledger;
use engine::model::event::{Event, EventKind, ProcessInfo};
use engine::model::ids::Pid;
use engine::model::units::Timestamp;
use engine::snapshot::SnapshotOptions;

use crate::decode::{Handles, ProcessRecord, Record, RecordBody};
use crate::libraries::{AllocatorLibrary, DriverLibrary};
use crate::stacks::native::fuzz as native;
use crate::stacks::python::fuzz as python_stacks;
use crate::wire::{self, Head};
use live_set::LiveSet;

pub use crate::hooks::HOOKS;

/// The rest of an input.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.0.split_off_first().copied()
    }

    pub(crate) fn short(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes([self.byte()?, self.byte()?]))
    }

    /// Takes at most `length` bytes.
    pub(crate) fn take(&mut self, length: usize) -> &'a [u8] {
        self.0.split_off(..length.min(self.0.len())).unwrap_or_default()
    }
}

/// Size of a record of a kind, without a variable tail; `None` if there is no such kind.
#[must_use]
pub const fn record_bytes(kind: u16) -> Option<usize> {
    Some(match kind as u32 {
        wire::VS_CALL => size_of::<wire::Call>(),
        wire::VS_CALL_DESCRIPTOR => size_of::<wire::CallDescriptor>(),
        wire::VS_PROCESS => size_of::<wire::Process>(),
        wire::VS_THREAD => size_of::<wire::ThreadName>(),
        wire::VS_EXEC | wire::VS_EXIT | wire::VS_THREAD_EXIT => size_of::<Head>(),
        wire::VS_CONTEXT_DEVICE => size_of::<wire::ContextDevice>(),
        wire::VS_KERNEL_NAME => size_of::<wire::KernelName>(),
        wire::VS_STACK => size_of::<wire::Stack>(),
        wire::VS_ADDRESSES => size_of::<wire::Addresses>(),
        // Followed by a variable number of frames.
        wire::VS_PYTHON => size_of::<Head>() + 16,
        wire::VS_BLOCK => size_of::<wire::Block>(),
        _ => return None,
    })
}

/// Decodes records, each after its length as a `u16`, and applies their events to a ledger. Returns
/// whether a record was decoded.
pub fn records(bytes: &[u8]) -> bool {
    let mut input = Input(bytes);
    let mut ledger = Ledger::with_change_log().with_activity();
    let (mut live, mut changes) = (LiveSet::default(), vec![]);
    let mut processes: HashMap<Pid, Handles> = HashMap::new();
    let mut events = Vec::new();
    let mut decoded = false;
    while let Some(length) = input.short() {
        let record = input.take(length.into());
        let found = Record::parse(record);
        assert!(record.len() >= size_of::<Head>() || found.is_err());
        decoded |= found.is_ok() || crate::stacks::read(record).is_some();
        if let Ok(record) = found {
            let handles = processes.entry(record.pid).or_default();
            record.events(handles, true, &mut |_| None, &mut events);
            events.extend(lifecycle_event(&record));
        }
        for event in events.drain(..) {
            ledger.apply(&event);
            ledger.drain_changes(&mut changes);
            changes.drain(..).for_each(|change| live.apply(&change));
            if matches!(event.kind, EventKind::ThreadName(_) | EventKind::Exit) {
                live.check(&ledger.snapshot(event.time, &SnapshotOptions::default()));
            }
        }
    }
    let end = SnapshotOptions { ended_sites: true, ..SnapshotOptions::default() };
    live.check(&ledger.snapshot(Timestamp(u64::MAX), &end));
    decoded
}

/// Returns the event that a session adds for the announcement or the end of a process.
fn lifecycle_event(record: &Record) -> Option<Event> {
    let kind = match &record.body {
        RecordBody::Process(ProcessRecord { start, uid, name, .. }) => {
            let (start, uid, name) = (*start, *uid, name.clone());
            EventKind::Process(ProcessInfo { start, uid, name, before_trace: false })
        }
        RecordBody::Exec(_) => EventKind::Exec,
        RecordBody::Exit => EventKind::Exit,
        _ => return None,
    };
    Some(record.event(kind))
}

/// Reads a file as a driver, as PyTorch's library and as a Python interpreter. Returns whether it is
/// one of them.
#[must_use]
pub fn elf(bytes: &[u8]) -> bool {
    let path = input_file(bytes);
    let driver = DriverLibrary::open(&path);
    if let Err(error) = &driver {
        assert!(!error.to_string().is_empty());
    }
    let torch = std::fs::File::open(&path)
        .is_ok_and(|file| AllocatorLibrary::of(Allocator::PyTorch, file, &path).is_ok());
    driver.is_ok() || torch || python_stacks::elf(bytes)
}

/// Unwinds and symbolizes the code of a file. Returns whether a place has a name.
#[must_use]
pub fn dwarf(bytes: &[u8]) -> bool {
    native::dwarf(&input_file(bytes))
}

/// Symbolizes stacks of a changed Python interpreter. Returns whether a frame was found.
#[must_use]
pub fn python(bytes: &[u8]) -> bool {
    python_stacks::python(bytes)
}

/// Writes the input to a file, the same one each time.
fn input_file(bytes: &[u8]) -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        std::env::temp_dir().join(format!("vramscope-fuzz-{}", std::process::id()))
    });
    std::fs::write(path, bytes).unwrap();
    path.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_that_failed_before_are_handled() {
        let mut count = 0;
        for (target, run) in [
            ("records", records as fn(&[u8]) -> bool),
            ("elf", elf),
            ("dwarf", dwarf),
            ("python", python),
        ] {
            let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz");
            for file in std::fs::read_dir(dir.join(target)).into_iter().flatten() {
                run(&std::fs::read(file.unwrap().path()).unwrap());
                count += 1;
            }
        }
        std::fs::remove_file(input_file(&[])).unwrap();
        assert!(count > 0);
    }
}
