//! The state at the end: segments, their blocks, and how the cache is set up.

use std::io;

use engine::analysis::Measure;
use engine::cache::{Block, BlockState, CacheSettings, Part, Segment};
use engine::ids::{DeviceId, SiteId};
use hashbrown::HashMap;

use super::pickle::Pickle;
use super::{Live, Snapshot};
use crate::import::gather::Facts;
use crate::plain::plain;

/// Blocks up to this size are small ones, as PyTorch sees it.
const SMALL: u64 = 1 << 20;

/// What was asked for of the blocks that the program holds at the end, by address.
pub(super) fn requested(facts: &Facts) -> HashMap<u64, u64> {
    let blocks = facts.segments.iter().flat_map(|segment| segment.blocks.iter());
    let held = blocks.filter(|block| block.state == BlockState::Allocated);
    held.map(|block| (block.address, block.requested)).collect()
}

/// A segment before it is written.
struct Written<'s> {
    device: u64,
    address: u64,
    bytes: u64,
    stream: u64,
    part: Part,
    pool: (u64, u64),
    expandable: bool,
    site: Option<SiteId>,
    blocks: &'s [Block],
}

impl Snapshot<'_> {
    /// The list of segments of devices.
    pub(super) fn segments(&mut self, facts: &Facts) -> io::Result<()> {
        let mut items = self.pickle.open_list()?;
        if self.measure == Measure::Torch {
            for segment in facts.segments.iter().filter(|segment| segment.device.is_some()) {
                self.pickle.item(&mut items)?;
                self.cached(segment, facts)?;
            }
        } else {
            for live in std::mem::take(&mut self.live) {
                self.pickle.item(&mut items)?;
                self.alone(&live, facts)?;
                self.live.push(live);
            }
        }
        self.pickle.close_list()
    }

    /// The list of segments of the host.
    pub(super) fn host_segments(&mut self, facts: &Facts) -> io::Result<()> {
        let mut items = self.pickle.open_list()?;
        for segment in facts.segments.iter().filter(|segment| segment.device.is_none()) {
            self.pickle.item(&mut items)?;
            self.cached(segment, facts)?;
        }
        self.pickle.close_list()
    }

    /// A segment of a cache.
    fn cached(&mut self, segment: &Segment, facts: &Facts) -> io::Result<()> {
        let written = Written {
            device: self.place(segment.device),
            address: segment.address,
            bytes: segment.bytes,
            stream: segment.stream.map_or(0, |stream| stream.0),
            part: segment.pool.part,
            pool: segment.pool.id,
            expandable: segment.expandable,
            site: None,
            blocks: &segment.blocks,
        };
        self.segment(&written, facts)
    }

    /// An allocation of the driver: a segment of one block.
    fn alone(&mut self, live: &Live, facts: &Facts) -> io::Result<()> {
        let what = &live.one.what;
        let block = Block {
            address: live.address,
            bytes: what.bytes,
            requested: what.bytes,
            state: BlockState::Allocated,
            site: what.site,
        };
        let written = Written {
            device: self.place(what.device),
            address: live.address,
            bytes: what.bytes,
            stream: what.stream.map_or(0, |stream| stream.0),
            part: if what.bytes <= SMALL { Part::Small } else { Part::Large },
            pool: (0, 0),
            expandable: false,
            site: what.site,
            blocks: &[block],
        };
        self.segment(&written, facts)
    }

    /// The place of a device in the list of traces.
    fn place(&self, device: Option<DeviceId>) -> u64 {
        let place = self.devices.iter().position(|known| *known == device);
        place.map_or(0, |place| place as u64)
    }

    fn segment(&mut self, segment: &Written<'_>, facts: &Facts) -> io::Result<()> {
        let sum = |states: &[BlockState], of: fn(&Block) -> u64| {
            let blocks = segment.blocks.iter().filter(|block| states.contains(&block.state));
            blocks.fold(0_u64, |sum, block| sum.saturating_add(of(block)))
        };
        let (held, pending) = (BlockState::Allocated, BlockState::PendingFree);
        for (word, number) in [
            ("device", segment.device),
            ("address", segment.address),
            ("total_size", segment.bytes),
            ("allocated_size", sum(&[held], |block| block.bytes)),
            ("active_size", sum(&[held, pending], |block| block.bytes)),
            ("requested_size", sum(&[held], |block| block.requested)),
            ("stream", segment.stream),
        ] {
            if word == "device" {
                self.pickle.open_dict()?;
            }
            self.pickle.word(word)?;
            self.pickle.number(number)?;
        }
        self.pickle.word("segment_type")?;
        self.pickle.word(if segment.part == Part::Small { "small" } else { "large" })?;
        self.pickle.word("segment_pool_id")?;
        self.pickle.pair(segment.pool)?;
        self.pickle.word("is_expandable")?;
        self.pickle.flag(segment.expandable)?;
        self.pickle.word("frames")?;
        self.stacks.write(&mut self.pickle, segment.site, facts)?;
        self.pickle.word("blocks")?;
        let mut items = self.pickle.open_list()?;
        for block in segment.blocks {
            self.pickle.item(&mut items)?;
            self.block(block, facts)?;
        }
        self.pickle.close_list()?;
        self.pickle.close_dict()
    }

    fn block(&mut self, block: &Block, facts: &Facts) -> io::Result<()> {
        self.pickle.open_dict()?;
        for (word, number) in
            [("address", block.address), ("size", block.bytes), ("requested_size", block.requested)]
        {
            self.pickle.word(word)?;
            self.pickle.number(number)?;
        }
        self.pickle.word("state")?;
        self.pickle.word(match block.state {
            BlockState::Allocated => "active_allocated",
            BlockState::PendingFree => "active_pending_free",
            BlockState::Free => "inactive",
        })?;
        self.pickle.word("frames")?;
        self.stacks.write(&mut self.pickle, block.site, facts)?;
        self.pickle.close_dict()
    }
}

/// How the cache is set up, in PyTorch's words.
pub(super) fn settings(pickle: &mut Pickle<'_>, settings: &CacheSettings) -> io::Result<()> {
    pickle.open_dict()?;
    pickle.word("PYTORCH_CUDA_ALLOC_CONF")?;
    pickle.text(&plain(&settings.text))?;
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
