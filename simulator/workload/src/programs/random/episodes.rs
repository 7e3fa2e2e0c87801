//! Episodes of a random program: sequences of calls that belong together.

use std::ffi::{c_int, c_void};

use super::Worker;
use super::objects::{Object, shareable};
use crate::cli::ApiArea;
use crate::cuda::{Driver, Handle, Pointer, Result};
use crate::structs::{AllocNode, ExternalBuffer, ExternalMemory, MulticastProp, PoolProps};

impl Worker {
    /// Runs a random episode.
    pub(super) fn episode(&mut self) {
        let area = match self.random.u32(..12) {
            0..3 => ApiArea::Context,
            3..6 => ApiArea::Graph,
            6..8 => ApiArea::Capture,
            8..10 => ApiArea::Share,
            10 => ApiArea::Multicast,
            _ => ApiArea::Green,
        };
        if !self.may_use(area) {
            return;
        }
        let result = match area {
            ApiArea::Context => self.context(),
            ApiArea::Graph => self.graph(),
            ApiArea::Capture => self.capture(),
            ApiArea::Share => self.share(),
            ApiArea::Multicast => self.multicast(),
            _ => self.green(),
        };
        self.count_result(result);
        // After any error the thread continues in its device's context.
        let device = self.device;
        let result = self.enter(device);
        self.count_result(result);
    }

    /// Destroys a context with memory in it; some is freed before.
    fn context(&mut self) -> Result<()> {
        let driver = self.driver;
        let mut context = 0;
        // SAFETY: the pointer is valid for writing.
        unsafe { driver.cuCtxCreate_v2(&raw mut context, 0, self.ordinal()) }?;
        for _ in 0..self.random.u32(1..6) {
            let (bytes, keep) = (self.size(), self.random.bool());
            let pointer = driver.alloc(bytes);
            if let Some(pointer) = self.count_result(pointer)
                && !keep
            {
                let freed = driver.free(pointer);
                self.count_result(freed);
            }
        }
        if self.random.bool() {
            let mut pinned: *mut c_void = std::ptr::null_mut();
            // SAFETY: the pointer is valid for writing.
            let pinned = unsafe { driver.cuMemHostAlloc(&raw mut pinned, 8192, 0) };
            self.count_result(pinned);
        }
        // SAFETY: the context was created above, and nothing of it is used again.
        unsafe { driver.cuCtxDestroy_v2(context) }
    }

    /// Launches a graph once or twice that allocates, and may free.
    fn graph(&mut self) -> Result<()> {
        let (driver, device) = (self.driver, self.ordinal());
        let mut graph = 0;
        // SAFETY: the pointer is valid for writing.
        unsafe { driver.cuGraphCreate(&raw mut graph, 0) }?;
        let mut unfreed = Vec::new();
        for _ in 0..self.random.u32(1..4) {
            let (bytes, frees) = (self.size(), self.random.bool());
            let (node, pointer) = alloc_node(driver, graph, device, bytes)?;
            if frees {
                let mut free = 0;
                // SAFETY: the pointers are valid for writing, and for reading one handle.
                unsafe {
                    driver.cuGraphAddMemFreeNode(&raw mut free, graph, &raw const node, 1, pointer)
                }?;
            } else {
                unfreed.push(pointer);
            }
        }
        let twice = self.random.bool();
        self.launch(graph, &unfreed, twice)
    }

    /// Launches a graph and destroys it. Memory that it left allocated is freed, or kept for later.
    fn launch(&mut self, graph: Handle, unfreed: &[Pointer], twice: bool) -> Result<()> {
        let driver = self.driver;
        let mut exec = 0;
        // SAFETY: the pointer is valid for writing.
        unsafe { driver.cuGraphInstantiateWithFlags(&raw mut exec, graph, 0) }?;
        for again in [false, true] {
            if again && !twice {
                break;
            }
            // SAFETY: takes handles created by this thread.
            let launched = unsafe { driver.cuGraphLaunch(exec, self.stream) };
            if self.count_result(launched).is_none() {
                break;
            }
            // SAFETY: as above.
            unsafe { driver.cuStreamSynchronize(self.stream) }?;
            let last = again || !twice;
            for pointer in unfreed {
                if last && self.random.bool() {
                    self.objects.push(Object::Device(*pointer));
                } else {
                    let freed = driver.free(*pointer);
                    self.count_result(freed);
                }
            }
        }
        // SAFETY: as above; memory that is still allocated stays allocated.
        unsafe { driver.cuGraphExecDestroy(exec) }?;
        // SAFETY: as above.
        unsafe { driver.cuGraphDestroy(graph) }
    }

    /// Makes stream-ordered calls during a capture: the graph allocates, not the calls.
    fn capture(&mut self) -> Result<()> {
        let driver = self.driver;
        let (bytes, frees) = (self.size(), self.random.bool());
        // SAFETY: takes a handle created by this thread; 2 does not restrict other threads.
        unsafe { driver.cuStreamBeginCapture_v2(self.stream, 2) }?;
        let mut pointer = 0;
        // SAFETY: the pointer is valid for writing.
        let mut result = unsafe { driver.cuMemAllocAsync(&raw mut pointer, bytes, self.stream) };
        if result.is_ok() && frees {
            // SAFETY: takes the pointer that the call above returned.
            result = unsafe { driver.cuMemFreeAsync(pointer, self.stream) };
        }
        let mut graph = 0;
        // SAFETY: the pointer is valid for writing.
        unsafe { driver.cuStreamEndCapture(self.stream, &raw mut graph) }?;
        result?;
        let unfreed = if frees { vec![] } else { vec![pointer] };
        self.launch(graph, &unfreed, false)
    }

    /// Exports physical memory and imports it again.
    fn share(&mut self) -> Result<()> {
        let driver = self.driver;
        let handle = shareable(self, self.ordinal())?;
        let mut descriptor: c_int = -1;
        let out = (&raw mut descriptor).cast::<c_void>();
        // SAFETY: for handle type 1 the driver writes a file descriptor, for which there is room.
        unsafe { driver.cuMemExportToShareableHandle(out, handle, 1, 0) }?;
        let mut imported = 0;
        let number = usize::try_from(descriptor).unwrap_or(0) as *mut c_void;
        // SAFETY: the pointer is valid for writing; the file descriptor is passed as a pointer.
        let result = unsafe { driver.cuMemImportFromShareableHandle(&raw mut imported, number, 1) };
        // SAFETY: the descriptor was created above and belongs to this program.
        unsafe { libc::close(descriptor) };
        self.objects.push(Object::Physical(handle));
        result?;
        self.objects.push(Object::Physical(imported));
        Ok(())
    }

    /// Creates a multicast object and binds memory to it.
    fn multicast(&mut self) -> Result<()> {
        let (driver, device) = (self.driver, self.ordinal());
        let prop = MulticastProp { devices: 1, bytes: 2 << 20, handle_types: 0, flags: 0 };
        let mut group = 0;
        // SAFETY: the pointers are valid for writing and for reading.
        unsafe { driver.cuMulticastCreate(&raw mut group, &raw const prop) }?;
        self.objects.push(Object::Physical(group));
        // SAFETY: takes no pointers.
        unsafe { driver.cuMulticastAddDevice(group, device) }?;
        let memory = shareable(self, device)?;
        self.objects.push(Object::Physical(memory));
        // SAFETY: takes no pointers.
        unsafe { driver.cuMulticastBindMem(group, 0, memory, 0, 2 << 20, 0) }
    }

    /// Uses a green context; memory allocated in it belongs to the primary one and outlives it.
    fn green(&mut self) -> Result<()> {
        let (driver, device) = (self.driver, self.ordinal());
        let mut resource = [0_u64; 64];
        let resource = resource.as_mut_ptr().cast::<c_void>();
        // SAFETY: there is more room than the driver's structure needs.
        unsafe { driver.cuDeviceGetDevResource(device, resource, 1) }?;
        let mut descriptor = 0;
        // SAFETY: the pointers are valid for writing and for reading one structure.
        unsafe { driver.cuDevResourceGenerateDesc(&raw mut descriptor, resource, 1) }?;
        let (mut green, mut context) = (0, 0);
        // SAFETY: the pointer is valid for writing.
        unsafe { driver.cuGreenCtxCreate(&raw mut green, descriptor, device, 1) }?;
        // SAFETY: the pointer is valid for writing.
        unsafe { driver.cuCtxFromGreenCtx(&raw mut context, green) }?;
        driver.set_current(context)?;
        let bytes = self.size();
        let pointer = driver.alloc(bytes);
        if let Some(pointer) = self.count_result(pointer) {
            self.objects.push(Object::Device(pointer));
        }
        let device = self.device;
        self.enter(device)?;
        // SAFETY: the context was created above and is not current on any thread.
        unsafe { driver.cuGreenCtxDestroy(green) }
    }
}

fn alloc_node(
    driver: &Driver,
    graph: Handle,
    device: c_int,
    bytes: usize,
) -> Result<(Handle, Pointer)> {
    let mut params = AllocNode { pool: PoolProps::device(device), bytes, ..AllocNode::default() };
    let mut node = 0;
    let none = std::ptr::null();
    // SAFETY: the pointers are valid for writing, and there are no dependencies to read.
    unsafe { driver.cuGraphAddMemAllocNode(&raw mut node, graph, none, 0, &raw mut params) }?;
    Ok((node, params.pointer))
}

/// Imports a file as memory of another API, and maps a buffer of it.
pub(super) fn external(worker: &mut Worker, bytes: usize) -> Result<Object> {
    let driver = worker.driver;
    // SAFETY: the name is zero-terminated.
    let descriptor = unsafe { libc::memfd_create(c"external".as_ptr(), libc::MFD_CLOEXEC) };
    let size = bytes as u64;
    let handle = [u64::from(u32::try_from(descriptor).unwrap_or(0)), 0];
    let memory =
        ExternalMemory { handle_type: 1, handle, bytes: size, ..ExternalMemory::default() };
    let mut external = 0;
    // SAFETY: the pointers are valid for writing and for reading; the driver owns the descriptor
    // from now on.
    unsafe { driver.cuImportExternalMemory(&raw mut external, &raw const memory) }?;
    let buffer = ExternalBuffer { offset: 0, bytes: size, ..ExternalBuffer::default() };
    let mut pointer = 0;
    // SAFETY: the pointers are valid for writing and for reading.
    let mapped = unsafe {
        driver.cuExternalMemoryGetMappedBuffer(&raw mut pointer, external, &raw const buffer)
    };
    if worker.count_result(mapped).is_some() {
        worker.objects.push(Object::Device(pointer));
    }
    Ok(Object::External(external))
}
