//! State at the end of the file: segments, their blocks, and allocator settings.

use std::io;

use engine::analysis::MemoryScope;
use engine::model::{
    AllocatorSettings, Block, BlockState, DeviceId, PoolSizeClass, Segment, SiteId,
};
use hashbrown::HashMap;

use super::pickle_writer::PickleWriter;
use super::{LiveAllocation, SnapshotWriter};
use crate::import::collecting_sink::FileInfo;
use crate::sanitize::sanitize;

/// Maximum size of PyTorch's small blocks.
const SMALL_BLOCK_BYTES: u64 = 1 << 20;

/// Returns the requested sizes of blocks that are allocated at the end, by address.
pub(super) fn requested(info: &FileInfo) -> HashMap<u64, u64> {
    let blocks = info.segments.iter().flat_map(|segment| segment.blocks.iter());
    let allocated = blocks.filter(|block| block.state == BlockState::Allocated);
    allocated.map(|block| (block.address, block.requested)).collect()
}

/// A segment to write.
struct SegmentRecord<'s> {
    device: u64,
    address: u64,
    bytes: u64,
    stream: u64,
    size_class: PoolSizeClass,
    pool: (u64, u64),
    expandable: bool,
    site: Option<SiteId>,
    blocks: &'s [Block],
}

impl SnapshotWriter<'_> {
    /// Writes the list of device segments.
    pub(super) fn segments(&mut self, info: &FileInfo) -> io::Result<()> {
        let mut items = self.pickle.open_list()?;
        if self.scope == MemoryScope::Torch {
            for segment in info.segments.iter().filter(|segment| segment.device.is_some()) {
                self.pickle.item(&mut items)?;
                self.cached(segment, info)?;
            }
        } else {
            for live in std::mem::take(&mut self.live) {
                self.pickle.item(&mut items)?;
                self.driver_allocation(&live, info)?;
                self.live.push(live);
            }
        }
        self.pickle.close_list()
    }

    /// Writes the list of host segments.
    pub(super) fn host_segments(&mut self, info: &FileInfo) -> io::Result<()> {
        let mut items = self.pickle.open_list()?;
        for segment in info.segments.iter().filter(|segment| segment.device.is_none()) {
            self.pickle.item(&mut items)?;
            self.cached(segment, info)?;
        }
        self.pickle.close_list()
    }

    /// Writes a segment of a cache.
    fn cached(&mut self, segment: &Segment, info: &FileInfo) -> io::Result<()> {
        let record = SegmentRecord {
            device: self.device_index(segment.device),
            address: segment.address,
            bytes: segment.bytes,
            stream: segment.stream.map_or(0, |stream| stream.0),
            size_class: segment.pool.size_class,
            pool: segment.pool.id,
            expandable: segment.expandable,
            site: None,
            blocks: &segment.blocks,
        };
        self.segment(&record, info)
    }

    /// Writes an allocation of the driver as a segment with one block.
    fn driver_allocation(&mut self, live: &LiveAllocation, info: &FileInfo) -> io::Result<()> {
        let allocation = &live.lifetime.change;
        let block = Block {
            address: live.address,
            bytes: allocation.bytes,
            requested: allocation.bytes,
            state: BlockState::Allocated,
            site: allocation.site,
        };
        let record = SegmentRecord {
            device: self.device_index(allocation.device),
            address: live.address,
            bytes: allocation.bytes,
            stream: allocation.stream.map_or(0, |stream| stream.0),
            size_class: if allocation.bytes <= SMALL_BLOCK_BYTES {
                PoolSizeClass::Small
            } else {
                PoolSizeClass::Large
            },
            pool: (0, 0),
            expandable: false,
            site: allocation.site,
            blocks: &[block],
        };
        self.segment(&record, info)
    }

    /// Returns the index of a device in the list of traces.
    fn device_index(&self, device: Option<DeviceId>) -> u64 {
        let index = self.devices.iter().position(|known| *known == device);
        index.map_or(0, |index| index as u64)
    }

    fn segment(&mut self, segment: &SegmentRecord<'_>, info: &FileInfo) -> io::Result<()> {
        let sum = |states: &[BlockState], of: fn(&Block) -> u64| {
            let blocks = segment.blocks.iter().filter(|block| states.contains(&block.state));
            blocks.fold(0_u64, |sum, block| sum.saturating_add(of(block)))
        };
        let (allocated, pending) = (BlockState::Allocated, BlockState::PendingFree);
        for (key, number) in [
            ("device", segment.device),
            ("address", segment.address),
            ("total_size", segment.bytes),
            ("allocated_size", sum(&[allocated], |block| block.bytes)),
            ("active_size", sum(&[allocated, pending], |block| block.bytes)),
            ("requested_size", sum(&[allocated], |block| block.requested)),
            ("stream", segment.stream),
        ] {
            if key == "device" {
                self.pickle.open_dict()?;
            }
            self.pickle.word(key)?;
            self.pickle.number(number)?;
        }
        self.pickle.word("segment_type")?;
        self.pickle.word(if segment.size_class == PoolSizeClass::Small {
            "small"
        } else {
            "large"
        })?;
        self.pickle.word("segment_pool_id")?;
        self.pickle.pair(segment.pool)?;
        self.pickle.word("is_expandable")?;
        self.pickle.flag(segment.expandable)?;
        self.pickle.word("frames")?;
        self.stacks.write(&mut self.pickle, segment.site, info)?;
        self.pickle.word("blocks")?;
        let mut items = self.pickle.open_list()?;
        for block in segment.blocks {
            self.pickle.item(&mut items)?;
            self.block(block, info)?;
        }
        self.pickle.close_list()?;
        self.pickle.close_dict()
    }

    fn block(&mut self, block: &Block, info: &FileInfo) -> io::Result<()> {
        self.pickle.open_dict()?;
        for (key, number) in
            [("address", block.address), ("size", block.bytes), ("requested_size", block.requested)]
        {
            self.pickle.word(key)?;
            self.pickle.number(number)?;
        }
        self.pickle.word("state")?;
        self.pickle.word(match block.state {
            BlockState::Allocated => "active_allocated",
            BlockState::PendingFree => "active_pending_free",
            BlockState::Free => "inactive",
        })?;
        self.pickle.word("frames")?;
        self.stacks.write(&mut self.pickle, block.site, info)?;
        self.pickle.close_dict()
    }
}

/// Writes the allocator settings under PyTorch's names.
pub(super) fn settings(
    pickle: &mut PickleWriter<'_>,
    settings: &AllocatorSettings,
) -> io::Result<()> {
    pickle.open_dict()?;
    pickle.word("PYTORCH_CUDA_ALLOC_CONF")?;
    pickle.text(&sanitize(&settings.text))?;
    pickle.word("max_split_size")?;
    let limit = settings.max_split_bytes.and_then(|limit| i64::try_from(limit).ok());
    pickle.signed(limit.unwrap_or(-1))?;
    pickle.word("garbage_collection_threshold")?;
    pickle.float(settings.garbage_collection_threshold.unwrap_or(0.0))?;
    pickle.word("expandable_segments")?;
    pickle.flag(settings.expandable_segments.unwrap_or(false))?;
    pickle.word("roundup_power2_divisions")?;
    pickle.open_dict()?;
    for (step, divisions) in settings.roundup_divisions.iter().enumerate() {
        pickle.text(&(1_u64 << step).to_string())?;
        pickle.number(*divisions)?;
    }
    pickle.close_dict()?;
    pickle.close_dict()
}
