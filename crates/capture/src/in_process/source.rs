//! Reads the records of processes that load the in-process library.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use engine::model::blocks::BlockTracking;
use engine::model::event::{Event, EventKind, LostDelta};
use engine::model::ids::{Pid, Tid};
use engine::model::units::Timestamp;

use super::area::{Control, RowState, START_FAILURES, StartFailure, mappings_file};
use super::collector_dir::CollectorDir;
use super::open_area::Area;
use super::process_end::ProcessEnd;
use super::requests::Waker;
use super::tables::Tables;
use crate::clock;
use crate::decode::{ExecGeneration, Record, RecordBody};
use crate::error::Error;
use crate::files::{Mapping, parse};
use crate::hooks::HOOKS;
use crate::libraries::is_driver_name;
use crate::session::processes::ProcessTable;
use crate::session::trace_mode::WireMode;
use crate::session::{Notice, SessionOptions, Source, StackMode, UnknownCalls, UnknownFunctions};
use crate::stacks::{StackRecord, read};

/// Maximum bytes of records per batch.
const BATCH_BYTES: usize = 1 << 20;
/// Maximum wait: processes wake the collector only if a ring fills.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum wait after a large batch.
const SHORT_WAIT: Duration = Duration::from_millis(1);
/// Size from which a batch is large.
const LARGE_BATCH_BYTES: usize = 128 << 10;

/// The processes that share memory with this one.
pub(crate) struct InProcess {
    dir: CollectorDir,
    control: &'static Control,
    areas: Tables,
    stacks: Vec<StackRecord>,
    decode_errors: u64,
    /// The last batch left records in a ring.
    has_more: bool,
    /// Size of the last batch.
    last_bytes: usize,
    /// Number of opened areas.
    opened: u32,
    /// Position of the records; see [`Source::written`].
    position: u64,
    /// Start failures that were already reported.
    failures: [u32; START_FAILURES],
    /// Processes that are not traced and were not reported as lost yet.
    untraced: u64,
    unknown_calls: UnknownCalls,
    unknown_functions: UnknownFunctions,
    notices: Vec<Notice>,
    /// Executable mappings of new processes.
    mmaps: Vec<Mapping>,
    batches: usize,
    /// The configured `enum vs_stacks`.
    stack_mode: u32,
}

impl InProcess {
    pub(crate) fn start(options: &SessionOptions, dir: CollectorDir) -> Result<Self, Error> {
        let control = dir.open(options).map_err(Error::SharedMemory)?;
        let areas = Tables::default();
        Ok(Self {
            dir,
            control,
            unknown_calls: UnknownCalls::with_table(areas.unknown_calls()),
            unknown_functions: UnknownFunctions::default(),
            areas,
            stacks: Vec::new(),
            decode_errors: 0,
            has_more: false,
            last_bytes: 0,
            opened: 0,
            position: 0,
            failures: [0; START_FAILURES],
            untraced: 0,
            notices: Vec::new(),
            mmaps: Vec::new(),
            batches: options.ring_bytes as usize / BATCH_BYTES + 2,
            stack_mode: options.stacks.wire(),
        })
    }

    /// Sleeps until a process wakes this one or the time has passed.
    fn sleep(&self, timeout: Duration) {
        let control = self.control;
        let wakes = control.wakes.load(Ordering::Acquire);
        control.is_waiting.store(1, Ordering::Release);
        let time = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // An interrupted wait just ends early.
        // SAFETY: the word is in the mapped control file, and the time in this frame.
        unsafe {
            let word = (&raw const control.wakes).cast::<u32>();
            libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, wakes, &raw const time);
        }
        control.is_waiting.store(0, Ordering::Relaxed);
    }

    pub(crate) fn tables(&self) -> Tables {
        self.areas.clone()
    }

    /// Opens complete areas and removes their files: nothing is left behind if this program is
    /// killed.
    fn open_areas(&mut self) {
        if self.control.ready.load(Ordering::Acquire) == self.opened {
            return;
        }
        let Ok(files) = fs::read_dir(self.dir.path()) else { return };
        let number = |file: fs::DirEntry| file.file_name().to_str()?.parse::<u32>().ok();
        let mut numbers: Vec<u32> = files.flatten().filter_map(number).collect();
        numbers.sort_unstable();
        for number in numbers {
            let path = self.dir.path().join(number.to_string());
            let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else { continue };
            let mapping = format!("{} (deleted)", path.display());
            match Area::open(file, self.control.sizes, mapping) {
                Ok(None) => {}
                Ok(Some(mut area)) => {
                    let _ = fs::remove_file(&path);
                    let mappings = self.dir.path().join(mappings_file(number));
                    let text = fs::read(&mappings).unwrap_or_default();
                    let _ = fs::remove_file(&mappings);
                    let is_code = |executable, path: &Path| executable && path.is_absolute();
                    self.mmaps.extend(parse(area.pid, &text, is_code));
                    self.opened = self.opened.wrapping_add(1);
                    self.notices.push(wrapped_notice(&area));
                    self.number_unknown(&mut area);
                    self.areas.lock().open.push(area);
                }
                Err(error) => {
                    let _ = fs::remove_file(&path);
                    self.opened = self.opened.wrapping_add(1);
                    self.notices.push(Notice::NotAttached { reason: error.to_string() });
                }
            }
        }
    }

    /// Numbers the driver's functions that the hook table does not have, and reports new ones.
    fn number_unknown(&mut self, area: &mut Area) {
        let unknown = Area::functions(area.header()).skip(HOOKS.len());
        let names: Vec<Box<str>> = unknown.map(|(_, name)| name).collect();
        let before = self.unknown_functions.len();
        area.unknown = names.iter().map_while(|name| self.unknown_functions.number(name)).collect();
        if self.unknown_functions.len() > before {
            let own =
                self.mmaps.iter().find(|one| one.pid == area.pid && is_driver_name(&one.path));
            let path = own.map_or_else(|| "libcuda.so.1".into(), |driver| driver.path.clone());
            self.notices.push(Notice::UnknownFunctions { path, functions: names });
        }
    }

    /// Reports the processes that could not be traced at all.
    fn read_failures(&mut self) {
        let reasons = [
            (
                StartFailure::OtherBuild,
                "it loaded a library of another build of vramscope; was vramscope replaced meanwhile?",
            ),
            (StartFailure::NoArea, "no shared memory for its records"),
            (StartFailure::NoDriver, "its CUDA driver was not found among its libraries"),
            (StartFailure::NoSpaceNearby, "no free addresses near its CUDA driver"),
            (StartFailure::Protected, "the code of its CUDA driver cannot be made writable"),
        ];
        for (failure, reason) in reasons {
            let count = self.control.failures[failure as usize].load(Ordering::Relaxed);
            let before = std::mem::replace(&mut self.failures[failure as usize], count);
            if count > before {
                self.untraced += u64::from(count - before);
                let reason = format!("a process is not traced: {reason}");
                self.notices.push(Notice::NotAttached { reason });
            }
        }
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.control.is_closed.store(1, Ordering::Release);
    }
}

/// Returns the functions of a process that could not be wrapped.
fn missing(area: &Area) -> Vec<Box<str>> {
    let header = area.header();
    let is_missing = |function: usize| {
        let state = header.rows[function].load(Ordering::Acquire);
        state == RowState::UnknownPrologue as u8 || state == RowState::Foreign as u8
    };
    let functions = Area::functions(header);
    functions.filter(|(function, _)| is_missing(*function)).map(|(_, name)| name).collect()
}

pub(super) fn is_wrapped(state: &AtomicU8) -> bool {
    state.load(Ordering::Acquire) == RowState::Wrapped as u8
}

fn wrapped_notice(area: &Area) -> Notice {
    let states = area.header().rows.iter().take(HOOKS.len());
    let functions = states.filter(|state| is_wrapped(state)).count();
    Notice::Wrapped { pid: area.pid, functions, missing: missing(area) }
}

/// Returns a loss for functions that are not wrapped: values of the process are not exact.
fn missing_loss(area: &Area) -> Option<Record> {
    let missing = missing(area).len();
    (missing > 0).then(|| loss_of(area, missing))
}

/// Returns one loss per function whose calls are not recorded.
fn loss_of(area: &Area, functions: usize) -> Record {
    let lost = LostDelta { other: functions as u64, ..LostDelta::default() };
    record(area, RecordBody::Lost(lost))
}

fn record(area: &Area, body: RecordBody) -> Record {
    Record::at(area.pid, Tid(area.pid.0), clock::monotonic(), body)
}

fn end_record(area: &Area, end: ProcessEnd) -> Record {
    record(
        area,
        match end {
            ProcessEnd::Exit => RecordBody::Exit,
            ProcessEnd::Exec => RecordBody::Exec(ExecGeneration(area.exec_gen.0.wrapping_add(1))),
        },
    )
}

impl Source for InProcess {
    fn wait(&mut self, timeout: Duration) {
        if !self.has_more {
            let is_large = self.last_bytes >= LARGE_BATCH_BYTES;
            self.sleep(timeout.min(if is_large { SHORT_WAIT } else { POLL_INTERVAL }));
        }
    }

    fn scan(&mut self, _processes: &mut ProcessTable) -> Result<(), Error> {
        // Before the counters are read again: those of ended processes were reported.
        self.areas.lock().close_ended();
        self.open_areas();
        self.read_failures();
        Ok(())
    }

    fn written(&mut self) -> u64 {
        self.position += 1;
        let mut areas = self.areas.lock();
        areas.open.iter_mut().for_each(|area| area.mark(self.position));
        self.position
    }

    fn has_read(&self, position: u64) -> bool {
        self.areas.lock().open.iter().all(|area| area.has_read(position))
    }

    fn drain_records(&mut self) -> Result<Vec<Record>, Error> {
        let mut areas = self.areas.lock();
        let mut records = Vec::new();
        let processes = std::mem::take(&mut self.untraced);
        if processes > 0 {
            let lost = RecordBody::Lost(LostDelta { processes, ..LostDelta::default() });
            records.push(Record::at(Pid(0), Tid(0), clock::monotonic(), lost));
        }
        (self.has_more, self.last_bytes) = (false, 0);
        let share = BATCH_BYTES / areas.open.len().max(1);
        for area in &mut areas.open {
            area.check_end();
            let [driver, allocators] = area.hidden_calls();
            let hidden = allocators.len() as u64;
            if !driver.is_empty() {
                records.push(loss_of(area, driver.len()));
            }
            if hidden > 0 {
                let lost = LostDelta { tensors: hidden, ..LostDelta::default() };
                records.push(record(area, RecordBody::Lost(lost)));
            }
            let functions = [driver, allocators].concat();
            if !functions.is_empty() {
                self.notices.push(Notice::HiddenCalls { pid: area.pid, functions });
            }
            let (decode_errors, stacks) = (&mut self.decode_errors, &mut self.stacks);
            let mut bytes_read = 0;
            let consumed = area.records(share.max(4096), |bytes| {
                bytes_read += bytes.len();
                match Record::parse(bytes) {
                    Ok(record) => records.push(record),
                    Err(_) => *decode_errors += 1,
                }
                // The first record announces the process.
                if !area.is_announced.replace(true) {
                    records.extend(missing_loss(area));
                }
            });
            let consumed_stacks = area.stacks(|bytes| match read(bytes) {
                Some(stack) => stacks.push(stack),
                None => *decode_errors += 1,
            });
            *decode_errors += consumed.abandoned + consumed_stacks.abandoned;
            area.drop_read_marks();
            self.last_bytes += bytes_read;
            // The last states of its allocators are reported before its end.
            let is_complete =
                consumed.drained && (area.end.is_none() || area.is_tracking_reported());
            self.has_more |= !is_complete;
            if let Some(end) = area.end.filter(|_| is_complete) {
                records.push(end_record(area, end));
                area.is_done = true;
            }
        }
        Ok(records)
    }

    fn drain_stacks(&mut self) -> Vec<StackRecord> {
        std::mem::take(&mut self.stacks)
    }

    fn drain_decode_errors(&mut self) -> u64 {
        std::mem::take(&mut self.decode_errors)
    }

    fn is_drained(&self) -> bool {
        !self.has_more
    }

    fn batches(&self) -> usize {
        self.batches * self.areas.lock().open.len().max(1)
    }

    fn poll_counters(
        &mut self,
        now: Timestamp,
        processes: &mut ProcessTable,
    ) -> Result<u64, Error> {
        let (lost, unknown) = {
            let areas = self.areas.lock();
            (areas.lost(), areas.unknown())
        };
        self.unknown_calls.poll(unknown, &self.unknown_functions, now, processes)?;
        Ok(lost)
    }

    fn drain_mmaps(&mut self) -> Vec<Mapping> {
        std::mem::take(&mut self.mmaps)
    }

    fn process_examined(&mut self, pid: Pid, exec_gen: ExecGeneration) {
        let areas = self.areas.lock();
        let found = areas.open.iter().find(|area| area.pid == pid && area.exec_gen == exec_gen);
        if let Some(area) = found {
            area.set_examined();
        }
    }

    fn drain_allocator_events(
        &mut self,
        _now: Timestamp,
        processes: &mut ProcessTable,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        for area in &mut self.areas.lock().open {
            let is_known = processes.contains(area.pid);
            for (allocator, tracking, since) in area.changed_tracking() {
                if !is_known {
                    continue;
                }
                let (pid, tid, time) = (area.pid, Tid(area.pid.0), clock::monotonic());
                let (entry_time, kind) =
                    (since.min(time), EventKind::Allocator(allocator, tracking));
                events.push(Event { pid, tid, entry_time, time, kind });
                if let BlockTracking::Unavailable(reason) = tracking {
                    self.notices.push(Notice::BlocksUnavailable { pid, allocator, reason });
                }
            }
        }
        events
    }

    fn drain_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    fn limit_stacks(&mut self, max: StackMode) {
        self.control.stacks.store(max.wire().min(self.stack_mode), Ordering::Relaxed);
    }

    fn waker(&self) -> Waker {
        Waker::Futex(&self.control.wakes)
    }
}
