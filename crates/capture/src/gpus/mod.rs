//! The GPUs of this host and driver-reported usage.
//!
//! Read from NVML, or from `nvidia-smi` if this binary cannot load libraries. Neither creates a
//! CUDA context. A query can take long, so it runs in its own thread, and nothing waits for it.

mod nvidia_smi;
#[cfg(not(target_feature = "crt-static"))]
mod nvml;
mod visible_devices;

pub(crate) use visible_devices::{DeviceVisibilityEnv, resolve_devices};

use std::sync::mpsc::{Receiver, TrySendError, sync_channel};
use std::time::Duration;

use engine::model::ids::{GpuId, Pid};
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
    /// The UUIDs of its MIG instances.
    pub instances: Vec<String>,
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
}

/// A source of driver-reported usage, owned by one thread.
trait UsageSource {
    fn gpus(&self) -> Result<Vec<GpuInfo>, String>;
    fn uses(&self, gpus: &[GpuInfo]) -> Result<Vec<ProcessGpuUsage>, String>;
    /// Returns the free memory of each GPU, if reported.
    fn free(&self, gpus: &[GpuInfo]) -> Vec<(GpuId, u64)>;
}

/// The result of one query.
#[derive(Debug, Default)]
pub(crate) struct UsageSample {
    /// Time of the query.
    pub(crate) queried_at: Timestamp,
    pub(crate) uses: Vec<ProcessGpuUsage>,
    pub(crate) free: Vec<(GpuId, u64)>,
}

/// Polls driver-reported usage in the background.
#[derive(Debug)]
pub(crate) struct UsagePoller {
    gpus: Vec<GpuInfo>,
    new_gpus: Receiver<Vec<GpuInfo>>,
    samples: Receiver<Result<UsageSample, String>>,
}

/// Time between two queries.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long the start of a trace waits for the list of GPUs.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(3);

/// Time between two searches for a source: the driver may be loaded later.
const SOURCE_RETRY_INTERVAL: Duration = Duration::from_secs(10);

impl UsagePoller {
    /// Starts polling. The list of GPUs is empty until a source is found.
    pub(crate) fn start() -> Option<Self> {
        let (gpu_sender, new_gpus) = sync_channel(1);
        let (sender, samples) = sync_channel(1);
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
            loop {
                let queried_at = clock::monotonic();
                let sample = contain(|| {
                    let uses = source.uses(&gpus)?;
                    Ok(UsageSample { queried_at, uses, free: source.free(&gpus) })
                });
                if sender.send(sample).is_err() {
                    return;
                }
                std::thread::sleep(POLL_INTERVAL);
            }
        };
        // Not joined: a driver that hangs must not keep this program from exiting.
        std::thread::Builder::new().name("gpu-usage".into()).spawn(poll).ok()?;
        let gpus = new_gpus.recv_timeout(STARTUP_TIMEOUT).unwrap_or_default();
        Some(Self { gpus, new_gpus, samples })
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

    /// Returns the newest sample or error since the last call.
    pub(crate) fn latest(&self) -> Option<Result<UsageSample, String>> {
        self.samples.try_iter().last()
    }
}

fn find_source() -> Option<(Box<dyn UsageSource>, Vec<GpuInfo>)> {
    #[cfg(not(target_feature = "crt-static"))]
    if let Some(source) = nvml::Nvml::open()
        && let Ok(gpus) = source.gpus()
    {
        return Some((Box::new(source), gpus));
    }
    let source = nvidia_smi::NvidiaSmi::find()?;
    let gpus = source.gpus().ok()?;
    Some((Box::new(source), gpus))
}

/// Finds a GPU by its UUID or by that of one of its MIG instances.
pub(crate) fn by_uuid(gpus: &[GpuInfo], uuid: &str) -> Option<GpuId> {
    let matches = |gpu: &&GpuInfo| gpu.uuid == uuid || gpu.instances.iter().any(|mig| mig == uuid);
    gpus.iter().find(matches).map(|gpu| gpu.id)
}

/// Formats the bytes of a UUID as `GPU-67bf22d2-b5d2-…`.
pub(crate) fn uuid_text(bytes: &[u8; 16], prefix: &str) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("{prefix}-{}", parts.join("-"))
}
