//! Interned call stacks: a *site* is the stack that an allocation came from.
#![allow(clippy::cast_possible_truncation, reason = "fewer stacks than 2^32")]

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::headline::{Headline, StackStatistics, UNKNOWN_LIBRARY, headline, library};
use crate::model::SiteId;
use crate::model::named::named_enum;

/// One frame of a call stack. All strings are untrusted.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Frame {
    /// Function; empty if unknown, see `unknown`.
    pub function: Arc<str>,
    /// Source file, if known.
    pub file: Option<Arc<str>>,
    /// Line; 0 if unknown.
    pub line: u32,
    /// Library or executable that contains the code.
    pub module: Option<Arc<str>>,
    /// Language.
    pub language: Language,
    /// Why the function is unknown.
    pub unknown: Option<UnknownReason>,
}

named_enum! {
    /// Language of a frame, as far as it is known.
    #[derive(Default)]
    pub enum Language {
        /// Machine code of any language.
        #[default]
        Native => "native",
        /// Python.
        Python => "python",
        /// Not code: a placeholder for frames, such as the variable of a static allocation.
        Synthetic => "synthetic",
    }
}

named_enum! {
    /// Why a frame has no function.
    pub enum UnknownReason {
        /// The file has no symbol at this address.
        NoSymbol => "no_symbol",
        /// The address does not belong to a file.
        Unmapped => "unmapped_address",
        /// Code that was generated at run time.
        Jit => "jit_code",
        /// The file could not be read.
        Unreadable => "unreadable_file",
        /// The tool that wrote the file did not record it.
        NotRecorded => "not_recorded",
        /// The process exited before it could be inspected.
        ProcessExited => "process_exited",
        /// The return address is hidden by another tool's uretprobe.
        HiddenByUretprobe => "hidden_by_uretprobe",
        /// The data structures of the interpreter are not supported.
        UnsupportedInterpreter => "unsupported_interpreter",
        /// The interpreter had not been detected yet at the time of the call.
        InterpreterNotReady => "interpreter_not_ready",
        /// Further frames are missing: the stack is deeper than the part that was read.
        Truncated => "truncated",
        /// Further frames are missing: there is no unwind information.
        NoUnwindInfo => "no_unwind_info",
    }
}

impl UnknownReason {
    /// Reason in a few words.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NoSymbol => "no symbol",
            Self::Unmapped => "unmapped address",
            Self::Jit => "JIT code",
            Self::Unreadable => "unreadable file",
            Self::NotRecorded => "not recorded by the tool",
            Self::ProcessExited => "process exited",
            Self::HiddenByUretprobe => "hidden by a return probe",
            Self::UnsupportedInterpreter => "unsupported interpreter",
            Self::InterpreterNotReady => "interpreter not detected yet",
            Self::Truncated => "stack truncated",
            Self::NoUnwindInfo => "no unwind information",
        }
    }
}

/// Id of a frame in a table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FrameId(pub u32);

/// Interned frames and stacks. Ids start at 0 and never change.
#[derive(Clone, Debug, Default)]
pub struct StackTable {
    frames: Vec<Frame>,
    frame_ids: HashMap<Frame, FrameId>,
    stacks: Vec<Box<[FrameId]>>,
    stack_ids: HashMap<Box<[FrameId]>, SiteId>,
    /// Library of each stack, if it is known.
    libraries: Vec<Option<Arc<str>>>,
    statistics: StackStatistics,
}

/// Frames of a site, innermost first, with their headline.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CallStack {
    frames: Arc<[Frame]>,
    headline: Headline,
}

impl CallStack {
    /// The frame that a reader has to look at, and what lies between it and the driver.
    pub const fn headline(&self) -> &Headline {
        &self.headline
    }

    /// The responsible frame; `None` for an empty stack.
    pub fn responsible(&self) -> Option<&Frame> {
        self.headline.frame.and_then(|index| self.get(index))
    }

    /// Frames that are not folded, from the responsible one outwards.
    pub fn program_frames(&self) -> impl Iterator<Item = &Frame> {
        let from = self.headline.frame.unwrap_or(0);
        let frames = self.iter().zip(&self.headline.folded).skip(from);
        frames.filter(|(_, folded)| !**folded).map(|(frame, _)| frame)
    }

    /// Changes the frames, and keeps the headline.
    pub fn map(&self, change: impl FnMut(&Frame) -> Frame) -> Self {
        Self { frames: self.iter().map(change).collect(), headline: self.headline.clone() }
    }
}

impl Deref for CallStack {
    type Target = [Frame];

    fn deref(&self) -> &[Frame] {
        &self.frames
    }
}

/// A stack on its own: its headline does not take other sites into account.
impl From<Arc<[Frame]>> for CallStack {
    fn from(frames: Arc<[Frame]>) -> Self {
        let headline = StackTable::default().call_stack_of(&frames).headline;
        Self { frames, headline }
    }
}

impl<const N: usize> From<[Frame; N]> for CallStack {
    fn from(frames: [Frame; N]) -> Self {
        Self::from(Arc::<[Frame]>::from(frames))
    }
}

impl StackTable {
    /// Returns the id of a frame; adds it if it is new.
    pub fn frame(&mut self, frame: Frame) -> FrameId {
        if let Some(&id) = self.frame_ids.get(&frame) {
            return id;
        }
        let id = FrameId(u32::try_from(self.frames.len()).unwrap_or(u32::MAX));
        self.statistics.add_frame(&frame);
        self.frames.push(frame.clone());
        self.frame_ids.insert(frame, id);
        id
    }

    /// Returns the id of a stack, innermost frame first; adds it if it is new.
    pub fn site(&mut self, frames: &[FrameId]) -> SiteId {
        if let Some(&id) = self.stack_ids.get(frames) {
            return id;
        }
        let id = SiteId(u32::try_from(self.stacks.len()).unwrap_or(u32::MAX));
        self.stacks.push(frames.into());
        self.stack_ids.insert(frames.into(), id);
        let Self { frames: known, statistics, libraries, .. } = self;
        let stack = with_ids(known, frames);
        statistics.add_stack(&stack);
        libraries.push(library(&stack, statistics));
        id
    }

    /// Declares functions to be wrappers, which are never headlines: see [`crate::headline`].
    pub fn add_wrappers<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        self.statistics.add_wrappers(names);
    }

    /// Headline of a site, given all stacks so far; the default for an unknown site.
    pub fn headline(&self, site: SiteId) -> Headline {
        headline(&with_ids(&self.frames, self.ids(site)), &self.statistics)
    }

    /// Library that owns what a site allocates: the first one outside the driver and the CUDA
    /// runtime; [`UNKNOWN_LIBRARY`] for an unknown site.
    pub fn library(&self, site: SiteId) -> Arc<str> {
        let known = self.libraries.get(site.0 as usize).cloned().flatten();
        known.unwrap_or_else(|| UNKNOWN_LIBRARY.into())
    }

    /// Frames and headline of a site; none for an unknown site.
    pub fn call_stack(&self, site: SiteId) -> CallStack {
        let frames = self.frames(site).cloned().collect();
        CallStack { frames, headline: self.headline(site) }
    }

    /// Frames of a site, innermost first; none for an unknown site.
    pub fn frames(&self, site: SiteId) -> impl Iterator<Item = &Frame> {
        let ids = self.ids(site);
        ids.iter().filter_map(|id| self.frames.get(id.0 as usize))
    }

    /// Frame ids of a site, innermost first; none for an unknown site.
    pub fn ids(&self, site: SiteId) -> &[FrameId] {
        self.stacks.get(site.0 as usize).map_or(&[], |ids| ids)
    }

    /// Frame by id.
    pub fn get(&self, id: FrameId) -> Option<&Frame> {
        self.frames.get(id.0 as usize)
    }

    /// Id of the stack with these frames; `None` if it is not in this table.
    pub fn find(&self, frames: &[Frame]) -> Option<SiteId> {
        let ids: Option<Vec<_>> =
            frames.iter().map(|frame| self.frame_ids.get(frame).copied()).collect();
        self.stack_ids.get(&ids?[..]).copied()
    }

    /// Headline of these frames in this table; adds them if they are new.
    pub fn call_stack_of(&mut self, frames: &[Frame]) -> CallStack {
        if frames.is_empty() {
            return CallStack::default();
        }
        let ids: Vec<_> = frames.iter().map(|frame| self.frame(frame.clone())).collect();
        let site = self.site(&ids);
        self.call_stack(site)
    }

    /// Number of stacks.
    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    /// Whether there are no stacks.
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }
}

fn with_ids<'a>(frames: &'a [Frame], ids: &[FrameId]) -> Vec<(FrameId, &'a Frame)> {
    ids.iter().filter_map(|id| Some((*id, frames.get(id.0 as usize)?))).collect()
}

/// Name of a site in all outputs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum SiteName {
    /// Hash of its frames; see [`site_name`].
    Resolved(u64),
    /// Its frames are not resolved yet.
    Pending(SiteId),
    /// The call stack is unknown.
    Unknown,
    /// All sites beyond the limit.
    Other,
}

impl SiteName {
    /// Returns the site whose name is displayed like that, if its frames are resolved.
    pub fn from_text(text: &str) -> Option<Self> {
        u64::from_str_radix(text, 16).ok().map(Self::Resolved)
    }
}

impl fmt::Display for SiteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolved(name) => f.pad(&format!("{name:016x}")),
            Self::Pending(site) => f.pad(&format!("pending-{}", site.0)),
            Self::Unknown => f.pad("none"),
            Self::Other => f.pad("other"),
        }
    }
}

/// Stable name of a stack: 64-bit FNV-1a over the file name of the module, the function, the file
/// and the line of each frame, innermost first. Each string ends with a zero byte, lines are four
/// bytes, little endian. It does not change between runs or versions.
pub fn site_name(frames: &[Frame]) -> u64 {
    frames.iter().fold(FNV_START, |hash, frame| {
        let module = base(frame.module.as_deref().unwrap_or_default());
        let file = frame.file.as_deref().unwrap_or_default();
        let hash = [module, &frame.function, file].into_iter().fold(hash, fnv_text);
        fnv(hash, &frame.line.to_le_bytes())
    })
}

/// Name of a stack that survives moved lines, other install paths and other versions of a library
/// file: 64-bit FNV-1a over the file name of the module without its version and the function of
/// each frame, innermost first, and of Python frames the file name. Each string ends with a zero
/// byte. It does not change between runs or versions. `None` without frames.
pub fn site_fingerprint(frames: &[Frame]) -> Option<u64> {
    let hash = frames.iter().fold(FNV_START, |hash, frame| {
        let is_python = frame.language == Language::Python;
        let file = frame.file.as_deref().filter(|_| is_python).unwrap_or_default();
        let module = unversioned(base(frame.module.as_deref().unwrap_or_default()));
        [module, &frame.function, base(file)].into_iter().fold(hash, fnv_text)
    });
    (!frames.is_empty()).then_some(hash)
}

/// Returns a file name without its version: `libc10.so.2` and `libc10-1a2b3c4d.so` are `libc10`,
/// `python3.12` is `python`.
fn unversioned(name: &str) -> &str {
    let name = name.split_once(".so").map_or(name, |(name, _)| name);
    let is_hash = |text: &str| text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let name = name.rsplit_once('-').filter(|(_, end)| is_hash(end)).map_or(name, |(name, _)| name);
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    if stem.is_empty() || !name.contains('.') { name } else { stem }
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn fnv_text(hash: u64, text: &str) -> u64 {
    fnv(fnv(hash, text.as_bytes()), &[0])
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// Limit of distinct stacks per trace. Later ones share a placeholder frame.
const MAX_STACKS: usize = 1 << 18;

/// Frames of the sites of a trace or recording, as far as they are resolved.
///
/// Several ids may have the same frames: in reports they are one site with one name.
#[derive(Clone, Debug, Default)]
pub struct SiteRegistry {
    stacks: StackTable,
    resolved: HashMap<SiteId, ResolvedSite>,
    first: HashMap<u64, SiteId>,
}

#[derive(Clone, Copy, Debug)]
struct ResolvedSite {
    stack: SiteId,
    name: u64,
}

/// The sites of a file: all with frames are resolved.
impl From<StackTable> for SiteRegistry {
    fn from(stacks: StackTable) -> Self {
        let (mut resolved, mut first) = (HashMap::new(), HashMap::new());
        for stack in (0..stacks.len() as u32).map(SiteId) {
            let frames: Vec<_> = stacks.frames(stack).cloned().collect();
            if !frames.is_empty() {
                let name = site_name(&frames);
                resolved.insert(stack, ResolvedSite { stack, name });
                first.entry(name).or_insert(stack);
            }
        }
        Self { stacks, resolved, first }
    }
}

impl SiteRegistry {
    /// Sets the frames of a site, innermost first. Only the first call for a site has an effect.
    pub fn resolve(&mut self, site: SiteId, frames: &[Frame]) {
        if self.resolved.contains_key(&site) {
            return;
        }
        let name = site_name(frames);
        let resolved = match self.first.get(&name).and_then(|first| self.resolved.get(first)) {
            Some(resolved) => *resolved,
            None if self.stacks.len() < MAX_STACKS => {
                ResolvedSite { stack: self.keep(frames), name }
            }
            None => self.too_many(),
        };
        self.resolved.insert(site, resolved);
        self.first.entry(resolved.name).or_insert(site);
    }

    fn keep(&mut self, frames: &[Frame]) -> SiteId {
        let ids: Vec<_> = frames.iter().map(|frame| self.stacks.frame(frame.clone())).collect();
        self.stacks.site(&ids)
    }

    fn too_many(&mut self) -> ResolvedSite {
        let function = "stack limit reached".into();
        let frames = [Frame { function, language: Language::Synthetic, ..Frame::default() }];
        ResolvedSite { stack: self.keep(&frames), name: site_name(&frames) }
    }

    /// First site with the same frames; the site itself while it is not resolved.
    pub fn canonical(&self, site: SiteId) -> SiteId {
        let first = self.resolved.get(&site).and_then(|resolved| self.first.get(&resolved.name));
        first.copied().unwrap_or(site)
    }

    /// Name of a site.
    pub fn name(&self, site: Option<SiteId>) -> SiteName {
        let Some(site) = site else { return SiteName::Unknown };
        let resolved = self.resolved.get(&site);
        resolved.map_or(SiteName::Pending(site), |resolved| SiteName::Resolved(resolved.name))
    }

    /// Library that owns what a site allocates: see [`StackTable::library`].
    pub fn library(&self, site: SiteId) -> Arc<str> {
        let stack = self.resolved.get(&site).map(|resolved| resolved.stack);
        stack.map_or_else(|| UNKNOWN_LIBRARY.into(), |stack| self.stacks.library(stack))
    }

    /// Declares functions to be wrappers: see [`StackTable::add_wrappers`].
    pub fn add_wrappers<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        self.stacks.add_wrappers(names);
    }

    /// Frames, innermost first; `None` while the site is not resolved.
    pub fn frames(&self, site: SiteId) -> Option<CallStack> {
        self.resolved.get(&site).map(|resolved| self.stacks.call_stack(resolved.stack))
    }

    /// Frames of the site with this name, innermost first; none if it is not resolved.
    pub fn frames_of(&self, name: SiteName) -> CallStack {
        let first = match name {
            SiteName::Resolved(name) => self.first.get(&name).copied(),
            _ => None,
        };
        first.and_then(|site| self.frames(site)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_interned() {
        let mut stacks = StackTable::default();
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
    fn fingerprint_ignores_lines_paths_and_versions() {
        let python = |line, file: &str| Frame {
            function: "step".into(),
            file: Some(file.into()),
            line,
            language: Language::Python,
            ..Frame::default()
        };
        let of = |line, file: &str, module: &str| {
            let native = Frame { module: Some(module.into()), line, ..frame("malloc") };
            site_fingerprint(&[native, python(line, file)])
        };
        let one = of(1, "/srv/v1/train.py", "/opt/torch/libc10.so");
        for module in ["/usr/lib/libc10.so.2.4", "libc10-1a2b3c4d.so.2", "libc10.so"] {
            assert_eq!(of(90, "/srv/v2/train.py", module), one, "{module}");
        }
        assert_ne!(of(1, "/srv/v1/eval.py", "libc10.so"), one);
        assert_ne!(of(1, "/srv/v1/train.py", "libc11.so"), one);
        assert_eq!(site_fingerprint(&[]), None);
        for (name, stem) in [("python3.12", "python"), ("train2", "train2"), ("4.2", "4.2")] {
            assert_eq!(unversioned(name), stem);
        }
    }

    #[test]
    fn site_name_matches_documented_hash() {
        // FNV-1a of an empty input is its offset basis; the other value was computed with Python:
        // h = 0xcbf29ce484222325
        // for b in b"liba.so\0f\0a.c\0" + (258).to_bytes(4, "little"):
        //     h = ((h ^ b) * 0x100000001b3) & (2**64 - 1)
        assert_eq!(site_name(&[]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(site_name(&[frame("f")]), 0xd467_fde3_d228_6e48);
        let elsewhere = Frame { module: Some("liba.so".into()), ..frame("f") };
        assert_eq!(site_name(&[elsewhere]), site_name(&[frame("f")]));
    }

    #[test]
    fn sites_with_equal_frames_are_merged() {
        let mut sites = SiteRegistry::default();
        assert_eq!(sites.name(Some(SiteId(7))).to_string(), "pending-7");
        assert_eq!(sites.name(None).to_string(), "none");
        sites.resolve(SiteId(7), &[frame("f"), frame("main")]);
        sites.resolve(SiteId(9), &[frame("f"), frame("main")]);
        sites.resolve(SiteId(8), &[frame("g"), frame("main")]);
        assert_eq!(sites.canonical(SiteId(9)), SiteId(7));
        assert_eq!(sites.canonical(SiteId(8)), SiteId(8));
        assert_eq!(sites.canonical(SiteId(3)), SiteId(3));
        assert_eq!(sites.name(Some(SiteId(9))), sites.name(Some(SiteId(7))));
        let frames = sites.frames_of(sites.name(Some(SiteId(9))));
        assert_eq!(*frames, [frame("f"), frame("main")]);
    }

    #[test]
    fn first_frames_of_a_site_are_kept() {
        let mut sites = SiteRegistry::default();
        sites.resolve(SiteId(1), &[frame("f")]);
        sites.resolve(SiteId(1), &[frame("g")]);
        sites.resolve(SiteId(2), &[frame("f")]);
        assert_eq!(sites.canonical(SiteId(2)), SiteId(1));
        assert_eq!(sites.frames(SiteId(1)).as_deref(), Some(&[frame("f")][..]));
    }
}
