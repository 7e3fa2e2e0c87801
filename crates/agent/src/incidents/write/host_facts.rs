//! Host facts that help to find the cause. They never include contents of a process's environment
//! or arguments.

use std::fs;

use engine::model::{Bytes, Pid};
use engine::oom::{GpuSharingHint, HostMemory};

/// Maximum bytes read of a process's mappings.
const MAX_MAPS_BYTES: u64 = 4 << 20;

/// Returns the host's available memory, and the limits of a process if it still runs.
pub(crate) fn host_memory(pid: Option<Pid>) -> HostMemory {
    let limits = pid.map(|pid| format!("/proc/{pid}/limits"));
    let limits = limits.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    HostMemory {
        available: fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text)),
        locked_limit: limit(&limits, "Max locked memory"),
        address_limit: limit(&limits, "Max address space"),
    }
}

fn available(text: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(Bytes(kib.saturating_mul(1024)))
}

/// Returns the soft limit of that name; None if unlimited.
fn limit(text: &str, name: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok().map(Bytes)
}

/// Returns signs that the GPU is shared.
pub(crate) fn hints(pid: Option<Pid>) -> Vec<GpuSharingHint> {
    let mut hints = Vec::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_pid = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let names = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_pid));
    let mut names = names.filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok());
    if names.any(|name| name.starts_with("nvidia-cuda-mps")) {
        hints.push(GpuSharingHint::Mps);
    }
    if pid.is_some_and(uses_sharing_library) {
        hints.push(GpuSharingHint::SharingLibrary);
    }
    hints
}

fn uses_sharing_library(pid: Pid) -> bool {
    use std::io::Read;
    let Ok(file) = fs::File::open(format!("/proc/{pid}/maps")) else { return false };
    let mut text = String::new();
    let read = file.take(MAX_MAPS_BYTES).read_to_string(&mut text);
    read.is_ok() && text.contains("/libvgpu.so")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_values_are_parsed() {
        assert_eq!(available("MemTotal: 9 kB\nMemAvailable:   12 kB\n"), Some(Bytes(12 << 10)));
        assert_eq!(available("MemTotal: 9 kB\n"), None);
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max locked memory         8388608              unlimited            bytes\n\
                      Max address space         unlimited            unlimited            bytes\n";
        assert_eq!(limit(limits, "Max locked memory"), Some(Bytes(8 << 20)));
        assert_eq!(limit(limits, "Max address space"), None);
    }
}
