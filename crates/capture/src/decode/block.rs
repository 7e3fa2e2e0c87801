//! Decodes records of allocators in processes.

use engine::model::blocks::{Allocator, AllocatorTotals, BlockEvent, BlockOp};
use engine::model::event::EventKind;
use engine::model::ids::DeviceId;
use engine::model::sampling::{Sampling, SamplingInterval};

use super::call::ResolveSite;
use super::{Record, RecordBody, StackRef};
use crate::wire::{self, Block};

/// The hook of a tensor record: not a row of the hook table.
const NO_HOOK: u16 = u16::MAX;

/// A block that was allocated or freed, or an allocation that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRecord {
    allocator: Allocator,
    out_of_memory: bool,
    address: u64,
    /// Size; negative for a block that was freed.
    length: i64,
    pool: u64,
    device: Option<DeviceId>,
    totals: Option<AllocatorTotals>,
    stack: Option<StackRef>,
    sampling: Sampling,
}

impl BlockRecord {
    pub(super) fn record(record: &Block) -> Option<Record> {
        let Block { head, address, allocated, reserved, stack, python, flags, pool, .. } = *record;
        let (allocator, out_of_memory) = match u32::from(head.hook) {
            wire::VS_BLOCK_TORCH => (Allocator::PyTorch, false),
            wire::VS_BLOCK_TORCH_OOM => (Allocator::PyTorch, true),
            wire::VS_BLOCK_CUPY_ALLOC | wire::VS_BLOCK_CUPY_FREE => (Allocator::CuPy, false),
            wire::VS_BLOCK_XLA => (Allocator::Xla, false),
            wire::VS_BLOCK_RMM_ALLOC | wire::VS_BLOCK_RMM_FREE => (Allocator::Rmm, false),
            _ => return None,
        };
        let device = match record.device {
            -1 => None,
            device => Some(DeviceId(u16::try_from(device).ok()?)),
        };
        let totals = AllocatorTotals { allocated, reserved };
        let body = RecordBody::Block(Self {
            allocator,
            out_of_memory,
            address,
            length: record.bytes.cast_signed(),
            pool,
            device,
            totals: allocator.reports_totals().then_some(totals),
            stack: StackRef::new(NO_HOOK, stack, python, flags.into()),
            sampling: match SamplingInterval::from_log2(record.interval) {
                None => Sampling::All,
                Some(interval) if u32::from(flags) & wire::VS_SKIPPED != 0 => {
                    Sampling::Skipped(interval)
                }
                Some(interval) => Sampling::Sampled(interval),
            },
        });
        Some(Record::new(&head, body))
    }

    /// Returns the event; `None` for a block of zero bytes.
    pub(super) fn event(&self, site: ResolveSite<'_>) -> Option<EventKind> {
        let Self { allocator, address, length, pool, device, totals, sampling, .. } = *self;
        let bytes = length.unsigned_abs();
        let mut site = || self.stack.and_then(&mut *site);
        let op = match (self.out_of_memory, length) {
            (true, _) => BlockOp::OutOfMemory { bytes: length.cast_unsigned(), site: site() },
            (false, 0) => return None,
            (false, 1..) => BlockOp::Allocated { address, bytes, site: site(), sampling },
            (false, _) => BlockOp::Freed { address, bytes },
        };
        Some(EventKind::Block(BlockEvent { allocator, op, pool, device, totals }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::DecodeError;
    use super::*;

    /// A record as the probe writes it.
    fn record(call: u32, bytes: i64, device: i32, stack: u64) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend((wire::VS_BLOCK as u16).to_ne_bytes());
        out.extend((call as u16).to_ne_bytes());
        out.extend(0_i32.to_ne_bytes());
        out.extend([7_u32.to_ne_bytes(), 8_u32.to_ne_bytes()].concat());
        for word in [99, 0x1000, bytes.cast_unsigned(), 5000, 9000, stack, 0, 0x70] {
            out.extend(word.to_ne_bytes());
        }
        out.extend(device.to_ne_bytes());
        out.extend(0_u32.to_ne_bytes());
        out
    }

    fn parse(bytes: &[u8]) -> Result<BlockRecord, DecodeError> {
        Record::parse(bytes).map(|record| match record.body {
            RecordBody::Block(block) => block,
            other => panic!("{other:?}"),
        })
    }

    fn block_event(bytes: &[u8]) -> Option<BlockEvent> {
        match parse(bytes).unwrap().event(&mut |_| None)? {
            EventKind::Block(call) => Some(call),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn blocks_are_allocated_freed_or_out_of_memory() {
        let address = 0x1000;
        let allocated = |sampling| BlockOp::Allocated { address, bytes: 512, site: None, sampling };
        for (call, bytes, expected) in [
            (wire::VS_BLOCK_TORCH, 512, allocated(Sampling::All)),
            (wire::VS_BLOCK_TORCH, -512, BlockOp::Freed { address, bytes: 512 }),
            (wire::VS_BLOCK_TORCH_OOM, 512, BlockOp::OutOfMemory { bytes: 512, site: None }),
            (wire::VS_BLOCK_TORCH, i64::MIN, BlockOp::Freed { address, bytes: 1 << 63 }),
        ] {
            let call = block_event(&record(call, bytes, 3, 0)).unwrap();
            assert_eq!(call.op, expected);
            let totals = AllocatorTotals { allocated: 5000, reserved: 9000 };
            assert_eq!((call.device, call.totals), (Some(DeviceId(3)), Some(totals)));
            assert_eq!(call.allocator, Allocator::PyTorch);
        }
        assert_eq!(block_event(&record(wire::VS_BLOCK_TORCH, 0, 3, 0)), None);
    }

    #[test]
    fn sampled_blocks_have_their_interval() {
        let interval = SamplingInterval::from_bytes(1 << 16).unwrap();
        let skipped = wire::VS_SKIPPED as u8;
        for (flags, power, expected) in [
            (0, 0, Sampling::All),
            (skipped, 0, Sampling::All),
            (0, 16, Sampling::Sampled(interval)),
            (skipped, 16, Sampling::Skipped(interval)),
            (0, 200, Sampling::All),
        ] {
            let mut bytes = record(wire::VS_BLOCK_TORCH, 512, 0, 0);
            let end = bytes.len();
            bytes[end - 4..].copy_from_slice(&[flags, 0, power, 0]);
            let event = block_event(&bytes).unwrap();
            let BlockOp::Allocated { sampling, .. } = event.op else { panic!("{event:?}") };
            assert_eq!(sampling, expected, "{flags} {power}");
        }
    }

    #[test]
    fn allocators_without_totals_have_pools() {
        for (call, bytes, device, expected) in [
            (wire::VS_BLOCK_CUPY_ALLOC, 512, 1, (Allocator::CuPy, Some(DeviceId(1)))),
            (wire::VS_BLOCK_CUPY_FREE, -512, 0, (Allocator::CuPy, Some(DeviceId(0)))),
            (wire::VS_BLOCK_XLA, -256, -1, (Allocator::Xla, None)),
            (wire::VS_BLOCK_RMM_ALLOC, 256, -1, (Allocator::Rmm, None)),
            (wire::VS_BLOCK_RMM_FREE, -256, -1, (Allocator::Rmm, None)),
        ] {
            let event = block_event(&record(call, bytes, device, 0)).unwrap();
            assert_eq!((event.allocator, event.device), expected);
            assert_eq!((event.pool, event.totals), (0x70, None));
            assert_eq!(matches!(event.op, BlockOp::Freed { .. }), bytes < 0);
        }
    }

    #[test]
    fn stack_of_a_tensor_has_no_hook() {
        let decoded = parse(&record(wire::VS_BLOCK_TORCH, 512, 0, 44)).unwrap();
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
        let complete = record(wire::VS_BLOCK_TORCH, 512, 0, 0);
        for length in 0..complete.len() {
            assert_eq!(parse(&complete[..length]), Err(DecodeError), "{length}");
        }
        assert_eq!(parse(&record(99, 512, 0, 0)), Err(DecodeError));
        assert_eq!(parse(&record(wire::VS_BLOCK_TORCH, 512, -2, 0)), Err(DecodeError));
    }
}
