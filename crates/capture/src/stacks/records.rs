//! Decodes records of the stack ring. Any bytes give a record or nothing; never a panic.

use engine::model::ids::Pid;

use super::native::{HijackedReturn, Registers};
use crate::decode::ExecGeneration;
use crate::wire::{self, Head, WireHijackedReturn, WirePythonFrame, WireReader, parse};

/// A record of the stack ring.
#[derive(Clone, Debug)]
pub(crate) enum StackRecord {
    /// A copy of a stack, to be unwound.
    Copy {
        origin: StackOrigin,
        registers: Registers,
        bytes: Box<[u8]>,
        hijacked: Vec<HijackedReturn>,
    },
    /// A frame-pointer walk.
    Addresses { origin: StackOrigin, addresses: Vec<u64>, hijacked: Vec<HijackedReturn> },
    /// A Python stack.
    Python { origin: StackOrigin, frames: Vec<WirePythonFrame>, truncated: bool },
}

/// The process of a stack, and the token by which calls refer to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct StackOrigin {
    pub(crate) pid: Pid,
    pub(crate) exec_gen: ExecGeneration,
    pub(crate) token: u64,
}

/// Decodes one record; `None` if it is invalid.
pub(crate) fn read(bytes: &[u8]) -> Option<StackRecord> {
    let head: Head = parse(bytes)?;
    match u32::from(head.kind) {
        wire::VS_STACK => copy(bytes),
        wire::VS_ADDRESSES => addresses(bytes),
        wire::VS_PYTHON => python(bytes),
        _ => None,
    }
}

fn origin(head: &Head, token: u64) -> StackOrigin {
    StackOrigin { pid: Pid(head.pid), exec_gen: ExecGeneration(head.result as u16), token }
}

fn hijacked(list: &[WireHijackedReturn], count: u32) -> Vec<HijackedReturn> {
    let used = list.iter().take(count as usize);
    used.map(|hijacked| HijackedReturn { at: hijacked.at, address: hijacked.address }).collect()
}

fn copy(bytes: &[u8]) -> Option<StackRecord> {
    let stack: wire::Stack = parse(bytes)?;
    let copy = bytes.get(size_of::<wire::Stack>()..)?.get(..stack.bytes as usize)?;
    Some(StackRecord::Copy {
        origin: origin(&stack.head, stack.token),
        registers: Registers { ip: stack.ip, sp: stack.sp, bp: stack.bp },
        bytes: copy.into(),
        hijacked: hijacked(&stack.hijacked, stack.hijacked_count),
    })
}

fn addresses(bytes: &[u8]) -> Option<StackRecord> {
    let walk: wire::Addresses = parse(bytes)?;
    Some(StackRecord::Addresses {
        origin: origin(&walk.head, walk.token),
        addresses: walk.addresses.get(..walk.count as usize)?.to_vec(),
        hijacked: hijacked(&walk.hijacked, walk.hijacked_count),
    })
}

/// Reads frame by frame: most stacks are far shorter than the maximum.
fn python(bytes: &[u8]) -> Option<StackRecord> {
    let mut reader = WireReader::new(bytes);
    let (head, token): (Head, u64) = (reader.take()?, reader.take()?);
    let (count, truncated): (u32, u32) = (reader.take()?, reader.take()?);
    if count as usize > wire::VS_PYTHON_MAX {
        return None;
    }
    let frames = (0..count).map(|_| reader.take()).collect::<Option<_>>()?;
    Some(StackRecord::Python { origin: origin(&head, token), frames, truncated: truncated != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_records_are_rejected() {
        let mut bytes = vec![0; size_of::<wire::Stack>() + 8];
        bytes[0] = wire::VS_STACK as u8;
        let length = std::mem::offset_of!(wire::Stack, bytes);
        bytes[length] = 8;
        assert!(matches!(read(&bytes), Some(StackRecord::Copy { bytes, .. }) if bytes.len() == 8));
        for end in 0..bytes.len() {
            assert!(read(&bytes[..end]).is_none(), "{end}");
        }
    }

    #[test]
    fn counts_beyond_the_record_are_rejected() {
        let mut bytes = vec![0; size_of::<wire::Addresses>()];
        bytes[0] = wire::VS_ADDRESSES as u8;
        let count = std::mem::offset_of!(wire::Addresses, count);
        bytes[count] = 128;
        assert!(read(&bytes).is_some());
        bytes[count] = 129;
        assert!(read(&bytes).is_none());
        let mut bytes = vec![0; 40 + 40 * 2];
        bytes[0] = wire::VS_PYTHON as u8;
        for (count, fits) in [(0, true), (2, true), (3, false), (255, false)] {
            bytes[32] = count;
            assert_eq!(read(&bytes).is_some(), fits, "{count}");
        }
    }
}
