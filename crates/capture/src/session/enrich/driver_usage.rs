//! Joins driver-reported usage and the host's GPUs with the traced processes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use engine::model::cuda_object::ObjectCall;
use engine::model::event::{Event, EventKind, ProcessInfo};
use engine::model::ids::{DeviceId, GpuId, Pid, Tid};
use engine::model::mig::MigInstance;
use engine::model::units::Timestamp;

use crate::decode::DeviceUuid;
use crate::gpus::{
    DeviceVisibilityEnv, GpuInfo, ProcessGpuUsage, UsagePoller, UsageSample, by_uuid, instance,
    resolve_devices, resolve_instance, uuid_text,
};
use crate::session::liveness::start_of;
use crate::session::processes::{Process, ProcessTable};

/// Driver-reported usage of processes and GPUs, as events.
pub(crate) struct DriverUsage {
    poller: Option<UsagePoller>,
    /// Free bytes as last reported.
    free: HashMap<GpuId, u64>,
    /// When the last sample came; `None` while usage is unknown.
    last_response: Option<Instant>,
    /// Failed queries since then.
    failures: u32,
    /// Why driver-reported usage is unknown, until that is reported.
    failure: Option<String>,
}

/// Consecutive failed queries, and time without a response, after which the last sample is dropped.
/// A single failure is tolerated: an old sample is better than none.
const MAX_FAILURES: u32 = 3;
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

impl DriverUsage {
    pub(crate) fn open() -> Self {
        Self {
            poller: UsagePoller::start(),
            free: HashMap::new(),
            last_response: None,
            failures: 0,
            failure: None,
        }
    }

    pub(crate) fn gpus(&self) -> &[GpuInfo] {
        self.poller.as_ref().map_or(&[], UsagePoller::gpus)
    }

    /// Returns the GPUs that a new process sees, and its MIG instance; nothing until a source of GPUs is
    /// found.
    pub(crate) fn visible_gpus(&self, pid: Pid, process: &mut Process) -> Vec<EventKind> {
        let gpus = self.gpus();
        if gpus.is_empty() {
            return Vec::new();
        }
        let env = DeviceVisibilityEnv::read(pid);
        process.gpus = resolve_devices(gpus, &env);
        let mig = resolve_instance(gpus, &env).and_then(|mig| set_instance(process, mig));
        std::iter::once(EventKind::Gpus(process.gpus.clone().into())).chain(mig).collect()
    }

    /// Applies a UUID that the driver returned for a device of a process: more reliable than the
    /// environment.
    pub(crate) fn device_uuid_reported(
        &self,
        reported: &DeviceUuid,
        process: &mut Process,
    ) -> Vec<EventKind> {
        let mig = uuid_text(&reported.uuid, "MIG");
        let found = by_uuid(self.gpus(), &uuid_text(&reported.uuid, "GPU"));
        let Some(gpu) = found.or_else(|| by_uuid(self.gpus(), &mig)) else { return Vec::new() };
        let mig = self.gpus().iter().find_map(|gpu| instance(gpu, &mig));
        let mut events: Vec<_> =
            mig.and_then(|mig| set_instance(process, mig)).into_iter().collect();
        let DeviceId(ordinal) = reported.device;
        let index = usize::from(ordinal);
        if process.gpus.get(index) != Some(&Some(gpu)) && index < 1024 {
            process.gpus.resize(process.gpus.len().max(index + 1), None);
            process.gpus[index] = Some(gpu);
            events.push(EventKind::Gpus(process.gpus.clone().into()));
        }
        events
    }

    /// Returns a MIG instance of a GPU by its index.
    fn instance_of(&self, gpu: GpuId, index: Option<usize>) -> Option<&MigInstance> {
        self.gpus().iter().find(|known| known.id == gpu)?.instances.get(index?)
    }

    /// Returns the free bytes of GPUs that changed.
    fn free_changes(&mut self, sample: &UsageSample, now: Timestamp) -> Vec<Event> {
        let mut events = Vec::new();
        for &(gpu, bytes) in &sample.free {
            if self.free.insert(gpu, bytes) != Some(bytes) {
                events.push(event(NO_PROCESS, now, EventKind::GpuFree { gpu, bytes }));
            }
        }
        events
    }

    /// Returns the sample of a successful query, and whether usage has just become unknown.
    fn check_response(
        &mut self,
        response: Option<Result<UsageSample, String>>,
    ) -> (Option<UsageSample>, bool) {
        let reason = match response {
            Some(Ok(sample)) => {
                (self.last_response, self.failures) = (Some(Instant::now()), 0);
                return (Some(sample), false);
            }
            Some(Err(reason)) => {
                self.failures += 1;
                (self.failures >= MAX_FAILURES).then_some(reason)
            }
            None => None,
        };
        let timed_out = self.last_response.is_some_and(|time| time.elapsed() >= RESPONSE_TIMEOUT);
        let no_response = || format!("no response for {} seconds", RESPONSE_TIMEOUT.as_secs());
        let Some(reason) = reason.or_else(|| timed_out.then(no_response)) else {
            return (None, false);
        };
        let lost = self.last_response.take().is_some();
        if lost {
            self.failure = Some(reason);
            self.free.clear();
        }
        (None, lost)
    }

    /// Returns once why usage has become unknown.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    /// Requests a query if objects were created: they take memory that only the driver reports.
    pub(crate) fn request_after(&self, events: &[Event]) {
        let is_costly = |event: &Event| {
            matches!(
                event.kind,
                EventKind::Context(_)
                    | EventKind::Limit { .. }
                    | EventKind::Object(ObjectCall::Created { .. })
            )
        };
        if let Some(poller) = self.poller.as_ref().filter(|_| events.iter().any(is_costly)) {
            poller.request();
        }
    }

    /// Returns the newest usage of traced processes. `wanted` selects processes that are known from
    /// the driver only: they hold memory from before the trace. `read_from`: a time before the
    /// records up to `now` were read.
    pub(crate) fn poll(
        &mut self,
        (read_from, now): (Timestamp, Timestamp),
        processes: &mut ProcessTable,
        wanted: impl Fn(&ProcessTable, Pid, u64) -> bool,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        if self.poller.as_mut().is_some_and(UsagePoller::poll_new_gpus) {
            for (pid, process) in processes.iter_mut() {
                let found = self.visible_gpus(pid, process).into_iter();
                events.extend(found.map(|kind| event(pid, now, kind)));
            }
        }
        let response = self.poller.as_mut().and_then(|poller| poller.latest(read_from));
        let (sample, lost) = self.check_response(response);
        if lost {
            events.push(event(NO_PROCESS, now, EventKind::DriverUsageLost));
            processes.iter_mut().for_each(|(_, process)| process.listed_on.clear());
        }
        let Some(sample) = sample else { return events };
        events.extend(self.free_changes(&sample, now));
        let unlisted = sample.unlisted.map(|holders| EventKind::DeviceHolders(holders.into()));
        events.extend(unlisted.map(|kind| event(NO_PROCESS, now, kind)));
        let mut listed: HashMap<Pid, Vec<GpuId>> = HashMap::new();
        let gpu_counts = gpus_per_process(&sample.uses);
        for ProcessGpuUsage { pid, gpu, bytes, instance } in sample.uses {
            if let Some(process) = processes.get_mut(pid)
                && let Some(kind) =
                    self.instance_of(gpu, instance).and_then(|mig| set_instance(process, mig))
            {
                events.push(event(pid, now, kind));
            }
            let Some(bytes) = bytes else { continue };
            if !processes.contains(pid) {
                let Some(start) = start_of(pid).filter(|start| wanted(processes, pid, *start))
                else {
                    continue;
                };
                let Some(info) = process_info(pid) else { continue };
                processes.announce(pid, start, None);
                events.push(event(pid, now, EventKind::Process(info)));
            }
            listed.entry(pid).or_default().push(gpu);
            let only = gpu_counts.get(&pid) == Some(&1);
            let kind = EventKind::DriverUsage { gpu, bytes, only };
            events.push(Event { entry_time: sample.queried_at, ..event(pid, now, kind) });
        }
        // A process that is missing from the sample holds nothing.
        for (pid, process) in processes.iter_mut() {
            let now_listed = listed.remove(&pid).unwrap_or_default();
            for gpu in std::mem::take(&mut process.listed_on) {
                if !now_listed.contains(&gpu) {
                    let kind = EventKind::DriverUsage { gpu, bytes: 0, only: false };
                    events.push(Event { entry_time: sample.queried_at, ..event(pid, now, kind) });
                }
            }
            process.listed_on = now_listed;
        }
        events
    }
}

/// Adds events of the driver's figures to those of calls. The usage of a process comes before the calls
/// that returned after the query: the ledger compares it with the memory at that time.
pub(crate) fn merge_usage(calls: Vec<Event>, reported: Vec<Event>) -> Vec<Event> {
    let (usage, others): (Vec<_>, Vec<_>) =
        reported.into_iter().partition(|event| matches!(event.kind, EventKind::DriverUsage { .. }));
    let mut by_pid: BTreeMap<Pid, Vec<Event>> = BTreeMap::new();
    let (mut earlier, mut later) = (calls, Vec::new());
    for event in usage {
        by_pid.entry(event.pid).or_default().push(event);
    }
    // That of a new process follows its announcement.
    for event in earlier.iter().filter(|event| matches!(event.kind, EventKind::Process(_))) {
        later.extend(by_pid.remove(&event.pid).into_iter().flatten());
    }
    if !by_pid.is_empty() {
        let mut merged = Vec::with_capacity(earlier.len() + by_pid.len());
        for event in earlier {
            let is_call = event.entry_time < event.time;
            let is_later = |usage: &Vec<Event>| usage[0].entry_time < event.time;
            if is_call && by_pid.get(&event.pid).is_some_and(is_later) {
                merged.extend(by_pid.remove(&event.pid).into_iter().flatten());
            }
            merged.push(event);
        }
        earlier = merged;
    }
    later.extend(by_pid.into_values().flatten());
    earlier.extend(others);
    earlier.extend(later);
    earlier
}

/// Sets the MIG instance of a process; `None` if it is known.
fn set_instance(process: &mut Process, mig: &MigInstance) -> Option<EventKind> {
    if process.mig.as_ref() == Some(mig) {
        return None;
    }
    process.mig = Some(mig.clone());
    Some(EventKind::MigInstance(Box::new(mig.clone())))
}

/// Counts the GPUs on which the driver lists each process.
fn gpus_per_process(uses: &[ProcessGpuUsage]) -> HashMap<Pid, usize> {
    let listed: HashSet<_> = uses.iter().map(|usage| (usage.pid, usage.gpu)).collect();
    let mut counts = HashMap::new();
    listed.into_iter().for_each(|(pid, _)| *counts.entry(pid).or_insert(0) += 1);
    counts
}

/// The pid in events that belong to no process.
const NO_PROCESS: Pid = Pid(0);

fn event(pid: Pid, now: Timestamp, kind: EventKind) -> Event {
    Event { pid, tid: Tid(pid.0), entry_time: now, time: now, kind }
}

/// Reads `/proc` for a process that has not called the driver since the trace began. The start time
/// stays 0: `/proc` rounds it, and the probes report it exactly.
fn process_info(pid: Pid) -> Option<ProcessInfo> {
    let name = fs::read(format!("/proc/{pid}/comm")).ok()?;
    let name = String::from_utf8_lossy(&name);
    Some(ProcessInfo {
        start: 0,
        uid: fs::metadata(format!("/proc/{pid}")).ok()?.uid(),
        name: name.trim_end_matches('\n').into(),
        before_trace: true,
    })
}

#[cfg(test)]
mod tests {
    use engine::model::event::{Free, FreeFunction};
    use engine::model::ids::AllocationKey;

    use super::*;

    fn call(pid: u32, at: u64) -> Event {
        let key = AllocationKey::address(at);
        let kind = EventKind::Free(Free { key, by: FreeFunction::Free, stream: None });
        Event { entry_time: Timestamp(at - 1), ..event(Pid(pid), Timestamp(at), kind) }
    }

    fn usage(pid: u32, queried_at: u64) -> Event {
        let kind = EventKind::DriverUsage { gpu: GpuId(0), bytes: 1, only: true };
        Event { entry_time: Timestamp(queried_at), ..event(Pid(pid), Timestamp(99), kind) }
    }

    #[test]
    fn usage_precedes_calls_that_returned_after_the_query() {
        let calls = vec![call(1, 10), call(2, 12), call(1, 20), call(1, 30)];
        let free = event(NO_PROCESS, Timestamp(99), EventKind::DriverUsageLost);
        let reported = vec![free.clone(), usage(1, 15), usage(2, 15), usage(3, 15)];
        let merged = merge_usage(calls.clone(), reported);
        let [first, second, third, fourth] = &calls[..] else { panic!() };
        let start = [first, second, &usage(1, 15), third, fourth, &free];
        assert!(merged.iter().zip(start).all(|(found, wanted)| found == wanted), "{merged:?}");
        assert_eq!(merged.len(), 8);
        assert!(merged.contains(&usage(2, 15)) && merged.contains(&usage(3, 15)));
    }

    #[test]
    fn usage_of_a_new_process_follows_its_announcement() {
        let info = ProcessInfo { start: 1, uid: 0, name: "new".into(), before_trace: false };
        let calls = vec![event(Pid(1), Timestamp(20), EventKind::Process(info)), call(1, 21)];
        let merged = merge_usage(calls, vec![usage(1, 15)]);
        assert_eq!(merged.last(), Some(&usage(1, 15)));
    }
}
