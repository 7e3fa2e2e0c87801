//! Which API call an allocation belongs to: its thread, and its call chain or at least its name.
//! Calls are far more than allocations, so only those are kept that an allocation names.

use engine::ids::{SiteId, Tid};
use engine::stack::{Frame, Language};
use hashbrown::HashMap;

use super::database::Database;
use super::lookup::Lookup;
use super::notes::Notes;
use super::processes::Processes;
use super::record::Row;
use super::strings::Strings;
use super::table::{Order, Reader, Table};
use crate::import::{Error, Sink};
use crate::plain::plain;

/// A call that has a backtrace: its row has the chain, and nothing else that can be trusted.
const BACKTRACE: i64 = 67;
/// Calls of the runtime and of the driver.
const RUNTIME: i64 = 0;
const DRIVER: i64 = 1;
/// `cudaErrorMemoryAllocation` and `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i64 = 2;

/// Marks a slot that names a function and not a chain.
const NAME: u32 = 1 << 31;
/// A slot without anything.
const NOTHING: u32 = u32::MAX;

/// Names of functions whose failure is a failed allocation begin like this.
const ALLOCATING: [&str; 10] = [
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

/// The calls that allocations of one process name.
#[derive(Debug, Default)]
pub(super) struct Calls {
    ids: Lookup,
    /// For each call: a chain or a name; later a site.
    slots: Vec<u32>,
    threads: Vec<u32>,
}

impl Calls {
    /// An allocation names this call.
    #[inline]
    pub(super) fn want(&mut self, correlation: u32) {
        self.ids.push(correlation);
    }

    fn begin(&mut self) {
        self.ids.done();
        self.slots = vec![NOTHING; self.ids.len()];
        self.threads = vec![0; self.ids.len()];
    }

    /// The site and thread of a call.
    #[inline]
    pub(super) fn get(&mut self, correlation: u32) -> (Option<SiteId>, Tid) {
        let Some(at) = self.ids.find(correlation) else { return (None, Tid(0)) };
        let site = self.slots.get(at).copied().filter(|&site| site != NOTHING).map(SiteId);
        (site, Tid(self.threads.get(at).copied().unwrap_or(0)))
    }
}

/// What the calls told besides.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Failed calls for want of memory, by the id of the name.
    failed: HashMap<i64, u64>,
    /// The lowest chain that is named.
    pub(super) lowest_chain: Option<u32>,
    /// Some calls with their chain and the id of their name.
    pub(super) samples: Vec<(u32, i64)>,
    /// Rows with values that cannot be right.
    odd: u64,
}

impl Heard {
    const SAMPLES: usize = 16;
    /// Different names of failed functions that are counted.
    const NAMES: usize = 1024;
}

struct CallReader<'a> {
    processes: &'a mut Processes,
    /// Whether there are chains to name.
    chains: bool,
    heard: Heard,
}

const COLUMNS: [&str; 6] =
    ["eventClass", "globalTid", "correlationId", "nameId", "returnValue", "callchainId"];

impl Reader<6> for CallReader<'_> {
    fn begin(&mut self) -> Result<(), Error> {
        self.processes.each(|process| process.calls.begin());
        self.heard = Heard::default();
        Ok(())
    }

    #[inline]
    fn row(&mut self, row: &Row<'_, 6>) -> Result<(), Error> {
        let (Some(class), Some(name)) = (row.int(0), row.int(3)) else {
            self.heard.odd += 1;
            return Ok(());
        };
        let chain = row.int(5).filter(|_| class == BACKTRACE && self.chains).map(u32::try_from);
        let chain = match chain {
            Some(Ok(chain)) if chain < NAME => Some(chain),
            Some(_) => {
                self.heard.odd += 1;
                None
            }
            None => None,
        };
        self.hear(class, name, row.int(4), chain);
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
                (None, Ok(name)) if *slot & NAME != 0 && name < NAME - 1 => *slot = name | NAME,
                _ => {}
            }
        }
        Ok(())
    }
}

impl CallReader<'_> {
    #[inline]
    fn hear(&mut self, class: i64, name: i64, returned: Option<i64>, chain: Option<u32>) {
        let heard = &mut self.heard;
        if let Some(chain) = chain {
            heard.lowest_chain = Some(heard.lowest_chain.map_or(chain, |low| low.min(chain)));
            if heard.samples.len() < Heard::SAMPLES {
                heard.samples.push((chain, name));
            }
        }
        // The row with the backtrace always says that all is well.
        if returned == Some(OUT_OF_MEMORY) && matches!(class, RUNTIME | DRIVER) {
            let room = heard.failed.len() < Heard::NAMES;
            if room || heard.failed.contains_key(&name) {
                *heard.failed.entry(name).or_default() += 1;
            }
        }
    }
}

/// Finds the calls that allocations name.
pub(super) fn read(database: &Database, processes: &mut Processes) -> Result<Heard, Error> {
    let chains = Table::find(database, "CUDA_CALLCHAINS", ["id"])?.is_some();
    let mut reader = CallReader { processes, chains, heard: Heard::default() };
    reader.begin()?;
    if let Some(table) = Table::find(database, "CUPTI_ACTIVITY_KIND_RUNTIME", COLUMNS)? {
        table.rows(database, Order::Stored, &mut reader)?;
    }
    Ok(reader.heard)
}

/// The chains that calls name, once each.
pub(super) fn chains(processes: &mut Processes, shift: u32) -> Lookup {
    let mut chains = Lookup::default();
    processes.each(|process| {
        for &slot in &process.calls.slots {
            if slot & NAME == 0 {
                chains.push(slot + shift);
            }
        }
    });
    chains.done();
    chains
}

/// Gives each call its site: that of its chain, or a remark with the name of its function.
pub(super) fn resolve(
    processes: &mut Processes,
    mut site_of_chain: impl FnMut(u32) -> Option<SiteId>,
    strings: &mut Strings<'_>,
    sink: &mut dyn Sink,
) {
    let mut named: HashMap<u32, u32> = HashMap::new();
    processes.each(|process| {
        for slot in &mut process.calls.slots {
            if *slot == NOTHING {
                continue;
            }
            *slot = if *slot & NAME == 0 {
                site_of_chain(*slot).map_or(NOTHING, |site| site.0)
            } else {
                let name = *slot & !NAME;
                *named.entry(name).or_insert_with(|| {
                    let name = strings.get(i64::from(name));
                    name.map_or(NOTHING, |name| remark(api_name(&name), sink).0)
                })
            };
        }
    });
}

/// A site that is no code but a remark.
pub(super) fn remark(text: &str, sink: &mut dyn Sink) -> SiteId {
    let frame = Frame { function: text.into(), language: Language::Remark, ..Frame::default() };
    let stacks = sink.stacks();
    let frame = stacks.frame(frame);
    stacks.site(&[frame])
}

/// The function without the version of its interface: `cudaMalloc_v3020` is `cudaMalloc`.
pub(super) fn api_name(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((plain, version))
            if version.len() >= 4 && version.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            plain
        }
        _ => name,
    }
}

impl Heard {
    /// Notes about failed allocations and rows that could not be used.
    pub(super) fn note(&self, strings: &mut Strings<'_>, notes: &mut Notes) {
        for (&name, &count) in &self.failed {
            let name = strings.get(name).unwrap_or_default();
            let name = api_name(&name);
            if ALLOCATING.iter().any(|begin| name.starts_with(begin)) {
                let text = format!("calls of {} failed: out of memory", plain(name));
                notes.mention(text, count);
            }
        }
        let text = "API calls have values that cannot be used; allocations may lack their stacks";
        notes.mention(text, self.odd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_interfaces_are_no_part_of_a_name() {
        assert_eq!(api_name("cudaMalloc_v3020"), "cudaMalloc");
        assert_eq!(api_name("cudaMallocAsync_v11020"), "cudaMallocAsync");
        assert_eq!(api_name("cuMemAlloc_v2"), "cuMemAlloc_v2");
        assert_eq!(api_name("free_video"), "free_video");
    }
}
