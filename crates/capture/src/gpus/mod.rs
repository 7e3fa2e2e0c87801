//! The GPUs of this host and driver-reported usage.
//!
//! Read from NVML, or from `nvidia-smi` if this binary cannot load libraries. Neither creates a
//! CUDA context. A query can take long, so it runs in its own thread, and nothing waits for it.

mod device_holders;
mod nvidia_smi;
#[cfg(not(feature = "static-libc"))]
mod nvml;
mod visible_devices;

pub use device_holders::unlisted_holders;
pub(crate) use visible_devices::{DeviceVisibilityEnv, resolve_devices, resolve_instance};

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use engine::model::device_holder::DeviceHolder;
use engine::model::ids::{GpuId, Pid};
use engine::model::mig::MigInstance;
use engine::model::units::Timestamp;

use crate::clock;
use crate::threads::contain;

/// A GPU of this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuInfo {
    /// Index in PCI bus order.
    pub id: GpuId,
    /// `GPU-…`.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Total memory.
    pub total_bytes: u64,
    /// Its MIG instances.
    pub instances: Vec<MigInstance>,
}

/// Driver-reported usage of a GPU by a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessGpuUsage {
    /// The process.
    pub pid: Pid,
    /// The GPU.
    pub gpu: GpuId,
    /// All memory of the process on it; `None` if the driver lists the process without it (MIG,
    /// WSL).
    pub bytes: Option<u64>,
    /// Index of its MIG instance in [`GpuInfo::instances`].
    pub instance: Option<usize>,
}

/// A source of driver-reported usage, owned by one thread.
trait UsageSource {
    fn gpus(&self) -> Result<Vec<GpuInfo>, String>;
    fn uses(&self, gpus: &[GpuInfo]) -> Result<Vec<ProcessGpuUsage>, String>;
    /// Returns the free memory of each GPU, if reported.
    fn free(&self, gpus: &[GpuInfo]) -> Vec<(GpuId, u64)>;
    /// Whether it can be queried many times a second.
    fn is_cheap(&self) -> bool {
        false
    }
}

/// The result of one query.
#[derive(Debug, Default)]
pub(crate) struct UsageSample {
    /// Time of the query.
    pub(crate) queried_at: Timestamp,
    pub(crate) uses: Vec<ProcessGpuUsage>,
    pub(crate) free: Vec<(GpuId, u64)>,
    /// Processes that have a GPU open and are not in `uses`; from time to time.
    pub(crate) unlisted: Option<Vec<DeviceHolder>>,
}

/// Polls driver-reported usage in the background.
#[derive(Debug)]
pub(crate) struct UsagePoller {
    gpus: Vec<GpuInfo>,
    new_gpus: Receiver<Vec<GpuInfo>>,
    samples: Receiver<Result<UsageSample, String>>,
    /// A sample that is newer than the last records that were read.
    early: Option<Result<UsageSample, String>>,
    /// Requests a query before the next one is due.
    request: SyncSender<()>,
}

/// Time between two queries.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Minimum time between two queries that are requested: they measure what an object costs.
const MIN_QUERY_INTERVAL: Duration = Duration::from_millis(20);

/// The time between such queries is at least this many times as long as the last one took, so that
/// they take at most 2 % of a core.
const QUERY_PAUSE_FACTOR: u32 = 50;

/// Time between two searches for processes that the driver does not list.
const HOLDER_SCAN_INTERVAL: Duration = Duration::from_secs(30);

/// How long the start of a trace waits for the list of GPUs.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(3);

/// Time between two searches for a source: the driver may be loaded later.
const SOURCE_RETRY_INTERVAL: Duration = Duration::from_secs(10);

impl UsagePoller {
    /// Starts polling. The list of GPUs is empty until a source is found.
    pub(crate) fn start() -> Option<Self> {
        let (gpu_sender, new_gpus) = sync_channel(1);
        let (sender, samples) = sync_channel(1);
        let (request, requests) = sync_channel(1);
        let poll = move || {
            let (source, gpus) = loop {
                let found = contain(|| Ok(find_source())).ok().flatten();
                if let Some(found) = found.filter(|(_, gpus)| !gpus.is_empty()) {
                    break found;
                }
                // Reports that there is no source, and ends the thread if the receiver is gone.
                if matches!(gpu_sender.try_send(Vec::new()), Err(TrySendError::Disconnected(_))) {
                    return;
                }
                std::thread::sleep(SOURCE_RETRY_INTERVAL);
            };
            if gpu_sender.send(gpus.clone()).is_err() {
                return;
            }
            let mut scanned: Option<Instant> = None;
            loop {
                let (queried_at, began) = (clock::monotonic(), Instant::now());
                let is_due = scanned.is_none_or(|at| at.elapsed() >= HOLDER_SCAN_INTERVAL);
                let sample = contain(|| {
                    let uses = source.uses(&gpus)?;
                    let free = source.free(&gpus);
                    let listed = uses.iter().map(|usage| usage.pid).collect();
                    let unlisted = is_due.then(|| unlisted_holders(&listed));
                    Ok(UsageSample { queried_at, uses, free, unlisted })
                });
                let took = began.elapsed();
                scanned = if is_due { Some(Instant::now()) } else { scanned };
                // After a failure, requests do not shorten the time that the driver has to recover.
                let takes_requests = sample.is_ok() && source.is_cheap();
                if sender.send(sample).is_err() {
                    return;
                }
                let pause = took.saturating_mul(QUERY_PAUSE_FACTOR);
                let pause = pause.clamp(MIN_QUERY_INTERVAL, POLL_INTERVAL);
                std::thread::sleep(pause);
                let wait = POLL_INTERVAL.saturating_sub(pause);
                if !takes_requests {
                    std::thread::sleep(wait);
                } else if requests.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected) {
                    return;
                }
            }
        };
        // Not joined: a driver that hangs must not keep this program from exiting.
        std::thread::Builder::new().name("gpu-usage".into()).spawn(poll).ok()?;
        let gpus = new_gpus.recv_timeout(STARTUP_TIMEOUT).unwrap_or_default();
        Some(Self { gpus, new_gpus, samples, early: None, request })
    }

    /// Returns whether the GPUs were found since the last call.
    pub(crate) fn poll_new_gpus(&mut self) -> bool {
        if !self.gpus.is_empty() {
            return false;
        }
        self.gpus = self.new_gpus.try_iter().find(|gpus| !gpus.is_empty()).unwrap_or_default();
        !self.gpus.is_empty()
    }

    /// Returns the GPUs of this host.
    pub(crate) fn gpus(&self) -> &[GpuInfo] {
        &self.gpus
    }

    /// Returns the newest sample or error since the last call. A sample whose query began after
    /// `until` is kept for the next call: records of earlier calls may not have been read yet.
    pub(crate) fn latest(&mut self, until: Timestamp) -> Option<Result<UsageSample, String>> {
        let newest = self.early.take().or_else(|| self.samples.try_iter().last());
        match newest {
            Some(Ok(sample)) if sample.queried_at > until => {
                self.early = Some(Ok(sample));
                None
            }
            newest => newest,
        }
    }

    /// Requests a query soon.
    pub(crate) fn request(&self) {
        // If a request is pending, one more changes nothing.
        let _ = self.request.try_send(());
    }
}

fn find_source() -> Option<(Box<dyn UsageSource>, Vec<GpuInfo>)> {
    #[cfg(not(feature = "static-libc"))]
    if let Some(source) = nvml::Nvml::open()
        && let Ok(gpus) = source.gpus()
    {
        return Some((Box::new(source), gpus));
    }
    let source = nvidia_smi::NvidiaSmi::find()?;
    let gpus = source.gpus().ok()?;
    Some((Box::new(source), gpus))
}

/// Returns the processes that the driver lists, on any GPU; `None` if it cannot be queried.
#[must_use]
pub fn listed_processes() -> Option<HashSet<Pid>> {
    let (source, gpus) = find_source()?;
    let uses = source.uses(&gpus).ok()?;
    Some(uses.into_iter().map(|usage| usage.pid).collect())
}

/// Finds a GPU by its UUID or by that of one of its MIG instances.
pub(crate) fn by_uuid(gpus: &[GpuInfo], uuid: &str) -> Option<GpuId> {
    let matches = |gpu: &&GpuInfo| gpu.uuid == uuid || instance(gpu, uuid).is_some();
    gpus.iter().find(matches).map(|gpu| gpu.id)
}

/// Finds a MIG instance by its UUID.
pub(crate) fn instance<'a>(gpu: &'a GpuInfo, uuid: &str) -> Option<&'a MigInstance> {
    gpu.instances.iter().find(|mig| *mig.uuid == *uuid)
}

/// Formats the bytes of a UUID as `GPU-67bf22d2-b5d2-…`.
pub(crate) fn uuid_text(bytes: &[u8; 16], prefix: &str) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("{prefix}-{}", parts.join("-"))
}
