//! Writes the oracle of a process to a file, for comparison with a tracer.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::abi::Code;
use crate::api::vmm::Backing;
use crate::oracle::json_activity;
use crate::oracle::{CALLS, CurrentAndPeak};
use crate::settings;
use crate::state::DriverState;

/// Creates the directory of the oracle.
pub(crate) fn prepare() {
    if let Some(dir) = &settings::get().oracle_dir {
        // A failure is repeated and reported when the oracle is written.
        let _ = std::fs::create_dir_all(dir);
    }
}

/// Writes the oracle if `SIM_ORACLE_DIR` is set.
pub(crate) fn write(state: &DriverState) {
    let Some(dir) = &settings::get().oracle_dir else { return };
    if let Err(error) = write_into(state, dir) {
        log_error(dir, &error);
    }
}

/// Reports why a file cannot be written.
#[expect(clippy::print_stderr, reason = "a driver has no other way to say why it fails")]
pub(crate) fn log_error(path: &Path, error: &io::Error) -> Code {
    eprintln!("simulated driver: {}: {error}", path.display());
    Code::Unknown
}

/// Writes to a temporary name first, so that the file is always complete.
fn write_into(state: &DriverState, dir: &Path) -> io::Result<()> {
    let pid = std::process::id();
    let temporary = dir.join(format!(".{pid}.json.part"));
    let mut file = BufWriter::new(File::create(&temporary)?);
    write_oracle(state, pid, &mut file)?;
    file.flush()?;
    std::fs::rename(temporary, dir.join(format!("{pid}.json")))
}

/// A live allocation in the oracle.
struct LiveEntry {
    address: u64,
    bytes: u64,
    device: Option<usize>,
    kind: &'static str,
    thread: u32,
}

fn write_oracle(state: &DriverState, pid: u32, out: &mut impl Write) -> io::Result<()> {
    let oracle = &state.oracle;
    let list = |levels: &[CurrentAndPeak], value: &dyn Fn(&CurrentAndPeak) -> u64| {
        let levels = levels.iter().take(settings::get().devices);
        let texts: Vec<String> = levels.map(|level| value(level).to_string()).collect();
        texts.join(", ")
    };
    let (held, devices) = (&oracle.held_by_device, &oracle.devices);
    writeln!(out, "{{")?;
    writeln!(out, "  \"pid\": {pid},")?;
    writeln!(out, "  \"allocations\": {},", oracle.allocations)?;
    writeln!(out, "  \"frees\": {},", oracle.frees)?;
    writeln!(out, "  \"released\": {},", oracle.released)?;
    let (allocating, freeing) = CALLS.get();
    writeln!(out, "  \"allocating_calls\": {allocating},")?;
    writeln!(out, "  \"freeing_calls\": {freeing},")?;
    writeln!(out, "  \"failed_allocations\": {},", oracle.failed_allocations)?;
    writeln!(out, "  \"live_bytes\": {},", oracle.held.now)?;
    writeln!(out, "  \"live_bytes_by_device\": [{}],", list(held, &|level| level.now))?;
    writeln!(out, "  \"peak_bytes\": {},", oracle.held.peak)?;
    writeln!(out, "  \"peak_bytes_by_device\": [{}],", list(held, &|level| level.peak))?;
    writeln!(out, "  \"device_bytes\": {},", oracle.total.now)?;
    writeln!(out, "  \"device_bytes_by_device\": [{}],", list(devices, &|level| level.now))?;
    writeln!(out, "  \"device_peak_bytes\": {},", oracle.total.peak)?;
    pools(state, out)?;
    json_activity::write(state, out)?;
    objects(state, out)?;
    live(state, out)?;
    writeln!(out, "\n}}")
}

/// Formats a device as JSON: a number, or null for host memory.
fn device_text(device: Option<usize>) -> String {
    device.map_or_else(|| "null".to_owned(), |device| device.to_string())
}

fn pools(state: &DriverState, out: &mut impl Write) -> io::Result<()> {
    write!(out, "  \"pools\": [")?;
    let mut separator = "\n";
    for (index, pool) in state.pools.pools.iter() {
        write!(
            out,
            "{separator}    {{\"handle\": \"{:#x}\", \"device\": {}, \"reserved\": {}, \
             \"used\": {}, \"reserved_peak\": {}, \"used_peak\": {}, \"destroyed\": {}}}",
            state.pools.pools.handle(index),
            device_text(pool.device),
            pool.reserved.now,
            pool.used.now,
            pool.reserved.peak,
            pool.used.peak,
            pool.destroyed,
        )?;
        separator = ",\n";
    }
    writeln!(out, "\n  ],")
}

fn objects(state: &DriverState, out: &mut impl Write) -> io::Result<()> {
    write!(out, "  \"objects\": [")?;
    let mut separator = "\n";
    for (kind, count) in state.objects.counts() {
        write!(
            out,
            "{separator}    {{\"kind\": \"{kind}\", \"live\": {}, \"created\": {}, \
             \"destroyed\": {}, \"released\": {}, \"peak\": {}}}",
            count.live(),
            count.created,
            count.destroyed,
            count.released,
            count.peak,
        )?;
        separator = ",\n";
    }
    writeln!(out, "\n  ],")
}

/// Formats a string as JSON.
pub(crate) fn text(value: &str) -> String {
    let mut quoted = String::from('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn live(state: &DriverState, out: &mut impl Write) -> io::Result<()> {
    write!(out, "  \"live\": [")?;
    let mut separator = "\n";
    for entry in entries(state) {
        let LiveEntry { address, bytes, device, kind, thread } = entry;
        write!(
            out,
            "{separator}    {{\"address\": \"{address:#x}\", \"bytes\": {bytes}, \
             \"device\": {}, \"kind\": \"{kind}\", \"thread\": {thread}}}",
            device_text(device),
        )?;
        separator = ",\n";
    }
    write!(out, "\n  ]")
}

fn entries(state: &DriverState) -> impl Iterator<Item = LiveEntry> {
    let entry = |address, bytes, owner, thread| {
        let owner = state.owner(owner).ok();
        let kind = owner.map_or("unknown", |owner| owner.kind.name());
        LiveEntry { address, bytes, device: owner.and_then(|owner| owner.device), kind, thread }
    };
    let at_addresses = state
        .arena
        .iter()
        .map(move |(address, record)| entry(address, record.bytes, record.owner, record.thread));
    let host = state
        .host
        .iter()
        .map(move |(address, range)| entry(*address, range.bytes, range.owner, range.thread));
    let physical = state.vmm.physical.iter().filter_map(move |(index, physical)| {
        let Backing::Memory { owner } = physical.backing else { return None };
        let handle = state.vmm.physical.handle(index);
        Some(entry(handle, physical.bytes, owner, physical.thread))
    });
    let arrays = [&state.arrays.plain, &state.arrays.mipmapped].into_iter().flat_map(move |slab| {
        slab.iter().filter_map(move |(index, array)| {
            Some(entry(slab.handle(index), array.bytes, array.owner?, array.thread))
        })
    });
    let graphs = state.graphs.memory.iter().filter(|(_, memory)| memory.in_use);
    let graphs = graphs
        .map(move |(address, memory)| entry(*address, memory.bytes, memory.owner, memory.thread));
    at_addresses.chain(host).chain(physical).chain(arrays).chain(graphs)
}
