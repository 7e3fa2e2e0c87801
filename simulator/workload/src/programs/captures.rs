//! Captures, and how they end.

use std::ffi::c_int;
use std::os::unix::process::CommandExt as _;
use std::thread;

use anyhow::{Context as _, anyhow};

use super::{MIB, launches, processes};
use crate::cli::{CaptureEndBy, CommonArgs, OpenCaptures, OpenCapturesThen};
use crate::cuda::{Device, Driver, Handle, Pointer, Result};
use crate::{print_line, signals};

fn stream(driver: &Driver) -> Result<Handle> {
    let mut stream = 0;
    // SAFETY: the pointer is valid for writing.
    unsafe { driver.cuStreamCreate(&raw mut stream, 1) }?;
    Ok(stream)
}

fn alloc(driver: &Driver, bytes: usize, stream: Handle) -> Result<Pointer> {
    let mut pointer = 0;
    // SAFETY: the pointer is valid for writing.
    unsafe { driver.cuMemAllocAsync(&raw mut pointer, bytes, stream) }?;
    Ok(pointer)
}

/// Returns the graph of a capture; an error is one result among others here.
fn end(driver: &Driver, stream: Handle) -> Option<Handle> {
    let mut graph = 0;
    // SAFETY: the pointer is valid for writing.
    let ended = unsafe { driver.cuStreamEndCapture(stream, &raw mut graph) };
    ended.ok().map(|()| graph)
}

fn launch_graph(driver: &Driver, graph: Handle, stream: Handle) -> Result<()> {
    let mut exec = 0;
    // SAFETY: the pointer is valid for writing.
    unsafe { driver.cuGraphInstantiateWithFlags(&raw mut exec, graph, 0) }?;
    // SAFETY: takes handles created above.
    unsafe { driver.cuGraphLaunch(exec, stream) }
}

/// Launches one block of a kernel.
fn launch(driver: &Driver, kernel: Handle, stream: Handle) -> Result<()> {
    launches::launch(driver, kernel, ([1, 1, 1], [32, 1, 1], 0), stream, 0)
}

/// Captures a node of 1 MiB, ends the capture as requested, then allocates 2 MiB on the stream if
/// it still exists, and 4 MiB on another one. A captured graph is launched, at the latest after a
/// second end of the capture. A kernel is launched in the capture and twice after it.
pub(crate) fn run(device: Device, ordinal: c_int, how: CaptureEndBy) -> anyhow::Result<()> {
    let driver = device.driver;
    let other = stream(driver)?;
    let kernel = *launches::kernels(driver, 1)?.first().context("no kernel")?;
    let mut context = 0;
    if how == CaptureEndBy::Context {
        // SAFETY: the pointer is valid for writing.
        unsafe { driver.cuCtxCreate_v2(&raw mut context, 0, ordinal) }?;
    }
    let captured = stream(driver)?;
    // SAFETY: takes a handle created above; 0 is the global mode.
    unsafe { driver.cuStreamBeginCapture_v2(captured, 0) }?;
    alloc(driver, MIB, captured)?;
    if how != CaptureEndBy::Context {
        launch(driver, kernel, captured)?;
    }
    let mut graph = None;
    match how {
        CaptureEndBy::Call => graph = end(driver, captured),
        // SAFETY: null means that the graph is not requested.
        CaptureEndBy::Null => unsafe { driver.cuStreamEndCapture(captured, std::ptr::null_mut()) }?,
        CaptureEndBy::Invalid => {
            // Plain memory cannot be captured: this fails and invalidates the capture.
            let _ = driver.alloc(MIB);
            graph = end(driver, captured);
        }
        CaptureEndBy::Thread => {
            let ended = thread::spawn(move || {
                driver.set_current(device.context)?;
                Ok::<_, crate::cuda::CudaError>(end(driver, captured))
            });
            graph = ended.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        // SAFETY: takes a handle created above, which is not used again.
        CaptureEndBy::Stream => unsafe { driver.cuStreamDestroy_v2(captured) }?,
        // SAFETY: as above; the stream ends with its context.
        CaptureEndBy::Context => unsafe { driver.cuCtxDestroy_v2(context) }?,
    }
    if !matches!(how, CaptureEndBy::Stream | CaptureEndBy::Context) {
        alloc(driver, 2 * MIB, captured)?;
        graph = graph.or_else(|| end(driver, captured));
    }
    if let Some(graph) = graph {
        launch_graph(driver, graph, other)?;
    }
    alloc(driver, 4 * MIB, other)?;
    for _ in 0..2 {
        launch(driver, kernel, other)?;
    }
    Ok(())
}

fn begin(driver: &Driver) -> Result<()> {
    let stream = stream(driver)?;
    // SAFETY: takes a handle made above; 2 is the relaxed mode.
    unsafe { driver.cuStreamBeginCapture_v2(stream, 2) }
}

/// Begins captures on two threads and leaves them open.
pub(crate) fn open(
    driver: &'static Driver,
    common: &CommonArgs,
    options: &OpenCaptures,
) -> anyhow::Result<()> {
    let mut context = 0;
    driver.init()?;
    // SAFETY: the pointer is valid for writing.
    unsafe { driver.cuCtxCreate_v2(&raw mut context, 0, common.device) }?;
    begin(driver)?;
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let _ = sender.send(driver.set_current(context).and_then(|()| begin(driver)));
        thread::park();
    });
    receiver.recv()??;
    match options.then {
        OpenCapturesThen::Wait => {}
        OpenCapturesThen::Exec => {
            let hold = ["hold", "--count", "1", "--size", "4096", "--wait-ms", "120000"];
            let error = processes::this_program(common)?.args(hold).exec();
            return Err(error).context("cannot become another program");
        }
        // SAFETY: takes a handle made above, which is not used again.
        OpenCapturesThen::Destroy => unsafe { driver.cuCtxDestroy_v2(context) }?,
    }
    print_line("ready");
    signals::sleep_ms(options.wait_ms);
    Ok(())
}
