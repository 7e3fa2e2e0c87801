//! Conversion of a snapshot's frames and stacks to those of the site registry.

use std::sync::Arc;

use engine::model::{Frame, FrameId, Language, SiteId, StackTable, UnknownReason};
use hashbrown::HashMap;

use super::super::pickle::strings::{KnownString, StringId, StringTable};
use super::super::pickle::value::Value;
use super::state::fields;

/// An uninformative frame: of the recorder, or of the interpreter next to a Python frame.
pub(crate) const NOISE_FRAME: u32 = (1 << 29) - 1;

/// Maximum number of frames of a stack; the innermost are kept.
pub(crate) const MAX_FRAMES: usize = 4096;

/// Functions of the recorder and the interpreter that PyTorch's viewers also hide.
const NOISY_NAMES: [&str; 7] = [
    "unwind::unwind",
    "CapturedTraceback::gather",
    "gather_with_cpp",
    "__libc_start_main",
    "PyEval_",
    "PyObject_",
    "PyFunction_",
];

/// Files of the dispatcher and the interpreter that PyTorch's viewers also hide.
const NOISY_FILES: [&str; 10] = [
    "core/boxing",
    "/Register",
    "/Redispatch",
    "pythonrun.c",
    "Modules/main.c",
    "Objects/call.c",
    "Objects/methodobject.c",
    "pycore_ceval.h",
    "ceval.c",
    "cpython/abstract.h",
];

/// Frames read so far.
#[derive(Default)]
pub(crate) struct FrameTable {
    known: HashMap<(StringId, StringId, u32), u32>,
    texts: HashMap<StringId, Arc<str>>,
    marked: HashMap<(u32, StringId), SiteId>,
}

impl FrameTable {
    /// Returns the frame of a dictionary; missing fields are unknown.
    pub(crate) fn frame(
        &mut self,
        items: &[Value],
        strings: &StringTable,
        stacks: &mut StackTable,
    ) -> u32 {
        let (mut name, mut file, mut line) = (None, None, 0);
        for field in fields(items) {
            match field {
                (KnownString::Name, Value::Text(text)) => name = Some(text),
                (KnownString::Filename, Value::Text(text)) => file = Some(text),
                (KnownString::Line, value) => {
                    line = value.number().and_then(|line| u32::try_from(line).ok()).unwrap_or(0);
                }
                _ => {}
            }
        }
        let absent = StringId(u32::MAX);
        let key = (name.unwrap_or(absent), file.unwrap_or(absent), line);
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        let id = self.add(key, strings, stacks);
        self.known.insert(key, id);
        id
    }

    fn add(
        &mut self,
        (name, file, line): (StringId, StringId, u32),
        strings: &StringTable,
        stacks: &mut StackTable,
    ) -> u32 {
        let python = is_python(strings.get(file));
        if !python && is_noise(strings.get(name), strings.get(file)) {
            return NOISE_FRAME;
        }
        let function = self.text(name, strings);
        let frame = Frame {
            unknown: function.is_none().then_some(UnknownReason::NotRecorded),
            function: function.unwrap_or_default(),
            file: self.text(file, strings),
            line,
            module: None,
            language: if python { Language::Python } else { Language::Native },
        };
        stacks.frame(frame).0.min(NOISE_FRAME - 1)
    }

    fn text(&mut self, id: StringId, strings: &StringTable) -> Option<Arc<str>> {
        let text = strings.get(id);
        if matches!(text, "" | "??") {
            return None;
        }
        Some(self.texts.entry(id).or_insert_with(|| text.into()).clone())
    }

    /// Returns a stack with a category as its outermost synthetic frame.
    pub(crate) fn with_category(
        &mut self,
        site: Option<u32>,
        category: StringId,
        strings: &StringTable,
        stacks: &mut StackTable,
    ) -> SiteId {
        *self.marked.entry((site.unwrap_or(u32::MAX), category)).or_insert_with(|| {
            let mut frames = site.map_or_else(Vec::new, |site| stacks.ids(SiteId(site)).to_vec());
            let function = format!("category: {}", strings.get(category)).into();
            let language = Language::Synthetic;
            frames.push(stacks.frame(Frame { function, language, ..Frame::default() }));
            stacks.site(&frames)
        })
    }

    /// Returns the joined stack of an allocation: native frames, then those of the caller.
    pub(crate) fn joined(inner: u32, outer: u32, stacks: &mut StackTable) -> SiteId {
        let mut frames: Vec<FrameId> = stacks.ids(SiteId(inner)).to_vec();
        frames.extend_from_slice(stacks.ids(SiteId(outer)));
        frames.truncate(MAX_FRAMES);
        stacks.site(&frames)
    }
}

fn is_python(file: &str) -> bool {
    file.ends_with(".py") || file.starts_with('<')
}

fn is_noise(name: &str, file: &str) -> bool {
    name == "_start"
        || NOISY_NAMES.iter().any(|noisy| name.contains(noisy))
        || NOISY_FILES.iter().any(|noisy| file.contains(noisy))
}
