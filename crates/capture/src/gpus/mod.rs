//! The GPUs of this host and the driver's own account of who holds how much of them.
//!
//! Asked through NVML, or through `nvidia-smi` where this binary cannot load libraries. Neither
//! creates a CUDA context. Asking can take long, so it has a thread of its own, and nothing waits
//! for it.

#[cfg(not(target_feature = "crt-static"))]
mod nvml;
mod smi;
mod visible;

pub(crate) use visible::{Surroundings, visible};

use std::sync::mpsc::{Receiver, TrySendError, sync_channel};
use std::time::Duration;

use engine::ids::{GpuId, Pid};
use engine::units::Moment;

use crate::clock;
use crate::threads::contain;

/// A GPU of this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gpu {
    /// Its index, in the order of the PCI bus.
    pub id: GpuId,
    /// `GPU-…`.
    pub uuid: String,
    /// What the vendor calls it.
    pub name: String,
    /// All of its memory.
    pub total_bytes: u64,
    /// The UUIDs of its MIG instances.
    pub instances: Vec<String>,
}

/// What a process holds of a GPU, by the driver's account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    /// The process.
    pub pid: Pid,
    /// The GPU.
    pub gpu: GpuId,
    /// Everything the process has on it; `None` where the driver lists the process and no sum (MIG, WSL).
    pub bytes: Option<u64>,
}

/// Somebody to ask. Sources are owned by one thread.
trait Source {
    fn gpus(&self) -> Result<Vec<Gpu>, String>;
    fn uses(&self, gpus: &[Gpu]) -> Result<Vec<Use>, String>;
    /// What is free of each GPU, where it is told.
    fn free(&self, gpus: &[Gpu]) -> Vec<(GpuId, u64)>;
}

/// One answer.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    /// When the driver was asked.
    pub(crate) asked: Moment,
    pub(crate) uses: Vec<Use>,
    pub(crate) free: Vec<(GpuId, u64)>,
}

/// The account, asked in the background.
#[derive(Debug)]
pub(crate) struct Account {
    gpus: Vec<Gpu>,
    found: Receiver<Vec<Gpu>>,
    samples: Receiver<Result<Sample, String>>,
}

/// How often the account is asked.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long the start of a trace waits for the list of GPUs.
const PATIENCE: Duration = Duration::from_secs(3);

/// How often somebody to ask is looked for, where there was nobody: a driver may be loaded late.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

impl Account {
    /// Starts asking. The list of GPUs is empty while there is nobody to ask.
    pub(crate) fn open() -> Option<Self> {
        let (ready, found) = sync_channel(1);
        let (sender, samples) = sync_channel(1);
        let ask = move || {
            let (source, gpus) = loop {
                let found = contain(|| Ok(find_source())).ok().flatten();
                if let Some(found) = found.filter(|(_, gpus)| !gpus.is_empty()) {
                    break found;
                }
                // Says that nobody is there, and notices that nobody listens any more.
                if matches!(ready.try_send(Vec::new()), Err(TrySendError::Disconnected(_))) {
                    return;
                }
                std::thread::sleep(LOOK_AGAIN);
            };
            if ready.send(gpus.clone()).is_err() {
                return;
            }
            loop {
                let asked = clock::monotonic();
                let answer = contain(|| {
                    let uses = source.uses(&gpus)?;
                    Ok(Sample { asked, uses, free: source.free(&gpus) })
                });
                if sender.send(answer).is_err() {
                    return;
                }
                std::thread::sleep(INTERVAL);
            }
        };
        // Not joined: a driver that hangs must not keep this program from ending.
        std::thread::Builder::new().name("gpu-account".into()).spawn(ask).ok()?;
        let gpus = found.recv_timeout(PATIENCE).unwrap_or_default();
        Some(Self { gpus, found, samples })
    }

    /// Whether GPUs were found since the last call, where there were none.
    pub(crate) fn look(&mut self) -> bool {
        if !self.gpus.is_empty() {
            return false;
        }
        self.gpus = self.found.try_iter().find(|gpus| !gpus.is_empty()).unwrap_or_default();
        !self.gpus.is_empty()
    }

    /// The GPUs of this host.
    pub(crate) fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// The newest answer since the last call, or the reason for its absence.
    pub(crate) fn take(&self) -> Option<Result<Sample, String>> {
        self.samples.try_iter().last()
    }
}

fn find_source() -> Option<(Box<dyn Source>, Vec<Gpu>)> {
    #[cfg(not(target_feature = "crt-static"))]
    if let Some(source) = nvml::Nvml::open()
        && let Ok(gpus) = source.gpus()
    {
        return Some((Box::new(source), gpus));
    }
    let source = smi::Smi::find()?;
    let gpus = source.gpus().ok()?;
    Some((Box::new(source), gpus))
}

/// The GPU that a UUID names: its own, or that of one of its instances.
pub(crate) fn by_uuid(gpus: &[Gpu], uuid: &str) -> Option<GpuId> {
    let names = |gpu: &&Gpu| gpu.uuid == uuid || gpu.instances.iter().any(|mig| mig == uuid);
    gpus.iter().find(names).map(|gpu| gpu.id)
}

/// `GPU-67bf22d2-b5d2-…` from the bytes that the driver tells.
pub(crate) fn uuid_text(bytes: &[u8; 16], prefix: &str) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("{prefix}-{}", parts.join("-"))
}
