//! Names of kernels that no traced call names: read from the driver's memory.
//!
//! A handle (`CUfunction`, `CUkernel`) is the address of an object of the driver. In the drivers
//! that were inspected, a pointer to the kernel's name is near its start. The layout is not
//! documented, so a name is used only if it is plausible.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use engine::model::activity::{GpuActivity, NameSource, UnnamedReason};
use engine::model::ids::{KernelId, Pid};

use crate::decode::{KernelNameRecord, RecordBody};

/// Maximum length of a name.
const MAX_NAME_BYTES: usize = 1 << 16;

/// Offset of the pointer to the name in the driver's object, as observed in driver 580.
const NAME_POINTER_OFFSET: u64 = 8;

/// Maximum number of names kept per process, so that a hostile process cannot exhaust memory.
const MAX_NAMES_PER_PROCESS: usize = 1 << 20;

/// Kernels of a process whose name was reported or is known to be missing, and whether each has one.
#[derive(Default)]
pub(crate) struct KernelNames(HashMap<KernelId, bool>);

impl KernelNames {
    fn insert(&mut self, kernel: KernelId, has_name: bool) {
        if self.0.len() < MAX_NAMES_PER_PROCESS {
            self.0.insert(kernel, has_name);
        }
    }

    /// Observes the kernel name in a record, if any.
    pub(crate) fn observe(&mut self, record: &RecordBody) {
        match record {
            RecordBody::KernelName(named) if !named.from_memory => self.insert(named.kernel, true),
            RecordBody::Call(call) => {
                if let Some((function, kernel)) = call.alias()
                    && self.0.get(&kernel) == Some(&true)
                {
                    self.insert(function, true);
                }
            }
            _ => {}
        }
    }

    /// Returns the name in a record of a process, unless a better one is known.
    pub(crate) fn resolve(&mut self, pid: Pid, named: &KernelNameRecord) -> Option<GpuActivity> {
        let kernel = named.kernel;
        // A name from a call takes precedence over one read from memory.
        let is_full = self.0.len() >= MAX_NAMES_PER_PROCESS;
        if named.from_memory && (is_full || self.0.get(&kernel) == Some(&true)) {
            return None;
        }
        let activity = from_record(pid, named);
        self.insert(kernel, matches!(activity, GpuActivity::Named { .. }));
        Some(activity)
    }

    /// Returns the name of a launched kernel of a process, or that it has none, unless that is
    /// known.
    pub(crate) fn name_of(&mut self, pid: Pid, kernel: KernelId) -> Option<GpuActivity> {
        if self.0.len() >= MAX_NAMES_PER_PROCESS || self.0.contains_key(&kernel) {
            return None;
        }
        let name = read_name(pid, kernel);
        self.insert(kernel, name.is_some());
        Some(match name {
            Some(name) => GpuActivity::Named { kernel, name, source: NameSource::Memory },
            None => GpuActivity::Unnamed { kernel, reason: UnnamedReason::BeforeTrace },
        })
    }
}

/// Returns the name in a record. A name that the probe could not read in full is read again here.
fn from_record(pid: Pid, named: &KernelNameRecord) -> GpuActivity {
    let KernelNameRecord { kernel, text: address, truncated, from_memory, .. } = *named;
    let again = || {
        let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
        text(&memory, address)
    };
    let name = match &named.name {
        Some(name) if !truncated => Some(name.clone()),
        part => again().or_else(|| part.clone()),
    };
    match name {
        Some(name) if from_memory && is_plausible(&name) => {
            GpuActivity::Named { kernel, name, source: NameSource::Memory }
        }
        _ if from_memory => GpuActivity::Unnamed { kernel, reason: UnnamedReason::BeforeTrace },
        Some(name) => GpuActivity::Named { kernel, name, source: NameSource::Call },
        None => GpuActivity::Unnamed { kernel, reason: UnnamedReason::Unreadable },
    }
}

fn read_name(pid: Pid, kernel: KernelId) -> Option<Box<str>> {
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut pointer = [0; 8];
    memory.read_exact_at(&mut pointer, kernel.0.checked_add(NAME_POINTER_OFFSET)?).ok()?;
    text(&memory, u64::from_ne_bytes(pointer)).filter(|name| is_plausible(name))
}

fn text(memory: &File, address: u64) -> Option<Box<str>> {
    let mut bytes = Vec::new();
    // In pieces that do not cross a page: the next page may not be mapped.
    while bytes.len() < MAX_NAME_BYTES {
        let at = address.checked_add(bytes.len() as u64)?;
        let mut piece = [0; 256];
        let length = (256 - at as usize % 256).min(MAX_NAME_BYTES - bytes.len());
        let piece = piece.get_mut(..length)?;
        memory.read_exact_at(piece, at).ok()?;
        if let Some(end) = piece.iter().position(|&byte| byte == 0) {
            bytes.extend_from_slice(&piece[..end]);
            return Some(String::from_utf8_lossy(&bytes).into());
        }
        bytes.extend_from_slice(piece);
    }
    None
}

/// Returns whether a name can be a symbol of GPU code: a C identifier with compiler additions.
fn is_plausible(name: &str) -> bool {
    let first = name.bytes().next();
    let starts = first.is_some_and(|byte| byte.is_ascii_alphabetic() || b"_$.".contains(&byte));
    starts && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_$.@".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_symbols_are_plausible_names() {
        for name in ["_Z10vector_addPfS_S_i", "triton_poi_fused_add_0", "$L__x", "f.kernel.7"] {
            assert!(is_plausible(name), "{name}");
        }
        for name in ["", "7up", "a b", "caf\u{e9}", "x\u{1b}[31m", "/usr/lib"] {
            assert!(!is_plausible(name), "{name}");
        }
    }

    #[test]
    fn name_is_read_through_kernel_handle() {
        let name = c"_Z6kernelPf";
        let object: [u64; 2] = [1, name.as_ptr() as u64];
        let (pid, kernel) = (Pid(std::process::id()), KernelId(object.as_ptr() as u64));
        let mut names = KernelNames::default();
        let named =
            GpuActivity::Named { kernel, name: "_Z6kernelPf".into(), source: NameSource::Memory };
        assert_eq!(names.name_of(pid, kernel), Some(named));
        assert_eq!(names.name_of(pid, kernel), None);
        let invalid = KernelId(0xdead_0000);
        let reason = UnnamedReason::BeforeTrace;
        assert_eq!(
            names.name_of(pid, invalid),
            Some(GpuActivity::Unnamed { kernel: invalid, reason })
        );
    }
}
