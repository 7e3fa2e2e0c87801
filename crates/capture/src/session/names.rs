//! Names of kernels that no call told while tracing: read where the driver keeps them.
//!
//! A handle (`CUfunction`, `CUkernel`) is the address of an object of the driver. In the drivers
//! that were looked at, a pointer to the kernel's name stands near its beginning. That is no
//! promise, so what is found there counts only when it could be the name of a kernel.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use engine::event::{Event, What};
use engine::ids::{KernelId, Pid};
use engine::work::{NamedBy, NoName, Work};

use crate::decode::{Decoded, NamedKernel};

/// The longest name that is read.
const LONGEST: usize = 1 << 16;

/// Where in a driver's object the pointer to the name is: seen in driver 580.
const NAME: u64 = 8;

/// Names that are remembered of a process, so that a hostile one cannot fill the memory.
const MOST: usize = 1 << 20;

/// Which kernels were looked at, and have names.
#[derive(Default)]
pub(crate) struct Names {
    told: HashMap<Pid, HashMap<KernelId, bool>>,
}

impl Names {
    /// Takes note of what a record tells of names.
    pub(crate) fn note(&mut self, record: &Decoded) {
        let (pid, kernel) = match record {
            Decoded::Named(named) if !named.guessed => (named.pid, named.kernel),
            Decoded::Event(Event {
                pid,
                what: What::Work(Work::Alias { function, kernel }),
                ..
            }) if self.told.get(pid).and_then(|told| told.get(kernel)) == Some(&true) => {
                (*pid, *function)
            }
            _ => return,
        };
        let told = self.told.entry(pid).or_default();
        if told.len() < MOST {
            told.insert(kernel, true);
        }
    }

    /// What a record says of a name, unless more is known already.
    pub(crate) fn resolve(&mut self, named: NamedKernel) -> Option<Work> {
        let told = self.told.entry(named.pid).or_default();
        // What a call told is better than what was found.
        if named.guessed && (told.len() >= MOST || told.get(&named.kernel) == Some(&true)) {
            return None;
        }
        let kernel = named.kernel;
        let work = self::told(named);
        if told.len() < MOST {
            told.insert(kernel, matches!(work, Work::Named { .. }));
        }
        Some(work)
    }

    /// A kernel was launched: its name or the lack of it, unless that is known.
    pub(crate) fn look_up(&mut self, pid: Pid, kernel: KernelId) -> Option<Work> {
        let told = self.told.entry(pid).or_default();
        if told.len() >= MOST || told.contains_key(&kernel) {
            return None;
        }
        let name = name_of(pid, kernel);
        told.insert(kernel, name.is_some());
        Some(match name {
            Some(name) => Work::Named { kernel, name, by: NamedBy::Memory },
            None => Work::Nameless { kernel, why: NoName::BeforeTrace },
        })
    }

    pub(crate) fn forget(&mut self, pid: Pid) {
        self.told.remove(&pid);
    }
}

/// What a call told, or what a probe found. A name that it could not read, or not all of it, is read
/// again here.
fn told(named: NamedKernel) -> Work {
    let NamedKernel { pid, kernel, name, text: address, cut, guessed, .. } = named;
    let again = || {
        let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
        text(&memory, address)
    };
    let name = match name {
        Some(name) if !cut => Some(name),
        part => again().or(part),
    };
    match name {
        Some(name) if guessed && is_plausible(&name) => {
            Work::Named { kernel, name, by: NamedBy::Memory }
        }
        _ if guessed => Work::Nameless { kernel, why: NoName::BeforeTrace },
        Some(name) => Work::Named { kernel, name, by: NamedBy::Call },
        None => Work::Nameless { kernel, why: NoName::Unreadable },
    }
}

fn name_of(pid: Pid, kernel: KernelId) -> Option<Box<str>> {
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut pointer = [0; 8];
    memory.read_exact_at(&mut pointer, kernel.0.checked_add(NAME)?).ok()?;
    text(&memory, u64::from_ne_bytes(pointer)).filter(|name| is_plausible(name))
}

fn text(memory: &File, address: u64) -> Option<Box<str>> {
    let mut bytes = Vec::new();
    // In pieces that do not cross a page, for the next page may not be there.
    while bytes.len() < LONGEST {
        let at = address.checked_add(bytes.len() as u64)?;
        let mut piece = [0; 256];
        let room = (256 - at as usize % 256).min(LONGEST - bytes.len());
        let piece = piece.get_mut(..room)?;
        memory.read_exact_at(piece, at).ok()?;
        if let Some(end) = piece.iter().position(|&byte| byte == 0) {
            bytes.extend_from_slice(&piece[..end]);
            return Some(String::from_utf8_lossy(&bytes).into());
        }
        bytes.extend_from_slice(piece);
    }
    None
}

/// Symbols of GPU code: those of C, and what compilers add.
fn is_plausible(name: &str) -> bool {
    let first = name.bytes().next();
    let starts = first.is_some_and(|byte| byte.is_ascii_alphabetic() || b"_$.".contains(&byte));
    starts && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_$.@".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_symbols_can_be_names() {
        for name in ["_Z10vector_addPfS_S_i", "triton_poi_fused_add_0", "$L__x", "f.kernel.7"] {
            assert!(is_plausible(name), "{name}");
        }
        for name in ["", "7up", "a b", "caf\u{e9}", "x\u{1b}[31m", "/usr/lib"] {
            assert!(!is_plausible(name), "{name}");
        }
    }

    #[test]
    fn a_name_is_read_where_the_handle_leads() {
        let name = c"_Z6kernelPf";
        let object: [u64; 2] = [1, name.as_ptr() as u64];
        let (pid, kernel) = (Pid(std::process::id()), KernelId(object.as_ptr() as u64));
        let mut names = Names::default();
        let named = Work::Named { kernel, name: "_Z6kernelPf".into(), by: NamedBy::Memory };
        assert_eq!(names.look_up(pid, kernel), Some(named));
        assert_eq!(names.look_up(pid, kernel), None);
        let wild = KernelId(0xdead_0000);
        let why = NoName::BeforeTrace;
        assert_eq!(names.look_up(pid, wild), Some(Work::Nameless { kernel: wild, why }));
    }
}
