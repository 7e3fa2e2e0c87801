//! Decodes records of PyTorch's caching allocator.

use engine::model::event::EventKind;
use engine::model::ids::DeviceId;
use engine::model::tensor::{TensorEvent, TensorOp};

use super::call::ResolveSite;
use super::{Record, RecordBody, StackRef};
use crate::wire::{self, Tensor};

/// The hook of a tensor record: not a row of the hook table.
const NO_HOOK: u16 = u16::MAX;

/// A block that was allocated or freed, or an allocation that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorRecord {
    out_of_memory: bool,
    address: u64,
    /// Size; negative for a block that was freed.
    length: i64,
    device: DeviceId,
    allocated: u64,
    reserved: u64,
    stack: Option<StackRef>,
}

impl TensorRecord {
    pub(super) fn record(record: &Tensor) -> Option<Record> {
        let Tensor { head, address, allocated, reserved, stack, python, flags, .. } = *record;
        let out_of_memory = match u32::from(head.hook) {
            wire::VS_TENSOR_OOM => true,
            wire::VS_TENSOR_ALLOC_FREE => false,
            _ => return None,
        };
        let body = RecordBody::Tensor(Self {
            out_of_memory,
            address,
            length: record.bytes.cast_signed(),
            device: DeviceId(u16::try_from(record.device).ok()?),
            allocated,
            reserved,
            stack: StackRef::new(NO_HOOK, stack, python, flags),
        });
        Some(Record::new(&head, body))
    }

    /// Returns the event; `None` for a block of zero bytes.
    pub(super) fn event(&self, site: ResolveSite<'_>) -> Option<EventKind> {
        let Self { address, length, device, allocated, reserved, .. } = *self;
        let bytes = length.unsigned_abs();
        let mut site = || self.stack.and_then(&mut *site);
        let op = match (self.out_of_memory, length) {
            (true, _) => TensorOp::OutOfMemory { bytes: length.cast_unsigned(), site: site() },
            (false, 0) => return None,
            (false, 1..) => TensorOp::Allocated { address, bytes, site: site() },
            (false, _) => TensorOp::Freed { address, bytes },
        };
        Some(EventKind::Tensor(TensorEvent { op, device, allocated, reserved }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::DecodeError;
    use super::*;

    /// A record as the probe writes it.
    fn record(call: u32, bytes: i64, device: i32, stack: u64) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend((wire::VS_TENSOR as u16).to_ne_bytes());
        out.extend((call as u16).to_ne_bytes());
        out.extend(0_i32.to_ne_bytes());
        out.extend([7_u32.to_ne_bytes(), 8_u32.to_ne_bytes()].concat());
        for word in [99, 0x1000, bytes.cast_unsigned(), 5000, 9000, stack, 0] {
            out.extend(word.to_ne_bytes());
        }
        out.extend(device.to_ne_bytes());
        out.extend(0_u32.to_ne_bytes());
        out
    }

    fn parse(bytes: &[u8]) -> Result<TensorRecord, DecodeError> {
        Record::parse(bytes).map(|record| match record.body {
            RecordBody::Tensor(tensor) => tensor,
            other => panic!("{other:?}"),
        })
    }

    fn tensor_event(bytes: &[u8]) -> Option<TensorEvent> {
        match parse(bytes).unwrap().event(&mut |_| None)? {
            EventKind::Tensor(call) => Some(call),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn blocks_are_allocated_freed_or_out_of_memory() {
        let address = 0x1000;
        for (call, bytes, expected) in [
            (
                wire::VS_TENSOR_ALLOC_FREE,
                512,
                TensorOp::Allocated { address, bytes: 512, site: None },
            ),
            (wire::VS_TENSOR_ALLOC_FREE, -512, TensorOp::Freed { address, bytes: 512 }),
            (wire::VS_TENSOR_OOM, 512, TensorOp::OutOfMemory { bytes: 512, site: None }),
            (wire::VS_TENSOR_ALLOC_FREE, i64::MIN, TensorOp::Freed { address, bytes: 1 << 63 }),
        ] {
            let call = tensor_event(&record(call, bytes, 3, 0)).unwrap();
            assert_eq!(call.op, expected);
            assert_eq!((call.device, call.allocated, call.reserved), (DeviceId(3), 5000, 9000));
        }
        assert_eq!(tensor_event(&record(wire::VS_TENSOR_ALLOC_FREE, 0, 3, 0)), None);
    }

    #[test]
    fn stack_of_a_tensor_has_no_hook() {
        let decoded = parse(&record(wire::VS_TENSOR_ALLOC_FREE, 512, 0, 44)).unwrap();
        let mut asked = None;
        decoded.event(&mut |stack| {
            asked = Some(stack);
            None
        });
        let stack = asked.unwrap();
        assert_eq!((stack.hook, stack.stack, stack.known), (NO_HOOK, 44, false));
        assert!(crate::hooks::HOOKS.get(usize::from(NO_HOOK)).is_none());
    }

    #[test]
    fn truncated_or_invalid_records_are_rejected() {
        let complete = record(wire::VS_TENSOR_ALLOC_FREE, 512, 0, 0);
        for length in 0..complete.len() {
            assert_eq!(parse(&complete[..length]), Err(DecodeError), "{length}");
        }
        assert_eq!(parse(&record(2, 512, 0, 0)), Err(DecodeError));
        assert_eq!(parse(&record(wire::VS_TENSOR_ALLOC_FREE, 512, -1, 0)), Err(DecodeError));
    }
}
