//! Self-test: probes a function of this program to find out whether an attach mode works here.

use std::hint::black_box;
use std::path::Path;

use engine::model::ids::Pid;
use libbpf_rs::Link;

use super::super::attach::probes::{ProbePoint, attach};
use super::super::read::counters::ProbeCounters;
use super::bpf_log::verifier_error;
use super::bpf_object::{LoadConfig, LoadedObject, ProbeSet, ProcessFilter};
use crate::error::Error;
use crate::files::mappings;
use crate::plan::host_info::HostInfo;
use crate::plan::{self, AttachMode};
use crate::session::trace_mode::{AllocatorMode, StackMode};
use crate::wire;

/// Small enough for any kernel's limits.
const SELF_TEST_RING_BYTES: u32 = 64 * 1024;

/// The probes at entry and return.
const EXPECTED_HITS: u64 = 2;

/// The function that the self-test probes and calls.
#[inline(never)]
extern "C" fn self_test_target(value: u64) -> u64 {
    black_box(value) + 1
}

/// Tries one attach mode with a temporary object.
pub(crate) fn test_attach_mode(host: &HostInfo, attach_mode: AttachMode) -> Result<(), String> {
    let config = LoadConfig {
        attach_mode,
        task_storage: plan::task_storage(host),
        stack_windows: false,
        filter: ProcessFilter::All,
        ring_bytes: SELF_TEST_RING_BYTES,
        table_entries: None,
        thread_entries: None,
        activity: None,
        objects: false,
        stacks: StackMode::Off,
        allocators: AllocatorMode::Off,
        loops: false,
        stack_ring_bytes: SELF_TEST_RING_BYTES,
        empty_probes: false,
    };
    load_and_test(config, plan::link_per_process(host, attach_mode)).map(drop)
}

/// Loads an object, attaches the process lifecycle programs, and checks that probes fire: probes the
/// target, calls it and counts the hits.
pub(crate) fn load_and_test(
    config: LoadConfig,
    link_per_process: bool,
) -> Result<(LoadedObject, Vec<Link>), String> {
    let loaded = LoadedObject::new(config).map_err(|error| reason(&error))?;
    let lifecycle_links = loaded.attach_lifecycle().map_err(|error| reason(&error))?;
    let hits = if config.empty_probes { EXPECTED_HITS } else { hits(&loaded, link_per_process)? };
    match hits {
        EXPECTED_HITS => Ok((loaded, lifecycle_links)),
        _ => Err(format!("self-test: {hits} of {EXPECTED_HITS} probes fired")),
    }
}

/// Returns how many probes fire at a call.
fn hits(loaded: &LoadedObject, link_per_process: bool) -> Result<u64, String> {
    let point = ProbePoint { offset: own_offset()?, cookie: wire::VS_SELF_TEST as u64 };
    let scope = link_per_process.then(|| Pid(std::process::id()));
    let exe = Path::new("/proc/self/exe");
    let attachment = attach(loaded, exe, exe, &[point], ProbeSet::Calls, scope)
        .map_err(|error| reason(&error))?;
    let before = ProbeCounters::read(loaded).map_err(|error| reason(&error))?.self_test;
    black_box(self_test_target(black_box(1)));
    let hits = ProbeCounters::read(loaded).map_err(|error| reason(&error))?.self_test - before;
    drop(attachment);
    Ok(hits)
}

/// Returns the innermost cause: the outer messages are for users who did not select an attach mode.
fn reason(error: &Error) -> String {
    match error {
        Error::Prepare(cause) => format!("prepare: {}", cause.reason()),
        Error::Load { cause } => format!("load: {}{}", cause.reason(), verifier_error()),
        Error::Tracepoint { cause, .. } => format!("tracepoint: {}", cause.reason()),
        Error::Attach { cause, .. } => format!("attach: {}", cause.reason()),
        other => other.to_string(),
    }
}

/// Offset of the target in this program's file.
fn own_offset() -> Result<u64, String> {
    let address = self_test_target as *const () as u64;
    let code = mappings(Pid(std::process::id()), |executable, _| executable);
    let code = code.map_err(|error| error.to_string())?;
    let own = code.iter().find(|mapping| (mapping.start..mapping.end).contains(&address));
    own.map(|mapping| address - mapping.start + mapping.offset)
        .ok_or_else(|| "this program does not find itself in /proc/self/maps".to_owned())
}
