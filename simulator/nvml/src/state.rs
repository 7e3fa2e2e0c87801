//! Reads the file through which processes share the simulated devices.

use std::fs::File;
use std::io::Read;

const MAGIC: &[u8] = b"VSIMSTA1";
const HEADER: usize = 4096;
const SLOT: usize = 512;
const USED: usize = 64;
const OVERHEAD: usize = 192;
const MAX_DEVICES: usize = 16;

/// A process and the memory that it uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct GpuProcess {
    pub(crate) pid: u32,
    bytes: [u64; MAX_DEVICES],
}

impl GpuProcess {
    /// Returns the memory that it uses on a device, including its context.
    pub(crate) fn uses(&self, device: usize) -> u64 {
        self.bytes.get(device).copied().unwrap_or(0)
    }
}

/// The devices and the processes that use them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DeviceState {
    pub(crate) devices: usize,
    pub(crate) memory: u64,
    pub(crate) processes: Vec<GpuProcess>,
}

impl DeviceState {
    /// Reads the current state.
    pub(crate) fn read() -> Self {
        let shared = std::env::var_os("SIM_STATE_FILE").and_then(|path| {
            let mut bytes = Vec::new();
            File::open(path).ok()?.read_to_end(&mut bytes).ok()?;
            parse(&bytes, &|pid| start_time(pid))
        });
        shared.unwrap_or_else(|| {
            let variable = |name: &str| std::env::var(name).ok();
            let devices = variable("SIM_DEVICES").and_then(|text| text.trim().parse().ok());
            let memory = variable("SIM_MEMORY").and_then(|text| size(&text));
            Self {
                devices: devices.unwrap_or(2).min(MAX_DEVICES),
                memory: memory.unwrap_or(24 << 30),
                processes: Vec::new(),
            }
        })
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

/// Parses the file; slots whose process has exited or was replaced are skipped.
fn parse(bytes: &[u8], start_of: &dyn Fn(u64) -> Option<u64>) -> Option<DeviceState> {
    if bytes.get(..8)? != MAGIC {
        return None;
    }
    let devices = usize::try_from(number(bytes, 8)?).ok()?.min(MAX_DEVICES);
    let memory = number(bytes, 16)?;
    let mut processes = Vec::new();
    for slot in bytes.get(HEADER..)?.chunks_exact(SLOT) {
        let pid = number(slot, 0)?;
        if pid == 0 || start_of(pid) != number(slot, 8) {
            continue;
        }
        let mut uses = [0; MAX_DEVICES];
        for (device, bytes) in uses.iter_mut().enumerate() {
            let at = |base: usize| number(slot, base + device * 8).unwrap_or(0);
            *bytes = at(USED).saturating_add(at(OVERHEAD));
        }
        processes.push(GpuProcess { pid: u32::try_from(pid).ok()?, bytes: uses });
    }
    Some(DeviceState { devices, memory, processes })
}

/// Returns the start time of a process, if it exists.
fn start_time(pid: u64) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything, so fields are counted from its end.
    stat.get(stat.rfind(')')? + 2..)?.split(' ').nth(19)?.parse().ok()
}

/// Parses a number of bytes: `1048576`, `512M`, `24G`.
fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let shift = match unit.trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Vec<u8> {
        let mut bytes = vec![0; HEADER + 3 * SLOT];
        let mut put = |at: usize, value: u64| {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        };
        put(0, u64::from_le_bytes(*b"VSIMSTA1"));
        put(8, 2);
        put(16, 1 << 30);
        for (slot, pid, start) in [(0, 10, 77), (2, 20, 88)] {
            let base = HEADER + slot * SLOT;
            put(base, pid);
            put(base + 8, start);
            put(base + USED + 8, 1000);
            put(base + OVERHEAD + 8, 24);
        }
        bytes
    }

    #[test]
    fn running_processes_are_listed_with_their_bytes() {
        let starts = |pid| (pid == 10).then_some(77);
        let state = parse(&file(), &starts).unwrap();
        assert_eq!((state.devices, state.memory), (2, 1 << 30));
        assert_eq!(state.processes.len(), 1, "the other process is gone");
        assert_eq!(state.processes[0].pid, 10);
        assert_eq!((state.processes[0].uses(0), state.processes[0].uses(1)), (0, 1024));
    }

    #[test]
    fn reused_process_id_is_ignored() {
        assert_eq!(parse(&file(), &|_| Some(99)).unwrap().processes, []);
    }

    #[test]
    fn foreign_files_are_rejected() {
        assert_eq!(parse(b"", &|_| None), None);
        assert_eq!(parse(b"something else entirely", &|_| None), None);
        assert_eq!(parse(b"VSIMSTA1", &|_| None), None);
    }
}
