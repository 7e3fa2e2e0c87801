//! Kernels and their launches.

use std::ffi::{CString, c_uint};
use std::ptr::{null, null_mut};
use std::time::Instant;

use anyhow::bail;

use super::threads;
use crate::cli::{LaunchLate, Launches};
use crate::cuda::{Device, Driver, Handle, INVALID_VALUE, NOT_FOUND, Result};
use crate::structs::{LaunchConfig, LaunchParams};
use crate::{print_line, signals};

/// The size of a launch: grid, block and shared memory.
pub(super) type Shape = ([c_uint; 3], [c_uint; 3], c_uint);

/// Returns the name of a kernel: the first two are a template and a plain function.
fn name(number: u32) -> String {
    match number {
        0 => "_ZN6linalg12matmul_tiledIfLi16ELi16EEEvPKT_S3_PS1_iii".to_owned(),
        1 => "_Z10vector_addPKfS0_Pfi".to_owned(),
        _ => {
            let name = format!("step_{number}");
            format!("_ZN5model{}{name}EPfi", name.len())
        }
    }
}

/// Returns PTX with empty kernels, which every driver since 2012 can compile.
fn source(count: u32) -> anyhow::Result<CString> {
    let mut source = ".version 3.0\n.target sm_30\n.address_size 64\n".to_owned();
    for number in 0..count {
        source.push_str(&format!(".visible .entry {}() {{ ret; }}\n", name(number)));
    }
    Ok(CString::new(source)?)
}

/// Loads the kernels. Of each four, one is a function of a module, two are kernels of a library,
/// and one is the function of a library's kernel. Old drivers have no libraries: there, all are
/// functions of a module.
pub(super) fn kernels(driver: &Driver, count: u32) -> anyhow::Result<Vec<Handle>> {
    let source = source(count)?;
    let (mut module, mut library) = (0, 0);
    // SAFETY: the pointers are valid for writing; the source is zero-terminated text.
    unsafe { driver.cuModuleLoadData(&raw mut module, source.as_ptr().cast()) }?;
    let (code, none) = (source.as_ptr().cast(), null());
    // SAFETY: as above, without options.
    let loaded =
        unsafe { driver.cuLibraryLoadData(&raw mut library, code, none, none, 0, none, none, 0) };
    match loaded {
        Err(error) if error.code == NOT_FOUND => library = 0,
        other => other?,
    }
    let mut kernels = Vec::new();
    for number in 0..count {
        let name = CString::new(name(number))?;
        let mut handle = 0;
        if number % 4 == 0 || library == 0 {
            // SAFETY: the pointer is valid for writing; the name is zero-terminated.
            unsafe { driver.cuModuleGetFunction(&raw mut handle, module, name.as_ptr()) }?;
        } else {
            // SAFETY: as above.
            unsafe { driver.cuLibraryGetKernel(&raw mut handle, library, name.as_ptr()) }?;
        }
        if number % 4 == 2 && library != 0 {
            let kernel = handle;
            // SAFETY: the pointer is valid for writing.
            unsafe { driver.cuKernelGetFunction(&raw mut handle, kernel) }?;
        }
        kernels.push(handle);
    }
    Ok(kernels)
}

/// Returns the shape of a launch: eight of ten launches have the kernel's own shape.
fn shape(kernel: usize, round: u64) -> Shape {
    let blocks = c_uint::try_from(kernel % 7).unwrap_or(0) + 2;
    match round % 10 {
        3 => ([blocks, 1, 1], [128, 1, 1], 1024),
        7 => ([1, 2, 1], [32, 2, 1], 0),
        _ => ([blocks, 1, 1], [64, 1, 1], 0),
    }
}

/// Launches a kernel without parameters, alternating between the driver's functions.
pub(super) fn launch(
    driver: &Driver,
    kernel: Handle,
    shape: Shape,
    stream: Handle,
    variant: u64,
) -> Result<()> {
    let (grid, block, shared) = shape;
    let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
    let none = null_mut();
    let config = LaunchConfig { grid, block, shared, stream, ..LaunchConfig::default() };
    // SAFETY: the kernel takes no parameters, and the configuration lives until the call returns.
    let result = unsafe {
        match variant % 6 {
            0 => driver.cuLaunchKernel(kernel, gx, gy, gz, bx, by, bz, shared, stream, none, none),
            1 => driver.cuLaunchKernelEx(&raw const config, kernel, none, none),
            2 => driver
                .cuLaunchCooperativeKernel(kernel, gx, gy, gz, bx, by, bz, shared, stream, none),
            3 => driver
                .cuLaunchKernel_ptsz(kernel, gx, gy, gz, bx, by, bz, shared, stream, none, none),
            4 => driver.cuLaunchKernelEx_ptsz(&raw const config, kernel, none, none),
            _ => driver.cuLaunchCooperativeKernel_ptsz(
                kernel, gx, gy, gz, bx, by, bz, shared, stream, none,
            ),
        }
    };
    match result {
        // An older driver lacks some of them, but has this one.
        // SAFETY: as above.
        Err(error) if error.code == NOT_FOUND => unsafe {
            driver.cuLaunchKernel(kernel, gx, gy, gz, bx, by, bz, shared, stream, none, none)
        },
        other => other,
    }
}

/// Launches each kernel as often as requested, alternating.
fn rounds(driver: &Driver, kernels: &[Handle], rounds: u64, pause_ms: u64) -> anyhow::Result<()> {
    for round in 0..rounds {
        for (number, kernel) in kernels.iter().enumerate() {
            launch(driver, *kernel, shape(number, round), 0, round + number as u64)?;
        }
        if signals::stopped() || (pause_ms > 0 && !signals::sleep_ms(pause_ms)) {
            break;
        }
    }
    Ok(())
}

/// Makes launches that the driver must reject: the block has too many threads.
fn fail(driver: &Driver, kernel: Handle, count: u64) -> anyhow::Result<()> {
    for round in 0..count {
        match launch(driver, kernel, ([1, 1, 1], [1024, 2, 1], 0), 0, round) {
            Err(error) if error.code == INVALID_VALUE => {}
            Err(error) => return Err(error.into()),
            Ok(()) => bail!("a launch of a block of 2048 threads succeeded"),
        }
    }
    Ok(())
}

/// Launches a kernel with the functions from before CUDA 4, and in a list for several devices.
fn old(driver: &Driver, kernel: Handle, count: u64) -> anyhow::Result<()> {
    if count == 0 {
        return Ok(());
    }
    let mut stream = 0;
    // SAFETY: the pointer is valid for writing.
    unsafe { driver.cuStreamCreate(&raw mut stream, 1) }?;
    let launch = LaunchParams { function: kernel, stream, ..LaunchParams::default() };
    let list =
        [[1, 1, 1], [2, 1, 1]].map(|grid| LaunchParams { grid, block: [32, 1, 1], ..launch });
    for _ in 0..count {
        // SAFETY: the kernel takes no parameters, and the list lives until the call returns.
        unsafe {
            driver.cuLaunch(kernel)?;
            driver.cuLaunchGrid(kernel, 2, 3)?;
            driver.cuLaunchGridAsync(kernel, 2, 3, stream)?;
            driver.cuLaunchCooperativeKernelMultiDevice(list.as_ptr(), 2, 0)?;
        }
    }
    driver.synchronize()?;
    Ok(())
}

/// Captures a launch of each kernel, and launches the graph.
fn graphs(driver: &Driver, kernels: &[Handle], count: u64) -> anyhow::Result<()> {
    if count == 0 {
        return Ok(());
    }
    let (mut stream, mut graph, mut exec) = (0, 0, 0);
    // SAFETY: the pointers are valid for writing.
    unsafe { driver.cuStreamCreate(&raw mut stream, 1) }?;
    // SAFETY: the stream and everything that it captures exist.
    unsafe { driver.cuStreamBeginCapture_v2(stream, 2) }?;
    for kernel in kernels {
        launch(driver, *kernel, ([1, 1, 1], [32, 1, 1], 0), stream, 0)?;
    }
    // SAFETY: as above.
    unsafe { driver.cuStreamEndCapture(stream, &raw mut graph) }?;
    // SAFETY: as above.
    unsafe { driver.cuGraphInstantiateWithFlags(&raw mut exec, graph, 0) }?;
    for _ in 0..count {
        // SAFETY: the graph is executable, and its kernels take no parameters.
        unsafe { driver.cuGraphLaunch(exec, stream) }?;
    }
    driver.synchronize()?;
    // SAFETY: nothing of it is running.
    unsafe { driver.cuGraphExecDestroy(exec) }?;
    Ok(())
}

/// Loads and unloads modules, so that kernel handles are reused.
fn reload(driver: &Driver, count: u32) -> anyhow::Result<()> {
    for number in 0..count {
        let name = format!("passing_{}", number % 3);
        let text = format!(
            ".version 3.0\n.target sm_30\n.address_size 64\n.visible .entry {name}() {{ ret; }}\n"
        );
        let (source, name) = (CString::new(text)?, CString::new(name)?);
        let (mut module, mut kernel) = (0, 0);
        // SAFETY: the pointers are valid for writing; the texts are zero-terminated.
        unsafe { driver.cuModuleLoadData(&raw mut module, source.as_ptr().cast()) }?;
        // SAFETY: as above.
        unsafe { driver.cuModuleGetFunction(&raw mut kernel, module, name.as_ptr()) }?;
        for round in 0..5 {
            launch(driver, kernel, ([1, 1, 1], [32, 1, 1], 0), 0, round)?;
        }
        driver.synchronize()?;
        // SAFETY: nothing of it is running.
        unsafe { driver.cuModuleUnload(module) }?;
    }
    Ok(())
}

/// Repeats the same launch in rounds, so that the device keeps up. Prints the minimum time per
/// launch over the rounds.
fn time(driver: &Driver, kernels: &[Handle], rounds: u64) -> anyhow::Result<()> {
    const BATCH: u64 = 500;
    let mut best = f64::INFINITY;
    let mut done = 0;
    while done < rounds {
        let batch = BATCH.min(rounds - done);
        let start = Instant::now();
        for _ in 0..batch {
            for kernel in kernels {
                launch(driver, *kernel, ([1, 1, 1], [32, 1, 1], 0), 0, 0)?;
            }
        }
        let calls = batch as f64 * kernels.len() as f64;
        best = best.min(start.elapsed().as_nanos() as f64 / calls);
        driver.synchronize()?;
        done += batch;
    }
    print_line(&format!("{best:.1} ns per launch"));
    Ok(())
}

/// Every thread launches every kernel; then some launches fail.
pub(crate) fn run(device: Device, options: &Launches) -> anyhow::Result<()> {
    let driver = device.driver;
    let kernels = kernels(driver, options.kernels)?;
    if options.time {
        return time(driver, &kernels, options.iterations);
    }
    let body = || rounds(driver, &kernels, options.iterations, options.pause_ms);
    if options.threads == 1 {
        body()?;
    } else {
        std::thread::scope(|scope| {
            let mut handles = Vec::new();
            for number in 0..options.threads as usize {
                handles.push(threads::spawn(scope, device, number, body)?);
            }
            threads::join(handles)
        })?;
    }
    if let Some(first) = kernels.first() {
        fail(driver, *first, options.failing)?;
        old(driver, *first, options.old)?;
    }
    graphs(driver, &kernels, options.graphs)?;
    reload(driver, options.reloads)?;
    driver.synchronize()?;
    Ok(())
}

/// Launches kernels before a tracer is attached, and again afterwards.
pub(crate) fn late(device: Device, options: &LaunchLate) -> anyhow::Result<()> {
    let driver = device.driver;
    let kernels = kernels(driver, options.kernels)?;
    rounds(driver, &kernels, options.before, 0)?;
    print_line("ready");
    let start = match options.wait_ms {
        Some(time) => signals::sleep_ms(time),
        None => signals::wait_for_start(),
    };
    if start {
        rounds(driver, &kernels, options.iterations, 0)?;
    }
    driver.synchronize()?;
    Ok(())
}
