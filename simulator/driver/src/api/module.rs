//! Modules, libraries and their kernels.
//!
//! Nothing is compiled: a module contains every kernel that is requested, and no other. As in real
//! drivers, the handle of a kernel is the address of an object in the memory of this process, and
//! that object contains a pointer to the kernel's name.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, c_char, c_uint, c_void};

use crate::abi::{Code, Handle, InString, OutParam, Outcome};
use crate::api::objects::ObjectKind;
use crate::entry::exports;
use crate::oracle::activity::KernelLaunches;
use crate::state::handle::Slab;
use crate::state::{self, DriverState};

exports! {
    call cuModuleLoad(module: OutParam<Handle>, path: InString) = load_file;
    call cuModuleLoadData(module: OutParam<Handle>, image: *const c_void) = load;
    call cuModuleLoadDataEx(module: OutParam<Handle>, image: *const c_void, count: c_uint,
        options: *const c_void, values: *const c_void) = load_with_options;
    call cuModuleLoadFatBinary(module: OutParam<Handle>, image: *const c_void) = load;
    call cuModuleUnload(module: Handle) = unload_module;
    call cuModuleGetFunction(function: OutParam<Handle>, module: Handle, name: InString) = get_function;
    call cuModuleGetFunctionCount(count: OutParam<u32>, module: Handle) = function_count;
    call cuModuleEnumerateFunctions(functions: OutParam<Handle>, count: c_uint, module: Handle) =
        enumerate_functions;
    call cuLibraryLoadData(library: OutParam<Handle>, code: *const c_void, jit: *const c_void,
        jit_values: *const c_void, jit_count: c_uint, options: *const c_void,
        values: *const c_void, count: c_uint) = load_library;
    call cuLibraryLoadFromFile(library: OutParam<Handle>, path: InString, jit: *const c_void,
        jit_values: *const c_void, jit_count: c_uint, options: *const c_void,
        values: *const c_void, count: c_uint) = load_library_file;
    call cuLibraryUnload(library: Handle) = unload_library;
    call cuLibraryGetKernel(kernel: OutParam<Handle>, library: Handle, name: InString) = get_kernel;
    call cuLibraryGetKernelCount(count: OutParam<u32>, library: Handle) = kernel_count;
    call cuLibraryEnumerateKernels(kernels: OutParam<Handle>, count: c_uint, library: Handle) =
        enumerate_kernels;
    call cuKernelGetFunction(function: OutParam<Handle>, kernel: Handle) = kernel_function;
    call cuFuncGetName(name: OutParam<*const c_char>, function: Handle) = name_of;
    call cuKernelGetName(name: OutParam<*const c_char>, kernel: Handle) = name_of;
    call cuFuncGetModule(module: OutParam<Handle>, function: Handle) = module_of;
    call cuKernelGetLibrary(library: OutParam<Handle>, kernel: Handle) = library_of;
}

/// The two kinds of kernel handles, and of their containers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum HandleType {
    /// A `CUmodule` with its `CUfunction`s.
    Function,
    /// A `CUlibrary` with its `CUkernel`s.
    Kernel,
}

impl HandleType {
    /// Returns its name in the oracle.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Kernel => "kernel",
        }
    }
}

/// The object that a handle points to. A tracer may read it like the object of a real driver.
#[repr(C)]
struct KernelObject {
    references: u64,
    /// Pointer to the zero-terminated name, at byte 8 as in driver 580.
    name: *const c_char,
    serial: u64,
    module: Handle,
    rest: [u64; 12],
}

const _: () = assert!(std::mem::offset_of!(KernelObject, name) == 8);

/// A kernel, by one of its handles.
struct Kernel {
    handle_type: HandleType,
    module: u32,
    /// Owns the name that the object points to.
    name: CString,
    _object: Box<KernelObject>,
    launches: KernelLaunches,
    /// The function of a library's kernel.
    function: Option<Handle>,
}

/// A module, or a library.
struct Module {
    handle_type: HandleType,
    /// Context of a module; a library has none.
    context: Option<u32>,
    kernels: BTreeMap<CString, Handle>,
}

/// All modules and kernels, with their launches.
pub(crate) struct Modules {
    modules: Slab<Module>,
    kernels: HashMap<Handle, Kernel>,
    /// Launches of kernels whose modules were unloaded.
    ended: BTreeMap<(CString, Handle, HandleType), KernelLaunches>,
    next_serial: u64,
}

impl Default for Modules {
    fn default() -> Self {
        Self {
            modules: Slab::new(12),
            kernels: HashMap::new(),
            ended: BTreeMap::new(),
            next_serial: 1,
        }
    }
}

impl Modules {
    /// Returns the launches of each kernel, by name and handle.
    pub(crate) fn launches(&self) -> BTreeMap<(CString, Handle, HandleType), KernelLaunches> {
        let mut all = self.ended.clone();
        for (handle, kernel) in self.kernels.iter().filter(|(_, k)| !k.launches.is_empty()) {
            let key = (kernel.name.clone(), *handle, kernel.handle_type);
            all.entry(key).or_default().merge(kernel.launches.clone());
        }
        all
    }

    /// Returns the launches of the kernel with a handle of either type.
    pub(crate) fn kernel_launches(&mut self, handle: Handle) -> Option<&mut KernelLaunches> {
        self.kernels.get_mut(&handle).map(|kernel| &mut kernel.launches)
    }

    fn kernel(&self, handle: Handle) -> Result<&Kernel, Code> {
        self.kernels.get(&handle).ok_or(Code::InvalidHandle)
    }

    fn module(&self, handle: Handle, handle_type: HandleType) -> Result<(u32, &Module), Code> {
        let key = self.modules.find(handle).ok_or(Code::InvalidHandle)?;
        let module = self.modules.get(key.index).filter(|module| module.handle_type == handle_type);
        module.map(|module| (key.index, module)).ok_or(Code::InvalidHandle)
    }

    fn open(&mut self, handle_type: HandleType, context: Option<u32>) -> Handle {
        let module = Module { handle_type, context, kernels: BTreeMap::new() };
        let key = self.modules.insert(module);
        self.modules.handle(key.index)
    }

    fn add_kernel(&mut self, handle_type: HandleType, module: u32, name: CString) -> Handle {
        let object = Box::new(KernelObject {
            references: 1,
            name: name.as_ptr(),
            serial: self.next_serial,
            module: self.modules.handle(module),
            rest: [0; 12],
        });
        self.next_serial += 1;
        let handle = &raw const *object as Handle;
        let launches = KernelLaunches::default();
        let kernel =
            Kernel { handle_type, module, name, _object: object, launches, function: None };
        self.kernels.insert(handle, kernel);
        handle
    }

    fn close(&mut self, index: u32) {
        self.modules.remove(index);
        let ended: Vec<Handle> = {
            let of_module = self.kernels.iter().filter(|(_, kernel)| kernel.module == index);
            of_module.map(|(handle, _)| *handle).collect()
        };
        for handle in ended {
            let Some(kernel) = self.kernels.remove(&handle) else { continue };
            if !kernel.launches.is_empty() {
                let key = (kernel.name, handle, kernel.handle_type);
                let ended = self.ended.entry(key).or_default();
                ended.merge(kernel.launches);
            }
        }
    }

    /// Unloads the modules of a context and returns their number.
    pub(crate) fn end_context(&mut self, context: u32) -> usize {
        let of_context = self.modules.iter().filter(|(_, m)| m.context == Some(context));
        let ended: Vec<u32> = of_context.map(|(index, _)| index).collect();
        for index in &ended {
            self.close(*index);
        }
        ended.len()
    }

    /// Returns the kernel with a name, which is created if needed.
    fn find(
        &mut self,
        module: Handle,
        handle_type: HandleType,
        name: &str,
    ) -> Result<Handle, Code> {
        let name = CString::new(name).map_err(|_| Code::InvalidValue)?;
        let (index, known) = self.module(module, handle_type)?;
        if name.is_empty() {
            return Err(Code::NotFound);
        }
        if let Some(handle) = known.kernels.get(&name) {
            return Ok(*handle);
        }
        let handle = self.add_kernel(handle_type, index, name.clone());
        if let Some(module) = self.modules.get_mut(index) {
            module.kernels.insert(name, handle);
        }
        Ok(handle)
    }
}

fn open_module(state: &mut DriverState, module: OutParam<Handle>) -> Outcome {
    let context = state.current()?.index;
    state.cannot_be_captured()?;
    state.objects.created(ObjectKind::Module);
    module.set(state.modules.open(HandleType::Function, Some(context)))
}

fn load(module: OutParam<Handle>, image: *const c_void) -> Outcome {
    module.check()?;
    let mut state = state::running()?;
    if image.is_null() {
        return Err(Code::InvalidValue);
    }
    open_module(&mut state, module)
}

fn check_file(path: &InString) -> Outcome {
    if std::path::Path::new(path.get()?).exists() { Ok(()) } else { Err(Code::FileNotFound) }
}

fn load_file(module: OutParam<Handle>, path: InString) -> Outcome {
    module.check()?;
    let mut state = state::running()?;
    state.current()?;
    check_file(&path)?;
    open_module(&mut state, module)
}

fn load_with_options(
    module: OutParam<Handle>,
    image: *const c_void,
    _count: c_uint,
    _options: *const c_void,
    _values: *const c_void,
) -> Outcome {
    load(module, image)
}

#[expect(clippy::too_many_arguments, reason = "the prototype is the driver's")]
fn load_library(
    library: OutParam<Handle>,
    code: *const c_void,
    _jit: *const c_void,
    _jit_values: *const c_void,
    _jit_count: c_uint,
    _options: *const c_void,
    _values: *const c_void,
    _count: c_uint,
) -> Outcome {
    library.check()?;
    let mut state = state::running()?;
    if code.is_null() {
        return Err(Code::InvalidValue);
    }
    state.objects.created(ObjectKind::Library);
    library.set(state.modules.open(HandleType::Kernel, None))
}

#[expect(clippy::too_many_arguments, reason = "the prototype is the driver's")]
fn load_library_file(
    library: OutParam<Handle>,
    path: InString,
    _jit: *const c_void,
    _jit_values: *const c_void,
    _jit_count: c_uint,
    _options: *const c_void,
    _values: *const c_void,
    _count: c_uint,
) -> Outcome {
    library.check()?;
    let mut state = state::running()?;
    check_file(&path)?;
    state.objects.created(ObjectKind::Library);
    library.set(state.modules.open(HandleType::Kernel, None))
}

fn unload(module: Handle, handle_type: HandleType) -> Outcome {
    let mut state = state::running()?;
    let (index, _) = state.modules.module(module, handle_type)?;
    state.modules.close(index);
    state.objects.destroyed(match handle_type {
        HandleType::Function => ObjectKind::Module,
        HandleType::Kernel => ObjectKind::Library,
    });
    Ok(())
}

fn unload_module(module: Handle) -> Outcome {
    unload(module, HandleType::Function)
}

fn unload_library(library: Handle) -> Outcome {
    unload(library, HandleType::Kernel)
}

fn get_function(function: OutParam<Handle>, module: Handle, name: InString) -> Outcome {
    function.check()?;
    function.set(state::running()?.modules.find(module, HandleType::Function, name.get()?)?)
}

fn get_kernel(kernel: OutParam<Handle>, library: Handle, name: InString) -> Outcome {
    kernel.check()?;
    kernel.set(state::running()?.modules.find(library, HandleType::Kernel, name.get()?)?)
}

fn count(count: OutParam<u32>, module: Handle, handle_type: HandleType) -> Outcome {
    let state = state::running()?;
    let (_, module) = state.modules.module(module, handle_type)?;
    count.set(u32::try_from(module.kernels.len()).unwrap_or(u32::MAX))
}

fn function_count(number: OutParam<u32>, module: Handle) -> Outcome {
    count(number, module, HandleType::Function)
}

fn kernel_count(number: OutParam<u32>, library: Handle) -> Outcome {
    count(number, library, HandleType::Kernel)
}

fn enumerate(
    handles: OutParam<Handle>,
    count: c_uint,
    module: Handle,
    handle_type: HandleType,
) -> Outcome {
    let state = state::running()?;
    let (_, module) = state.modules.module(module, handle_type)?;
    let known: Vec<Handle> = module.kernels.values().copied().take(count as usize).collect();
    handles.fill(&known)
}

fn enumerate_functions(functions: OutParam<Handle>, count: c_uint, module: Handle) -> Outcome {
    enumerate(functions, count, module, HandleType::Function)
}

fn enumerate_kernels(kernels: OutParam<Handle>, count: c_uint, library: Handle) -> Outcome {
    enumerate(kernels, count, library, HandleType::Kernel)
}

/// Returns the function of a kernel: another object with the same name.
fn kernel_function(function: OutParam<Handle>, kernel: Handle) -> Outcome {
    function.check()?;
    let mut state = state::running()?;
    state.current()?;
    let known = state.modules.kernel(kernel)?;
    if known.handle_type != HandleType::Kernel {
        return Err(Code::InvalidHandle);
    }
    if let Some(handle) = known.function {
        return function.set(handle);
    }
    let (module, name) = (known.module, known.name.clone());
    let handle = state.modules.add_kernel(HandleType::Function, module, name);
    if let Some(known) = state.modules.kernels.get_mut(&kernel) {
        known.function = Some(handle);
    }
    function.set(handle)
}

/// Both handle types have a name.
fn name_of(name: OutParam<*const c_char>, function: Handle) -> Outcome {
    // The text stays in place until the module is unloaded.
    name.set(state::running()?.modules.kernel(function)?.name.as_ptr())
}

fn module_of(module: OutParam<Handle>, function: Handle) -> Outcome {
    let state = state::running()?;
    let index = state.modules.kernel(function)?.module;
    module.set(state.modules.modules.handle(index))
}

fn library_of(library: OutParam<Handle>, kernel: Handle) -> Outcome {
    let state = state::running()?;
    let known = state.modules.kernel(kernel)?;
    if known.handle_type != HandleType::Kernel {
        return Err(Code::InvalidHandle);
    }
    library.set(state.modules.modules.handle(known.module))
}
