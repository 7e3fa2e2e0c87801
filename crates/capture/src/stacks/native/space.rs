//! The address space of one process, as far as code goes.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::time::{Duration, Instant};

use engine::ids::Pid;

use super::maps::{self, Mapping, Sort};
use super::modules::{Found, ModuleId, Modules};
use crate::libraries::MappedCode;

/// How long what was read counts, for addresses that are not in it.
const PATIENCE: Duration = Duration::from_millis(50);
/// The same after news of a mapping.
const PATIENCE_AFTER_NEWS: Duration = Duration::from_millis(5);
/// Of the time, at most one part in so many goes into reading what one process has mapped.
const SHARE: u32 = 20;
/// Bytes of a list of mappings.
const MOST_BYTES: u64 = 32 << 20;

/// What is at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Code of a file; the offset is one in the file.
    File { module: ModuleId, offset: u64 },
    /// Code that was made at run time.
    Anonymous,
    /// Nothing that is known.
    Nothing,
}

struct Entry {
    mapping: Mapping,
    /// Asked for on first use: most libraries never are on a stack.
    found: Option<Found>,
}

/// The executable mappings of a process.
pub(super) struct AddressSpace {
    pid: Pid,
    entries: Vec<Entry>,
    /// Starts of the entries, close together: searched for every frame.
    starts: Vec<u64>,
    /// Where functions with return probes return to.
    probes: Vec<Range<u64>>,
    read_at: Option<Instant>,
    took: Duration,
    news: bool,
    /// The list could not be read the last time: the process is gone, or not ours to see.
    gone: bool,
    /// See [`AddressSpace::believe`].
    believed: bool,
}

impl AddressSpace {
    pub(super) fn new(pid: Pid) -> Self {
        Self {
            pid,
            entries: Vec::new(),
            starts: Vec::new(),
            probes: Vec::new(),
            read_at: None,
            took: Duration::ZERO,
            news: false,
            gone: false,
            believed: false,
        }
    }

    /// Something executable was mapped.
    pub(super) fn changed(&mut self) {
        self.news = true;
    }

    /// Whether nothing was ever known of the process, and nothing can be.
    pub(super) fn is_gone(&self) -> bool {
        self.gone && self.entries.is_empty()
    }

    /// Whether what is known of it was only seen from afar.
    pub(super) fn is_believed(&self) -> bool {
        self.believed
    }

    /// To be called before a stack is looked at.
    pub(super) fn refresh(&mut self) {
        if self.read_at.is_none() || (self.news && self.may_read(PATIENCE_AFTER_NEWS)) {
            self.read();
        }
    }

    /// What is at an address.
    pub(super) fn place(&mut self, address: u64, modules: &mut Modules) -> Place {
        let mut index = self.index(address);
        if index.is_none() && self.may_read(PATIENCE) {
            self.read();
            index = self.index(address);
        }
        let Some(entry) = index.and_then(|index| self.entries.get_mut(index)) else {
            return Place::Nothing;
        };
        match entry.mapping.sort {
            Sort::Anonymous => return Place::Anonymous,
            Sort::Probes => return Place::Nothing,
            Sort::File | Sort::Vdso => {}
        }
        if entry.found.is_none() {
            entry.found = modules.find(self.pid, &entry.mapping);
        }
        match entry.found {
            Some(Found::Module(module)) => {
                let inside = address.saturating_sub(entry.mapping.start);
                Place::File { module, offset: entry.mapping.offset.saturating_add(inside) }
            }
            Some(Found::NoModule) => Place::Anonymous,
            None => Place::Nothing,
        }
    }

    /// Whether a function that returns there has a return probe.
    pub(super) fn is_probe(&self, address: u64) -> bool {
        self.probes.iter().any(|range| range.contains(&address))
    }

    fn index(&self, address: u64) -> Option<usize> {
        let index = self.starts.partition_point(|&start| start <= address).checked_sub(1)?;
        (address < self.entries.get(index)?.mapping.end).then_some(index)
    }

    /// A program that maps without end must not keep us reading.
    fn may_read(&self, patience: Duration) -> bool {
        let patience = patience.max(self.took.saturating_mul(SHARE));
        self.read_at.is_none_or(|at| at.elapsed() >= patience)
    }

    fn read(&mut self) {
        let began = Instant::now();
        let mut text = Vec::new();
        let read = File::open(format!("/proc/{}/maps", self.pid))
            .and_then(|file| file.take(MOST_BYTES).read_to_end(&mut text));
        // The list of a process that has ended is empty. What was known of it stays.
        self.gone = read.is_err() || text.is_empty();
        if !self.gone {
            self.replace(maps::parse(&text));
        }
        self.news = false;
        self.took = began.elapsed();
        self.read_at = Some(Instant::now());
    }

    /// What the process was seen to map, where it cannot be asked any more.
    pub(super) fn believe<'a>(&mut self, seen: impl Iterator<Item = &'a MappedCode>) {
        let mut mappings: Vec<Mapping> = Vec::new();
        for code in seen {
            // What was there before is gone.
            mappings.retain(|old| old.end <= code.start || code.end <= old.start);
            mappings.push(Mapping {
                start: code.start,
                end: code.end,
                offset: code.offset,
                device: code.device,
                inode: code.inode,
                sort: Sort::File,
                path: code.path.clone(),
                deleted: false,
            });
        }
        mappings.sort_by_key(|mapping| mapping.start);
        self.replace(mappings);
        self.believed = true;
    }

    fn replace(&mut self, mappings: Vec<Mapping>) {
        let mut old = std::mem::take(&mut self.entries).into_iter().peekable();
        for mapping in mappings {
            while old.next_if(|entry| entry.mapping.start < mapping.start).is_some() {}
            let same = old.next_if(|entry| entry.mapping == mapping);
            let found = same.and_then(|entry| entry.found);
            self.entries.push(Entry { mapping, found });
        }
        let mappings = || self.entries.iter().map(|entry| &entry.mapping);
        self.starts = mappings().map(|mapping| mapping.start).collect();
        let probes = mappings().filter(|mapping| mapping.sort == Sort::Probes);
        self.probes = probes.map(|mapping| mapping.start..mapping.end).collect();
    }
}
