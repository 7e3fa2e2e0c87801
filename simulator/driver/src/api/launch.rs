//! Kernel launches. Nothing runs: a launch is checked and counted.

use std::ffi::{c_uint, c_void};

use crate::abi::{Code, Handle, InParam, Outcome, plain};
use crate::entry::{ActiveCall, exports};
use crate::oracle::activity::{LaunchOutcome, LaunchShape};
use crate::state::{self, DriverState};

exports! {
    activity cuLaunchKernel(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint,
        by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, params: *const c_void,
        extra: *const c_void) = launch;
    activity cuLaunchKernel_ptsz(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint,
        by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, params: *const c_void,
        extra: *const c_void) = launch;
    activity cuLaunchCooperativeKernel(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint,
        bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle,
        params: *const c_void) = launch_cooperative;
    activity cuLaunchCooperativeKernel_ptsz(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint,
        bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle,
        params: *const c_void) = launch_cooperative;
    activity cuLaunchKernelEx(config: InParam<LaunchConfig>, function: Handle,
        params: *const c_void, extra: *const c_void) = launch_ex;
    activity cuLaunchKernelEx_ptsz(config: InParam<LaunchConfig>, function: Handle,
        params: *const c_void, extra: *const c_void) = launch_ex;
}

/// `CUlaunchConfig`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: Handle,
    attributes: u64,
    count: u32,
}
plain!(LaunchConfig);

/// Limits of grid and block in each dimension, and of the threads of a block.
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
const MAX_BLOCK_THREADS: u64 = 1024;
/// Maximum shared memory of a block.
const MAX_SHARED_BYTES: u32 = 227 << 10;

impl LaunchShape {
    /// Returns whether a current device could run it.
    fn is_possible(&self) -> bool {
        let fits = |size: &[u32; 3], max: &[u32; 3]| {
            size.iter().zip(max).all(|(size, max)| (1..=*max).contains(size))
        };
        fits(&self.grid, &MAX_GRID)
            && fits(&self.block, &MAX_BLOCK)
            && self.block.iter().map(|n| u64::from(*n)).product::<u64>() <= MAX_BLOCK_THREADS
            && self.shared <= MAX_SHARED_BYTES
    }
}

/// The parameters of a launch.
struct LaunchRequest {
    function: Handle,
    shape: LaunchShape,
    stream: Handle,
    /// Kernel parameters were passed in two ways at once.
    ambiguous: bool,
}

fn check(state: &mut DriverState, request: &LaunchRequest) -> Result<LaunchOutcome, Code> {
    state.modules.kernel_launches(request.function).ok_or(Code::InvalidHandle)?;
    if !request.shape.is_possible() || request.ambiguous {
        return Err(Code::InvalidValue);
    }
    let target = state.stream(request.stream)?;
    Ok(if target.capture.is_some() { LaunchOutcome::Captured } else { LaunchOutcome::Executed })
}

fn submit(call: ActiveCall, request: LaunchRequest) -> Outcome {
    let request = LaunchRequest { stream: call.stream(request.stream), ..request };
    let mut state = state::running()?;
    let result = call.attempt(|| check(&mut state, &request));
    if let Some(launches) = state.modules.kernel_launches(request.function) {
        launches.add(result, request.shape);
    }
    result.map(|_| ())
}

#[expect(clippy::too_many_arguments, reason = "the prototype is the driver's")]
fn launch(
    call: ActiveCall,
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
    let shape = LaunchShape { grid: [gx, gy, gz], block: [bx, by, bz], shared };
    let ambiguous = !params.is_null() && !extra.is_null();
    submit(call, LaunchRequest { function, shape, stream, ambiguous })
}

#[expect(clippy::too_many_arguments, reason = "the prototype is the driver's")]
fn launch_cooperative(
    call: ActiveCall,
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
    let shape = LaunchShape { grid: [gx, gy, gz], block: [bx, by, bz], shared };
    submit(call, LaunchRequest { function, shape, stream, ambiguous: false })
}

fn launch_ex(
    call: ActiveCall,
    config: InParam<LaunchConfig>,
    function: Handle,
    params: *const c_void,
    extra: *const c_void,
) -> Outcome {
    let Ok(config) = config.get() else { return without_config(function) };
    let LaunchConfig { grid, block, shared, stream, .. } = config;
    let ambiguous = !params.is_null() && !extra.is_null();
    submit(
        call,
        LaunchRequest { function, shape: LaunchShape { grid, block, shared }, stream, ambiguous },
    )
}

/// Fails, but is counted for the kernel.
fn without_config(function: Handle) -> Outcome {
    if let Some(launches) = state::running()?.modules.kernel_launches(function) {
        launches.failed += 1;
    }
    Err(Code::InvalidValue)
}
