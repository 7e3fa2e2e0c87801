//! Interpretation of a snapshot's dictionaries, lists and tuples. Each is identified by its keys,
//! and converted at once.

use engine::model::{AllocatorSettings, FrameId, SiteId};

use super::super::pickle::memo::Memo;
use super::super::pickle::strings::{KnownString, StringTable};
use super::super::pickle::value::{RunItem, Value, ValueRun};
use super::super::warnings::Warnings;
use super::entry;
use super::frames::{FrameTable, MAX_FRAMES, NOISE_FRAME};
use super::stack_cache;
use super::stack_cache::StackCache;
use super::state::{self, BlockHistory, RawBlock, RawSegment, SnapshotState};
use super::trace_entries::{NO_SITE, StreamTable, TraceEntries};
use crate::import::ImportSink;

/// Maximum number of devices.
const MAX_DEVICES: usize = 1 << 12;

/// Maximum number of values of a growing dictionary; no dictionary of a snapshot comes near.
const MAX_DICT_VALUES: usize = 1 << 16;

/// Everything that was read so far.
pub(crate) struct SnapshotBuilder<'s> {
    pub(crate) strings: StringTable,
    pub(crate) sink: &'s mut dyn ImportSink,
    pub(crate) frames: FrameTable,
    pub(crate) entries: TraceEntries,
    pub(crate) streams: StreamTable,
    pub(crate) blocks: Vec<RawBlock>,
    pub(crate) histories: Vec<BlockHistory>,
    pub(crate) segments: Vec<RawSegment>,
    pub(crate) traces: Vec<Vec<ValueRun>>,
    pub(crate) pairs: Vec<(u64, u64)>,
    pub(crate) settings: AllocatorSettings,
    pub(crate) state: Option<SnapshotState>,
    pub(crate) warnings: Warnings,
    /// Whether entries have the category of a tensor: the file was made from a profile.
    pub(crate) is_profile: bool,
    /// Number of trace entries that were used.
    pub(crate) used: u64,
    total: u64,
    dicts: ContainerSlots<Vec<Value>>,
    lists: ContainerSlots<OpenContainer>,
    /// Stacks by their encoded bytes.
    pub(crate) stack_cache: StackCache,
    /// Frames of the current list.
    scratch: Vec<FrameId>,
}

/// A list that is not complete.
#[derive(Default)]
enum OpenContainer {
    #[default]
    Empty,
    Frames(Vec<FrameId>),
    /// A known site that may get more frames.
    Known(u32),
    Run(ValueRun),
    Traces(Vec<ValueRun>),
    Ignored,
}

/// Items of growing containers; slots are reused.
struct ContainerSlots<T> {
    slots: Vec<T>,
    free: Vec<u32>,
}

impl<T: Default> ContainerSlots<T> {
    fn open(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(T::default());
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        })
    }

    fn close(&mut self, slot: u32) -> T {
        self.free.push(slot);
        self.slots.get_mut(slot as usize).map(std::mem::take).unwrap_or_default()
    }

    fn get(&mut self, slot: u32) -> Option<&mut T> {
        self.slots.get_mut(slot as usize)
    }
}

impl<'s> SnapshotBuilder<'s> {
    pub(crate) fn new(sink: &'s mut dyn ImportSink, total: u64) -> Self {
        Self {
            strings: StringTable::new(),
            sink,
            frames: FrameTable::default(),
            entries: TraceEntries::default(),
            streams: StreamTable::default(),
            blocks: Vec::new(),
            histories: Vec::new(),
            segments: Vec::new(),
            traces: Vec::new(),
            pairs: Vec::new(),
            settings: AllocatorSettings::default(),
            state: None,
            warnings: Warnings::default(),
            is_profile: false,
            used: 0,
            total,
            dicts: ContainerSlots { slots: Vec::new(), free: Vec::new() },
            lists: ContainerSlots { slots: Vec::new(), free: Vec::new() },
            stack_cache: StackCache::default(),
            scratch: Vec::new(),
        }
    }

    /// Reports progress.
    pub(crate) fn progress(&mut self, done: u64) {
        self.sink.progress(done, self.total);
    }

    /// Interprets a complete dictionary.
    pub(crate) fn dict(&mut self, items: &[Value]) -> Value {
        for pair in items.chunks_exact(2) {
            let [Value::Text(key), _] = *pair else { continue };
            match KnownString::of(key) {
                Some(KnownString::Action) => return entry::read(self, items),
                Some(KnownString::Filename) => {
                    let stacks = self.sink.stacks();
                    return Value::Frame(self.frames.frame(items, &self.strings, stacks));
                }
                Some(KnownString::State) => return state::block(self, items),
                Some(KnownString::Blocks | KnownString::TotalSize) => {
                    return state::segment(self, items);
                }
                Some(KnownString::RealSize) => return state::history(self, items),
                Some(KnownString::Segments | KnownString::DeviceTraces) => {
                    return state::snapshot(self, items);
                }
                Some(
                    KnownString::MaxSplitSize
                    | KnownString::ExpandableSegments
                    | KnownString::GcThreshold,
                ) => {
                    return state::settings(self, items);
                }
                _ => {}
            }
        }
        state::divisions(self, items)
    }

    pub(crate) fn open_dict(&mut self) -> u32 {
        self.dicts.open()
    }

    pub(crate) fn grow_dict(&mut self, slot: u32, items: &[Value]) {
        if let Some(dict) = self.dicts.get(slot)
            && dict.len() < MAX_DICT_VALUES
        {
            dict.extend_from_slice(items);
        }
    }

    pub(crate) fn close_dict(&mut self, slot: u32) -> Value {
        let items = self.dicts.close(slot);
        self.dict(&items)
    }

    pub(crate) fn open_list(&mut self) -> u32 {
        self.lists.open()
    }

    pub(crate) fn grow_list(&mut self, slot: u32, items: &[Value]) {
        let Some(list) = self.lists.get(slot) else { return };
        if let OpenContainer::Known(site) = *list {
            *list = OpenContainer::Frames(self.sink.stacks().ids(SiteId(site)).to_vec());
        }
        if matches!(list, OpenContainer::Empty) {
            *list = begin(items.first(), &mut self.scratch);
        }
        let fits = match list {
            OpenContainer::Frames(frames) => grow_frames(frames, items),
            OpenContainer::Run(run) => items.iter().all(|item| match item {
                Value::Items(next) => run.join(*next),
                _ => false,
            }),
            OpenContainer::Traces(traces) => items.iter().all(|item| {
                let run = match item {
                    Value::List(run) if run.item == RunItem::Entry => *run,
                    Value::EmptyList => ValueRun { item: RunItem::Entry, first: 0, count: 0 },
                    _ => return false,
                };
                traces.push(run);
                traces.len() <= MAX_DEVICES
            }),
            OpenContainer::Empty | OpenContainer::Known(_) | OpenContainer::Ignored => true,
        };
        if !fits {
            *list = OpenContainer::Ignored;
        }
    }

    pub(crate) fn close_list(&mut self, slot: u32) -> Value {
        match self.lists.close(slot) {
            OpenContainer::Frames(mut frames) => {
                if frames.len() > MAX_FRAMES {
                    self.warnings.cut_stacks += 1;
                    frames.truncate(MAX_FRAMES);
                }
                let site = self.site(&frames);
                frames.clear();
                self.scratch = frames;
                site
            }
            OpenContainer::Known(site) => Value::Site(site),
            OpenContainer::Run(run) => Value::List(run),
            OpenContainer::Traces(traces) => {
                self.traces.push(traces);
                Value::Traces(u32::try_from(self.traces.len() - 1).unwrap_or(u32::MAX))
            }
            OpenContainer::Empty => Value::EmptyList,
            OpenContainer::Ignored => Value::Ignored,
        }
    }

    fn site(&mut self, frames: &[FrameId]) -> Value {
        if frames.is_empty() {
            return Value::EmptyList;
        }
        match self.sink.stacks().site(frames).0 {
            // The highest numbers do not fit into the memo.
            site if site < NOISE_FRAME => Value::Site(site),
            _ => Value::Ignored,
        }
    }

    /// Opens a list of frames that is already a site.
    #[inline]
    pub(crate) fn open_known(&mut self, site: u32) -> u32 {
        let slot = self.lists.open();
        if let Some(list) = self.lists.get(slot) {
            *list = OpenContainer::Known(site);
        }
        slot
    }

    /// Returns the site of a list of references, and caches it. `None` if it is not a list of
    /// frames, or has only uninformative ones.
    pub(crate) fn add_stack(&mut self, list: &[u8], memo: &Memo) -> Option<u32> {
        let mut stack = std::mem::take(&mut self.scratch);
        let complete = stack_cache::frames(list, memo, |frame| stack.push(FrameId(frame)));
        let site = match (complete, stack.len()) {
            (true, 1..=MAX_FRAMES) => match self.site(&stack) {
                Value::Site(site) => Some(site),
                _ => None,
            },
            _ => None,
        };
        stack.clear();
        self.scratch = stack;
        if let Some(site) = site {
            self.stack_cache.put(list, site);
        }
        site
    }

    /// Interprets a complete tuple. Only that of a pool id is used.
    pub(crate) fn tuple(&mut self, items: &[Value]) -> Value {
        let [first, second] = *items else { return Value::Ignored };
        let (Some(first), Some(second)) = (first.number(), second.number()) else {
            return Value::Ignored;
        };
        if self.pairs.last() != Some(&(first, second)) {
            self.pairs.push((first, second));
        }
        Value::Pair(u32::try_from(self.pairs.len() - 1).unwrap_or(u32::MAX))
    }
}

/// Returns the kind of a list, by its first item. A run starts empty where its first item starts.
fn begin(first: Option<&Value>, scratch: &mut Vec<FrameId>) -> OpenContainer {
    match first {
        Some(Value::Frame(_)) => OpenContainer::Frames(std::mem::take(scratch)),
        Some(Value::Items(run)) => OpenContainer::Run(ValueRun { count: 0, ..*run }),
        Some(Value::List(_) | Value::EmptyList) => OpenContainer::Traces(Vec::new()),
        Some(_) => OpenContainer::Ignored,
        None => OpenContainer::Empty,
    }
}

fn grow_frames(frames: &mut Vec<FrameId>, items: &[Value]) -> bool {
    if frames.len() > MAX_FRAMES {
        return true;
    }
    for item in items {
        match *item {
            Value::Frame(NOISE_FRAME) => {}
            Value::Frame(frame) => frames.push(FrameId(frame)),
            _ => return false,
        }
    }
    true
}

/// Returns the stack of a dictionary, with separate native frames if it has any.
pub(crate) fn site_of(
    builder: &mut SnapshotBuilder<'_>,
    frames: Option<u32>,
    native: Option<u32>,
) -> u32 {
    match (native, frames) {
        (Some(inner), Some(outer)) => {
            let SiteId(site) = FrameTable::joined(inner, outer, builder.sink.stacks());
            site
        }
        (one, other) => one.or(other).unwrap_or(NO_SITE),
    }
}
