//! The CUDA driver, loaded at run time: the `libcuda.so.1` that the dynamic linker finds, simulated
//! or real.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt;

use anyhow::{Context as _, anyhow, bail};

use crate::structs::{
    AccessDesc, AllocNode, AllocationProp, Array3dDescriptor, ArrayDescriptor, Copy2d, Copy3d,
    CopyAttributes, ExternalBuffer, ExternalMemory, IpcHandle, LaunchConfig, LaunchParams,
    MulticastProp, PoolProps, VolumeCopy,
};

/// Name of the driver library.
const LIBRARY: &CStr = c"libcuda.so.1";

/// An address in the address space of the devices.
pub(crate) type Pointer = u64;
/// An opaque handle of the driver.
pub(crate) type Handle = u64;

/// A failed driver call.
#[derive(Debug)]
pub(crate) struct CudaError {
    function: &'static str,
    /// The `CUresult`.
    pub(crate) code: c_int,
    name: String,
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: c_int = 2;
/// `CUDA_ERROR_INVALID_VALUE`.
pub(crate) const INVALID_VALUE: c_int = 1;
/// `CUDA_ERROR_NOT_FOUND`; also returned for functions that this driver lacks.
pub(crate) const NOT_FOUND: c_int = 500;
/// `CUDA_ERROR_NOT_INITIALIZED`.
pub(crate) const NOT_INITIALIZED: c_int = 3;

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed with {} ({})", self.function, self.name, self.code)
    }
}

impl std::error::Error for CudaError {}

/// The result of a driver call.
pub(crate) type Result<T> = std::result::Result<T, CudaError>;

macro_rules! functions {
    ($($name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        /// The functions of the driver; missing ones are `None`.
        #[expect(non_snake_case, reason = "the names are the driver's")]
        struct Functions {
            $($name: Option<unsafe extern "C" fn($($ty),*) -> c_int>,)*
        }

        impl Functions {
            /// Finds the functions in a loaded library.
            fn find(library: *mut c_void) -> anyhow::Result<Self> {
                Ok(Self {
                    $($name: {
                        let name = CString::new(stringify!($name))?;
                        // SAFETY: the library is never unloaded, and the name is zero-terminated.
                        let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
                        // SAFETY: a null pointer becomes `None`; any other is the driver's function
                        // with that name, whose prototype is declared in this list as in `cuda.h`.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                Option<unsafe extern "C" fn($($ty),*) -> c_int>,
                            >(symbol)
                        }
                    },)*
                })
            }
        }

        impl Driver {
            /// Returns whether this driver has a function of the list.
            pub(crate) fn has(&self, name: &str) -> bool {
                $(if name == stringify!($name) {
                    return self.functions.$name.is_some();
                })*
                false
            }

            $(
                /// # Safety
                /// Pointers must be valid for what the driver does with them.
                #[expect(non_snake_case, reason = "the name is the driver's")]
                #[allow(clippy::too_many_arguments, reason = "the prototype is the driver's")]
                pub(crate) unsafe fn $name(&self, $($arg: $ty),*) -> Result<()> {
                    let Some(function) = self.functions.$name else {
                        return Err(self.missing(stringify!($name)));
                    };
                    // SAFETY: the caller keeps the promise above.
                    let code = unsafe { function($($arg),*) };
                    self.check(stringify!($name), code)
                }
            )*
        }
    };
}

functions! {
    cuInit(flags: c_uint);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int);
    cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int);
    cuDevicePrimaryCtxRelease_v2(device: c_int);
    cuDevicePrimaryCtxReset_v2(device: c_int);
    cuCtxCreate_v2(context: *mut Handle, flags: c_uint, device: c_int);
    cuCtxDestroy_v2(context: Handle);
    cuCtxSetCurrent(context: Handle);
    cuCtxPushCurrent_v2(context: Handle);
    cuCtxPopCurrent_v2(context: *mut Handle);
    cuCtxSynchronize();
    cuMemAlloc_v2(pointer: *mut Pointer, bytes: usize);
    cuMemAllocPitch_v2(pointer: *mut Pointer, pitch: *mut usize, width: usize, height: usize,
        element: c_uint);
    cuMemAllocManaged(pointer: *mut Pointer, bytes: usize, flags: c_uint);
    cuMemAllocHost_v2(pointer: *mut *mut c_void, bytes: usize);
    cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: c_uint);
    cuMemHostUnregister(pointer: *mut c_void);
    cuMemFreeHost(pointer: *mut c_void);
    cuMemFree_v2(pointer: Pointer);
    cuMemAllocAsync(pointer: *mut Pointer, bytes: usize, stream: Handle);
    cuMemAllocAsync_ptsz(pointer: *mut Pointer, bytes: usize, stream: Handle);
    cuMemAllocFromPoolAsync(pointer: *mut Pointer, bytes: usize, pool: Handle, stream: Handle);
    cuMemFreeAsync(pointer: Pointer, stream: Handle);
    cuMemFreeAsync_ptsz(pointer: Pointer, stream: Handle);
    cuMemPoolCreate(pool: *mut Handle, props: *const PoolProps);
    cuMemPoolDestroy(pool: Handle);
    cuMemPoolTrimTo(pool: Handle, keep: usize);
    cuMemPoolSetAttribute(pool: Handle, attribute: c_int, value: *mut c_void);
    cuDeviceGetDefaultMemPool(pool: *mut Handle, device: c_int);
    cuMemCreate(handle: *mut Handle, bytes: usize, prop: *const AllocationProp, flags: u64);
    cuMemRelease(handle: Handle);
    cuMemRetainAllocationHandle(handle: *mut Handle, address: u64);
    cuMemAddressReserve(pointer: *mut Pointer, bytes: usize, alignment: usize, hint: Pointer,
        flags: u64);
    cuMemAddressFree(pointer: Pointer, bytes: usize);
    cuMemMap(pointer: Pointer, bytes: usize, offset: usize, handle: Handle, flags: u64);
    cuMemUnmap(pointer: Pointer, bytes: usize);
    cuMemSetAccess(pointer: Pointer, bytes: usize, access: *const AccessDesc, count: usize);
    cuMemExportToShareableHandle(shareable: *mut c_void, handle: Handle, sort: c_int, flags: u64);
    cuMemImportFromShareableHandle(handle: *mut Handle, shareable: *mut c_void, sort: c_int);
    cuMulticastCreate(handle: *mut Handle, prop: *const MulticastProp);
    cuMulticastAddDevice(handle: Handle, device: c_int);
    cuMulticastBindMem(handle: Handle, offset: usize, memory: Handle, memory_offset: usize,
        bytes: usize, flags: u64);
    cuArrayCreate_v2(array: *mut Handle, descriptor: *const ArrayDescriptor);
    cuArray3DCreate_v2(array: *mut Handle, descriptor: *const Array3dDescriptor);
    cuArrayDestroy(array: Handle);
    cuMipmappedArrayCreate(array: *mut Handle, descriptor: *const Array3dDescriptor,
        levels: c_uint);
    cuMipmappedArrayGetLevel(array: *mut Handle, mipmapped: Handle, level: c_uint);
    cuMipmappedArrayDestroy(array: Handle);
    cuIpcGetMemHandle(handle: *mut IpcHandle, pointer: Pointer);
    cuIpcOpenMemHandle_v2(pointer: *mut Pointer, handle: IpcHandle, flags: c_uint);
    cuIpcCloseMemHandle(pointer: Pointer);
    cuImportExternalMemory(memory: *mut Handle, descriptor: *const ExternalMemory);
    cuExternalMemoryGetMappedBuffer(pointer: *mut Pointer, memory: Handle,
        descriptor: *const ExternalBuffer);
    cuDestroyExternalMemory(memory: Handle);
    cuStreamCreate(stream: *mut Handle, flags: c_uint);
    cuStreamCreateWithPriority(stream: *mut Handle, flags: c_uint, priority: c_int);
    cuGreenCtxStreamCreate(stream: *mut Handle, green: Handle, flags: c_uint, priority: c_int);
    cuStreamDestroy_v2(stream: Handle);
    cuEventCreate(event: *mut Handle, flags: c_uint);
    cuEventDestroy_v2(event: Handle);
    cuIpcGetEventHandle(handle: *mut IpcHandle, event: Handle);
    cuIpcOpenEventHandle(event: *mut Handle, handle: IpcHandle);
    cuTexObjectCreate(texture: *mut Handle, resource: *const c_void, description: *const c_void,
        view: *const c_void);
    cuTexObjectDestroy(texture: Handle);
    cuSurfObjectCreate(surface: *mut Handle, resource: *const c_void);
    cuSurfObjectDestroy(surface: Handle);
    cuLinkCreate_v2(count: c_uint, options: *const c_void, values: *const c_void,
        linker: *mut Handle);
    cuLinkDestroy(linker: Handle);
    cuStreamSynchronize(stream: Handle);
    cuStreamBeginCapture_v2(stream: Handle, mode: c_int);
    cuStreamEndCapture(stream: Handle, graph: *mut Handle);
    cuGraphCreate(graph: *mut Handle, flags: c_uint);
    cuGraphClone(clone: *mut Handle, graph: Handle);
    cuGraphAddMemAllocNode(node: *mut Handle, graph: Handle, dependencies: *const Handle,
        count: usize, params: *mut AllocNode);
    cuGraphAddMemFreeNode(node: *mut Handle, graph: Handle, dependencies: *const Handle,
        count: usize, pointer: Pointer);
    cuGraphInstantiateWithFlags(exec: *mut Handle, graph: Handle, flags: u64);
    cuGraphLaunch(exec: Handle, stream: Handle);
    cuGraphExecDestroy(exec: Handle);
    cuGraphDestroy(graph: Handle);
    cuDeviceGraphMemTrim(device: c_int);
    cuModuleLoadData(module: *mut Handle, image: *const c_void);
    cuModuleLoadDataEx(module: *mut Handle, image: *const c_void, count: c_uint,
        options: *const c_void, values: *const c_void);
    cuModuleUnload(module: Handle);
    cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char);
    cuLibraryLoadData(library: *mut Handle, code: *const c_void, jit: *const c_void,
        jit_values: *const c_void, jit_count: c_uint, options: *const c_void,
        values: *const c_void, count: c_uint);
    cuLibraryUnload(library: Handle);
    cuLibraryGetKernel(kernel: *mut Handle, library: Handle, name: *const c_char);
    cuKernelGetFunction(function: *mut Handle, kernel: Handle);
    cuLaunchKernel(function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Handle,
        params: *mut *mut c_void, extra: *mut *mut c_void);
    cuLaunchKernel_ptsz(function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Handle,
        params: *mut *mut c_void, extra: *mut *mut c_void);
    cuLaunchCooperativeKernel(function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Handle,
        params: *mut *mut c_void);
    cuLaunchCooperativeKernel_ptsz(function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Handle,
        params: *mut *mut c_void);
    cuLaunchKernelEx(config: *const LaunchConfig, function: Handle, params: *mut *mut c_void,
        extra: *mut *mut c_void);
    cuLaunchKernelEx_ptsz(config: *const LaunchConfig, function: Handle, params: *mut *mut c_void,
        extra: *mut *mut c_void);
    cuLaunch(function: Handle);
    cuLaunchGrid(function: Handle, width: c_int, height: c_int);
    cuLaunchGridAsync(function: Handle, width: c_int, height: c_int, stream: Handle);
    cuLaunchCooperativeKernelMultiDevice(list: *const LaunchParams, count: c_uint, flags: c_uint);
    cuMemcpyHtoD_v2(to: Pointer, from: *const c_void, bytes: usize);
    cuMemcpyHtoD_v2_ptds(to: Pointer, from: *const c_void, bytes: usize);
    cuMemcpyHtoDAsync_v2(to: Pointer, from: *const c_void, bytes: usize, stream: Handle);
    cuMemcpyHtoDAsync_v2_ptsz(to: Pointer, from: *const c_void, bytes: usize, stream: Handle);
    cuMemcpyDtoH_v2(to: *mut c_void, from: Pointer, bytes: usize);
    cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: Pointer, bytes: usize);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: Pointer, bytes: usize, stream: Handle);
    cuMemcpyDtoHAsync_v2_ptsz(to: *mut c_void, from: Pointer, bytes: usize, stream: Handle);
    cuMemcpyDtoD_v2(to: Pointer, from: Pointer, bytes: usize);
    cuMemcpyDtoD_v2_ptds(to: Pointer, from: Pointer, bytes: usize);
    cuMemcpyDtoDAsync_v2(to: Pointer, from: Pointer, bytes: usize, stream: Handle);
    cuMemcpyDtoDAsync_v2_ptsz(to: Pointer, from: Pointer, bytes: usize, stream: Handle);
    cuMemcpy(to: Pointer, from: Pointer, bytes: usize);
    cuMemcpy_ptds(to: Pointer, from: Pointer, bytes: usize);
    cuMemcpyAsync(to: Pointer, from: Pointer, bytes: usize, stream: Handle);
    cuMemcpyAsync_ptsz(to: Pointer, from: Pointer, bytes: usize, stream: Handle);
    cuMemcpyPeer(to: Pointer, to_context: Handle, from: Pointer, from_context: Handle,
        bytes: usize);
    cuMemcpyPeerAsync(to: Pointer, to_context: Handle, from: Pointer, from_context: Handle,
        bytes: usize, stream: Handle);
    cuMemcpy2D_v2(copy: *const Copy2d);
    cuMemcpy2DUnaligned_v2(copy: *const Copy2d);
    cuMemcpy2DAsync_v2(copy: *const Copy2d, stream: Handle);
    cuMemcpy3D_v2(copy: *const Copy3d);
    cuMemcpy3DAsync_v2(copy: *const Copy3d, stream: Handle);
    cuMemcpy3DPeer(copy: *const Copy3d);
    cuMemcpy3DPeerAsync(copy: *const Copy3d, stream: Handle);
    cuMemcpyDtoA_v2(to: Handle, offset: usize, from: Pointer, bytes: usize);
    cuMemcpyAtoD_v2(to: Pointer, from: Handle, offset: usize, bytes: usize);
    cuMemcpyHtoA_v2(to: Handle, offset: usize, from: *const c_void, bytes: usize);
    cuMemcpyHtoAAsync_v2(to: Handle, offset: usize, from: *const c_void, bytes: usize,
        stream: Handle);
    cuMemcpyAtoH_v2(to: *mut c_void, from: Handle, offset: usize, bytes: usize);
    cuMemcpyAtoHAsync_v2(to: *mut c_void, from: Handle, offset: usize, bytes: usize,
        stream: Handle);
    cuMemcpyAtoA_v2(to: Handle, to_offset: usize, from: Handle, from_offset: usize,
        bytes: usize);
    cuMemcpyBatchAsync(to: *mut Pointer, from: *mut Pointer, sizes: *mut usize, count: usize,
        attributes: *mut CopyAttributes, indices: *mut usize, attribute_count: usize,
        failed: *mut usize, stream: Handle);
    cuMemcpyBatchAsync_v2(to: *mut Pointer, from: *mut Pointer, sizes: *mut usize,
        count: usize, attributes: *mut CopyAttributes, indices: *mut usize,
        attribute_count: usize, stream: Handle);
    cuMemcpy3DBatchAsync(count: usize, list: *const VolumeCopy, failed: *mut usize, flags: u64,
        stream: Handle);
    cuMemcpy3DBatchAsync_v2(count: usize, list: *const VolumeCopy, flags: u64, stream: Handle);
    cuMemcpyWithAttributesAsync(to: Pointer, from: Pointer, bytes: usize,
        attributes: *mut CopyAttributes, stream: Handle);
    cuMemsetD8_v2(to: Pointer, value: u8, count: usize);
    cuMemsetD8Async(to: Pointer, value: u8, count: usize, stream: Handle);
    cuMemsetD2D8_v2(to: Pointer, pitch: usize, value: u8, width: usize, height: usize);
    cuMemsetD2D8Async(to: Pointer, pitch: usize, value: u8, width: usize,
        height: usize, stream: Handle);
    cuMemsetD16_v2(to: Pointer, value: u16, count: usize);
    cuMemsetD16Async(to: Pointer, value: u16, count: usize, stream: Handle);
    cuMemsetD2D16_v2(to: Pointer, pitch: usize, value: u16, width: usize, height: usize);
    cuMemsetD2D16Async(to: Pointer, pitch: usize, value: u16, width: usize,
        height: usize, stream: Handle);
    cuMemsetD32_v2(to: Pointer, value: u32, count: usize);
    cuMemsetD32Async(to: Pointer, value: u32, count: usize, stream: Handle);
    cuMemsetD2D32_v2(to: Pointer, pitch: usize, value: u32, width: usize, height: usize);
    cuMemsetD2D32Async(to: Pointer, pitch: usize, value: u32, width: usize,
        height: usize, stream: Handle);
    cuDeviceGetDevResource(device: c_int, resource: *mut c_void, sort: c_int);
    cuDevResourceGenerateDesc(descriptor: *mut Handle, resources: *mut c_void, count: c_uint);
    cuGreenCtxCreate(green: *mut Handle, descriptor: Handle, device: c_int, flags: c_uint);
    cuGreenCtxDestroy(green: Handle);
    cuCtxFromGreenCtx(context: *mut Handle, green: Handle);
}

/// The loaded driver.
pub(crate) struct Driver {
    functions: Functions,
    error_name: Option<unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int>,
}

impl Driver {
    /// Loads the driver; it is never unloaded.
    pub(crate) fn load() -> anyhow::Result<&'static Self> {
        // SAFETY: loading runs the library's constructors, as it does in every CUDA program.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            bail!(
                "cannot load {}: {} (set LD_LIBRARY_PATH to the directory of a driver)",
                LIBRARY.to_string_lossy(),
                linker_error()
            );
        }
        // SAFETY: as in `Functions::find`.
        let error_name = unsafe {
            std::mem::transmute::<
                *mut c_void,
                Option<unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int>,
            >(libc::dlsym(library, c"cuGetErrorName".as_ptr()))
        };
        let functions = Functions::find(library)?;
        if functions.cuInit.is_none() {
            bail!("{} is not a CUDA driver: it has no cuInit", LIBRARY.to_string_lossy());
        }
        Ok(Box::leak(Box::new(Self { functions, error_name })))
    }

    fn check(&self, function: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        Err(CudaError { function, code, name: self.name_of(code) })
    }

    fn missing(&self, function: &'static str) -> CudaError {
        let name = "this driver does not have it".to_owned();
        CudaError { function, code: NOT_FOUND, name }
    }

    fn name_of(&self, code: c_int) -> String {
        let mut name: *const c_char = std::ptr::null();
        if let Some(function) = self.error_name {
            // SAFETY: the pointer is valid for writing.
            unsafe { function(code, &raw mut name) };
        }
        if name.is_null() {
            return "an unknown error".to_owned();
        }
        // SAFETY: the driver returned a string that lives as long as it is loaded.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }

    /// Initializes the driver.
    pub(crate) fn init(&self) -> Result<()> {
        // SAFETY: takes no pointers.
        unsafe { self.cuInit(0) }
    }

    /// Returns the number of devices.
    pub(crate) fn devices(&self) -> Result<c_int> {
        let mut count = 0;
        // SAFETY: the pointer is valid for writing.
        unsafe { self.cuDeviceGetCount(&raw mut count) }?;
        Ok(count)
    }

    /// Returns the name of a device.
    pub(crate) fn name(&self, device: c_int) -> Result<String> {
        let mut name = [0_u8; 128];
        // SAFETY: there is room for as many bytes as the call may write.
        unsafe { self.cuDeviceGetName(name.as_mut_ptr().cast(), 128, device) }?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Ok(String::from_utf8_lossy(name.get(..end).unwrap_or_default()).into_owned())
    }

    /// Retains the primary context of a device and returns its handle.
    pub(crate) fn retain(&self, device: c_int) -> Result<Handle> {
        let mut context = 0;
        // SAFETY: the pointer is valid for writing.
        unsafe { self.cuDevicePrimaryCtxRetain(&raw mut context, device) }?;
        Ok(context)
    }

    /// Makes a context current on the calling thread.
    pub(crate) fn set_current(&self, context: Handle) -> Result<()> {
        // SAFETY: takes no pointers to memory of this program.
        unsafe { self.cuCtxSetCurrent(context) }
    }

    /// Allocates device memory.
    pub(crate) fn alloc(&self, bytes: usize) -> Result<Pointer> {
        let mut pointer = 0;
        // SAFETY: the pointer is valid for writing.
        unsafe { self.cuMemAlloc_v2(&raw mut pointer, bytes) }?;
        Ok(pointer)
    }

    /// Frees device memory.
    pub(crate) fn free(&self, pointer: Pointer) -> Result<()> {
        // SAFETY: device memory is not memory of this program.
        unsafe { self.cuMemFree_v2(pointer) }
    }

    /// Waits for the device.
    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: takes no pointers.
        unsafe { self.cuCtxSynchronize() }
    }
}

fn linker_error() -> String {
    // SAFETY: returns null or a string that lives until the next call of the linker here.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown reason".to_owned();
    }
    // SAFETY: not null, so it is such a string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A device in use.
#[derive(Clone, Copy)]
pub(crate) struct Device {
    /// The driver.
    pub(crate) driver: &'static Driver,
    /// The device's primary context.
    pub(crate) context: Handle,
}

impl Device {
    /// Initializes the driver and makes a device current on the calling thread.
    pub(crate) fn open(driver: &'static Driver, ordinal: c_int) -> anyhow::Result<Self> {
        driver.init().context("the driver does not start")?;
        let count = driver.devices()?;
        if ordinal < 0 || ordinal >= count {
            return Err(anyhow!("there is no device {ordinal}: the driver has {count}"));
        }
        let context = driver.retain(ordinal)?;
        let device = Self { driver, context };
        device.enter()?;
        Ok(device)
    }

    /// Makes the device current on the calling thread.
    pub(crate) fn enter(self) -> Result<()> {
        self.driver.set_current(self.context)
    }

    /// Allocates device memory.
    pub(crate) fn alloc(self, bytes: usize) -> Result<Pointer> {
        self.driver.alloc(bytes)
    }

    /// Frees device memory.
    pub(crate) fn free(self, pointer: Pointer) -> Result<()> {
        self.driver.free(pointer)
    }
}
