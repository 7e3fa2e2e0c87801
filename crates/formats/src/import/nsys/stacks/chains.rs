//! Call chains as sites. Frames of the tool that took the backtrace are dropped.

use std::sync::Arc;

use engine::model::{Frame, FrameId, Language, SiteId, UnknownReason};
use hashbrown::HashMap;

use super::super::sqlite::database::Database;
use super::super::sqlite::record::RecordRow;
use super::super::sqlite::string_table::StringTable;
use super::super::sqlite::table::{RowOrder, RowReader, Table};
use super::super::warnings::Warnings;
use super::calls::{self, CallStats};
use super::lookup::Lookup;
use crate::import::{ImportError, ImportSink};

/// Maximum number of frames of a chain; the innermost ones are kept.
const MAX_FRAMES: usize = 512;

/// A chain without a site.
const NO_SITE: u32 = u32::MAX;

const TABLE: &str = "CUDA_CALLCHAINS";
const COLUMNS: [&str; 5] = ["id", "symbol", "module", "unresolved", "stackDepth"];

/// Sites of the chains that allocations refer to.
#[derive(Debug, Default)]
pub(crate) struct ChainSites {
    ids: Lookup,
    sites: Vec<u32>,
    /// Offset between the number that a call has for its chain and the chain's id.
    shift: u32,
}

impl ChainSites {
    /// Returns the site of the chain that a call refers to.
    pub(crate) fn site(&mut self, number: u32) -> Option<SiteId> {
        let at = self.ids.find(number.checked_add(self.shift)?)?;
        self.sites.get(at).copied().filter(|&site| site != NO_SITE).map(SiteId)
    }
}

/// Reads the chains that calls of `processes` refer to.
pub(crate) fn read(
    database: &Database,
    processes: &mut super::super::processes::Processes,
    stats: &CallStats,
    strings: &mut StringTable<'_>,
    warnings: &mut Warnings,
    sink: &mut dyn ImportSink,
) -> Result<ChainSites, ImportError> {
    let Some(table) = Table::find(database, TABLE, COLUMNS)? else {
        return Ok(ChainSites::default());
    };
    if !(0..COLUMNS.len()).filter(|&column| column != 3).all(|column| table.has(column)) {
        warnings.info("call chains lack columns; allocations have no stacks", 1);
        return Ok(ChainSites::default());
    }
    let shift = shift(database, stats, strings)?;
    let ids = calls::chains(processes, shift);
    let sites = vec![NO_SITE; ids.len()];
    let mut reader = ChainReader {
        chains: ChainSites { ids, sites, shift },
        frames: HashMap::new(),
        current: None,
        open_frames: Vec::new(),
        scattered: false,
        invalid: 0,
        strings,
        sink,
    };
    table.rows(database, RowOrder::Stored, &mut reader)?;
    reader.finish();
    if reader.scattered {
        table.rows(database, RowOrder::By("id, stackDepth"), &mut reader)?;
        reader.finish();
    }
    warnings.info("call chains have values that cannot be used", reader.invalid);
    Ok(reader.chains)
}

/// Returns the offset of chain numbers. Exports of 2022.2 number chains from 1, but calls refer to
/// them from 0. That is detected from the lowest numbers of both, and confirmed by comparing
/// functions of calls with their chains.
fn shift(
    database: &Database,
    stats: &CallStats,
    strings: &mut StringTable<'_>,
) -> Result<u32, ImportError> {
    let failed = |error| database.sqlite_error("table CUDA_CALLCHAINS", &error);
    if stats.lowest_chain != Some(0) {
        return Ok(0);
    }
    let lowest: Option<i64> = database
        .connection
        .query_row("SELECT min(id) FROM CUDA_CALLCHAINS", [], |row| row.get(0))
        .map_err(failed)?;
    if lowest != Some(1) {
        return Ok(0);
    }
    let mut statement = database
        .connection
        .prepare("SELECT symbol FROM CUDA_CALLCHAINS WHERE id = ?1 LIMIT 1000")
        .map_err(failed)?;
    let mut matches = [0, 0];
    for &(chain, name) in &stats.samples {
        let Some(name) = strings.get(name) else { continue };
        for (shift, matches) in (0_i64..).zip(&mut matches) {
            let symbols: Result<Vec<i64>, _> = statement
                .query_map([i64::from(chain) + shift], |row| row.get(0))
                .and_then(Iterator::collect);
            let symbols = symbols.unwrap_or_default();
            let same = |&id: &i64| strings.get(id).is_some_and(|symbol| symbol == name);
            *matches += usize::from(symbols.iter().any(same));
        }
    }
    Ok(u32::from(matches[1] > matches[0]))
}

struct ChainReader<'a, 'd> {
    chains: ChainSites,
    /// Frames by symbol, module and whether the symbol is only an address.
    frames: HashMap<(i64, i64, bool), (FrameId, FrameRelevance)>,
    /// The chain whose rows are being read, and its frames: depth, frame and relevance.
    current: Option<OpenChain>,
    open_frames: Vec<(i64, FrameId, FrameRelevance)>,
    /// Whether rows of one chain are not consecutive.
    scattered: bool,
    invalid: u64,
    strings: &'a mut StringTable<'d>,
    sink: &'a mut dyn ImportSink,
}

/// A chain whose rows are being read.
struct OpenChain {
    id: i64,
    /// Index of its site, if an allocation refers to it.
    at: Option<usize>,
}

/// Relevance of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FrameRelevance {
    /// Code of the tool that took the backtrace.
    Tool,
    /// An address without a symbol.
    Unnamed,
    /// Code with a symbol.
    Named,
}

impl RowReader<5> for ChainReader<'_, '_> {
    fn begin(&mut self) -> Result<(), ImportError> {
        self.chains.sites.fill(NO_SITE);
        (self.current, self.scattered, self.invalid) = (None, false, 0);
        self.open_frames.clear();
        Ok(())
    }

    fn row(&mut self, row: &RecordRow<'_, 5>) -> Result<(), ImportError> {
        let (Some(id), Some(symbol), Some(depth)) = (row.int(0), row.int(1), row.int(4)) else {
            self.invalid += 1;
            return Ok(());
        };
        if self.current.as_ref().is_none_or(|current| current.id != id) {
            self.finish();
            let at = u32::try_from(id).ok().and_then(|id| self.chains.ids.find(id));
            let known = at.and_then(|at| self.chains.sites.get(at)).is_some_and(|&s| s != NO_SITE);
            self.scattered |= known;
            self.current = Some(OpenChain { id, at });
        }
        let is_needed = self.current.as_ref().is_some_and(|current| current.at.is_some());
        if is_needed && self.open_frames.len() < MAX_FRAMES {
            let unresolved = row.int(3).is_some_and(|flag| flag != 0);
            let (frame, relevance) = self.frame(symbol, row.int(2).unwrap_or(-1), unresolved);
            self.open_frames.push((depth, frame, relevance));
        }
        Ok(())
    }
}

impl ChainReader<'_, '_> {
    fn frame(&mut self, symbol: i64, module: i64, unresolved: bool) -> (FrameId, FrameRelevance) {
        let key = (symbol, module, unresolved);
        if let Some(&known) = self.frames.get(&key) {
            return known;
        }
        let module = self.strings.get(module).filter(|name| is_named(name));
        let symbol = self.strings.get(symbol).filter(|name| is_named(name));
        let address = symbol.as_deref().is_some_and(is_address);
        let function = symbol.filter(|_| !unresolved && !address);
        let relevance = match (&function, &module) {
            (_, Some(module)) if is_tool(module) => FrameRelevance::Tool,
            (Some(_), _) => FrameRelevance::Named,
            (None, _) => FrameRelevance::Unnamed,
        };
        // `[Max depth]` and similar entries stand for missing frames.
        let synthetic = function.as_deref().is_some_and(|name| name.starts_with('['));
        let frame = Frame {
            unknown: function.is_none().then_some(UnknownReason::NotRecorded),
            function: function.map_or_else(|| Arc::from(""), Arc::from),
            module: module.map(Arc::from),
            language: if synthetic { Language::Synthetic } else { Language::Native },
            ..Frame::default()
        };
        let known = (self.sink.stacks().frame(frame), relevance);
        self.frames.insert(key, known);
        known
    }

    /// Stores the site of the completed chain.
    fn finish(&mut self) {
        let Some(current) = self.current.take() else { return };
        let Some(slot) = current.at.and_then(|at| self.chains.sites.get_mut(at)) else { return };
        let mut open = std::mem::take(&mut self.open_frames);
        open.sort_by_key(|&(depth, ..)| depth);
        let first_of = |wanted| open.iter().position(|&(_, _, relevance)| relevance == wanted);
        let first = first_of(FrameRelevance::Named).or_else(|| first_of(FrameRelevance::Unnamed));
        let frames: Vec<_> =
            open.iter().skip(first.unwrap_or(0)).map(|&(_, frame, _)| frame).collect();
        *slot = self.sink.stacks().site(&frames).0;
        open.clear();
        self.open_frames = open;
    }
}

fn is_named(name: &str) -> bool {
    !name.is_empty() && name != "[Unknown]"
}

fn is_address(name: &str) -> bool {
    name.strip_prefix("0x")
        .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Returns whether a module is a library that a profiler injects into the program.
fn is_tool(module: &str) -> bool {
    let file = module.rsplit('/').next().unwrap_or(module);
    ["libcupti", "libToolsInjection", "libnvperf", "libInterceptor"]
        .iter()
        .any(|prefix| file.starts_with(prefix))
}
