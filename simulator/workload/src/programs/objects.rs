//! Objects that are no memory: made, destroyed, and forgotten.

use std::ffi::c_uint;
use std::hint::black_box;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::null;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::cli::{Common, ObjectSort, Objects};
use crate::cuda::{Device, Driver, Handle, Result};
use crate::structs::{Array3dDescriptor, FLOAT, IpcHandle, PoolProps};
use crate::{say, signals};

/// Assembly of an empty kernel, for modules and libraries.
const SOURCE: &std::ffi::CStr =
    c".version 3.0\n.target sm_30\n.address_size 64\n.visible .entry nothing() { ret; }\n";

/// `CUDA_RESOURCE_DESC` of an array: its sort (0), the handle, and room for the rest.
type Resource = [u64; 18];

/// What objects are made of, and with.
struct Maker {
    driver: &'static Driver,
    ordinal: i32,
    /// An array for textures and surfaces, a graph for graphs, a stream to capture on.
    array: Handle,
    graph: Handle,
    stream: Handle,
    /// How many were made of each kind, so that each way to make one has its turn.
    turns: [u64; 12],
}

impl Maker {
    fn new(driver: &'static Driver, ordinal: i32) -> Result<Self> {
        let mut maker = Self { driver, ordinal, array: 0, graph: 0, stream: 0, turns: [0; 12] };
        // Surfaces must be asked for (2).
        let (width, height, depth, format) = (16, 16, 0, FLOAT);
        let (channels, flags, padding) = (1, 2, 0);
        let descriptor =
            Array3dDescriptor { width, height, depth, format, channels, flags, padding };
        // SAFETY: the pointers are valid for reading and writing.
        unsafe {
            driver.cuArray3DCreate_v2(&raw mut maker.array, &raw const descriptor)?;
            driver.cuGraphCreate(&raw mut maker.graph, 0)?;
            driver.cuStreamCreate(&raw mut maker.stream, 1)?;
        }
        Ok(maker)
    }

    /// Destroys what `new` made.
    fn end(self) -> Result<()> {
        // SAFETY: nothing uses them any more.
        unsafe {
            self.driver.cuArrayDestroy(self.array)?;
            self.driver.cuGraphDestroy(self.graph)?;
            self.driver.cuStreamDestroy_v2(self.stream)
        }
    }

    /// Makes one.
    fn make(&mut self, sort: ObjectSort) -> Result<Handle> {
        let turn = self.turns.get_mut(sort as usize).map_or(0, |turn| {
            *turn += 1;
            *turn
        });
        let (driver, even) = (self.driver, turn.is_multiple_of(2));
        let mut handle = 0;
        let out = &raw mut handle;
        let (code, none) = (SOURCE.as_ptr().cast(), null());
        let mut resource: Resource = [0; 18];
        resource[1] = self.array;
        let resource = resource.as_ptr().cast();
        // SAFETY: the pointers are valid for writing and reading; texts end with a zero byte.
        unsafe {
            match sort {
                ObjectSort::Stream if even => driver.cuStreamCreateWithPriority(out, 1, 0),
                ObjectSort::Stream => driver.cuStreamCreate(out, 1),
                ObjectSort::Event if turn.is_multiple_of(8) => self.shared_event(out),
                ObjectSort::Event => driver.cuEventCreate(out, 2),
                ObjectSort::Graph if turn.is_multiple_of(3) => self.captured(out),
                ObjectSort::Graph if even => driver.cuGraphClone(out, self.graph),
                ObjectSort::Graph => driver.cuGraphCreate(out, 0),
                ObjectSort::GraphExec => driver.cuGraphInstantiateWithFlags(out, self.graph, 0),
                ObjectSort::Module if even => driver.cuModuleLoadDataEx(out, code, 0, none, none),
                ObjectSort::Module => driver.cuModuleLoadData(out, code),
                ObjectSort::Library => {
                    driver.cuLibraryLoadData(out, code, none, none, 0, none, none, 0)
                }
                ObjectSort::Context => self.context(out),
                ObjectSort::GreenContext => self.green(out),
                ObjectSort::Texture => {
                    let description = [0_u64; 16];
                    driver.cuTexObjectCreate(out, resource, description.as_ptr().cast(), none)
                }
                ObjectSort::Surface => driver.cuSurfObjectCreate(out, resource),
                ObjectSort::Pool => {
                    let props = PoolProps::device(self.ordinal);
                    driver.cuMemPoolCreate(out, &raw const props)
                }
                ObjectSort::Linker => driver.cuLinkCreate_v2(0, none, none, out),
            }
        }?;
        Ok(handle)
    }

    /// An event that another process would open. Real drivers refuse it in this one.
    unsafe fn shared_event(&self, out: *mut Handle) -> Result<()> {
        let (mut event, mut ticket) = (0, IpcHandle { bytes: [0; 64] });
        // SAFETY: the pointers are valid for writing.
        unsafe {
            self.driver.cuEventCreate(&raw mut event, 6)?;
            self.driver.cuIpcGetEventHandle(&raw mut ticket, event)?;
            if self.driver.cuIpcOpenEventHandle(out, ticket).is_err() {
                *out = event;
                return Ok(());
            }
            self.driver.cuEventDestroy_v2(event)
        }
    }

    unsafe fn captured(&self, out: *mut Handle) -> Result<()> {
        // SAFETY: the stream is there, and nothing is put into it.
        unsafe {
            self.driver.cuStreamBeginCapture_v2(self.stream, 2)?;
            self.driver.cuStreamEndCapture(self.stream, out)
        }
    }

    /// A context that is nobody's current one.
    unsafe fn context(&self, out: *mut Handle) -> Result<()> {
        let mut popped = 0;
        // SAFETY: the pointers are valid for writing.
        unsafe {
            self.driver.cuCtxCreate_v2(out, 0, self.ordinal)?;
            self.driver.cuCtxPopCurrent_v2(&raw mut popped)
        }
    }

    unsafe fn green(&self, out: *mut Handle) -> Result<()> {
        let (mut resource, mut descriptor) = ([0_u64; 32], 0);
        let (mut stream, sort) = (0, 1);
        let place = resource.as_mut_ptr().cast();
        // SAFETY: there is room for a resource, and the pointers are valid for writing.
        unsafe {
            self.driver.cuDeviceGetDevResource(self.ordinal, place, sort)?;
            self.driver.cuDevResourceGenerateDesc(&raw mut descriptor, place, 1)?;
            self.driver.cuGreenCtxCreate(out, descriptor, self.ordinal, 1)?;
            self.driver.cuGreenCtxStreamCreate(&raw mut stream, *out, 1, 0)?;
            self.driver.cuStreamDestroy_v2(stream)
        }
    }

    fn destroy(&self, sort: ObjectSort, handle: Handle) -> Result<()> {
        let driver = self.driver;
        // SAFETY: nothing uses it any more.
        unsafe {
            match sort {
                ObjectSort::Stream => driver.cuStreamDestroy_v2(handle),
                ObjectSort::Event => driver.cuEventDestroy_v2(handle),
                ObjectSort::Graph => driver.cuGraphDestroy(handle),
                ObjectSort::GraphExec => driver.cuGraphExecDestroy(handle),
                ObjectSort::Module => driver.cuModuleUnload(handle),
                ObjectSort::Library => driver.cuLibraryUnload(handle),
                ObjectSort::Context => driver.cuCtxDestroy_v2(handle),
                ObjectSort::GreenContext => driver.cuGreenCtxDestroy(handle),
                ObjectSort::Texture => driver.cuTexObjectDestroy(handle),
                ObjectSort::Surface => driver.cuSurfObjectDestroy(handle),
                ObjectSort::Pool => driver.cuMemPoolDestroy(handle),
                ObjectSort::Linker => driver.cuLinkDestroy(handle),
            }
        }
    }
}

/// A place of its own for what is destroyed.
#[inline(never)]
fn make_passing(maker: &mut Maker, sort: ObjectSort) -> Result<Handle> {
    let handle = maker.make(sort)?;
    Ok(black_box(handle))
}

/// A place of its own for what is not.
#[inline(never)]
fn make_forgotten(maker: &mut Maker, sort: ObjectSort) -> Result<Handle> {
    let handle = maker.make(sort)?;
    Ok(black_box(handle.rotate_left(1)))
}

/// Makes so many of each kind, and forgets a part of them.
fn rounds(maker: &mut Maker, options: &Objects) -> Result<()> {
    let kinds = options.kinds();
    for round in 0..options.count {
        let kept = |number: u64| (number as f64 * options.leak) as u64;
        for sort in &kinds {
            if kept(round + 1) > kept(round) {
                make_forgotten(maker, *sort)?;
            } else {
                let handle = make_passing(maker, *sort)?;
                maker.destroy(*sort, handle)?;
            }
        }
        if signals::stopped() {
            break;
        }
        if let Some(rate) = options.rate {
            std::thread::sleep(Duration::from_secs_f64(kinds.len() as f64 / rate.max(0.001)));
        }
    }
    Ok(())
}

/// The same in a context that is destroyed with what was made in it.
fn in_context(driver: &'static Driver, ordinal: i32, options: &Objects) -> Result<()> {
    let mut context = 0;
    // SAFETY: the pointer is valid for writing.
    unsafe { driver.cuCtxCreate_v2(&raw mut context, 0 as c_uint, ordinal) }?;
    let mut maker = Maker::new(driver, ordinal)?;
    rounds(&mut maker, options)?;
    maker.end()?;
    // SAFETY: nothing uses it any more.
    unsafe { driver.cuCtxDestroy_v2(context) }
}

/// Destructions that the driver must refuse.
fn fail(maker: &Maker, options: &Objects) -> anyhow::Result<()> {
    for sort in options.kinds() {
        for _ in 0..options.failing {
            if maker.destroy(sort, 0x5).is_ok() {
                bail!("what was never made was destroyed");
            }
        }
    }
    Ok(())
}

/// Runs the program.
pub(crate) fn run(device: Device, common: &Common, options: &Objects) -> anyhow::Result<()> {
    let driver = device.driver;
    let mut maker = Maker::new(driver, common.device)?;
    let mut older = Vec::new();
    for sort in options.kinds() {
        for _ in 0..options.before {
            older.push((sort, maker.make(sort)?));
        }
    }
    if options.before > 0 {
        say("ready");
        if !signals::wait_for_start() {
            return Ok(());
        }
        for (sort, handle) in older {
            maker.destroy(sort, handle)?;
        }
    }
    if options.in_context {
        in_context(driver, common.device, options)?;
    }
    rounds(&mut maker, options)?;
    fail(&maker, options)?;
    signals::sleep_ms(options.rest_ms);
    maker.end()?;
    if options.fork {
        return fork(common, options);
    }
    if options.exec {
        let program = std::env::current_exe().context("cannot find this program")?;
        let count = (options.count / 2).to_string();
        let leak = options.leak.to_string();
        let error =
            Command::new(program).args(["objects", "--count", &count, "--leak", &leak]).exec();
        bail!("cannot become another program: {error}");
    }
    Ok(())
}

/// A child makes half as many, with a driver of its own.
fn fork(common: &Common, options: &Objects) -> anyhow::Result<()> {
    // SAFETY: this program has made no thread, and the child goes on as an ordinary process.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        bail!("cannot fork: {}", std::io::Error::last_os_error());
    }
    if pid == 0 {
        let device = Device::open(Driver::load()?, common.device)?;
        let own = Objects { fork: false, count: options.count / 2, ..options.clone() };
        return run(device, common, &own);
    }
    let mut status = 0;
    // SAFETY: waits for the child made above, into a variable of this frame.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0 {
        if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            bail!("cannot wait for the child");
        }
    }
    if status != 0 {
        bail!("the child failed");
    }
    Ok(())
}
