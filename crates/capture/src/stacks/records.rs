//! Bytes of the stack ring → what they tell. Total: any bytes give a record or nothing.

use engine::ids::Pid;

use super::native::{Pending, Registers};
use crate::decode::Program;
use crate::wire::{self, Head, Reader, WirePending, WirePythonFrame, parse};

/// What came over the stack ring.
#[derive(Clone, Debug)]
pub(crate) enum StackRecord {
    /// A copy of a stack, to be unwound.
    Copy { from: From, registers: Registers, bytes: Box<[u8]>, pending: Vec<Pending> },
    /// A walk along frame pointers.
    Addresses { from: From, addresses: Vec<u64>, pending: Vec<Pending> },
    /// A Python stack.
    Python { from: From, frames: Vec<WirePythonFrame>, cut: bool },
}

/// Whose it is, and what calls name it by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct From {
    pub(crate) pid: Pid,
    pub(crate) program: Program,
    pub(crate) token: u64,
}

/// Reads one record; `None` when it is not understood.
pub(crate) fn read(bytes: &[u8]) -> Option<StackRecord> {
    let head: Head = parse(bytes)?;
    match u32::from(head.kind) {
        wire::VS_STACK => copy(bytes),
        wire::VS_ADDRESSES => addresses(bytes),
        wire::VS_PYTHON => python(bytes),
        _ => None,
    }
}

fn from(head: &Head, token: u64) -> From {
    From { pid: Pid(head.pid), program: Program(head.result as u16), token }
}

fn pending(list: &[WirePending], count: u32) -> Vec<Pending> {
    let used = list.iter().take(count as usize);
    used.map(|one| Pending { at: one.at, address: one.address }).collect()
}

fn copy(bytes: &[u8]) -> Option<StackRecord> {
    let stack: wire::Stack = parse(bytes)?;
    let copy = bytes.get(size_of::<wire::Stack>()..)?.get(..stack.bytes as usize)?;
    Some(StackRecord::Copy {
        from: from(&stack.head, stack.token),
        registers: Registers { ip: stack.ip, sp: stack.sp, bp: stack.bp },
        bytes: copy.into(),
        pending: pending(&stack.list, stack.pending),
    })
}

fn addresses(bytes: &[u8]) -> Option<StackRecord> {
    let list: wire::Addresses = parse(bytes)?;
    Some(StackRecord::Addresses {
        from: from(&list.head, list.token),
        addresses: list.addresses.get(..list.count as usize)?.to_vec(),
        pending: pending(&list.list, list.pending),
    })
}

/// Read frame by frame: most stacks are far shorter than there is room for.
fn python(bytes: &[u8]) -> Option<StackRecord> {
    let mut reader = Reader::new(bytes);
    let (head, token): (Head, u64) = (reader.take()?, reader.take()?);
    let (count, cut): (u32, u32) = (reader.take()?, reader.take()?);
    if count as usize > wire::VS_PYTHON_MAX {
        return None;
    }
    let frames = (0..count).map(|_| reader.take()).collect::<Option<_>>()?;
    Some(StackRecord::Python { from: from(&head, token), frames, cut: cut != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_are_cut_are_refused() {
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
    fn counts_beyond_the_record_are_refused() {
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
