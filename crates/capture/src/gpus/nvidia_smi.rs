//! Driver-reported usage from `nvidia-smi`, in whole MiB.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use engine::model::ids::{GpuId, Pid};

use super::{GpuInfo, ProcessGpuUsage, UsageSource, by_uuid};

pub(super) struct NvidiaSmi(PathBuf);

impl NvidiaSmi {
    pub(super) fn find() -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let dirs = ["/usr/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib"];
        std::env::split_paths(&path)
            .chain(dirs.iter().map(|dir| Path::new(dir).to_owned()))
            .map(|dir| dir.join("nvidia-smi"))
            .find(|file| file.is_file())
            .map(Self)
    }

    fn query(&self, query: &str) -> Result<String, String> {
        let output = Command::new(&self.0)
            .args([query, "--format=csv,noheader,nounits"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(format!("{} failed: {}", self.0.display(), output.status));
        }
        String::from_utf8(output.stdout).map_err(|error| error.to_string())
    }
}

impl UsageSource for NvidiaSmi {
    fn gpus(&self) -> Result<Vec<GpuInfo>, String> {
        self.query("--query-gpu=index,uuid,name,memory.total").map(|text| gpus(&text))
    }

    fn uses(&self, gpus: &[GpuInfo]) -> Result<Vec<ProcessGpuUsage>, String> {
        let query = "--query-compute-apps=gpu_uuid,pid,used_gpu_memory";
        self.query(query).map(|text| uses(&text, gpus))
    }

    fn free(&self, _: &[GpuInfo]) -> Vec<(GpuId, u64)> {
        self.query("--query-gpu=index,memory.free").map(|text| free(&text)).unwrap_or_default()
    }
}

fn fields(line: &str) -> Vec<&str> {
    line.split(',').map(str::trim).collect()
}

fn mib(text: &str) -> Option<u64> {
    text.parse::<u64>().ok()?.checked_mul(1 << 20)
}

fn gpus(text: &str) -> Vec<GpuInfo> {
    text.lines()
        .filter_map(|line| match fields(line)[..] {
            [index, uuid, name, total] => Some(GpuInfo {
                id: GpuId(index.parse().ok()?),
                uuid: uuid.to_owned(),
                name: name.to_owned(),
                total_bytes: mib(total).unwrap_or(0),
                instances: Vec::new(),
            }),
            _ => None,
        })
        .collect()
}

fn free(text: &str) -> Vec<(GpuId, u64)> {
    let line = |line: &str| match fields(line)[..] {
        [index, free] => Some((GpuId(index.parse().ok()?), mib(free)?)),
        _ => None,
    };
    text.lines().filter_map(line).collect()
}

/// Parses the usage of processes; it is unknown if the memory is `[N/A]` (MIG, WSL).
fn uses(text: &str, gpus: &[GpuInfo]) -> Vec<ProcessGpuUsage> {
    text.lines()
        .filter_map(|line| match fields(line)[..] {
            [uuid, pid, used] => Some(ProcessGpuUsage {
                pid: Pid(pid.parse().ok()?),
                gpu: by_uuid(gpus, uuid)?,
                bytes: mib(used),
                instance: None,
            }),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "GPU-67bf22d2-b5d2-6521-4905-299b65b79ef1";

    #[test]
    fn output_of_nvidia_smi_is_parsed() {
        let gpus = gpus(&format!("0, {UUID}, NVIDIA H200, 143771\n"));
        assert_eq!(gpus.len(), 1);
        assert_eq!((gpus[0].id, gpus[0].total_bytes), (GpuId(0), 143_771 << 20));
        let uses = uses(&format!("{UUID}, 985, 1634\n{UUID}, 986, [N/A]\nnonsense\n"), &gpus);
        assert_eq!(free("0, 143156\n1, [N/A]\n"), [(GpuId(0), 143_156 << 20)]);
        let process =
            |pid, bytes| ProcessGpuUsage { pid: Pid(pid), gpu: GpuId(0), bytes, instance: None };
        assert_eq!(uses, [process(985, Some(1634 << 20)), process(986, None)]);
    }
}
