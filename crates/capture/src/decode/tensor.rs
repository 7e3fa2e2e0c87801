//! Decodes records of PyTorch's caching allocator.

use engine::model::event::{Event, EventKind};
use engine::model::ids::{DeviceId, Pid, Tid};
use engine::model::tensor::{TensorEvent, TensorOp};
use engine::model::units::Timestamp;

use super::{DecodeError, Record, StackRef};
use crate::wire::{self, Tensor, parse};

/// The hook of a tensor record: not a row of the hook table.
const NO_HOOK: u16 = u16::MAX;

/// Decodes a tensor record; `Ok(None)` for a block of zero bytes.
pub(super) fn decode(bytes: &[u8]) -> Result<Option<Record>, DecodeError> {
    let record: Tensor = parse(bytes).ok_or(DecodeError)?;
    let Tensor { head, address, allocated, reserved, stack, python, .. } = record;
    let device = u16::try_from(record.device).map_err(|_| DecodeError)?;
    let length = record.bytes.cast_signed();
    let op = match u32::from(head.hook) {
        wire::VS_TENSOR_OOM => TensorOp::OutOfMemory { bytes: record.bytes, site: None },
        wire::VS_TENSOR_ALLOC_FREE if length > 0 => {
            TensorOp::Allocated { address, bytes: record.bytes, site: None }
        }
        wire::VS_TENSOR_ALLOC_FREE if length < 0 => {
            TensorOp::Freed { address, bytes: length.unsigned_abs() }
        }
        wire::VS_TENSOR_ALLOC_FREE => return Ok(None),
        _ => return Err(DecodeError),
    };
    let call = TensorEvent { op, device: DeviceId(device), allocated, reserved };
    let at = Timestamp(head.at);
    let (pid, tid) = (Pid(head.pid), Tid(head.tid));
    let event = Event { pid, tid, entry_time: at, time: at, kind: EventKind::Tensor(call) };
    let known = record.flags & wire::VS_STACK_KNOWN != 0;
    Ok(Some(if stack != 0 || python != 0 {
        Record::CallWithStack(event, StackRef { hook: NO_HOOK, stack, known, python })
    } else {
        Record::Event(event)
    }))
}

#[cfg(test)]
mod tests {
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

    fn tensor_event(bytes: &[u8]) -> Option<TensorEvent> {
        match decode(bytes).unwrap()? {
            Record::Event(Event { kind: EventKind::Tensor(call), .. })
            | Record::CallWithStack(Event { kind: EventKind::Tensor(call), .. }, _) => Some(call),
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
        let decoded = decode(&record(wire::VS_TENSOR_ALLOC_FREE, 512, 0, 44)).unwrap();
        let Some(Record::CallWithStack(_, stack)) = decoded else { panic!("{decoded:?}") };
        assert_eq!((stack.hook, stack.stack, stack.known), (NO_HOOK, 44, false));
        assert!(crate::hooks::HOOKS.get(usize::from(NO_HOOK)).is_none());
    }

    #[test]
    fn truncated_or_invalid_records_are_rejected() {
        let complete = record(wire::VS_TENSOR_ALLOC_FREE, 512, 0, 0);
        for length in 0..complete.len() {
            assert_eq!(decode(&complete[..length]), Err(DecodeError), "{length}");
        }
        assert_eq!(decode(&record(2, 512, 0, 0)), Err(DecodeError));
        assert_eq!(decode(&record(wire::VS_TENSOR_ALLOC_FREE, 512, -1, 0)), Err(DecodeError));
    }
}
