//! The BPF object: opened, its knobs set, loaded.

use std::collections::HashMap;
use std::os::fd::AsFd;

use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, ProgramMut,
};
use object::{Object as _, ObjectSection, ObjectSymbol};

use super::log;
use crate::decode::element_table;
use crate::error::Error;
use crate::hooks::HOOKS;
use crate::plan::Tier;
use crate::stacks::Stacks;
use crate::tensors::Tensors;
use crate::wire::{self, ToWire, WireHook};

pub(super) static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vramscope.bpf.o"));

/// Which processes are recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Filter {
    Everybody,
    Targets,
    TargetsAndChildren,
}

/// What is fixed when the programs are loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Knobs {
    pub(crate) tier: Tier,
    pub(crate) task_storage: bool,
    pub(crate) stack_windows: bool,
    pub(crate) filter: Filter,
    pub(crate) ring_bytes: u32,
    /// Entries of the tables of processes; `None`: as many as they are built for.
    pub(crate) table_entries: Option<u32>,
    /// Entries of the table of threads; `None`: as many as it is built for.
    pub(crate) thread_entries: Option<u32>,
    /// Launches and copies are counted, too.
    pub(crate) work: Option<Work>,
    /// Objects that are no memory are followed.
    pub(crate) objects: bool,
    /// Stacks of calls that allocate, or make an object.
    pub(crate) stacks: Stacks,
    /// What is told of the blocks of PyTorch's cache.
    pub(crate) tensors: Tensors,
    /// The kernel has loops for programs: without, stacks are shorter and Python has none.
    pub(crate) loops: bool,
    pub(crate) stack_ring_bytes: u32,
    /// For measurements: calls are probed by a program that does nothing.
    pub(crate) empty_probes: bool,
}

impl Knobs {
    /// What calls are probed with.
    pub(crate) const fn calls(&self) -> Serves {
        if self.empty_probes { Serves::NothingOfCalls } else { Serves::Calls }
    }

    /// What the cache of PyTorch is probed with.
    pub(crate) const fn tensors(&self) -> Serves {
        if self.empty_probes { Serves::Nothing } else { Serves::Tensors }
    }
}

/// How launches and copies are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// Look at the result of every launch, not only of those of kernels and shapes that are new.
    pub check_every_launch: bool,
    /// Entries of the tables of launches and copies; `None`: 65,536.
    pub table_entries: Option<u32>,
    /// For measurements: launches are probed by a program that does nothing.
    pub baseline: bool,
}

/// The probes' variables.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Changing {
    /// When the newest library was attached, by the clock that counts from the boot.
    pub(crate) attached_at: u64,
    /// How far stacks were given up.
    pub(crate) stacks_less: u32,
}

/// A loaded object.
pub(crate) struct Loaded {
    object: Object,
    pub(crate) knobs: Knobs,
}

const LIFE: [&str; 3] = ["process_fork", "process_exec", "process_exit"];

/// What programs are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Serves {
    /// Calls, one record each.
    Calls,
    /// Launches, which are summed.
    Launches,
    /// Blocks of PyTorch's cache, one record each.
    Tensors,
    /// Entries, by doing nothing, for measurements.
    Nothing,
    /// The same of calls: both sides.
    NothingOfCalls,
}

impl Serves {
    /// What launches are probed with.
    pub(crate) const fn launches(work: Work) -> Self {
        if work.baseline { Self::Nothing } else { Self::Launches }
    }

    /// Whether one program serves both sides of a call, where the kernel can do that.
    pub(crate) const fn both_sides(self) -> bool {
        !matches!(self, Self::Nothing | Self::Tensors)
    }
}

/// The programs that serve calls in a tier: enter and return, or one for both.
pub(crate) const fn programs(tier: Tier, serves: Serves) -> (&'static str, Option<&'static str>) {
    match (serves, tier) {
        (Serves::Calls, Tier::Session) => ("call_session", None),
        (Serves::Calls, Tier::Multi) => ("call_multi_enter", Some("call_multi_return")),
        (Serves::Calls, Tier::Single) => ("call_single_enter", Some("call_single_return")),
        (Serves::Calls, Tier::Constant) => ("call_constant_enter", Some("call_constant_return")),
        (Serves::Tensors, Tier::Session | Tier::Multi) => ("tensor_multi", None),
        (Serves::Tensors, Tier::Single) => ("tensor_single", None),
        (Serves::Tensors, Tier::Constant) => ("tensor_constant", None),
        (Serves::Nothing, _) => ("launch_nothing", None),
        (Serves::NothingOfCalls, _) => ("call_nothing", None),
        (Serves::Launches, Tier::Session) => ("launch_session", None),
        (Serves::Launches, Tier::Multi) => ("launch_multi", None),
        (Serves::Launches, Tier::Single) => ("launch_single", None),
        (Serves::Launches, Tier::Constant) => ("launch_constant", None),
    }
}

impl Loaded {
    /// Opens and loads the object for a tier, with the tracepoints of process life.
    pub(crate) fn new(knobs: Knobs) -> Result<Self, Error> {
        let mut wanted: Vec<&str> = LIFE.to_vec();
        let (enter, leave) = programs(knobs.tier, knobs.calls());
        wanted.push(enter);
        wanted.extend(leave);
        wanted.extend(knobs.work.map(|work| programs(knobs.tier, Serves::launches(work)).0));
        let tensors = knobs.tensors.are_told().then(|| programs(knobs.tier, knobs.tensors()).0);
        wanted.extend(tensors);
        let mut open = open(&knobs, wire::VS_CANARY as u32, &wanted)?;
        for mut map in open.maps_mut() {
            match map.name().to_str() {
                Some("records") => set(map.set_max_entries(knobs.ring_bytes))?,
                Some("targets" | "processes" | "graph_states" | "capturing_streams") => {
                    if let Some(entries) = knobs.table_entries {
                        set(map.set_max_entries(entries))?;
                    }
                }
                Some("launches" | "copies") => {
                    set(map.set_autocreate(knobs.work.is_some()))?;
                    if let Some(entries) = knobs.work.and_then(|work| work.table_entries) {
                        set(map.set_max_entries(entries))?;
                    }
                }
                Some("stack_records") => {
                    set(map.set_autocreate(knobs.stacks.are_taken()))?;
                    set(map.set_max_entries(knobs.stack_ring_bytes))?;
                }
                Some("known_stacks" | "told_frames" | "pythons") => {
                    set(map.set_autocreate(knobs.stacks.are_taken()))?;
                }
                Some("stack_windows") => {
                    set(map.set_autocreate(knobs.stacks.are_taken() && knobs.stack_windows))?;
                }
                Some("thread_storage") => set(map.set_autocreate(knobs.task_storage))?,
                Some("thread_table") => {
                    set(map.set_autocreate(!knobs.task_storage))?;
                    if let Some(entries) = knobs.thread_entries {
                        set(map.set_max_entries(entries))?;
                    }
                }
                _ => {}
            }
        }
        let object = open.load().map_err(|error| Error::Load { cause: error.into() })?;
        Ok(Self { object, knobs })
    }

    /// The programs again for one row of the table, on kernels that have no cookies. They share
    /// the maps.
    pub(crate) fn for_hook(&self, hook: usize, serves: Serves) -> Result<Self, Error> {
        let (enter, leave) = programs(Tier::Constant, serves);
        let wanted: Vec<&str> = std::iter::once(enter).chain(leave).collect();
        let mut open = open(&self.knobs, hook as u32, &wanted)?;
        let own: HashMap<_, _> =
            self.object.maps().map(|map| (map.name().to_owned(), map)).collect();
        for mut map in open.maps_mut() {
            let name = map.name().to_owned();
            // Constants differ from row to row; everything else is one.
            if name.as_encoded_bytes().ends_with(b".rodata") {
                continue;
            }
            match own.get(&name) {
                Some(map_of_all) if map_of_all.autocreate() => {
                    set(map.reuse_fd(map_of_all.as_fd()))?;
                }
                _ => set(map.set_autocreate(false))?,
            }
        }
        let object = open.load().map_err(|error| Error::Load { cause: error.into() })?;
        Ok(Self { object, knobs: self.knobs })
    }

    pub(crate) fn program(&self, name: &'static str) -> Result<ProgramMut<'_>, Error> {
        self.object.progs_mut().find(|p| p.name() == name).ok_or(Error::Broken(name))
    }

    /// Attaches the programs that follow births and deaths.
    pub(crate) fn attach_life(&self) -> Result<Vec<Link>, Error> {
        let attach = |program: &&'static str| {
            self.program(program)?
                .attach()
                .map_err(|error| Error::Tracepoint { program, cause: error.into() })
        };
        LIFE.iter().map(attach).collect()
    }

    pub(crate) fn map(&self, name: &'static str) -> Result<MapHandle, Error> {
        let matches = |map: &libbpf_rs::Map<'_>| {
            map.name() == name
                || (name.starts_with('.')
                    && map.name().as_encoded_bytes().ends_with(name.as_bytes()))
        };
        let map = self.object.maps().find(matches).ok_or(Error::Broken(name))?;
        MapHandle::try_from(&map).map_err(map_error(name))
    }

    /// Sets what changes while the programs run.
    pub(crate) fn set(&self, now: Changing) -> Result<(), Error> {
        let map = self.map(".bss")?;
        let (key, fail) = (0_u32.to_ne_bytes(), map_error(".bss"));
        let mut value = map.lookup(&key, MapFlags::ANY).map_err(&fail)?.unwrap_or_default();
        let start = *symbols(".bss").get("now").ok_or(Error::Broken("now"))?;
        let Changing { attached_at, stacks_less } = now;
        let bytes = wire::Now { attached_at, stacks_less, unused: 0 }.bytes();
        let place = value.get_mut(start..start + bytes.len()).ok_or(Error::Broken("now"))?;
        place.copy_from_slice(&bytes);
        map.update(&key, &value, MapFlags::ANY).map_err(&fail)
    }
}

fn set(outcome: libbpf_rs::Result<()>) -> Result<(), Error> {
    outcome.map_err(|error| Error::Prepare(error.into()))
}

/// Turns the failure of an access to a map into an error that names the map.
pub(super) fn map_error(map: &str) -> impl Fn(libbpf_rs::Error) -> Error + use<> {
    let map = map.to_owned();
    move |error| Error::Map { map: map.clone(), cause: error.into() }
}

fn open(knobs: &Knobs, constant_hook: u32, wanted: &[&str]) -> Result<OpenObject, Error> {
    log::listen();
    let prepare = |error: libbpf_rs::Error| Error::Prepare(error.into());
    let mut open = ObjectBuilder::default()
        .name("vramscope")
        .map_err(prepare)?
        .open_memory(OBJECT)
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
        let place = bytes.get_mut(start..start + value.len()).ok_or(Error::Broken(name))?;
        place.copy_from_slice(value);
        Ok::<(), Error>(())
    };
    let filter = match knobs.filter {
        Filter::Everybody => wire::VS_FILTER_NONE,
        Filter::Targets => wire::VS_FILTER_TARGETS,
        Filter::TargetsAndChildren => wire::VS_FILTER_FOLLOW,
    };
    put("hooks", &table(knobs.objects))?;
    put("filter", &filter.to_ne_bytes())?;
    put("use_task_storage", &[u8::from(knobs.task_storage)])?;
    put("use_stack_windows", &[u8::from(knobs.stack_windows)])?;
    put("own_pid", &std::process::id().to_ne_bytes())?;
    put("wakeup_at", &u64::from(knobs.ring_bytes / 4).to_ne_bytes())?;
    let work = knobs.work.unwrap_or_default();
    put("count_work", &[u8::from(knobs.work.is_some())])?;
    put("check_every_launch", &[u8::from(work.check_every_launch)])?;
    let cpus = libbpf_rs::num_possible_cpus().unwrap_or(1) as u32;
    put("cpus", &cpus.to_ne_bytes())?;
    put("stacks", &knobs.stacks.wire().to_ne_bytes())?;
    put("tensors", &knobs.tensors.wire().to_ne_bytes())?;
    put("tensors_until", &u64::from(knobs.ring_bytes / 2).to_ne_bytes())?;
    put("walk_python", &[u8::from(knobs.loops)])?;
    put("can_loop", &[u8::from(knobs.loops)])?;
    put("can_skip_returns", &[u8::from(knobs.tier == Tier::Session)])?;
    put("element_bytes", &element_table())?;
    put("constant_hook", &constant_hook.to_ne_bytes())?;
    drop(maps);
    Ok(open)
}

/// The hook table in the probes' form. `objects`: those are followed.
fn table(objects: bool) -> Vec<u8> {
    HOOKS
        .iter()
        .flat_map(|hook| {
            let WireHook {
                action,
                loss_class,
                size_argument,
                size_factor,
                out_argument,
                out_bytes,
                descriptor_argument,
                descriptor_bytes,
                flags,
                measure,
                direction,
                asynchronous,
                element,
                stream_argument,
            } = hook.wire(objects);
            [
                &[action, loss_class, size_argument, size_factor][..],
                &out_argument,
                &out_bytes,
                &[descriptor_argument, descriptor_bytes, flags, measure],
                &[direction, asynchronous, element, stream_argument],
            ]
            .concat()
        })
        .collect()
}

/// Where the variables of a section lie in it, from the object's own symbol table.
fn symbols(section: &str) -> HashMap<String, usize> {
    let Ok(file) = object::File::parse(OBJECT) else { return HashMap::new() };
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
    fn variables_of_the_probes_are_found_by_name() {
        assert!(symbols(".bss").contains_key("now"));
        assert!(symbols(".rodata").contains_key("hooks"));
        assert!(symbols(".none").is_empty());
    }
}
