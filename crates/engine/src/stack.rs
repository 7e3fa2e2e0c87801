//! Call stacks, kept once: a *site* is the stack that an allocation came from.

use hashbrown::HashMap;
use std::sync::Arc;

use crate::ids::SiteId;

/// One place in a program. All text is hostile.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Frame {
    /// The function; empty when it is not known, see `unknown`.
    pub function: Arc<str>,
    /// The source file, where known.
    pub file: Option<Arc<str>>,
    /// The line in it; 0 when it is not known.
    pub line: u32,
    /// The library or program that the code is in.
    pub module: Option<Arc<str>>,
    /// What it is written in.
    pub language: Language,
    /// Why the function is not known.
    pub unknown: Option<Unknown>,
}

/// What a frame is written in, as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Language {
    /// Machine code of any language.
    #[default]
    Native,
    /// Python.
    Python,
    /// No code: a remark that stands in for frames, such as the variable of a static allocation.
    Remark,
}

impl Language {
    /// The word for it in reports and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Python => "python",
            Self::Remark => "remark",
        }
    }
}

/// Why a frame has no function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Unknown {
    /// The file has no symbol there.
    Stripped,
    /// The address belongs to no file.
    Unmapped,
    /// Code that was made at run time.
    Jit,
    /// The file could not be read.
    Unreadable,
    /// The tool that made the file did not say.
    NotTold,
    /// The process was gone before anybody could look.
    Gone,
    /// A probe of somebody else stands where the address was.
    Probed,
    /// What the interpreter keeps there is not understood.
    Interpreter,
    /// The interpreter was not looked at yet when the call was made.
    TooEarly,
    /// Frames from here on are missing: the stack is deeper than what is read of it.
    Deep,
    /// Frames from here on are missing: nothing says how to go on from there.
    NoRule,
}

impl Unknown {
    /// The reason in a few words.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Stripped => "no symbol there",
            Self::Unmapped => "no file is mapped there",
            Self::Jit => "code made at run time",
            Self::Unreadable => "the file cannot be read",
            Self::NotTold => "not told by the tool that made the file",
            Self::Gone => "the process was gone",
            Self::Probed => "hidden by another probe",
            Self::Interpreter => "an interpreter that is not understood",
            Self::TooEarly => "called before the interpreter was looked at",
            Self::Deep => "the stack goes on",
            Self::NoRule => "no unwind information there; the stack goes on",
        }
    }
}

/// A frame of a table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FrameId(pub u32);

/// Frames and stacks, each kept once. Ids count from 0 and stay.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    frames: Vec<Frame>,
    frame_ids: HashMap<Frame, FrameId>,
    stacks: Vec<Box<[FrameId]>>,
    stack_ids: HashMap<Box<[FrameId]>, SiteId>,
}

impl Stacks {
    /// The id of a frame; the table keeps it.
    pub fn frame(&mut self, frame: Frame) -> FrameId {
        if let Some(&id) = self.frame_ids.get(&frame) {
            return id;
        }
        let id = FrameId(u32::try_from(self.frames.len()).unwrap_or(u32::MAX));
        self.frames.push(frame.clone());
        self.frame_ids.insert(frame, id);
        id
    }

    /// The id of a stack, innermost frame first; the table keeps it.
    pub fn site(&mut self, frames: &[FrameId]) -> SiteId {
        if let Some(&id) = self.stack_ids.get(frames) {
            return id;
        }
        let id = SiteId(u32::try_from(self.stacks.len()).unwrap_or(u32::MAX));
        self.stacks.push(frames.into());
        self.stack_ids.insert(frames.into(), id);
        id
    }

    /// The frames of a site, innermost first; none of an unknown one.
    pub fn frames(&self, site: SiteId) -> impl Iterator<Item = &Frame> {
        let ids = self.ids(site);
        ids.iter().filter_map(|id| self.frames.get(id.0 as usize))
    }

    /// The frames of a site by id, innermost first; none of an unknown one.
    #[must_use]
    pub fn ids(&self, site: SiteId) -> &[FrameId] {
        self.stacks.get(site.0 as usize).map_or(&[], |ids| ids)
    }

    /// A frame by id.
    #[must_use]
    pub fn get(&self, id: FrameId) -> Option<&Frame> {
        self.frames.get(id.0 as usize)
    }

    /// How many stacks there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    /// Whether there is no stack.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }
}

/// What the sites of a trace or recording look like, as far as it was told.
#[derive(Clone, Debug, Default)]
pub struct Sites {
    stacks: Stacks,
    told: HashMap<SiteId, SiteId>,
    first: HashMap<SiteId, SiteId>,
}

impl Sites {
    /// A site's frames, innermost first. Sites that look the same are one for whoever reads.
    pub fn tell(&mut self, site: SiteId, frames: &[Frame]) {
        let ids: Vec<_> = frames.iter().map(|frame| self.stacks.frame(frame.clone())).collect();
        let stack = self.stacks.site(&ids);
        self.told.insert(site, stack);
        self.first.entry(stack).or_insert(site);
    }

    /// The first of the sites that look like this one; itself while nothing was told of it.
    #[must_use]
    pub fn same(&self, site: SiteId) -> SiteId {
        self.told.get(&site).and_then(|stack| self.first.get(stack)).copied().unwrap_or(site)
    }

    /// The frames, innermost first; `None` while nothing was told.
    #[must_use]
    pub fn frames(&self, site: SiteId) -> Option<Vec<&Frame>> {
        self.told.get(&site).map(|stack| self.stacks.frames(*stack).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_kept_once() {
        let mut stacks = Stacks::default();
        let frame = |name: &str| Frame { function: name.into(), ..Frame::default() };
        let (main, step) = (stacks.frame(frame("main")), stacks.frame(frame("step")));
        let site = stacks.site(&[step, main]);
        assert_eq!(stacks.frame(frame("main")), main);
        assert_eq!(stacks.site(&[step, main]), site);
        assert_ne!(stacks.site(&[main]), site);
        let names: Vec<_> = stacks.frames(site).map(|frame| &*frame.function).collect();
        assert_eq!(names, ["step", "main"]);
        assert_eq!(stacks.frames(SiteId(99)).count(), 0);
    }
}
