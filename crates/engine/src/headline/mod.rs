//! The headline of a call stack: the frame that a reader has to look at.
//!
//! That is the innermost frame of the program. Frames of the driver, of allocators, frameworks and
//! packages are folded, and so are the program's own wrappers: functions that nearly all of its
//! allocations go through. `rules` says which frames belong to libraries, `statistics` finds
//! wrappers. Statistics change with new stacks only, and a headline is computed when it is shown,
//! so events cost nothing.

mod rules;
mod statistics;

pub use rules::{PROGRAM_LIBRARY, UNKNOWN_LIBRARY};
pub use statistics::StackStatistics;

use std::sync::Arc;

use rules::{FrameClass, Layer, library_name, plain_name};
use statistics::innermost;

use crate::model::{Frame, FrameId};

/// Limit of names in [`Headline::via`].
const MAX_VIA: usize = 4;

/// What a reader has to know about a call stack.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Headline {
    /// Index of the responsible frame; `None` for an empty stack.
    pub frame: Option<usize>,
    /// Operator of PyTorch, such as `AddmmBackward0`, if no line of the program is in the stack.
    pub operator: Option<Arc<str>>,
    /// Whether that frame is of the program or of a package, or an operator.
    pub is_program: bool,
    /// Components and wrappers between that frame and the driver, outermost first: `PyTorch`.
    pub via: Vec<Arc<str>>,
    /// For each frame: whether it is of less interest than the responsible one's layer.
    pub folded: Vec<bool>,
}

/// Returns the headline of a stack, innermost frame first. Cost: O(frames).
pub fn headline(stack: &[(FrameId, &Frame)], statistics: &StackStatistics) -> Headline {
    let layers = statistics.layers(stack);
    let wrappers = statistics.wrappers(stack, &layers);
    let Some(index) = responsible(stack, &layers, &wrappers, statistics) else {
        return Headline::default();
    };
    let layer = layers.get(index).copied().unwrap_or_default();
    let operator = (layer < Layer::Unnamed).then(|| operator(stack)).flatten();
    let index = operator.as_ref().map_or(index, |(index, _)| *index);
    let is_folded = |(layer_of, wrapper): (&Layer, &bool)| {
        *layer_of < layer || (*wrapper && layer == Layer::Program)
    };
    let mut folded: Vec<_> = layers.iter().zip(&wrappers).map(is_folded).collect();
    folded.get_mut(index).into_iter().for_each(|folded| *folded = false);
    Headline {
        frame: Some(index),
        is_program: layer > Layer::Unnamed || operator.is_some(),
        operator: operator.map(|(_, name)| name),
        via: via(stack.get(..index).unwrap_or_default(), &layers, &wrappers, statistics),
        folded,
    }
}

/// Returns the names of the components that a stack goes through: `PyTorch`, `cuFFT`. Frames of
/// PyTorch's allocator are also `PyTorch allocator`.
pub(crate) fn components(frames: &[Frame]) -> Vec<Arc<str>> {
    let mut names = Vec::new();
    for class in frames.iter().map(FrameClass::of) {
        if class.layer == Layer::Allocator {
            names.push(format!("{} allocator", class.component).into());
        }
        names.push(class.component);
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// Returns the library that owns what a stack allocates: that of the first frame outside the driver,
/// the CUDA runtime and the interpreter; `None` if there is none. Cost: O(frames).
pub(crate) fn library(
    stack: &[(FrameId, &Frame)],
    statistics: &StackStatistics,
) -> Option<Arc<str>> {
    stack.iter().find_map(|(id, _)| statistics.class(*id)?.library.clone())
}

/// Returns the index of the responsible frame.
fn responsible(
    stack: &[(FrameId, &Frame)],
    layers: &[Layer],
    wrappers: &[bool],
    statistics: &StackStatistics,
) -> Option<usize> {
    let highest = layers.iter().copied().max()?;
    let mut own = layers.iter().zip(wrappers).enumerate();
    let own = own.find(|(_, (layer, wrapper))| **layer == Layer::Program && !**wrapper);
    match own {
        Some((index, _)) => {
            let (line, _) = *stack.get(index)?;
            let package = innermost(layers, Layer::Package).filter(|package| *package < index);
            package.filter(|_| statistics.is_uninformative(line, stack, layers)).or(Some(index))
        }
        // Wrappers alone: the outermost one has the caller that is not known.
        None if highest == Layer::Program => layers.iter().rposition(|layer| *layer == highest),
        None => innermost(layers, highest),
    }
}

/// Returns the operator that PyTorch executes, with its frame: the backward node, else the outermost
/// operator that was dispatched.
fn operator(stack: &[(FrameId, &Frame)]) -> Option<(usize, Arc<str>)> {
    let names = || stack.iter().map(|(_, frame)| plain_name(&frame.function)).enumerate();
    let segment = |path: &str, last: &str| {
        let (path, name) = path.strip_suffix(last)?.strip_suffix("::")?.rsplit_once("::")?;
        Some((path.to_owned(), Arc::from(name)))
    };
    let node = |(index, name): (usize, &str)| {
        let (path, node) = segment(name, "apply")?;
        path.starts_with("torch::autograd").then_some((index, node))
    };
    let dispatched = |(index, name): (usize, &str)| {
        let (path, operator) = segment(name, "call").or_else(|| segment(name, "redispatch"))?;
        (path == "at::_ops").then_some((index, operator))
    };
    names().find_map(node).or_else(|| names().filter_map(dispatched).next_back())
}

/// Returns the names of the components that the frames belong to, outermost first.
fn via(
    inside: &[(FrameId, &Frame)],
    layers: &[Layer],
    wrappers: &[bool],
    statistics: &StackStatistics,
) -> Vec<Arc<str>> {
    let mut names: Vec<Arc<str>> = Vec::new();
    for (((id, frame), layer), wrapper) in inside.iter().zip(layers).zip(wrappers).rev() {
        let component = statistics.class(*id).map(|class| class.component.clone());
        let name = match (component, &frame.module) {
            _ if *wrapper => short_name(&frame.function).into(),
            (Some(component), _) if !component.is_empty() => component,
            (_, Some(module)) => library_name(module).into(),
            _ => continue,
        };
        if *layer > Layer::System && names.len() < MAX_VIA && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Returns a function without namespaces, template arguments and arguments.
fn short_name(function: &str) -> &str {
    let name = plain_name(function);
    let end = name.get(1..).and_then(|rest| rest.find('<')).map_or(name.len(), |end| end + 1);
    let name = name.get(..end).unwrap_or(name);
    name.rsplit("::").next().unwrap_or(name)
}
