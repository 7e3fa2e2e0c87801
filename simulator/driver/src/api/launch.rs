//! Kernel launches. Nothing runs: a launch is checked and counted.

use std::ffi::{c_int, c_uint, c_void};

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
    activity cuLaunch(function: Handle) = launch_one;
    activity cuLaunchGrid(function: Handle, width: c_int, height: c_int) = launch_grid;
    activity cuLaunchGridAsync(function: Handle, width: c_int, height: c_int,
        stream: Handle) = launch_grid_on;
    activity cuLaunchCooperativeKernelMultiDevice(list: InParam<LaunchParams>, count: c_uint,
        flags: c_uint) = launch_list;
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

/// `CUDA_LAUNCH_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct LaunchParams {
    function: Handle,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: Handle,
    params: u64,
}
plain!(LaunchParams);

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

/// Launches blocks of one thread: `cuFuncSetBlockShape` is not simulated.
fn launch_grid_on(
    call: ActiveCall,
    function: Handle,
    width: c_int,
    height: c_int,
    stream: Handle,
) -> Outcome {
    let grid = [width.cast_unsigned(), height.cast_unsigned(), 1];
    let shape = LaunchShape { grid, block: [1, 1, 1], shared: 0 };
    submit(call, LaunchRequest { function, shape, stream, ambiguous: false })
}

fn launch_grid(call: ActiveCall, function: Handle, width: c_int, height: c_int) -> Outcome {
    launch_grid_on(call, function, width, height, 0)
}

fn launch_one(call: ActiveCall, function: Handle) -> Outcome {
    launch_grid_on(call, function, 1, 1, 0)
}

/// Launches all kernels of a list or none.
fn launch_list(
    call: ActiveCall,
    list: InParam<LaunchParams>,
    count: c_uint,
    _flags: c_uint,
) -> Outcome {
    let mut state = state::running()?;
    let requests = (0..count as usize).map(|index| {
        let LaunchParams { function, grid, block, shared, stream, .. } = list.at(index)?;
        let shape = LaunchShape { grid, block, shared };
        Ok(LaunchRequest { function, shape, stream: call.stream(stream), ambiguous: false })
    });
    let requests: Vec<LaunchRequest> = requests.collect::<Result<_, Code>>()?;
    let outcomes = call.attempt(|| {
        if requests.is_empty() {
            return Err(Code::InvalidValue);
        }
        requests.iter().map(|request| check(&mut state, request)).collect::<Result<Vec<_>, _>>()
    });
    for (index, request) in requests.iter().enumerate() {
        if let Some(launches) = state.modules.kernel_launches(request.function) {
            let outcome = outcomes.as_ref().map(|outcomes| outcomes[index]);
            launches.add(outcome.map_err(|code| *code), request.shape);
        }
    }
    outcomes.map(|_| ())
}

/// Fails, but is counted for the kernel.
fn without_config(function: Handle) -> Outcome {
    if let Some(launches) = state::running()?.modules.kernel_launches(function) {
        launches.failed += 1;
    }
    Err(Code::InvalidValue)
}
