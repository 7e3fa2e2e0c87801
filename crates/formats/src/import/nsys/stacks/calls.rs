//! API calls of allocations: the thread, and the call chain or at least the function name. There
//! are far more calls than allocations, so only calls that an allocation refers to are kept.

use engine::model::{Frame, Language, SiteId, Tid};
use hashbrown::HashMap;

use super::super::processes::Processes;
use super::super::sqlite::database::Database;
use super::super::sqlite::record::RecordRow;
use super::super::sqlite::string_table::StringTable;
use super::super::sqlite::table::{RowOrder, RowReader, Table};
use super::super::warnings::Warnings;
use super::lookup::Lookup;
use crate::import::{ImportError, ImportSink};
use crate::sanitize::sanitize;

/// Event class of a call with a backtrace: only the chain of its row is reliable.
const BACKTRACE: i64 = 67;
/// Event classes of runtime and driver calls.
const RUNTIME: i64 = 0;
const DRIVER: i64 = 1;
/// `cudaErrorMemoryAllocation` and `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i64 = 2;

/// Marks a slot that contains a function name instead of a chain.
const NAME_FLAG: u32 = 1 << 31;
/// An empty slot.
const EMPTY_SLOT: u32 = u32::MAX;

/// Prefixes of functions whose failure is a failed allocation.
const ALLOCATION_PREFIXES: [&str; 10] = [
    "cudaMalloc",
    "cudaHostAlloc",
    "cudaHostRegister",
    "cudaGraphLaunch",
    "cuMemAlloc",
    "cuMemHostAlloc",
    "cuMemHostRegister",
    "cuMemCreate",
    "cuArray",
    "cuMipmappedArrayCreate",
];

/// Calls that allocations of one process refer to.
#[derive(Debug, Default)]
pub(crate) struct CallTable {
    ids: Lookup,
    /// One slot per call: a chain or a name, and later a site.
    slots: Vec<u32>,
    threads: Vec<u32>,
}

impl CallTable {
    /// Adds a call that an allocation refers to.
    #[inline]
    pub(crate) fn request(&mut self, correlation: u32) {
        self.ids.push(correlation);
    }

    fn begin(&mut self) {
        self.ids.done();
        self.slots = vec![EMPTY_SLOT; self.ids.len()];
        self.threads = vec![0; self.ids.len()];
    }

    /// Returns the site and thread of a call.
    #[inline]
    pub(crate) fn get(&mut self, correlation: u32) -> (Option<SiteId>, Tid) {
        let Some(at) = self.ids.find(correlation) else { return (None, Tid(0)) };
        let site = self.slots.get(at).copied().filter(|&site| site != EMPTY_SLOT).map(SiteId);
        (site, Tid(self.threads.get(at).copied().unwrap_or(0)))
    }
}

/// Statistics of the calls.
#[derive(Debug, Default)]
pub(crate) struct CallStats {
    /// Number of calls that failed with an out-of-memory error, by the id of the name.
    failed: HashMap<i64, u64>,
    /// Lowest chain that a call refers to.
    pub(crate) lowest_chain: Option<u32>,
    /// Some calls with their chain and the id of their name.
    pub(crate) samples: Vec<(u32, i64)>,
    /// Number of rows with invalid values.
    invalid: u64,
}

impl CallStats {
    const MAX_SAMPLES: usize = 16;
    /// Maximum number of counted function names.
    const MAX_FAILED_NAMES: usize = 1024;
}

struct CallReader<'a> {
    processes: &'a mut Processes,
    /// Whether the file has call chains.
    chains: bool,
    stats: CallStats,
}

const COLUMNS: [&str; 6] =
    ["eventClass", "globalTid", "correlationId", "nameId", "returnValue", "callchainId"];

impl RowReader<6> for CallReader<'_> {
    fn begin(&mut self) -> Result<(), ImportError> {
        self.processes.each(|process| process.calls.begin());
        self.stats = CallStats::default();
        Ok(())
    }

    #[inline]
    fn row(&mut self, row: &RecordRow<'_, 6>) -> Result<(), ImportError> {
        let (Some(class), Some(name)) = (row.int(0), row.int(3)) else {
            self.stats.invalid += 1;
            return Ok(());
        };
        let chain = row.int(5).filter(|_| class == BACKTRACE && self.chains).map(u32::try_from);
        let chain = match chain {
            Some(Ok(chain)) if chain < NAME_FLAG => Some(chain),
            Some(_) => {
                self.stats.invalid += 1;
                None
            }
            None => None,
        };
        self.add_stats(class, name, row.int(4), chain);
        let (Some(thread), Some(correlation)) = (row.int(1), row.int(2)) else { return Ok(()) };
        let Ok(correlation) = u32::try_from(correlation) else { return Ok(()) };
        let Some(process) = self.processes.known(thread & !0xff_ffff) else { return Ok(()) };
        let calls = &mut process.calls;
        let Some(at) = calls.ids.find(correlation) else { return Ok(()) };
        if let (Some(slot), Some(tid)) = (calls.slots.get_mut(at), calls.threads.get_mut(at)) {
            *tid = (thread & 0xff_ffff) as u32;
            match (chain, u32::try_from(name)) {
                (Some(chain), _) => *slot = chain,
                // The row with the chain may come before or after this one.
                (None, Ok(name)) if *slot & NAME_FLAG != 0 && name < NAME_FLAG - 1 => {
                    *slot = name | NAME_FLAG;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl CallReader<'_> {
    #[inline]
    fn add_stats(&mut self, class: i64, name: i64, returned: Option<i64>, chain: Option<u32>) {
        let stats = &mut self.stats;
        if let Some(chain) = chain {
            stats.lowest_chain = Some(stats.lowest_chain.map_or(chain, |low| low.min(chain)));
            if stats.samples.len() < CallStats::MAX_SAMPLES {
                stats.samples.push((chain, name));
            }
        }
        // The row with the backtrace always reports success.
        if returned == Some(OUT_OF_MEMORY) && matches!(class, RUNTIME | DRIVER) {
            let room = stats.failed.len() < CallStats::MAX_FAILED_NAMES;
            if room || stats.failed.contains_key(&name) {
                *stats.failed.entry(name).or_default() += 1;
            }
        }
    }
}

/// Reads the calls that allocations refer to.
pub(crate) fn read(
    database: &Database,
    processes: &mut Processes,
) -> Result<CallStats, ImportError> {
    let chains = Table::find(database, "CUDA_CALLCHAINS", ["id"])?.is_some();
    let mut reader = CallReader { processes, chains, stats: CallStats::default() };
    reader.begin()?;
    if let Some(table) = Table::find(database, "CUPTI_ACTIVITY_KIND_RUNTIME", COLUMNS)? {
        table.rows(database, RowOrder::Stored, &mut reader)?;
    }
    Ok(reader.stats)
}

/// Returns the chains that calls refer to, once each.
pub(crate) fn chains(processes: &mut Processes, shift: u32) -> Lookup {
    let mut chains = Lookup::default();
    processes.each(|process| {
        for &slot in &process.calls.slots {
            if slot & NAME_FLAG == 0 {
                chains.push(slot + shift);
            }
        }
    });
    chains.done();
    chains
}

/// Sets the site of each call: that of its chain, or a synthetic frame with the name of its
/// function.
pub(crate) fn resolve(
    processes: &mut Processes,
    mut site_of_chain: impl FnMut(u32) -> Option<SiteId>,
    strings: &mut StringTable<'_>,
    sink: &mut dyn ImportSink,
) {
    let mut sites: HashMap<u32, u32> = HashMap::new();
    processes.each(|process| {
        for slot in &mut process.calls.slots {
            if *slot == EMPTY_SLOT {
                continue;
            }
            *slot = if *slot & NAME_FLAG == 0 {
                site_of_chain(*slot).map_or(EMPTY_SLOT, |site| site.0)
            } else {
                let name = *slot & !NAME_FLAG;
                *sites.entry(name).or_insert_with(|| {
                    let name = strings.get(i64::from(name));
                    name.map_or(EMPTY_SLOT, |name| synthetic_site(api_name(&name), sink).0)
                })
            };
        }
    });
}

/// Returns a site with one synthetic frame.
pub(crate) fn synthetic_site(text: &str, sink: &mut dyn ImportSink) -> SiteId {
    let frame = Frame { function: text.into(), language: Language::Synthetic, ..Frame::default() };
    let stacks = sink.stacks();
    let frame = stacks.frame(frame);
    stacks.site(&[frame])
}

/// Returns the function name without the API version: `cudaMalloc_v3020` is `cudaMalloc`.
pub(crate) fn api_name(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((base, version))
            if version.len() >= 4 && version.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            base
        }
        _ => name,
    }
}

impl CallStats {
    /// Adds warnings about failed allocations and invalid rows.
    pub(crate) fn add_warnings(&self, strings: &mut StringTable<'_>, warnings: &mut Warnings) {
        for (&name, &count) in &self.failed {
            let name = strings.get(name).unwrap_or_default();
            let name = api_name(&name);
            if ALLOCATION_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
                let text = format!("calls of {} failed: out of memory", sanitize(name));
                warnings.info(text, count);
            }
        }
        let text = "API calls have values that cannot be used; allocations may lack their stacks";
        warnings.info(text, self.invalid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_versions_are_removed_from_names() {
        assert_eq!(api_name("cudaMalloc_v3020"), "cudaMalloc");
        assert_eq!(api_name("cudaMallocAsync_v11020"), "cudaMallocAsync");
        assert_eq!(api_name("cuMemAlloc_v2"), "cuMemAlloc_v2");
        assert_eq!(api_name("free_video"), "free_video");
    }
}
