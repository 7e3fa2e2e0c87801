//! CUDA objects: created, destroyed, and leaked.

use std::ffi::c_uint;
use std::hint::black_box;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::null;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::cli::{CommonArgs, ObjectKind, Objects};
use crate::cuda::{Device, Driver, Handle, Result};
use crate::structs::{Array3dDescriptor, FLOAT, IpcHandle, PoolProps};
use crate::{print_line, signals};

/// PTX of an empty kernel, for modules and libraries.
const SOURCE: &std::ffi::CStr =
    c".version 3.0\n.target sm_30\n.address_size 64\n.visible .entry nothing() { ret; }\n";

/// `CUDA_RESOURCE_DESC` of an array: its type (0), the handle, and room for the rest.
type ResourceDesc = [u64; 18];

/// Creates objects, with everything that they need.
struct ObjectFactory {
    driver: &'static Driver,
    ordinal: i32,
    /// An array for textures and surfaces, a graph for graphs, a stream for captures.
    array: Handle,
    graph: Handle,
    stream: Handle,
    /// Number of created objects of each kind, to alternate between creation functions.
    created: [u64; 12],
}

impl ObjectFactory {
    fn new(driver: &'static Driver, ordinal: i32) -> Result<Self> {
        let mut factory = Self { driver, ordinal, array: 0, graph: 0, stream: 0, created: [0; 12] };
        // Surfaces require a flag (2).
        let (width, height, depth, format) = (16, 16, 0, FLOAT);
        let (channels, flags, padding) = (1, 2, 0);
        let descriptor =
            Array3dDescriptor { width, height, depth, format, channels, flags, padding };
        // SAFETY: the pointers are valid for reading and writing.
        unsafe {
            driver.cuArray3DCreate_v2(&raw mut factory.array, &raw const descriptor)?;
            driver.cuGraphCreate(&raw mut factory.graph, 0)?;
            driver.cuStreamCreate(&raw mut factory.stream, 1)?;
        }
        Ok(factory)
    }

    /// Destroys the members.
    fn end(self) -> Result<()> {
        // SAFETY: nothing uses them anymore.
        unsafe {
            self.driver.cuArrayDestroy(self.array)?;
            self.driver.cuGraphDestroy(self.graph)?;
            self.driver.cuStreamDestroy_v2(self.stream)
        }
    }

    /// Creates an object.
    fn create(&mut self, kind: ObjectKind) -> Result<Handle> {
        let number = self.created.get_mut(kind as usize).map_or(0, |number| {
            *number += 1;
            *number
        });
        let (driver, even) = (self.driver, number.is_multiple_of(2));
        let mut handle = 0;
        let out = &raw mut handle;
        let (code, none) = (SOURCE.as_ptr().cast(), null());
        let mut resource: ResourceDesc = [0; 18];
        resource[1] = self.array;
        let resource = resource.as_ptr().cast();
        // SAFETY: the pointers are valid for writing and reading; texts are zero-terminated.
        unsafe {
            match kind {
                ObjectKind::Stream if even => driver.cuStreamCreateWithPriority(out, 1, 0),
                ObjectKind::Stream => driver.cuStreamCreate(out, 1),
                ObjectKind::Event if number.is_multiple_of(8) => self.shared_event(out),
                ObjectKind::Event => driver.cuEventCreate(out, 2),
                ObjectKind::Graph if number.is_multiple_of(3) => self.captured(out),
                ObjectKind::Graph if even => driver.cuGraphClone(out, self.graph),
                ObjectKind::Graph => driver.cuGraphCreate(out, 0),
                ObjectKind::GraphExec => driver.cuGraphInstantiateWithFlags(out, self.graph, 0),
                ObjectKind::Module if even => driver.cuModuleLoadDataEx(out, code, 0, none, none),
                ObjectKind::Module => driver.cuModuleLoadData(out, code),
                ObjectKind::Library => {
                    driver.cuLibraryLoadData(out, code, none, none, 0, none, none, 0)
                }
                ObjectKind::Context => self.context(out),
                ObjectKind::GreenContext => self.green(out),
                ObjectKind::Texture => {
                    let description = [0_u64; 16];
                    driver.cuTexObjectCreate(out, resource, description.as_ptr().cast(), none)
                }
                ObjectKind::Surface => driver.cuSurfObjectCreate(out, resource),
                ObjectKind::Pool => {
                    let props = PoolProps::device(self.ordinal);
                    driver.cuMemPoolCreate(out, &raw const props)
                }
                ObjectKind::Linker => driver.cuLinkCreate_v2(0, none, none, out),
            }
        }?;
        Ok(handle)
    }

    /// Opens an event through its IPC handle. Real drivers reject that in the same process.
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
        // SAFETY: the stream exists, and no work is added to it.
        unsafe {
            self.driver.cuStreamBeginCapture_v2(self.stream, 2)?;
            self.driver.cuStreamEndCapture(self.stream, out)
        }
    }

    /// Creates a context that is not current on any thread.
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
        let (mut stream, kind) = (0, 1);
        let resource_pointer = resource.as_mut_ptr().cast();
        // SAFETY: there is room for a resource, and the pointers are valid for writing.
        unsafe {
            self.driver.cuDeviceGetDevResource(self.ordinal, resource_pointer, kind)?;
            self.driver.cuDevResourceGenerateDesc(&raw mut descriptor, resource_pointer, 1)?;
            self.driver.cuGreenCtxCreate(out, descriptor, self.ordinal, 1)?;
            self.driver.cuGreenCtxStreamCreate(&raw mut stream, *out, 1, 0)?;
            self.driver.cuStreamDestroy_v2(stream)
        }
    }

    fn destroy(&self, kind: ObjectKind, handle: Handle) -> Result<()> {
        let driver = self.driver;
        // SAFETY: nothing uses it anymore.
        unsafe {
            match kind {
                ObjectKind::Stream => driver.cuStreamDestroy_v2(handle),
                ObjectKind::Event => driver.cuEventDestroy_v2(handle),
                ObjectKind::Graph => driver.cuGraphDestroy(handle),
                ObjectKind::GraphExec => driver.cuGraphExecDestroy(handle),
                ObjectKind::Module => driver.cuModuleUnload(handle),
                ObjectKind::Library => driver.cuLibraryUnload(handle),
                ObjectKind::Context => driver.cuCtxDestroy_v2(handle),
                ObjectKind::GreenContext => driver.cuGreenCtxDestroy(handle),
                ObjectKind::Texture => driver.cuTexObjectDestroy(handle),
                ObjectKind::Surface => driver.cuSurfObjectDestroy(handle),
                ObjectKind::Pool => driver.cuMemPoolDestroy(handle),
                ObjectKind::Linker => driver.cuLinkDestroy(handle),
            }
        }
    }
}

/// Allocation site of objects that are destroyed.
#[inline(never)]
fn make_passing(factory: &mut ObjectFactory, kind: ObjectKind) -> Result<Handle> {
    let handle = factory.create(kind)?;
    Ok(black_box(handle))
}

/// Allocation site of objects that are leaked.
#[inline(never)]
fn make_forgotten(factory: &mut ObjectFactory, kind: ObjectKind) -> Result<Handle> {
    let handle = factory.create(kind)?;
    Ok(black_box(handle.rotate_left(1)))
}

/// Creates objects of each kind, and leaks a part of them.
fn rounds(factory: &mut ObjectFactory, options: &Objects) -> Result<()> {
    let kinds = options.kinds();
    for round in 0..options.count {
        let leaked = |number: u64| (number as f64 * options.leak) as u64;
        for kind in &kinds {
            if leaked(round + 1) > leaked(round) {
                make_forgotten(factory, *kind)?;
            } else {
                let handle = make_passing(factory, *kind)?;
                factory.destroy(*kind, handle)?;
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

/// Creates objects in a context that is destroyed with them.
fn in_context(driver: &'static Driver, ordinal: i32, options: &Objects) -> Result<()> {
    let mut context = 0;
    // SAFETY: the pointer is valid for writing.
    unsafe { driver.cuCtxCreate_v2(&raw mut context, 0 as c_uint, ordinal) }?;
    let mut factory = ObjectFactory::new(driver, ordinal)?;
    rounds(&mut factory, options)?;
    factory.end()?;
    // SAFETY: nothing uses it anymore.
    unsafe { driver.cuCtxDestroy_v2(context) }
}

/// Makes destroy calls that the driver must reject.
fn fail(factory: &ObjectFactory, options: &Objects) -> anyhow::Result<()> {
    for kind in options.kinds() {
        for _ in 0..options.failing {
            if factory.destroy(kind, 0x5).is_ok() {
                bail!("the driver destroyed an invalid handle");
            }
        }
    }
    Ok(())
}

/// Runs the program.
pub(crate) fn run(device: Device, common: &CommonArgs, options: &Objects) -> anyhow::Result<()> {
    let driver = device.driver;
    let mut factory = ObjectFactory::new(driver, common.device)?;
    let mut older = Vec::new();
    for kind in options.kinds() {
        for _ in 0..options.before {
            older.push((kind, factory.create(kind)?));
        }
    }
    if options.before > 0 {
        print_line("ready");
        if !signals::wait_for_start() {
            return Ok(());
        }
        for (kind, handle) in older {
            factory.destroy(kind, handle)?;
        }
    }
    if options.in_context {
        in_context(driver, common.device, options)?;
    }
    rounds(&mut factory, options)?;
    fail(&factory, options)?;
    signals::sleep_ms(options.rest_ms);
    factory.end()?;
    if options.fork {
        return fork(common, options);
    }
    if options.exec {
        let program = std::env::current_exe().context("cannot find this program")?;
        let count = (options.count / 2).to_string();
        let leak = options.leak.to_string();
        let error =
            Command::new(program).args(["objects", "--count", &count, "--leak", &leak]).exec();
        bail!("cannot exec: {error}");
    }
    Ok(())
}

/// Forks a child that creates half as many, with its own driver.
fn fork(common: &CommonArgs, options: &Objects) -> anyhow::Result<()> {
    // SAFETY: this program has no other thread, and the child continues as an ordinary process.
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
    // SAFETY: waits for the child created above, into a variable of this frame.
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
