//! Starts tracing in this process: files, moved entries, then the jumps.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::area::{
    CHAIN_VARIABLE, Control, DIRECTORY_VARIABLE, DRIVER, Refusal, Row, RowState, TORCH,
};
use crate::code::{Near, Prepared, patch};
use crate::driver::{Library, symbol};
use crate::process;
use crate::shared::variable;

/// The library was started: later calls, of forked children, do nothing.
static STARTED: AtomicBool = AtomicBool::new(false);

/// Wraps the driver's functions, where a collector waits for records.
pub(crate) fn start() {
    if STARTED.swap(true, Ordering::AcqRel) {
        return;
    }
    let Some(directory) = variable(DIRECTORY_VARIABLE) else { return };
    if !process::open_control(&directory) {
        return;
    }
    if let Err(refusal) = wrap() {
        process::refuse(refusal);
    }
}

fn wrap() -> Result<(), Refusal> {
    let control = process::control().ok_or(Refusal::NoArea)?;
    let driver = Library::driver().ok_or(Refusal::NoDriver)?;
    let prepared = prepare(control, &driver, DRIVER)?;
    if !process::start() {
        return Err(Refusal::NoArea);
    }
    if !patch(&prepared) {
        return Err(Refusal::Protected);
    }
    wrap_torch();
    Ok(())
}

/// Wraps the functions of PyTorch, where it is loaded and tensors are wanted. A failure leaves them
/// alone: the driver's calls are seen all the same.
#[cold]
pub(crate) fn wrap_torch() {
    static WRAPPED: AtomicBool = AtomicBool::new(false);
    let Some(control) = process::control().filter(|control| control.tensors != 0) else { return };
    if WRAPPED.load(Ordering::Relaxed) {
        return;
    }
    let Some(library) = Library::torch() else { return };
    if WRAPPED.swap(true, Ordering::AcqRel) {
        return;
    }
    let prepared = prepare(control, &library, TORCH);
    let is_patched = prepared.is_ok_and(|prepared| patch(&prepared));
    for (hook, row) in control.rows.iter().enumerate().filter(|(_, row)| row.library == TORCH) {
        let state = &process::row_facts(hook).state;
        if !is_patched && row.wanted != 0 {
            state.store(RowState::UnknownPrologue as u32, Ordering::Relaxed);
        }
        if let Some(area) = process::area() {
            let state = state.load(Ordering::Relaxed) as u8;
            area.header.rows[hook].store(state, Ordering::Release);
        }
    }
}

/// Moves the entries of all wanted functions of a library; none is changed yet.
fn prepare(control: &Control, driver: &Library, of: u8) -> Result<Vec<Prepared>, Refusal> {
    let (low, high) = driver.code();
    let rows = control.rows.get(..control.rows_used as usize).unwrap_or(&[]);
    let mut near = Near::reserve(low, high, rows.len().max(1)).ok_or(Refusal::NoRoom)?;
    let mut prepared: Vec<Prepared> = Vec::with_capacity(rows.len());
    let mut addresses = Vec::with_capacity(rows.len());
    let wanted = |row: &Row| row.wanted != 0 && row.library == of;
    for (hook, row) in rows.iter().enumerate().filter(|(_, row)| wanted(row)) {
        let Some(name) = symbol(&row.symbol) else { continue };
        let state = match driver.function(&name) {
            Err(()) => RowState::Foreign,
            Ok(None) => RowState::Absent,
            // Where two names have one address, the first row stands for it.
            Ok(Some(function)) if addresses.contains(&function.address) => RowState::Alias,
            Ok(Some(function)) => {
                addresses.push(function.address);
                match near.prepare(hook, &function.code, function.address) {
                    Ok((ready, moved)) => {
                        process::set_moved_entry(hook, moved);
                        let (address, jump) = ready.jump();
                        let facts = process::row_facts(hook);
                        facts.jump_address.store(address, Ordering::Relaxed);
                        facts.jump.store(jump, Ordering::Relaxed);
                        prepared.push(ready);
                        RowState::Wrapped
                    }
                    Err(_) => RowState::UnknownPrologue,
                }
            }
        };
        process::row_facts(hook).state.store(state as u32, Ordering::Relaxed);
    }
    if near.seal() { Ok(prepared) } else { Err(Refusal::Protected) }
}

/// Starts the injection library that the user had configured. Returns its result.
pub(crate) fn chain() -> c_int {
    static CHAINED: AtomicBool = AtomicBool::new(false);
    if CHAINED.swap(true, Ordering::AcqRel) {
        return 1;
    }
    let Some(path) = variable(CHAIN_VARIABLE) else { return 1 };
    initialize(&path).unwrap_or(1)
}

fn initialize(path: &CStr) -> Option<c_int> {
    // SAFETY: the path is zero-terminated; the driver would have loaded the library the same way.
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
