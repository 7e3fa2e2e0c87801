//! Symbolizes native code. The first lookup in a file takes long, so it runs in a separate thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Reason, Sym, Symbolized, Symbolizer};
use engine::model::stack::{Frame, UnknownReason};
use hashbrown::HashMap;

use super::debug_file::{self, DebugInfoStatus};
use super::demangle::{demangle, is_mangled, truncate};
use super::modules::{Module, ModuleId, ModuleRegistry};
use super::perf_map::GeneratedCode;
use super::unwind::FrameLocation;
use crate::files::ElfImage;

/// Maximum number of cached symbols; beyond it all are dropped.
const MAX_CACHED_SYMBOLS: usize = 1 << 20;
/// Maximum number of open files: each takes a descriptor and memory for its symbols.
const MAX_OPEN_FILES: usize = 128;
/// Assumed size of a symbol without a size.
const UNSIZED_SYMBOL_BYTES: usize = 4096;

/// Sources of the symbols of a module.
struct SymbolSource {
    /// The file itself, and whether its debug information is used.
    own: Option<(PathBuf, bool)>,
    /// The separate debug file and its path.
    separate: Option<(ElfImage, PathBuf)>,
}

/// Symbolizer of native code. To be created in the thread that uses it, with the registry of
/// [`NativeUnwinder`].
///
/// [`NativeUnwinder`]: super::NativeUnwinder
pub(crate) struct NativeSymbolizer {
    registry: ModuleRegistry,
    symbolizer: Symbolizer,
    sources: HashMap<ModuleId, SymbolSource>,
    cache: HashMap<(ModuleId, u64), Arc<[Frame]>>,
}

impl NativeSymbolizer {
    pub(crate) fn new(registry: ModuleRegistry) -> Self {
        Self { registry, symbolizer: symbolizer(), sources: HashMap::new(), cache: HashMap::new() }
    }

    /// Returns the functions at a location, the innermost inlined one first. `is_return`: the
    /// location is a return address, as in all frames of a stack whose innermost function has
    /// returned. `generated`: code of the program of the stack.
    pub(crate) fn frames(
        &mut self,
        code: &FrameLocation,
        is_return: bool,
        generated: &GeneratedCode,
    ) -> Arc<[Frame]> {
        let back = u64::from(is_return);
        match *code {
            FrameLocation::File { module, offset } => {
                self.in_file(module, offset.saturating_sub(back))
            }
            FrameLocation::Generated { address, .. } => {
                let name = generated.find(address.saturating_sub(back));
                let frame = name.map(|function| Frame { function, ..Frame::default() });
                Arc::new([frame.unwrap_or_else(|| unknown(UnknownReason::Jit))])
            }
            FrameLocation::Unmapped(_) => Arc::new([unknown(UnknownReason::Unmapped)]),
            FrameLocation::Probe(_) => Arc::new([unknown(UnknownReason::HiddenByUretprobe)]),
        }
    }

    fn in_file(&mut self, id: ModuleId, offset: u64) -> Arc<[Frame]> {
        if let Some(frames) = self.cache.get(&(id, offset)) {
            return Arc::clone(frames);
        }
        let Some(module) = self.registry.get(id) else {
            return Arc::new([unknown(UnknownReason::Unmapped)]);
        };
        let found = match &module.image {
            Ok(image) => self.look_up(id, &module, image, offset),
            Err(reason) => Err(*reason),
        };
        let frames = found.unwrap_or_else(|reason| vec![unknown(reason)]);
        let named = frames
            .into_iter()
            .map(|frame| Frame { module: Some(Arc::clone(&module.path)), ..frame });
        let frames: Arc<[Frame]> = named.collect();
        if self.cache.len() >= MAX_CACHED_SYMBOLS {
            self.cache.clear();
        }
        self.cache.insert((id, offset), Arc::clone(&frames));
        frames
    }

    fn look_up(
        &mut self,
        id: ModuleId,
        module: &Module,
        image: &ElfImage,
        offset: u64,
    ) -> Result<Vec<Frame>, UnknownReason> {
        let address = image.address(offset).ok_or(UnknownReason::NoSymbol)?;
        if self.sources.len() >= MAX_OPEN_FILES && !self.sources.contains_key(&id) {
            self.reset();
        }
        let source = self.sources.entry(id).or_insert_with(|| source(module, image));
        let names = catch_unwind(AssertUnwindSafe(|| names(&self.symbolizer, source, address)));
        names.unwrap_or_else(|_| {
            // The file makes the symbolizer panic, whose state may be inconsistent now.
            self.reset();
            self.sources.insert(id, SymbolSource { own: None, separate: None });
            Err(UnknownReason::Unreadable)
        })
    }

    fn reset(&mut self) {
        self.symbolizer = symbolizer();
        self.sources.retain(|_, source| source.own.is_none() && source.separate.is_none());
        if self.sources.len() >= MAX_OPEN_FILES {
            self.sources.clear();
        }
    }
}

/// Creates the symbolizer. A path always leads to the same file, so no reload is needed. Names are
/// demangled by our own code, with bounds.
fn symbolizer() -> Symbolizer {
    Symbolizer::builder()
        .enable_auto_reload(false)
        .enable_code_info(true)
        .enable_inlined_fns(true)
        .enable_demangling(false)
        .build()
}

fn source(module: &Module, image: &ElfImage) -> SymbolSource {
    let own = match debug_file::readable(image) {
        DebugInfoStatus::All => Some((image.path(), true)),
        DebugInfoStatus::Symbols => Some((image.path(), false)),
        DebugInfoStatus::Nothing => None,
    };
    let separate = debug_file::find(&module.path, image).map(|image| {
        let path = image.path();
        (image, path)
    });
    SymbolSource { own, separate }
}

/// Returns the functions at a virtual address of the file.
fn names(
    symbolizer: &Symbolizer,
    source: &mut SymbolSource,
    address: u64,
) -> Result<Vec<Frame>, UnknownReason> {
    if let Some((_, path)) = &source.separate
        && let Ok(Some(frames)) = frames_in(symbolizer, path, true, address)
    {
        return Ok(frames);
    }
    let Some((path, has_debug)) = &mut source.own else { return Err(UnknownReason::Unreadable) };
    let mut frames = frames_in(symbolizer, path, *has_debug, address);
    if frames.is_err() && *has_debug {
        // Unsupported debug information; the symbol table may still work.
        *has_debug = false;
        frames = frames_in(symbolizer, path, false, address);
    }
    frames.map_err(|()| UnknownReason::Unreadable)?.ok_or(UnknownReason::NoSymbol)
}

/// Returns the functions at an address from one file.
fn frames_in(
    symbolizer: &Symbolizer,
    path: &Path,
    debug_syms: bool,
    address: u64,
) -> Result<Option<Vec<Frame>>, ()> {
    let Some(symbol) = symbol(symbolizer, path, debug_syms, address)? else { return Ok(None) };
    // Debug information lacks the namespaces and parameters of functions that are not exported. The
    // symbol table has them.
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

/// Returns the symbol that covers an address.
fn symbol<'a>(
    symbolizer: &'a Symbolizer,
    path: &Path,
    debug_syms: bool,
    address: u64,
) -> Result<Option<Sym<'a>>, ()> {
    let source = Source::Elf(Elf { debug_syms, ..Elf::new(path) });
    match symbolizer.symbolize_single(&source, Input::VirtOffset(address)) {
        Ok(Symbolized::Sym(symbol)) => {
            // blazesym checks the size if it is known. It also checks the ranges of a function in
            // several pieces in debug information, for which it returns no address.
            let in_pieces = debug_syms && symbol.addr == 0;
            let covers = symbol.size.is_some() || in_pieces || symbol.offset < UNSIZED_SYMBOL_BYTES;
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

fn unknown(reason: UnknownReason) -> Frame {
    Frame { unknown: Some(reason), ..Frame::default() }
}
