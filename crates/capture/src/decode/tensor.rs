//! Records of PyTorch's cache.

use engine::event::{Event, What};
use engine::ids::{DeviceId, Pid, Tid};
use engine::tensor::{TensorCall, TensorTurn};
use engine::units::Moment;

use super::{Decoded, Taken, Unreadable};
use crate::wire::{self, Tensor, parse};

/// No row of the hook table.
const NO_HOOK: u16 = u16::MAX;

/// A block of no bytes is of no consequence.
pub(super) fn decode(bytes: &[u8]) -> Result<Option<Decoded>, Unreadable> {
    let record: Tensor = parse(bytes).ok_or(Unreadable)?;
    let Tensor { head, address, allocated, reserved, stack, python, .. } = record;
    let device = u16::try_from(record.device).map_err(|_| Unreadable)?;
    let length = record.bytes.cast_signed();
    let what = match u32::from(head.hook) {
        wire::VS_TENSOR_REFUSED => TensorTurn::Refused { bytes: record.bytes, site: None },
        wire::VS_TENSOR_CHANGED if length > 0 => {
            TensorTurn::Began { address, bytes: record.bytes, site: None }
        }
        wire::VS_TENSOR_CHANGED if length < 0 => {
            TensorTurn::Ended { address, bytes: length.unsigned_abs() }
        }
        wire::VS_TENSOR_CHANGED => return Ok(None),
        _ => return Err(Unreadable),
    };
    let call = TensorCall { what, device: DeviceId(device), allocated, reserved };
    let at = Moment(head.at);
    let (pid, tid) = (Pid(head.pid), Tid(head.tid));
    let event = Event { pid, tid, entered: at, at, what: What::Tensor(call) };
    let known = record.flags & wire::VS_STACK_KNOWN != 0;
    Ok(Some(if stack != 0 || python != 0 {
        Decoded::Called(event, Taken { hook: NO_HOOK, stack, known, python })
    } else {
        Decoded::Event(event)
    }))
}
