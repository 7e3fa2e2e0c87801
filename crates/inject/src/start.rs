//! Starts tracing in this process: opens the shared files, moves function entries, writes the
//! jumps.

use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::allocators;
use crate::area::{
    CHAIN_VARIABLE, Control, DIR_VARIABLE, MAX_UNKNOWN, Row, RowState, StartFailure,
};
use crate::calls::{emit, python};
use crate::code::{NearbyCode, PreparedFunction, patch};
use crate::library::{Library, symbol};
use crate::process;
use crate::shared::{self, is_collected, variable};
use crate::unhooked::is_unlisted_memory_function;
use crate::wire::{VS_MAX_HOOKS, VS_STACKS_OFF};

/// Maximum time for which the start waits for the collector.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Interval at which a waiting start checks whether the collector still runs.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The library was started. Forked children do not start it again.
static STARTED: AtomicBool = AtomicBool::new(false);

/// Wraps the driver's functions if a collector waits for records.
pub(crate) fn start() {
    if STARTED.swap(true, Ordering::AcqRel) {
        return;
    }
    let Some(dir) = variable(DIR_VARIABLE) else { return };
    if !process::open_control(&dir) {
        return;
    }
    if let Err(failure) = wrap() {
        process::fail(failure);
    }
}

fn wrap() -> Result<(), StartFailure> {
    let control = process::control().ok_or(StartFailure::NoArea)?;
    let driver = Library::driver().ok_or(StartFailure::NoDriver)?;
    let prepared = prepare(control, &driver)?;
    if !process::start() {
        return Err(StartFailure::NoArea);
    }
    if !patch(&prepared) {
        return Err(StartFailure::Protected);
    }
    allocators::search();
    if control.stacks.load(Ordering::Relaxed) != VS_STACKS_OFF && python::is_loaded() {
        wait_until_examined();
    }
    Ok(())
}

/// Waits until the collector has published the layout of the interpreter, which the stack of the
/// first call already needs. Usually takes a few milliseconds.
fn wait_until_examined() {
    let Some(area) = process::area() else { return };
    let examined = &area.header.is_examined;
    let deadline = Instant::now() + MAX_WAIT;
    while examined.load(Ordering::Acquire) == 0 && Instant::now() < deadline && is_collected() {
        // The collector may have gone to sleep just before the process was announced.
        emit::wake();
        shared::sleep_while_zero(examined, CHECK_INTERVAL);
    }
}

/// Functions of the driver whose entries were moved. The functions are not changed yet.
struct Preparation<'a> {
    library: &'a Library,
    code: NearbyCode,
    prepared: Vec<PreparedFunction>,
    addresses: Vec<u64>,
}

impl Preparation<'_> {
    /// Moves the entry of a function and stores the result.
    fn add(&mut self, hook: usize, name: &CStr) {
        let info = process::row_info(hook);
        let state = match self.library.function(name) {
            Err(()) => RowState::Foreign,
            Ok(None) => RowState::Absent,
            // If two names have the same address, the first row wraps it.
            Ok(Some(function)) if self.addresses.contains(&function.address) => RowState::Alias,
            Ok(Some(function)) => {
                self.addresses.push(function.address);
                match self.code.prepare(hook, &function.code, function.address) {
                    Ok((ready, moved)) => {
                        process::set_moved_entry(hook, moved);
                        let (address, jump) = ready.jump();
                        info.jump_address.store(address, Ordering::Relaxed);
                        info.jump.store(jump, Ordering::Relaxed);
                        self.prepared.push(ready);
                        RowState::Wrapped
                    }
                    Err(_) => RowState::UnknownPrologue,
                }
            }
        };
        info.state.store(state as u32, Ordering::Relaxed);
    }
}

/// Moves the entries of all wanted functions of the driver, and of its unknown ones.
fn prepare(control: &Control, library: &Library) -> Result<Vec<PreparedFunction>, StartFailure> {
    let (low, high) = library.code();
    let rows = control.rows.get(..control.rows_used as usize).unwrap_or(&[]);
    let unknown = unknown_functions(rows, library);
    let functions = (rows.len() + unknown.len()).max(1);
    let code = NearbyCode::reserve(low, high, functions).ok_or(StartFailure::NoSpaceNearby)?;
    let mut all = Preparation { library, code, prepared: Vec::new(), addresses: Vec::new() };
    for (hook, row) in rows.iter().enumerate().filter(|(_, row)| row.is_wanted != 0) {
        if let Some(name) = symbol(&row.symbol) {
            all.add(hook, &name);
        }
    }
    for (index, name) in unknown.iter().enumerate() {
        all.add(VS_MAX_HOOKS + index, name);
    }
    let _ = process::UNKNOWN.set(unknown);
    if all.code.seal() { Ok(all.prepared) } else { Err(StartFailure::Protected) }
}

/// Returns the memory functions of a newer driver that are in no list. Other names of functions in
/// the hook table are not among them.
fn unknown_functions(rows: &[Row], driver: &Library) -> Vec<CString> {
    let hooked: Vec<CString> = rows.iter().filter_map(|row| symbol(&row.symbol)).collect();
    let is_hooked = |name: &CStr| hooked.iter().any(|one| one.as_c_str() == name);
    let exports = driver.exports();
    let is_unknown =
        |name: &CStr| name.to_str().is_ok_and(is_unlisted_memory_function) && !is_hooked(name);
    let mut unknown: Vec<_> = exports.iter().filter(|(name, _)| is_unknown(name)).collect();
    if unknown.is_empty() {
        return Vec::new();
    }
    let hooked: Vec<u64> =
        exports.iter().filter(|(name, _)| is_hooked(name)).map(|(_, address)| *address).collect();
    unknown.retain(|(_, address)| !hooked.contains(address));
    unknown.sort_unstable();
    unknown.into_iter().map(|(name, _)| CString::from(*name)).take(MAX_UNKNOWN).collect()
}

/// Starts the injection library that the user configured. Returns its result.
pub(crate) fn chain() -> c_int {
    static CHAINED: AtomicBool = AtomicBool::new(false);
    if CHAINED.swap(true, Ordering::AcqRel) {
        return 1;
    }
    let Some(path) = variable(CHAIN_VARIABLE) else { return 1 };
    initialize(&path).unwrap_or(1)
}

fn initialize(path: &CStr) -> Option<c_int> {
    // SAFETY: the path is zero-terminated. Without us, the driver would load the library.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the handle is open.
    let function = unsafe { libc::dlsym(library, c"InitializeInjection".as_ptr()) };
    if function.is_null() || std::ptr::eq(function, crate::InitializeInjection as *const c_void) {
        return None;
    }
    // SAFETY: NVIDIA defines the type of the function of that name.
    let function: extern "C" fn() -> c_int = unsafe { std::mem::transmute(function) };
    Some(function())
}
