//! The BPF object: opens, configures and loads it.

use std::collections::HashMap;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;

use libbpf_rs::{
    Link, MapCore, MapHandle, Object, ObjectBuilder, OpenObject, Program, ProgramMut, libbpf_sys,
};
use object::{Object as _, ObjectSection, ObjectSymbol};

use super::super::read::ring::{Mapping, page_bytes};
use super::bpf_log;
use crate::decode::element_table;
use crate::error::Error;
use crate::hooks::HOOKS;
use crate::plan::AttachMode;
use crate::session::trace_mode::{AllocatorMode, StackMode, WireMode};
use crate::wire::{self, ToWire};

pub(in crate::session) static BPF_OBJECT: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/vramscope.bpf.o"));

/// Processes that the probes record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProcessFilter {
    All,
    Targets,
    TargetsAndChildren,
}

/// Configuration that is fixed when the programs are loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadConfig {
    pub(crate) attach_mode: AttachMode,
    pub(crate) task_storage: bool,
    pub(crate) stack_windows: bool,
    pub(crate) filter: ProcessFilter,
    pub(crate) ring_bytes: u32,
    /// Entries of the per-process maps; `None`: the default.
    pub(crate) table_entries: Option<u32>,
    /// Entries of the map of threads; `None`: the default.
    pub(crate) thread_entries: Option<u32>,
    /// Count launches and copies.
    pub(crate) activity: Option<ActivityOptions>,
    /// Track CUDA objects such as streams and modules.
    pub(crate) objects: bool,
    /// Stacks of calls that allocate memory or create an object.
    pub(crate) stacks: StackMode,
    /// What is recorded about blocks of allocators in processes.
    pub(crate) allocators: AllocatorMode,
    /// The kernel has `bpf_loop`. Without it stacks are shorter and there are no Python stacks.
    pub(crate) loops: bool,
    pub(crate) stack_ring_bytes: u32,
    /// For measurements: probe calls with an empty program.
    pub(crate) empty_probes: bool,
}

impl LoadConfig {
    /// Returns the programs for calls.
    pub(crate) const fn calls(&self) -> ProbeSet {
        if self.empty_probes { ProbeSet::EmptyEntryAndReturn } else { ProbeSet::Calls }
    }

    /// Returns the programs for allocators in processes.
    pub(crate) const fn block_probes(&self) -> ProbeSet {
        if self.empty_probes { ProbeSet::EmptyEntry } else { ProbeSet::Blocks }
    }
}

/// Options for counting launches and copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ActivityOptions {
    /// Check the result of every launch, not only for new kernels and shapes.
    pub check_every_launch: bool,
    /// Entries of the maps of launches and copies; `None`: 65,536.
    pub table_entries: Option<u32>,
    /// For measurements: probe launches with an empty program.
    pub baseline: bool,
}

/// Configuration of the probes that can change at run time: their variable `runtime_config`.
pub(crate) struct RuntimeConfig {
    variables: Mapping,
    start: u64,
}

impl RuntimeConfig {
    fn open(object: &Object) -> Result<Self, Error> {
        let map = map(object, ".bss")?;
        let bytes = (map.value_size() as usize).next_multiple_of(page_bytes());
        let variables = Mapping::new(map.as_fd(), 0, bytes, true)
            .map_err(|error| map_error(".bss")(error.into()))?;
        let name = "runtime_config";
        let start = *symbols(".bss").get(name).ok_or(Error::Broken(name))? as u64;
        Ok(Self { variables, start })
    }

    /// Sets when the newest library was attached, on the boot clock.
    pub(crate) fn set_attached_at(&self, at: u64) {
        let offset = offset_of!(wire::RuntimeConfig, attached_at) as u64;
        if let Some(value) = self.variables.u64_at(self.start + offset) {
            value.store(at, Ordering::Release);
        }
    }

    fn set(&self, offset: usize, value: u32) {
        if let Some(variable) = self.variables.u32_at(self.start + offset as u64) {
            // Before the rings are checked for the last time; see `Probes::wait`.
            variable.store(value, Ordering::SeqCst);
        }
    }

    /// Sets the number of steps below the configured stack mode.
    pub(crate) fn set_stack_mode_reduction(&self, steps: u32) {
        self.set(offset_of!(wire::RuntimeConfig, stack_mode_reduction), steps);
    }

    /// Sets whether the next record wakes the reader.
    pub(crate) fn set_reader_waits(&self, waits: bool) {
        self.set(offset_of!(wire::RuntimeConfig, reader_waits), waits.into());
    }
}

/// A loaded BPF object.
pub(crate) struct LoadedObject {
    object: Object,
    pub(crate) config: LoadConfig,
    pub(crate) runtime_config: RuntimeConfig,
}

/// The programs for fork, exec and exit.
const LIFECYCLE_PROGRAMS: [&str; 3] = ["process_fork", "process_exec", "process_exit"];

/// A set of programs by purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ProbeSet {
    /// Calls, one record each.
    Calls,
    /// Launches, which are counted.
    Launches,
    /// Blocks of allocators in processes, one record each.
    Blocks,
    /// Memory functions that the hook table does not know, which are counted.
    Unknown,
    /// An empty program at entry, for measurements.
    EmptyEntry,
    /// An empty program at entry and return, for measurements.
    EmptyEntryAndReturn,
}

impl ProbeSet {
    /// Returns the programs for launches.
    pub(crate) const fn launches(options: ActivityOptions) -> Self {
        if options.baseline { Self::EmptyEntry } else { Self::Launches }
    }

    /// Returns whether one program serves both sides of a call, if the kernel supports that.
    pub(crate) const fn is_session(self) -> bool {
        !matches!(self, Self::EmptyEntry | Self::Blocks | Self::Unknown)
    }
}

/// Returns the program names in an attach mode: enter and return, or one for both.
pub(crate) const fn programs(
    attach_mode: AttachMode,
    probe_set: ProbeSet,
) -> (&'static str, Option<&'static str>) {
    match (probe_set, attach_mode) {
        (ProbeSet::Calls, AttachMode::Session) => ("call_session", None),
        (ProbeSet::Calls, AttachMode::Multi) => ("call_multi_enter", Some("call_multi_return")),
        (ProbeSet::Calls, AttachMode::Single) => ("call_single_enter", Some("call_single_return")),
        (ProbeSet::Blocks, AttachMode::Session | AttachMode::Multi) => ("block_multi", None),
        (ProbeSet::Blocks, AttachMode::Single) => ("block_single", None),
        (ProbeSet::Unknown, AttachMode::Session | AttachMode::Multi) => ("unknown_multi", None),
        (ProbeSet::Unknown, AttachMode::Single) => ("unknown_single", None),
        (ProbeSet::EmptyEntry, _) => ("empty_launch", None),
        (ProbeSet::EmptyEntryAndReturn, _) => ("empty_call", None),
        (ProbeSet::Launches, AttachMode::Session) => ("launch_session", None),
        (ProbeSet::Launches, AttachMode::Multi) => ("launch_multi", None),
        (ProbeSet::Launches, AttachMode::Single) => ("launch_single", None),
    }
}

impl LoadedObject {
    /// Opens and loads the object for an attach mode, with the process lifecycle tracepoints.
    pub(crate) fn new(config: LoadConfig) -> Result<Self, Error> {
        let mut wanted: Vec<&str> = LIFECYCLE_PROGRAMS.to_vec();
        let (enter, leave) = programs(config.attach_mode, config.calls());
        wanted.push(enter);
        wanted.extend(leave);
        wanted.push(programs(config.attach_mode, ProbeSet::Unknown).0);
        let launches = |options| programs(config.attach_mode, ProbeSet::launches(options)).0;
        wanted.extend(config.activity.map(launches));
        let tensors = config
            .allocators
            .is_enabled()
            .then(|| programs(config.attach_mode, config.block_probes()).0);
        wanted.extend(tensors);
        let mut open = open(&config, &wanted)?;
        for mut map in open.maps_mut() {
            match map.name().to_str() {
                Some("records") => set(map.set_max_entries(config.ring_bytes))?,
                Some("targets" | "processes" | "graph_states" | "capturing_streams") => {
                    if let Some(entries) = config.table_entries {
                        set(map.set_max_entries(entries))?;
                    }
                }
                Some("launches" | "copies") => {
                    set(map.set_autocreate(config.activity.is_some()))?;
                    if let Some(entries) = config.activity.and_then(|options| options.table_entries)
                    {
                        set(map.set_max_entries(entries))?;
                    }
                }
                Some("stack_records") => {
                    set(map.set_autocreate(config.stacks.is_enabled()))?;
                    set(map.set_max_entries(config.stack_ring_bytes))?;
                }
                Some("known_stacks" | "sent_frames" | "pythons") => {
                    set(map.set_autocreate(config.stacks.is_enabled()))?;
                }
                Some("stack_windows") => {
                    set(map.set_autocreate(config.stacks.is_enabled() && config.stack_windows))?;
                }
                Some("thread_storage") => set(map.set_autocreate(config.task_storage))?,
                Some("thread_table") => {
                    set(map.set_autocreate(!config.task_storage))?;
                    if let Some(entries) = config.thread_entries {
                        set(map.set_max_entries(entries))?;
                    }
                }
                _ => {}
            }
        }
        let object = open.load().map_err(|error| Error::Load { cause: error.into() })?;
        let runtime_config = RuntimeConfig::open(&object)?;
        Ok(Self { object, config, runtime_config })
    }

    pub(crate) fn program(&self, name: &'static str) -> Result<ProgramMut<'_>, Error> {
        self.object.progs_mut().find(|p| p.name() == name).ok_or(Error::Broken(name))
    }

    /// Attaches the process lifecycle programs.
    pub(crate) fn attach_lifecycle(&self) -> Result<Vec<Link>, Error> {
        let attach = |program: &&'static str| {
            self.program(program)?
                .attach()
                .map_err(|error| Error::Tracepoint { program, cause: error.into() })
        };
        LIFECYCLE_PROGRAMS.iter().map(attach).collect()
    }

    /// Returns the number of forks, execs and exits that the kernel did not report: since Linux 7
    /// these programs can be interrupted, and it does not run one again on that CPU until then.
    pub(crate) fn skipped_runs(&self) -> u64 {
        let is_lifecycle =
            |program: &Program<'_>| LIFECYCLE_PROGRAMS.iter().any(|name| program.name() == *name);
        self.object.progs().filter(is_lifecycle).map(|program| skipped_runs(program.as_fd())).sum()
    }

    pub(crate) fn map(&self, name: &'static str) -> Result<MapHandle, Error> {
        map(&self.object, name)
    }
}

fn skipped_runs(program: BorrowedFd<'_>) -> u64 {
    let mut info = libbpf_sys::bpf_prog_info::default();
    let mut bytes = size_of_val(&info) as u32;
    // SAFETY: writes at most this many bytes to `info`, and no array: it has no pointers.
    let status = unsafe {
        libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &raw mut info, &raw mut bytes)
    };
    if status == 0 { info.recursion_misses } else { 0 }
}

fn map(object: &Object, name: &'static str) -> Result<MapHandle, Error> {
    let matches = |map: &libbpf_rs::Map<'_>| {
        map.name() == name
            || (name.starts_with('.') && map.name().as_encoded_bytes().ends_with(name.as_bytes()))
    };
    let map = object.maps().find(matches).ok_or(Error::Broken(name))?;
    MapHandle::try_from(&map).map_err(map_error(name))
}

fn set(outcome: libbpf_rs::Result<()>) -> Result<(), Error> {
    outcome.map_err(|error| Error::Prepare(error.into()))
}

/// Returns a function that turns a failed map access into an error with the name of the map.
pub(in crate::session) fn map_error(map: &str) -> impl Fn(libbpf_rs::Error) -> Error + use<> {
    let map = map.to_owned();
    move |error| Error::Map { map: map.clone(), cause: error.into() }
}

fn open(config: &LoadConfig, wanted: &[&str]) -> Result<OpenObject, Error> {
    bpf_log::install();
    let prepare = |error: libbpf_rs::Error| Error::Prepare(error.into());
    let mut open = ObjectBuilder::default()
        .name("vramscope")
        .map_err(prepare)?
        .open_memory(BPF_OBJECT)
        .map_err(prepare)?;
    for mut program in open.progs_mut() {
        let wanted = program.name().to_str().is_some_and(|name| wanted.contains(&name));
        program.set_autoload(wanted);
    }
    let offsets = symbols(".rodata");
    let mut maps = open.maps_mut();
    let mut rodata = maps
        .find(|map| map.name().as_encoded_bytes().ends_with(b".rodata"))
        .ok_or(Error::Broken(".rodata"))?;
    let bytes = rodata.initial_value_mut().ok_or(Error::Broken(".rodata"))?;
    let mut put = |name: &'static str, value: &[u8]| {
        let start = *offsets.get(name).ok_or(Error::Broken(name))?;
        let target = bytes.get_mut(start..start + value.len()).ok_or(Error::Broken(name))?;
        target.copy_from_slice(value);
        Ok::<(), Error>(())
    };
    let filter = match config.filter {
        ProcessFilter::All => wire::VS_FILTER_NONE,
        ProcessFilter::Targets => wire::VS_FILTER_TARGETS,
        ProcessFilter::TargetsAndChildren => wire::VS_FILTER_FOLLOW,
    };
    put("hooks", &table(config.objects))?;
    let activity = config.activity.unwrap_or_default();
    let load_config = wire::LoadConfig {
        wakeup_at: u64::from(config.ring_bytes / 4),
        block_ring_limit: u64::from(config.ring_bytes / 2),
        filter,
        tracer_pid: std::process::id(),
        cpus: libbpf_rs::num_possible_cpus().unwrap_or(1) as u32,
        stacks: config.stacks.wire(),
        blocks: config.allocators.wire(),
        use_task_storage: config.task_storage.into(),
        use_stack_windows: config.stack_windows.into(),
        count_activity: config.activity.is_some().into(),
        check_every_launch: activity.check_every_launch.into(),
        can_skip_returns: (config.attach_mode == AttachMode::Session).into(),
        can_loop: config.loops.into(),
        reserved: [0; 6],
    };
    put("load_config", &load_config.bytes())?;
    put("element_bytes", &element_table())?;
    drop(maps);
    Ok(open)
}

/// Returns the hook table in the format of the probes. `objects`: track CUDA objects.
fn table(objects: bool) -> Vec<u8> {
    HOOKS.iter().flat_map(|hook| hook.to_wire(objects).bytes()).collect()
}

/// Returns the offsets of the variables in a section, from the object's symbol table.
fn symbols(section: &str) -> HashMap<String, usize> {
    let Ok(file) = object::File::parse(BPF_OBJECT) else { return HashMap::new() };
    let Some(section) = file.section_by_name(section).map(|section| section.index()) else {
        return HashMap::new();
    };
    file.symbols()
        .filter(|symbol| symbol.section_index() == Some(section))
        .filter_map(|symbol| Some((symbol.name().ok()?.to_owned(), symbol.address() as usize)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_variables_are_found_by_name() {
        assert!(symbols(".bss").contains_key("runtime_config"));
        assert!(symbols(".rodata").contains_key("hooks"));
        assert!(symbols(".none").is_empty());
    }
}
