//! Driver-reported usage from NVML, loaded at run time.

use std::ffi::OsStr;

use engine::model::ids::{GpuId, Pid};
use engine::model::mig::MigInstance;
use nvml_wrapper::Device;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use super::{GpuInfo, ProcessGpuUsage, UsageSource};

pub(super) struct Nvml(nvml_wrapper::Nvml);

impl Nvml {
    pub(super) fn open() -> Option<Self> {
        // The name that drivers install; the default one comes with development packages.
        let installed =
            nvml_wrapper::Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init();
        installed.or_else(|_| nvml_wrapper::Nvml::init()).ok().map(Self)
    }
}

impl UsageSource for Nvml {
    fn gpus(&self) -> Result<Vec<GpuInfo>, String> {
        let count = self.0.device_count().map_err(|e| e.to_string())?;
        let mut gpus = Vec::new();
        for index in 0..count {
            let device = self.0.device_by_index(index).map_err(|e| e.to_string())?;
            let instances = migs(&device).map(|mig| {
                let name = mig.name().unwrap_or_default();
                MigInstance::new(&mig.uuid().unwrap_or_default(), &name)
            });
            let instances = instances.collect();
            gpus.push(GpuInfo {
                id: GpuId(u16::try_from(index).map_err(|e| e.to_string())?),
                uuid: device.uuid().map_err(|e| e.to_string())?,
                name: device.name().unwrap_or_default(),
                total_bytes: device.memory_info().map_or(0, |memory| memory.total),
                instances,
            });
        }
        Ok(gpus)
    }

    fn uses(&self, gpus: &[GpuInfo]) -> Result<Vec<ProcessGpuUsage>, String> {
        let mut uses = Vec::new();
        for gpu in gpus {
            let device = self.0.device_by_index(u32::from(gpu.id.0)).map_err(|e| e.to_string())?;
            let known = uses.len();
            let instances = (!gpu.instances.is_empty()).then(|| migs(&device));
            for mig in instances.into_iter().flatten() {
                let uuid = mig.uuid().unwrap_or_default();
                let index = gpu.instances.iter().position(|known| *known.uuid == *uuid);
                uses.extend(processes(&mig, gpu.id, index).into_iter().flatten());
            }
            // A driver may list processes of instances only with the whole GPU.
            if uses.len() == known {
                uses.extend(processes(&device, gpu.id, None).map_err(|e| e.to_string())?);
            }
        }
        Ok(uses)
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn free(&self, gpus: &[GpuInfo]) -> Vec<(GpuId, u64)> {
        let free = |gpu: &GpuInfo| {
            let device = self.0.device_by_index(u32::from(gpu.id.0)).ok()?;
            Some((gpu.id, device.memory_info().ok()?.free))
        };
        gpus.iter().filter_map(free).collect()
    }
}

/// Returns the MIG instances of a GPU as devices.
fn migs<'a>(device: &'a Device<'_>) -> impl Iterator<Item = Device<'a>> {
    let count = device.mig_device_count().unwrap_or(0);
    (0..count).filter_map(|index| device.mig_device_by_index(index).ok())
}

/// Returns the processes of a GPU or MIG instance.
fn processes(
    device: &Device<'_>,
    gpu: GpuId,
    instance: Option<usize>,
) -> Result<Vec<ProcessGpuUsage>, NvmlError> {
    let usage = |process: ProcessInfo| {
        let bytes = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        ProcessGpuUsage { pid: Pid(process.pid), gpu, bytes, instance }
    };
    Ok(device.running_compute_processes()?.into_iter().map(usage).collect())
}
