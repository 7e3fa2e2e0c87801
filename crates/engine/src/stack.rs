//! Call stacks, kept once: a *site* is the stack that an allocation came from.

use std::fmt;
use std::sync::Arc;

use hashbrown::HashMap;

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
            Self::Remark => "synthetic",
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
            Self::Stripped => "no symbol",
            Self::Unmapped => "unmapped address",
            Self::Jit => "JIT code",
            Self::Unreadable => "unreadable file",
            Self::NotTold => "not recorded by the tool",
            Self::Gone => "process exited",
            Self::Probed => "hidden by a return probe",
            Self::Interpreter => "unsupported interpreter",
            Self::TooEarly => "interpreter not detected yet",
            Self::Deep => "stack truncated",
            Self::NoRule => "no unwind information",
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

/// What a site is called in every output.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum SiteName {
    /// What its frames say; see [`site_name`].
    Told(u64),
    /// Its frames are not known yet.
    Pending(SiteId),
    /// Nothing says where in the program.
    Unknown,
    /// There were too many sites to keep each by itself: all the rest.
    Other,
}

impl fmt::Display for SiteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told(name) => f.pad(&format!("{name:016x}")),
            Self::Pending(site) => f.pad(&format!("pending-{}", site.0)),
            Self::Unknown => f.pad("none"),
            Self::Other => f.pad("other"),
        }
    }
}

/// The lasting name of a stack: 64 bits of FNV-1a over the last part of the module's path, the
/// function, the file and the line of each frame, innermost first. Every text ends with a zero byte,
/// lines are four bytes, lowest first. It does not change between runs or versions.
#[must_use]
pub fn site_name(frames: &[Frame]) -> u64 {
    const PRIME: u64 = 0x0100_0000_01b3;
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(PRIME);
        }
    };
    for frame in frames {
        let module = frame.module.as_deref().unwrap_or_default();
        let module = module.rsplit('/').next().unwrap_or_default();
        for text in [module, &frame.function, frame.file.as_deref().unwrap_or_default()] {
            add(text.as_bytes());
            add(&[0]);
        }
        add(&frame.line.to_le_bytes());
    }
    hash
}

/// Different stacks that are kept of a trace. Later ones are all told as one remark.
const STACKS: usize = 1 << 18;

/// What the sites of a trace or recording look like, as far as it was told.
///
/// Several ids may look the same: for whoever reads they are one site, with one name.
#[derive(Clone, Debug, Default)]
pub struct Sites {
    stacks: Stacks,
    told: HashMap<SiteId, Told>,
    first: HashMap<u64, SiteId>,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    stack: SiteId,
    name: u64,
}

impl Sites {
    /// A site's frames, innermost first. What was told first of a site stands.
    pub fn tell(&mut self, site: SiteId, frames: &[Frame]) {
        if self.told.contains_key(&site) {
            return;
        }
        let name = site_name(frames);
        let told = match self.first.get(&name).and_then(|first| self.told.get(first)) {
            Some(told) => *told,
            None if self.stacks.len() < STACKS => Told { stack: self.keep(frames), name },
            None => self.too_many(),
        };
        self.told.insert(site, told);
        self.first.entry(told.name).or_insert(site);
    }

    fn keep(&mut self, frames: &[Frame]) -> SiteId {
        let ids: Vec<_> = frames.iter().map(|frame| self.stacks.frame(frame.clone())).collect();
        self.stacks.site(&ids)
    }

    fn too_many(&mut self) -> Told {
        let function = "stack limit reached".into();
        let frames = [Frame { function, language: Language::Remark, ..Frame::default() }];
        Told { stack: self.keep(&frames), name: site_name(&frames) }
    }

    /// The first of the sites that look like this one; itself while nothing was told of it.
    #[must_use]
    pub fn same(&self, site: SiteId) -> SiteId {
        let first = self.told.get(&site).and_then(|told| self.first.get(&told.name));
        first.copied().unwrap_or(site)
    }

    /// What a site is called.
    #[must_use]
    pub fn name(&self, site: Option<SiteId>) -> SiteName {
        let Some(site) = site else { return SiteName::Unknown };
        self.told.get(&site).map_or(SiteName::Pending(site), |told| SiteName::Told(told.name))
    }

    /// The frames, innermost first; `None` while nothing was told.
    #[must_use]
    pub fn frames(&self, site: SiteId) -> Option<Arc<[Frame]>> {
        self.told.get(&site).map(|told| self.stacks.frames(told.stack).cloned().collect())
    }

    /// The frames of the site with that name, innermost first; none of one that was not told.
    #[must_use]
    pub fn frames_of(&self, name: SiteName) -> Arc<[Frame]> {
        let first = match name {
            SiteName::Told(name) => self.first.get(&name).copied(),
            _ => None,
        };
        first.and_then(|site| self.frames(site)).unwrap_or_default()
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

    fn frame(function: &str) -> Frame {
        let (file, module) = (Some("a.c".into()), Some("/usr/lib/liba.so".into()));
        Frame { function: function.into(), file, line: 258, module, ..Frame::default() }
    }

    #[test]
    fn a_name_is_the_hash_that_the_documents_tell() {
        // By hand: FNV-1a of nothing is its basis; the other one was computed with Python:
        // h = 0xcbf29ce484222325
        // for b in b"liba.so\0f\0a.c\0" + (258).to_bytes(4, "little"):
        //     h = ((h ^ b) * 0x100000001b3) & (2**64 - 1)
        assert_eq!(site_name(&[]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(site_name(&[frame("f")]), 0xd467_fde3_d228_6e48);
        let elsewhere = Frame { module: Some("liba.so".into()), ..frame("f") };
        assert_eq!(site_name(&[elsewhere]), site_name(&[frame("f")]));
    }

    #[test]
    fn sites_that_look_the_same_are_one() {
        let mut sites = Sites::default();
        assert_eq!(sites.name(Some(SiteId(7))).to_string(), "pending-7");
        assert_eq!(sites.name(None).to_string(), "none");
        sites.tell(SiteId(7), &[frame("f"), frame("main")]);
        sites.tell(SiteId(9), &[frame("f"), frame("main")]);
        sites.tell(SiteId(8), &[frame("g"), frame("main")]);
        assert_eq!(sites.same(SiteId(9)), SiteId(7));
        assert_eq!(sites.same(SiteId(8)), SiteId(8));
        assert_eq!(sites.same(SiteId(3)), SiteId(3));
        assert_eq!(sites.name(Some(SiteId(9))), sites.name(Some(SiteId(7))));
        let frames = sites.frames_of(sites.name(Some(SiteId(9))));
        assert_eq!(*frames, [frame("f"), frame("main")]);
    }

    #[test]
    fn what_was_told_first_stands() {
        let mut sites = Sites::default();
        sites.tell(SiteId(1), &[frame("f")]);
        sites.tell(SiteId(1), &[frame("g")]);
        sites.tell(SiteId(2), &[frame("f")]);
        assert_eq!(sites.same(SiteId(2)), SiteId(1));
        assert_eq!(sites.frames(SiteId(1)).as_deref(), Some(&[frame("f")][..]));
    }
}
