//! Driver-reported usage from NVML, loaded at run time.

use std::ffi::OsStr;

use engine::model::ids::{GpuId, Pid};
use nvml_wrapper::enums::device::UsedGpuMemory;

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
            let instances = device.mig_device_count().unwrap_or(0);
            let instances = (0..instances)
                .filter_map(|i| device.mig_device_by_index(i).ok()?.uuid().ok())
                .collect();
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
            let processes = device.running_compute_processes().map_err(|e| e.to_string())?;
            uses.extend(processes.into_iter().map(|process| {
                let bytes = match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Some(bytes),
                    UsedGpuMemory::Unavailable => None,
                };
                ProcessGpuUsage { pid: Pid(process.pid), gpu: gpu.id, bytes }
            }));
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
