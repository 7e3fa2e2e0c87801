//! Kernel launches. Nothing runs: a launch is checked and counted.

use std::ffi::{c_uint, c_void};

use crate::abi::{Code, Handle, In, Outcome, plain};
use crate::entry::{Call, exports};
use crate::state::{self, State};
use crate::work::{Done, Shape};

exports! {
    work cuLaunchKernel(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint,
        by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, params: *const c_void,
        extra: *const c_void) = launch;
    work cuLaunchKernel_ptsz(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint,
        by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, params: *const c_void,
        extra: *const c_void) = launch;
    work cuLaunchCooperativeKernel(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint,
        bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle,
        params: *const c_void) = launch_cooperative;
    work cuLaunchCooperativeKernel_ptsz(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint,
        bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle,
        params: *const c_void) = launch_cooperative;
    work cuLaunchKernelEx(config: In<Config>, function: Handle, params: *const c_void,
        extra: *const c_void) = launch_ex;
    work cuLaunchKernelEx_ptsz(config: In<Config>, function: Handle, params: *const c_void,
        extra: *const c_void) = launch_ex;
}

/// `CUlaunchConfig`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: Handle,
    attributes: u64,
    count: u32,
}
plain!(Config);

/// Limits of grid and block in each dimension, and of the threads of a block.
const GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const BLOCK: [u32; 3] = [1024, 1024, 64];
const BLOCK_THREADS: u64 = 1024;
/// Maximum shared memory of a block.
const SHARED: u32 = 227 << 10;

impl Shape {
    /// Returns whether a current device could run it.
    fn is_possible(&self) -> bool {
        let fits = |size: &[u32; 3], most: &[u32; 3]| {
            size.iter().zip(most).all(|(size, most)| (1..=*most).contains(size))
        };
        fits(&self.grid, &GRID)
            && fits(&self.block, &BLOCK)
            && self.block.iter().map(|n| u64::from(*n)).product::<u64>() <= BLOCK_THREADS
            && self.shared <= SHARED
    }
}

/// The parameters of a launch.
struct Request {
    function: Handle,
    shape: Shape,
    stream: Handle,
    /// Kernel parameters were passed in two ways at once.
    ambiguous: bool,
}

fn check(state: &mut State, request: &Request) -> Result<Done, Code> {
    state.modules.account(request.function).ok_or(Code::InvalidHandle)?;
    if !request.shape.is_possible() || request.ambiguous {
        return Err(Code::InvalidValue);
    }
    let target = state.stream(request.stream)?;
    Ok(if target.capture.is_some() { Done::Captured } else { Done::Now })
}

fn put(call: Call, request: Request) -> Outcome {
    let request = Request { stream: call.stream(request.stream), ..request };
    let mut state = state::running()?;
    let result = call.attempt(|| check(&mut state, &request));
    if let Some(launches) = state.modules.account(request.function) {
        launches.add(result, request.shape);
    }
    result.map(|_| ())
}

#[expect(clippy::too_many_arguments, reason = "the prototype is the driver's")]
fn launch(
    call: Call,
    function: Handle,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    shared: c_uint,
    stream: Handle,
    params: *const c_void,
    extra: *const c_void,
) -> Outcome {
    let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared };
    let ambiguous = !params.is_null() && !extra.is_null();
    put(call, Request { function, shape, stream, ambiguous })
}

#[expect(clippy::too_many_arguments, reason = "the prototype is the driver's")]
fn launch_cooperative(
    call: Call,
    function: Handle,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    shared: c_uint,
    stream: Handle,
    _params: *const c_void,
) -> Outcome {
    let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared };
    put(call, Request { function, shape, stream, ambiguous: false })
}

fn launch_ex(
    call: Call,
    config: In<Config>,
    function: Handle,
    params: *const c_void,
    extra: *const c_void,
) -> Outcome {
    let Ok(config) = config.get() else { return without_config(function) };
    let Config { grid, block, shared, stream, .. } = config;
    let ambiguous = !params.is_null() && !extra.is_null();
    put(call, Request { function, shape: Shape { grid, block, shared }, stream, ambiguous })
}

/// Fails, but is counted for the kernel.
fn without_config(function: Handle) -> Outcome {
    if let Some(launches) = state::running()?.modules.account(function) {
        launches.failed += 1;
    }
    Err(Code::InvalidValue)
}
