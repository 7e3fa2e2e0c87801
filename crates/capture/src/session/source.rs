//! Sources of the records of a session: probes in the kernel, or a library in the processes.

use std::time::{Duration, Instant};

use engine::model::event::{Allocate, Event, EventKind};
use engine::model::ids::Pid;
use engine::model::units::Timestamp;
use libbpf_rs::{Link, MapHandle};

use super::attach::allocators::AllocatorAttachments;
use super::attach::drivers::{DriverAttachments, Notice};
use super::captures::LeftCaptures;
use super::load::bpf_object::LoadedObject;
use super::processes::{Process, ProcessTable};
use super::read::counters::ProbeCounters;
use super::read::record_ring::RecordRing;
use super::read::unknown_calls::UnknownCalls;
use super::read::waiter::Waiter;
use super::trace_mode::WireMode;
use super::{RESCAN_INTERVAL, StackMode};
use crate::clock;
use crate::decode::{ExecGeneration, Record};
use crate::error::Error;
use crate::files::Mapping;
use crate::in_process::Waker;
use crate::stacks::StackRecord;

/// Wait for a record that was written, or is still being written, when the reader went to sleep.
pub(super) const LATE_RECORD_WAIT: Duration = Duration::from_millis(1);

/// A source of records. The records of one process are in the order of the returns of its calls.
pub(crate) trait Source {
    /// Waits for records, at most this long.
    fn wait(&mut self, timeout: Duration);

    /// Scans for new processes and libraries.
    fn scan(&mut self, processes: &mut ProcessTable) -> Result<(), Error>;

    /// Returns the position up to which records were written.
    fn written(&mut self) -> u64;

    /// Returns whether all records up to a position were read.
    fn has_read(&self, position: u64) -> bool;

    /// Returns the next batch of records.
    fn drain_records(&mut self) -> Result<Vec<Record>, Error>;

    /// Returns the stacks that were read with the last batch of records.
    fn drain_stacks(&mut self) -> Vec<StackRecord>;

    /// Returns the number of records since the last call that could not be decoded.
    fn drain_decode_errors(&mut self) -> u64;

    /// Returns the number of forks, execs and exits since the last call that were not recorded.
    fn drain_skipped(&mut self) -> u64 {
        0
    }

    /// Returns whether the last batch had every available record.
    fn is_drained(&self) -> bool;

    /// Returns the number of batches after which every record that is available now was read.
    fn batches(&self) -> usize;

    /// Returns the number of lost records so far. Adds the calls of unknown functions to their
    /// programs.
    fn poll_counters(&mut self, now: Timestamp, processes: &mut ProcessTable)
    -> Result<u64, Error>;

    /// Returns executable mappings of files since the last call.
    fn drain_mmaps(&mut self) -> Vec<Mapping> {
        Vec::new()
    }

    /// Returns processes that mapped a driver since the last call.
    fn drain_new_processes(&mut self) -> Vec<Pid> {
        Vec::new()
    }

    /// Observes a call of a process.
    fn observe(&mut self, _event: &Event, _process: &mut Process) {}

    /// Handles a new process that was searched for an interpreter.
    fn process_examined(&mut self, _pid: Pid, _exec_gen: ExecGeneration) {}

    /// Returns whether blocks of allocators are tracked, for processes where that has changed.
    fn drain_allocator_events(
        &mut self,
        now: Timestamp,
        processes: &mut ProcessTable,
    ) -> Vec<Event>;

    /// Returns the notices since the last call.
    fn drain_notices(&mut self) -> Vec<Notice>;

    /// Limits the stack mode from now on.
    fn limit_stacks(&mut self, max: StackMode);

    /// Returns what ends [`Source::wait`] early.
    fn waker(&self) -> Waker;
}

/// Probes in the kernel.
pub(crate) struct Probes {
    pub(super) drivers: DriverAttachments,
    pub(super) ring: RecordRing,
    pub(super) allocators: Option<AllocatorAttachments>,
    pub(super) left_captures: LeftCaptures,
    pub(super) counters: MapHandle,
    pub(super) unknown_calls: UnknownCalls,
    pub(super) last_scan: Instant,
    /// Forks, execs and exits that were not recorded.
    pub(super) skipped: u64,
    pub(super) waiter: Waiter,
    pub(super) _lifecycle_links: Vec<Link>,
    pub(super) loaded: LoadedObject,
}

impl Source for Probes {
    fn wait(&mut self, timeout: Duration) {
        if !self.ring.is_drained() {
            return;
        }
        let (config, is_busy) = (&self.loaded.runtime_config, self.ring.is_busy());
        config.set_reader_waits(!is_busy);
        // A record that was written before the probes knew that the reader sleeps does not wake it.
        let is_late = !is_busy && self.ring.has_unread();
        let timeout = if is_late { timeout.min(LATE_RECORD_WAIT) } else { timeout };
        self.waiter.wait(timeout, is_busy, || self.drivers.check_mmaps());
        config.set_reader_waits(false);
    }

    fn scan(&mut self, processes: &mut ProcessTable) -> Result<(), Error> {
        let rescan = self.last_scan.elapsed() >= RESCAN_INTERVAL;
        if rescan {
            self.last_scan = Instant::now();
        }
        if self.drivers.scan(&self.loaded, rescan, processes)? {
            self.loaded.runtime_config.set_attached_at(clock::boot());
        }
        let (mapped, all) = self.drivers.drain_allocator_mmaps();
        if let Some(allocators) = &mut self.allocators {
            allocators.scan(&self.loaded, &mapped, rescan || all, processes);
        }
        Ok(())
    }

    fn written(&mut self) -> u64 {
        self.ring.records.written()
    }

    fn has_read(&self, position: u64) -> bool {
        // A record that is still being written blocks those after it, so an unfilled batch does not
        // imply this.
        self.ring.records.position() >= position
    }

    fn drain_records(&mut self) -> Result<Vec<Record>, Error> {
        self.ring.drain_records()
    }

    fn drain_stacks(&mut self) -> Vec<StackRecord> {
        self.ring.drain_stacks()
    }

    fn drain_decode_errors(&mut self) -> u64 {
        self.ring.drain_decode_errors()
    }

    fn drain_skipped(&mut self) -> u64 {
        let skipped = self.loaded.skipped_runs();
        skipped.saturating_sub(std::mem::replace(&mut self.skipped, skipped))
    }

    fn is_drained(&self) -> bool {
        self.ring.is_drained()
    }

    fn batches(&self) -> usize {
        self.ring.batches()
    }

    fn poll_counters(
        &mut self,
        now: Timestamp,
        processes: &mut ProcessTable,
    ) -> Result<u64, Error> {
        let counters = ProbeCounters::from_map(&self.counters)?;
        self.left_captures.delete(counters.graphs)?;
        let functions = self.drivers.unknown_functions();
        self.unknown_calls.poll(counters.unknown, functions, now, processes)?;
        Ok(counters.lost)
    }

    fn drain_mmaps(&mut self) -> Vec<Mapping> {
        self.drivers.drain_mmaps()
    }

    fn drain_new_processes(&mut self) -> Vec<Pid> {
        self.drivers.drain_new_processes()
    }

    fn observe(&mut self, event: &Event, process: &mut Process) {
        if let EventKind::Allocate(Allocate { context: None, device: None, .. }) = event.kind {
            self.drivers.request_context_discovery(event.pid, process);
        }
        if let Some(allocators) = &mut self.allocators {
            allocators.observe(event, process);
        }
    }

    fn drain_allocator_events(
        &mut self,
        now: Timestamp,
        processes: &mut ProcessTable,
    ) -> Vec<Event> {
        self.allocators.as_mut().map(|all| all.drain_events(now, processes)).unwrap_or_default()
    }

    fn drain_notices(&mut self) -> Vec<Notice> {
        let mut notices = self.drivers.drain_notices();
        notices.extend(
            self.allocators.as_mut().map(AllocatorAttachments::drain_notices).unwrap_or_default(),
        );
        notices
    }

    fn limit_stacks(&mut self, max: StackMode) {
        let steps = self.loaded.config.stacks.wire().saturating_sub(max.wire());
        self.loaded.runtime_config.set_stack_mode_reduction(steps);
    }

    fn waker(&self) -> Waker {
        Waker::Event(self.waiter.waker())
    }
}
