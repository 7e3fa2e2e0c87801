//! Names of code. Reading them takes long the first time, so it is done on a thread of its own.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Reason, Sym, Symbolized, Symbolizer};
use engine::stack::{Frame, Unknown};
use hashbrown::HashMap;

use super::debug_file::{self, Readable};
use super::demangle::{demangle, is_mangled, truncate};
use super::image::Image;
use super::modules::{Module, ModuleId, Registry};
use super::perf_map::PerfMaps;
use super::unwind::Code;

/// Answers that are kept; when there are more, all are forgotten.
const MOST_ANSWERS: usize = 1 << 20;
/// Files whose names are kept at hand: each takes an open file, and memory for what was read of it.
const MOST_FILES: usize = 128;
/// A symbol that does not say how long it is counts for so many bytes.
const MOST_WITHOUT_SIZE: usize = 4096;

/// Where the names of a module are.
struct Origin {
    /// The file itself, and whether it has debug information of its own.
    own: Option<(PathBuf, bool)>,
    /// The file that has it instead, and the path that leads there.
    separate: Option<(Image, PathBuf)>,
}

/// What names code has. To be made on the thread that uses it, from what [`Native`] gives.
///
/// [`Native`]: super::Native
pub(crate) struct Symbols {
    registry: Registry,
    symbolizer: Symbolizer,
    origins: HashMap<ModuleId, Origin>,
    answers: HashMap<(ModuleId, u64), Arc<[Frame]>>,
    perf_maps: PerfMaps,
}

impl Symbols {
    /// Names of the modules of a registry.
    pub(crate) fn new(registry: Registry) -> Self {
        Self {
            registry,
            symbolizer: symbolizer(),
            origins: HashMap::new(),
            answers: HashMap::new(),
            perf_maps: PerfMaps::default(),
        }
    }

    /// The functions that the code is in, the innermost of those that were merged into one first.
    /// `is_return` says that the code is where a call returns to, as it is for all frames of a
    /// stack whose innermost function has returned.
    pub(crate) fn frames(&mut self, code: &Code, is_return: bool) -> Arc<[Frame]> {
        let back = u64::from(is_return);
        match *code {
            Code::File { module, offset } => self.of_file(module, offset.saturating_sub(back)),
            Code::Anonymous { pid, address } => {
                let name = self.perf_maps.find(pid, address.saturating_sub(back));
                let frame = name.map(|function| Frame { function, ..Frame::default() });
                Arc::new([frame.unwrap_or_else(|| unknown(Unknown::Jit))])
            }
            Code::Unmapped(_) => Arc::new([unknown(Unknown::Unmapped)]),
            Code::Probe(_) => Arc::new([unknown(Unknown::Probed)]),
        }
    }

    fn of_file(&mut self, id: ModuleId, offset: u64) -> Arc<[Frame]> {
        if let Some(answer) = self.answers.get(&(id, offset)) {
            return Arc::clone(answer);
        }
        let Some(module) = self.registry.get(id) else {
            return Arc::new([unknown(Unknown::Unmapped)]);
        };
        let found = match &module.image {
            Ok(image) => self.look_up(id, &module, image, offset),
            Err(why) => Err(*why),
        };
        let frames = found.unwrap_or_else(|why| vec![unknown(why)]);
        let named = frames
            .into_iter()
            .map(|frame| Frame { module: Some(Arc::clone(&module.path)), ..frame });
        let answer: Arc<[Frame]> = named.collect();
        if self.answers.len() >= MOST_ANSWERS {
            self.answers.clear();
        }
        self.answers.insert((id, offset), Arc::clone(&answer));
        answer
    }

    fn look_up(
        &mut self,
        id: ModuleId,
        module: &Module,
        image: &Image,
        offset: u64,
    ) -> Result<Vec<Frame>, Unknown> {
        let address = image.address(offset).ok_or(Unknown::Stripped)?;
        if self.origins.len() >= MOST_FILES && !self.origins.contains_key(&id) {
            self.start_anew();
        }
        let origin = self.origins.entry(id).or_insert_with(|| origin(module, image));
        let looked = catch_unwind(AssertUnwindSafe(|| names(&self.symbolizer, origin, address)));
        looked.unwrap_or_else(|_| {
            // A file that breaks its reader. What the reader holds may be broken too.
            self.start_anew();
            self.origins.insert(id, Origin { own: None, separate: None });
            Err(Unknown::Unreadable)
        })
    }

    fn start_anew(&mut self) {
        self.symbolizer = symbolizer();
        self.origins.retain(|_, origin| origin.own.is_none() && origin.separate.is_none());
        if self.origins.len() >= MOST_FILES {
            self.origins.clear();
        }
    }
}

/// Files lie behind paths that stay the same for one file, so there is nothing to read again.
/// Names are demangled here, within bounds.
fn symbolizer() -> Symbolizer {
    Symbolizer::builder()
        .enable_auto_reload(false)
        .enable_code_info(true)
        .enable_inlined_fns(true)
        .enable_demangling(false)
        .build()
}

fn origin(module: &Module, image: &Image) -> Origin {
    let own = match debug_file::readable(image) {
        Readable::All => Some((image.path(), true)),
        Readable::Symbols => Some((image.path(), false)),
        Readable::Nothing => None,
    };
    let separate = debug_file::find(&module.path, image).map(|image| {
        let path = image.path();
        (image, path)
    });
    Origin { own, separate }
}

/// The functions at an address that the file gives itself.
fn names(
    symbolizer: &Symbolizer,
    origin: &mut Origin,
    address: u64,
) -> Result<Vec<Frame>, Unknown> {
    if let Some((_, path)) = &origin.separate
        && let Ok(Some(frames)) = ask(symbolizer, path, true, address)
    {
        return Ok(frames);
    }
    let Some((path, has_debug)) = &mut origin.own else { return Err(Unknown::Unreadable) };
    let mut answer = ask(symbolizer, path, *has_debug, address);
    if answer.is_err() && *has_debug {
        // Debug information that is not understood; the symbols can be fine.
        *has_debug = false;
        answer = ask(symbolizer, path, false, address);
    }
    answer.map_err(|()| Unknown::Unreadable)?.ok_or(Unknown::Stripped)
}

/// The functions that one file tells.
fn ask(
    symbolizer: &Symbolizer,
    path: &Path,
    debug_syms: bool,
    address: u64,
) -> Result<Option<Vec<Frame>>, ()> {
    let Some(symbol) = symbol(symbolizer, path, debug_syms, address)? else { return Ok(None) };
    // Debug information has no namespaces and parameters of functions that are not exported. The
    // symbol table has.
    let better = (debug_syms && !is_mangled(&symbol.name))
        .then(|| self::symbol(symbolizer, path, false, address).ok().flatten())
        .flatten()
        .filter(|better| is_mangled(&better.name));
    let name = better.as_ref().map_or(&symbol.name, |better| &better.name);
    let inlined = symbol.inlined.iter().rev();
    let inlined = inlined.map(|function| frame(&function.name, function.code_info.as_ref()));
    let outer = frame(name, symbol.code_info.as_deref());
    Ok(Some(inlined.chain([outer]).collect()))
}

/// The symbol at an address, if it reaches that far.
fn symbol<'a>(
    symbolizer: &'a Symbolizer,
    path: &Path,
    debug_syms: bool,
    address: u64,
) -> Result<Option<Sym<'a>>, ()> {
    let source = Source::Elf(Elf { debug_syms, ..Elf::new(path) });
    match symbolizer.symbolize_single(&source, Input::VirtOffset(address)) {
        Ok(Symbolized::Sym(symbol)) => {
            // Where a size is known, blazesym has looked at it. So it has where debug information
            // tells of a function in several pieces; it gives no address then.
            let in_pieces = debug_syms && symbol.addr == 0;
            let covers = symbol.size.is_some() || in_pieces || symbol.offset < MOST_WITHOUT_SIZE;
            Ok((covers && !symbol.name.is_empty()).then_some(symbol))
        }
        Ok(Symbolized::Unknown(Reason::IgnoredError)) | Err(_) => Err(()),
        Ok(Symbolized::Unknown(_)) => Ok(None),
    }
}

fn frame(name: &str, code: Option<&CodeInfo<'_>>) -> Frame {
    let file = code.map(|code| code.to_path().to_string_lossy().into_owned());
    Frame {
        function: demangle(name).into(),
        file: file.filter(|file| !file.is_empty()).map(|file| truncate(&file).into()),
        line: code.and_then(|code| code.line).unwrap_or(0),
        ..Frame::default()
    }
}

fn unknown(why: Unknown) -> Frame {
    Frame { unknown: Some(why), ..Frame::default() }
}
