//! Records of processes that load the capture library.

use std::cell::RefCell;
use std::fs::{self, OpenOptions};
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use engine::event::{Event, Lost, What};
use engine::ids::{Pid, Tid};
use engine::tensor::{NoTensors, TensorWatch};
use engine::units::Moment;

use super::area::{Control, REFUSALS, Refusal, RowState};
use super::directory::Directory;
use super::lifetime::End;
use super::open::Area;
use super::tables::{Areas, Tables};
use crate::clock;
use crate::decode::{Decoded, Program, decode_all};
use crate::error::Error;
use crate::hooks::HOOKS;
use crate::life::Living;
use crate::session::{Notice, Options, Source, Stacks};
use crate::stacks::{StackRecord, read};

/// Bytes of records that are read at once.
const BATCH_BYTES: usize = 1 << 20;
/// Waiting time while records come fast.
const SHORT_WAIT: Duration = Duration::from_millis(1);
/// Bytes of a batch from which on records come fast.
const FAST: usize = 128 << 10;

/// The processes that share memory with this side.
pub(crate) struct InProcess {
    directory: Directory,
    control: &'static Control,
    areas: Rc<RefCell<Areas>>,
    follows_objects: bool,
    stacks: Vec<StackRecord>,
    unreadable: u64,
    /// The last batch left records.
    is_cut: bool,
    /// Bytes of the last batch.
    last_bytes: usize,
    /// Areas that were opened.
    opened: u32,
    refusals: [u32; REFUSALS],
    /// Processes that are not traced, and not reported as lost yet.
    refused: u64,
    notices: Vec<Notice>,
    batches: usize,
    /// `enum vs_stacks` as requested.
    stacks_wanted: u32,
}

impl InProcess {
    pub(crate) fn start(options: &Options, directory: Directory) -> Result<Self, Error> {
        let control = directory.open(options).map_err(Error::SharedMemory)?;
        Ok(Self {
            directory,
            control,
            areas: Rc::default(),
            follows_objects: options.objects,
            stacks: Vec::new(),
            unreadable: 0,
            is_cut: false,
            last_bytes: 0,
            opened: 0,
            refusals: [0; REFUSALS],
            refused: 0,
            notices: Vec::new(),
            batches: options.ring_bytes as usize / BATCH_BYTES + 2,
            stacks_wanted: options.stacks.wire(),
        })
    }

    /// Sleeps until a process has something that should not wait, or the time has passed.
    fn sleep(&self, timeout: Duration) {
        let control = self.control;
        let wakes = control.wakes.load(Ordering::Acquire);
        control.is_waiting.store(1, Ordering::Release);
        let time = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // An interrupted wait is a short one.
        // SAFETY: the word is in the mapped control file, and the time in this frame.
        unsafe {
            let word = (&raw const control.wakes).cast::<u32>();
            libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, wakes, &raw const time);
        }
        control.is_waiting.store(0, Ordering::Relaxed);
    }

    pub(crate) fn tables(&self) -> Tables {
        Tables(Rc::clone(&self.areas))
    }

    /// Opens areas that are complete. Their files are removed: nothing is left behind if this
    /// program is killed.
    fn open_areas(&mut self) {
        if self.control.ready.load(Ordering::Acquire) == self.opened {
            return;
        }
        let Ok(files) = fs::read_dir(self.directory.path()) else { return };
        let number = |file: fs::DirEntry| file.file_name().to_str()?.parse::<u32>().ok();
        let mut numbers: Vec<u32> = files.flatten().filter_map(number).collect();
        numbers.sort_unstable();
        for number in numbers {
            let path = self.directory.path().join(number.to_string());
            let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else { continue };
            let mapping = format!("{} (deleted)", path.display());
            match Area::open(file, self.control.sizes, mapping) {
                Ok(None) => {}
                Ok(Some(area)) => {
                    let _ = fs::remove_file(&path);
                    self.opened = self.opened.wrapping_add(1);
                    self.notices.push(wrapped(&area));
                    self.areas.borrow_mut().open.push(area);
                }
                Err(error) => {
                    let _ = fs::remove_file(&path);
                    self.opened = self.opened.wrapping_add(1);
                    self.notices.push(Notice::NotAttached { reason: error.to_string() });
                }
            }
        }
    }

    /// Why processes could not be traced at all.
    fn read_refusals(&mut self) {
        let reasons = [
            (Refusal::NoArea, "no shared memory for its records"),
            (Refusal::NoDriver, "its CUDA driver was not found among its libraries"),
            (Refusal::NoRoom, "no free addresses near its CUDA driver"),
            (Refusal::Protected, "the code of its CUDA driver cannot be made writable"),
        ];
        for (refusal, reason) in reasons {
            let count = self.control.refusals[refusal as usize].load(Ordering::Relaxed);
            let before = std::mem::replace(&mut self.refusals[refusal as usize], count);
            if count > before {
                self.refused += u64::from(count - before);
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

/// Functions of a process that are not wrapped although they should be.
fn missing(area: &Area) -> Vec<&'static str> {
    let states = area.header().rows.iter().zip(HOOKS);
    let is_missing = |state: &AtomicU8| {
        let state = state.load(Ordering::Acquire);
        state == RowState::UnknownPrologue as u8 || state == RowState::Foreign as u8
    };
    states.filter(|(state, _)| is_missing(state)).map(|(_, hook)| hook.symbol).collect()
}

fn is_wrapped(state: &AtomicU8) -> bool {
    state.load(Ordering::Acquire) == RowState::Wrapped as u8
}

/// Whether PyTorch's cache reports its blocks; `None` while PyTorch is not loaded.
fn tensor_watch(area: &Area) -> Option<TensorWatch> {
    let rows = area.header().rows.get(HOOKS.len()..)?;
    if rows.iter().any(is_wrapped) {
        return Some(TensorWatch::Begun);
    }
    let failed =
        |state: &AtomicU8| state.load(Ordering::Acquire) == RowState::UnknownPrologue as u8;
    rows.iter().any(failed).then_some(TensorWatch::Impossible(NoTensors::Refused))
}

fn wrapped(area: &Area) -> Notice {
    let states = area.header().rows.iter().take(HOOKS.len());
    let functions = states.filter(|state| is_wrapped(state)).count();
    Notice::Wrapped { pid: area.pid, functions, missing: missing(area) }
}

/// Functions that are not wrapped make the values of a process inexact.
fn missing_event(area: &Area) -> Option<Decoded> {
    let missing = missing(area).len();
    (missing > 0).then(|| inexact(area, missing))
}

fn inexact(area: &Area, functions: usize) -> Decoded {
    let lost = Lost { other: functions as u64, ..Lost::default() };
    Decoded::Event(event(area, What::Lost(lost)))
}

fn event(area: &Area, what: What) -> Event {
    let now = clock::monotonic();
    Event { pid: area.pid, tid: Tid(area.pid.0), entered: now, at: now, what }
}

fn end_record(area: &Area, end: End) -> Decoded {
    match end {
        End::Exit => Decoded::Event(event(area, What::Exit)),
        End::Exec => {
            let next = Program(area.program.0.wrapping_add(1));
            Decoded::Exec(event(area, What::Exec), next)
        }
    }
}

impl Source for InProcess {
    fn wait(&self, timeout: Duration) {
        if !self.is_cut {
            let fast = self.last_bytes >= FAST;
            self.sleep(if fast { timeout.min(SHORT_WAIT) } else { timeout });
        }
    }

    fn look(&mut self) -> Result<(), Error> {
        self.open_areas();
        self.read_refusals();
        Ok(())
    }

    fn take(&mut self) -> Vec<Decoded> {
        let mut areas = self.areas.borrow_mut();
        let areas = &mut *areas;
        let ended = areas.open.extract_if(.., |area| area.is_done);
        let lost = ended.map(|area| area.header().losses.total.load(Ordering::Acquire));
        areas.lost_before += lost.sum::<u64>();
        let mut records = Vec::new();
        let lost = Lost { processes: std::mem::take(&mut self.refused), ..Lost::default() };
        if lost.processes > 0 {
            let (pid, now) = (Pid(0), clock::monotonic());
            let what = What::Lost(lost);
            records.push(Decoded::Event(Event { pid, tid: Tid(0), entered: now, at: now, what }));
        }
        (self.is_cut, self.last_bytes) = (false, 0);
        let share = BATCH_BYTES / areas.open.len().max(1);
        for area in &mut areas.open {
            area.look();
            let hidden = area.hidden();
            if !hidden.is_empty() {
                records.push(inexact(area, hidden.len()));
                self.notices.push(Notice::Hidden { pid: area.pid, functions: hidden });
            }
            let (unreadable, stacks) = (&mut self.unreadable, &mut self.stacks);
            let mut bytes_read = 0;
            let consumed = area.records(share.max(4096), |bytes| {
                bytes_read += bytes.len();
                decode_all(bytes, self.follows_objects, &mut records, unreadable);
                // The first record is the process itself.
                if !area.is_announced.replace(true) {
                    records.extend(missing_event(area));
                }
            });
            let of_stacks = area.stacks(|bytes| match read(bytes) {
                Some(stack) => stacks.push(stack),
                None => *unreadable += 1,
            });
            *unreadable += consumed.abandoned + of_stacks.abandoned;
            self.last_bytes += bytes_read;
            self.is_cut |= !consumed.drained;
            if let Some(end) = area.end.filter(|_| consumed.drained) {
                records.push(end_record(area, end));
                area.is_done = true;
            }
        }
        records
    }

    fn take_stacks(&mut self) -> Vec<StackRecord> {
        std::mem::take(&mut self.stacks)
    }

    fn take_unreadable(&mut self) -> u64 {
        std::mem::take(&mut self.unreadable)
    }

    fn is_drained(&self) -> bool {
        !self.is_cut
    }

    fn batches(&self) -> usize {
        self.batches * self.areas.borrow().open.len().max(1)
    }

    fn tensor_states(&mut self, _now: Moment, living: &Living) -> Vec<Event> {
        let mut events = Vec::new();
        for area in &mut self.areas.borrow_mut().open {
            let state = tensor_watch(area).filter(|_| living.knows(area.pid));
            if state.is_none() || area.tensors == state {
                continue;
            }
            area.tensors = state;
            events.extend(state.map(|state| event(area, What::Torch(state))));
            if let Some(TensorWatch::Impossible(reason)) = state {
                self.notices.push(Notice::NoTensors { pid: area.pid, reason });
            }
        }
        events
    }

    fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    fn limit_stacks(&mut self, most: Stacks) -> Result<(), Error> {
        self.control.stacks.store(most.wire().min(self.stacks_wanted), Ordering::Relaxed);
        Ok(())
    }
}
