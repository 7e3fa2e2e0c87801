//! Which functions of a program wrap its allocations: counted over all stacks of a trace or file,
//! once per distinct stack.

use std::hash::{BuildHasher, Hash};

use hashbrown::{DefaultHashBuilder, HashMap, HashSet};

use super::rules::{FrameClass, Layer, is_allocator_name, plain_name};
use crate::model::{Frame, FrameId, Language};

/// Limit of distinct values that are counted per function.
const MAX_DISTINCT: usize = 64;

/// Minimum number of sites that call a wrapper.
const MIN_CALLERS: usize = 2;

/// Minimum number of sites with the same line of the program, and of different lines of packages
/// below it, for that line to be uninformative.
const MIN_SAME_LINE: usize = 4;

/// Classes of frames, and how the program's functions occur in stacks.
#[derive(Clone, Debug, Default)]
pub struct StackStatistics {
    hasher: DefaultHashBuilder,
    classes: Vec<FrameClass>,
    groups: HashMap<u64, Group>,
    /// Functions that the user declared to be wrappers.
    wrappers: Vec<Box<str>>,
}

/// Stacks of one program that end in the same function of the driver or of an allocator.
#[derive(Clone, Debug, Default)]
struct Group {
    stacks: usize,
    functions: HashMap<u64, FunctionUse>,
    /// Innermost lines of the program.
    lines: HashMap<FrameId, LineUse>,
}

/// How a function of the program occurs in the stacks of a group.
#[derive(Clone, Debug, Default)]
struct FunctionUse {
    stacks: usize,
    /// Hashes of the callers, up to the outermost.
    callers: HashSet<u64>,
    /// Lines in the function itself.
    lines: HashSet<u32>,
}

/// How often a line is the innermost one of the program.
#[derive(Clone, Debug, Default)]
struct LineUse {
    stacks: usize,
    /// Innermost lines of packages below it.
    packages: HashSet<FrameId>,
}

impl StackStatistics {
    /// Declares functions to be wrappers. A name matches with or without its namespace or class.
    pub fn add_wrappers<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        self.wrappers.extend(names.into_iter().map(Box::from));
    }

    /// Adds a new frame; frames are numbered in the order of these calls.
    pub(crate) fn add_frame(&mut self, frame: &Frame) {
        self.classes.push(FrameClass::of(frame));
    }

    /// Returns the class of a frame.
    pub(super) fn class(&self, id: FrameId) -> Option<&FrameClass> {
        self.classes.get(id.0 as usize)
    }

    /// Counts a new stack, innermost frame first.
    pub(crate) fn add_stack(&mut self, stack: &[(FrameId, &Frame)]) {
        let layers = self.layers(stack);
        let own = || stack.iter().zip(&layers).filter(|(_, layer)| **layer == Layer::Program);
        let Some(key) = self.group_key(stack, &layers) else { return };
        // Callers of each frame, from the outermost inwards.
        let mut callers = 0_u64;
        let mut frames: Vec<(u64, u64, u32)> = Vec::new();
        for ((id, frame), _) in own().rev() {
            frames.push((self.function_key(frame), callers, frame.line));
            callers = self.hasher.hash_one((callers, id));
        }
        let line = own().next().map(|((id, _), _)| *id);
        let package = innermost(&layers, Layer::Package).and_then(|index| stack.get(index));
        let group = self.groups.entry(key).or_default();
        group.stacks += 1;
        let mut seen = HashSet::new();
        for (function, callers, line) in frames {
            let counted = group.functions.entry(function).or_default();
            counted.stacks += usize::from(seen.insert(function));
            insert(&mut counted.callers, callers);
            insert(&mut counted.lines, line);
        }
        if let Some(line) = line {
            let counted = group.lines.entry(line).or_default();
            counted.stacks += 1;
            package.into_iter().for_each(|(package, _)| insert(&mut counted.packages, *package));
        }
    }

    /// Layers of the frames of a stack. If it has Python frames of the program, native code is not
    /// the program's: it belongs to extension modules.
    pub(super) fn layers(&self, stack: &[(FrameId, &Frame)]) -> Vec<Layer> {
        let layer = |id: FrameId| self.class(id).map_or(Layer::System, |class| class.layer);
        let is_own_python = |(id, frame): &(FrameId, &Frame)| {
            frame.language == Language::Python && layer(*id) == Layer::Program
        };
        let python = stack.iter().any(is_own_python);
        let of = |(id, frame): &(FrameId, &Frame)| match layer(*id) {
            Layer::Program | Layer::Unnamed if python && frame.language == Language::Native => {
                Layer::Framework
            }
            layer => layer,
        };
        stack.iter().map(of).collect()
    }

    /// Key of the group of a stack: the program, known by the outermost of its frames, and the
    /// innermost function.
    fn group_key(&self, stack: &[(FrameId, &Frame)], layers: &[Layer]) -> Option<u64> {
        let (_, inner) = stack.first()?;
        let outer = layers.iter().rposition(|layer| *layer == Layer::Program)?;
        let (_, outer) = stack.get(outer)?;
        let program = match outer.language {
            Language::Python => &outer.file,
            _ => &outer.module,
        };
        Some(self.hasher.hash_one((program, &inner.function)))
    }

    fn function_key(&self, frame: &Frame) -> u64 {
        let place = match frame.language {
            Language::Python => &frame.file,
            _ => &frame.module,
        };
        self.hasher.hash_one((place, &frame.function))
    }

    /// Whether each frame of the program wraps the allocations of nearly all of its sites, or is
    /// named like that.
    pub(super) fn wrappers(&self, stack: &[(FrameId, &Frame)], layers: &[Layer]) -> Vec<bool> {
        let group = self.group_key(stack, layers).and_then(|key| self.groups.get(&key));
        let is_wrapper = |((_, frame), layer): (&(FrameId, &Frame), &Layer)| {
            *layer == Layer::Program
                && (self.is_declared(frame)
                    || is_allocator_name(&frame.function)
                    || group.is_some_and(|group| {
                        let found = group.functions.get(&self.function_key(frame));
                        found.is_some_and(|found| found.is_wrapper(group.stacks))
                    }))
        };
        stack.iter().zip(layers).map(is_wrapper).collect()
    }

    fn is_declared(&self, frame: &Frame) -> bool {
        let full = plain_name(&frame.function);
        let last = full.rsplit([':', '.', ' ']).next().unwrap_or(full);
        self.wrappers.iter().any(|name| **name == *full || **name == *last)
    }

    /// Whether nearly all sites of the program have the same line of it, and differ only inside of
    /// packages: `trainer.train()`.
    pub(super) fn is_uninformative(
        &self,
        line: FrameId,
        stack: &[(FrameId, &Frame)],
        layers: &[Layer],
    ) -> bool {
        let group = self.group_key(stack, layers).and_then(|key| self.groups.get(&key));
        group.is_some_and(|group| {
            group.lines.get(&line).is_some_and(|found| {
                found.stacks >= MIN_SAME_LINE
                    && found.packages.len() >= MIN_SAME_LINE
                    && is_most(found.stacks, group.stacks)
            })
        })
    }
}

impl FunctionUse {
    /// A wrapper is in nearly all stacks, and has more callers than lines that allocate. `main` has
    /// one caller, and a function that allocates many buffers has many lines.
    fn is_wrapper(&self, stacks: usize) -> bool {
        is_most(self.stacks, stacks)
            && self.callers.len() >= MIN_CALLERS
            && self.callers.len() > self.lines.len()
    }
}

/// Whether a part is at least 80 % of all.
fn is_most(part: usize, all: usize) -> bool {
    part * 5 >= all * 4
}

fn insert<T: Eq + Hash>(set: &mut HashSet<T>, value: T) {
    if set.len() < MAX_DISTINCT {
        set.insert(value);
    }
}

/// Index of the innermost frame of a layer.
pub(super) fn innermost(layers: &[Layer], layer: Layer) -> Option<usize> {
    layers.iter().position(|one| *one == layer)
}
